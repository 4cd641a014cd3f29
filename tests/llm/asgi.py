"""Runs an ASGI app on loopback: just enough of HTTP/1.1 for tests, over real sockets.

::

    async with AsgiServer(app) as server:
        ...server.url
"""

from __future__ import annotations

import asyncio
from typing import Any


class AsgiServer:
    """Answers each request of a connection through `app`. `failures` are the exceptions that the app let out."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.failures: list[BaseException] = []
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Its URL."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> AsgiServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self.idle(cancel=True)

    async def idle(self, *, cancel: bool = False) -> None:
        """Return when no connection is open."""
        for task in list(self._tasks):
            if cancel:
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
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers = [(name.strip().lower().encode(), value.strip().encode()) for name, _, value in (line.partition(":") for line in head[1:] if line)]
        scope = {"type": "http", "method": method, "path": target.partition("?")[0], "headers": headers, "client": ("127.0.0.1", 1)}
        exchange = _Exchange(reader, writer, int(dict(headers).get(b"content-length", b"0")))
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except Exception as error:
            self.failures.append(error)
        return exchange.whole


class _Exchange:
    """One request and its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int) -> None:
        self.whole = False
        self._reader, self._writer, self._left = reader, writer, length
        self._asked = False
        self._chunked = False

    async def receive(self) -> dict[str, Any]:
        if self._left or not self._asked:
            self._asked = True
            body = await self._reader.read(min(self._left, 65536)) if self._left else b""
            self._left -= len(body)
            return {"type": "http.request", "body": body, "more_body": self._left > 0}
        while not self._reader.at_eof():
            await self._reader._wait_for_data("receive")  # type: ignore[attr-defined]  # peeking: the next request must stay there
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            self._chunked = b"content-length" not in headers
            lines = [f"HTTP/1.1 {message['status']} Answer".encode(), *(name + b": " + value for name, value in headers.items())]
            self._writer.write(b"\r\n".join([*lines, b"transfer-encoding: chunked" if self._chunked else b"x-plain: yes"]) + b"\r\n\r\n")
        else:
            body, more = message.get("body", b""), message.get("more_body", False)
            self._writer.write(b"%x\r\n%s\r\n" % (len(body), body) if self._chunked and body else b"" if self._chunked else body)
            if not more:
                self._writer.write(b"0\r\n\r\n" if self._chunked else b"")
                self.whole = True
        await self._writer.drain()
