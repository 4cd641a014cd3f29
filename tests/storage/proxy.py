"""A line to a Postgres server that can be made to fail at chosen moments, on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Literal

Fault = Literal["lose_request", "lose_reply", "delay_request"]


class Proxy:
    """Passes bytes between clients and the server's Unix socket.

    `fault` strikes the next message that calls `commit_writes`, or has what `strikes` says in it, and the line dies with it:
    "lose_request" never reaches the server, "lose_reply" is carried out and its answer is lost, "delay_request" reaches the server only
    when `deliver` is set, long after the client has been cut off. While `refusing`, new connections are cut off at once. While
    `holding` is clear, replies wait.
    """

    def __init__(self, socket_path: str) -> None:
        self.fault: Fault | None = None
        self.strikes = b"commit_writes"
        self.refusing = False
        self.holding = asyncio.Event()
        self.holding.set()
        self.deliver = asyncio.Event()
        self.struck = asyncio.Event()
        self.connections = 0
        self._socket_path = socket_path
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one client."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self.refusing:
                self.connections += 1
                await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._socket_path)
        try:
            async with asyncio.TaskGroup() as group:
                back = group.create_task(self._back(server_reader, writer))
                await self._forth(reader, server_writer, writer)
                back.cancel()
        except* OSError:
            pass
        finally:
            server_writer.close()

    async def _forth(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, client: asyncio.StreamWriter) -> None:
        prepared: set[bytes] = set()
        while data := await reader.read(1 << 20):
            is_commit = self.strikes in data or (self.strikes == b"commit_writes" and any(name in data for name in prepared))
            if b"commit_writes" in data:
                prepared.update(re.findall(rb"P(?:....)(_pg3_\d+)\0SELECT commit_writes", data, re.DOTALL))
            fault = self.fault if is_commit else None
            if fault is None:
                server.write(data)
                await server.drain()
                continue
            self.fault = None
            if fault == "lose_reply":
                self._mute(client)
                server.write(data)
                await server.drain()
                await asyncio.sleep(0.2)  # the server answers into nothing
            client.close()
            self.struck.set()
            if fault == "delay_request":
                await self.deliver.wait()
                server.write(data)
                await server.drain()
                await asyncio.sleep(0.2)
            return

    def _mute(self, client: asyncio.StreamWriter) -> None:
        client.write = lambda data: None  # type: ignore[method-assign] - what the server says from here on is lost

    async def _back(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(1 << 20):
            await self.holding.wait()
            client.write(data)
            await client.drain()
        client.close()

    async def stop(self) -> None:
        """Cut everything off."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


@contextlib.asynccontextmanager
async def proxy_to(dsn: str) -> AsyncIterator[tuple[Proxy, str]]:
    """Run a proxy to the server of `dsn` (a Unix socket); yield it and the connection string that leads through it."""
    folder = dsn.rpartition("host=")[2]
    proxy = Proxy(f"{folder}/.s.PGSQL.5432")
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable"
    finally:
        server.close()
        await proxy.stop()
        await server.wait_closed()
