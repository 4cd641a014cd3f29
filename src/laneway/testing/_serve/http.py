"""As much of HTTP/1.1 as a provider's clients need: requests in, answers (whole or in chunks) out, and who has left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias, TypeVar, cast

HEAD_BYTES = 64 * 1024
BODY_BYTES = 256 * 1024 * 1024
T = TypeVar("T")


class BadRequest(Exception):
    """What a client sent is no HTTP that is understood here; `status` is the answer to it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Gone(Exception):
    """The client has closed the connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpRequest:
    """One request; header names are lower case, `target` is path and query as they came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    keep_alive: bool


Handler: TypeAlias = "Callable[[HttpRequest, Connection], Awaitable[None]]"


class Connections:
    """The clients of a server. Once it is closed, one that was just about to be let in is turned away."""

    def __init__(self) -> None:
        self.open: set[Connection] = set()
        self.closed = False

    async def aclose(self) -> None:
        """Drop all connections."""
        self.closed = True
        for connection in list(self.open):
            await connection.aclose()


class Connection(asyncio.Protocol):
    """One client. Requests are handled one after the other, each by `handler`, which answers through the methods here.

    All of them raise `Gone` once the client has left; `race` makes a wait end then.
    """

    def __init__(self, handler: Handler, connections: Connections) -> None:
        self._handler = handler
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._keep_alive = True

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writable.set()
        if self._connections.closed:
            self._transport.abort()
            return
        self._connections.open.add(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._news.set()

    def eof_received(self) -> None:
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._connections.open.discard(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _leave(self) -> None:
        self._gone.set()
        self._news.set()
        self._writable.set()

    # -- the life of a connection

    async def aclose(self) -> None:
        """Drop the connection and whatever is being answered."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def hang_up(self) -> None:
        """Close the connection in the middle of things; what was sent still arrives."""
        self._keep_alive = False
        if self._transport is not None:
            self._transport.close()

    async def _serve(self) -> None:
        try:
            while self._keep_alive:
                try:
                    request = await self._read()
                except BadRequest as bad:
                    self._keep_alive = False
                    await self.answer(bad.status, {"content-type": "text/plain"}, str(bad).encode())
                    break
                self._keep_alive = request.keep_alive
                await self._handler(request, self)
        except Gone:
            pass
        finally:
            if self._transport is not None:
                self._transport.close()

    # -- reading

    async def _read(self) -> HttpRequest:
        head = await self._until(b"\r\n\r\n", HEAD_BYTES)
        try:
            first, *lines = head.decode("latin-1").split("\r\n")
            method, target, version = first.split(" ")
            pairs = (line.split(":", 1) for line in lines if line)
            headers = {name.strip().lower(): value.strip() for name, value in pairs}
        except ValueError:
            raise BadRequest(400, "this is no HTTP request") from None
        if headers.get("expect", "").lower() == "100-continue":
            await self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await self._body(headers)
        wish = headers.get("connection", "").lower()
        keep_alive = wish != "close" if version == "HTTP/1.1" else wish == "keep-alive"
        return HttpRequest(method=method, target=target, headers=headers, body=body, keep_alive=keep_alive)

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        try:
            if headers.get("transfer-encoding", "").lower() == "chunked":
                return await self._chunks()
            length = int(headers.get("content-length", "0"))
        except ValueError:
            raise BadRequest(400, "the length of the body is no number") from None
        if not 0 <= length <= BODY_BYTES:
            raise BadRequest(413, f"the body is larger than {BODY_BYTES >> 20} MiB")
        return await self._exactly(length)

    async def _chunks(self) -> bytes:
        body = bytearray()
        while size := int((await self._until(b"\r\n", HEAD_BYTES)).partition(b";")[0], 16):
            if size < 0 or len(body) + size > BODY_BYTES:
                raise BadRequest(413, f"the body is larger than {BODY_BYTES >> 20} MiB")
            body += (await self._exactly(size + 2))[:-2]
        while await self._until(b"\r\n", HEAD_BYTES):
            pass  # trailers
        return bytes(body)

    async def _until(self, end: bytes, limit: int) -> bytes:
        seen = 0
        while (at := self._buffer.find(end, max(0, seen - len(end)))) < 0:
            seen = len(self._buffer)
            if seen > limit:
                raise BadRequest(431, f"the head of the request is longer than {limit >> 10} KiB")
            await self._more()
        found = bytes(self._buffer[:at])
        del self._buffer[: at + len(end)]
        return found

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    async def _more(self) -> None:
        if self._gone.is_set():
            raise Gone
        self._news.clear()
        await self._news.wait()

    # -- answering

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer."""
        await self._head(status, {**headers, "content-length": str(len(body))}, body)

    async def begin(self, headers: Mapping[str, str]) -> None:
        """Begin a good answer that comes in chunks."""
        await self._head(200, {**headers, "transfer-encoding": "chunked"}, b"")

    async def send(self, data: bytes) -> None:
        """Send one chunk; nothing for no bytes, which would end the body."""
        if data:
            await self._write(b"%x\r\n%s\r\n" % (len(data), data))

    async def finish(self) -> None:
        """End an answer that came in chunks."""
        await self._write(b"0\r\n\r\n")

    async def _head(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = "Status"
        more = {} if self._keep_alive else {"connection": "close"}
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in {**headers, **more}.items())]
        await self._write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + body)

    async def _write(self, data: bytes) -> None:
        if self._gone.is_set() or self._transport is None:
            raise Gone
        self._transport.write(data)
        await self._writable.wait()

    async def race(self, wait: Awaitable[T]) -> T:
        """Wait for something and return it, but wait no longer than the client does.

        Raises:
            Gone: the client left first.
        """
        work = asyncio.ensure_future(wait)
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Gone
            return work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
