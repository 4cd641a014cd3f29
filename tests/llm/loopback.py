"""A provider on loopback: a real socket server that speaks HTTP/1.1 and plays scripted answers, faults included.

::

    async with Loopback([sse_reply(chunk("Hel"), chunk("lo"), finish("stop"))]) as server:
        model = Model(id="m", provider="test", api="openai_chat", base_url=server.url)
        ...
        assert server.requests[0].json["model"] == "m"

An answer's `steps` are played in order: bytes are sent as one chunk; a number is a pause in seconds; an `asyncio.Event` is
waited for; `CUT` resets the connection in the middle, `CLOSE` closes it without ending the body. After the last step the body ends as HTTP says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

CUT: Literal["cut"] = "cut"
CLOSE: Literal["close"] = "close"
Step: TypeAlias = "bytes | float | asyncio.Event | Literal['cut', 'close']"


@dataclass
class Answer:
    """One HTTP answer. With `raw` nothing is added: the steps are the whole answer, status line included."""

    steps: Sequence[Step] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str | None = "text/event-stream"
    raw: bool = False


@dataclass
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Loopback:
    """Plays `answers`, one per request; the last one again when there are more requests. Use it as an async context manager."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []
        self._arrived = asyncio.Condition()
        self.connections = 0
        self.disconnected = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """Its base URL, as a provider's."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def arrived(self, count: int = 1) -> None:
        """Return when this many requests have come."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)

    async def __aenter__(self) -> Loopback:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.disconnected.set()
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(Request(method, path, headers, body))
        async with self._arrived:
            self._arrived.notify_all()
        return await self._play(answer, reader, writer)

    async def _play(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        gone = asyncio.ensure_future(self._watch(reader))
        try:
            if not answer.raw:
                writer.write(_head(answer))
                await writer.drain()
            for step in answer.steps:
                if isinstance(step, bytes):
                    writer.write(step if answer.raw else b"%x\r\n%s\r\n" % (len(step), step))
                    await writer.drain()
                elif step == CUT:
                    writer.transport.abort()
                    return False
                elif step == CLOSE:
                    return False
                elif isinstance(step, asyncio.Event):
                    await _first(step.wait(), gone)
                else:
                    await _first(asyncio.sleep(float(step)), gone)
                if gone.done():
                    return False
            if answer.raw:
                return False
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        """Return when the client leaves; it never sends two requests at once."""
        while not reader.at_eof():
            if reader._buffer:  # type: ignore[attr-defined]  # peeking: the next request must stay there
                await asyncio.sleep(0.01)
                continue
            await reader._wait_for_data("watch")  # type: ignore[attr-defined]
        self.disconnected.set()


async def _first(awaitable: Any, gone: asyncio.Future[None]) -> None:
    task = asyncio.ensure_future(awaitable)
    await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _head(answer: Answer) -> bytes:
    headers = dict(answer.headers)
    if answer.content_type is not None:
        headers.setdefault("content-type", answer.content_type)
    headers.setdefault("transfer-encoding", "chunked")
    lines = [f"HTTP/1.1 {answer.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


# ---------------------------------------------------------------------------------------------------- answers


def sse(*events: Any, name: str | None = None) -> bytes:
    """Server-sent events: objects become JSON, strings and bytes are data as they are."""
    out = b""
    for event in events:
        data = event if isinstance(event, bytes) else event.encode() if isinstance(event, str) else json.dumps(event).encode()
        out += (f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n"
    return out


def sse_reply(*events: Any, headers: dict[str, str] | None = None) -> Answer:
    """An answer with one chunk per event; numbers, events and CUT / CLOSE are steps of their own."""
    return Answer(steps=[_step(event) for event in events], headers=headers or {})


def _step(event: Any) -> Step:
    return event if isinstance(event, (int, float, asyncio.Event)) or event in (CUT, CLOSE) else sse(event)


def error_reply(status: int, body: Any = "", *, headers: dict[str, str] | None = None, content_type: str = "application/json") -> Answer:
    """An answer that is no success."""
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return Answer(steps=[data] if data else [], status=status, headers=headers or {}, content_type=content_type)
