"""Runs the `laneway` command as a person's shell does: a process of its own, with pipes or a terminal of its own."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import unsendable
from laneway.llm.vendors import builtin_providers
from laneway.messages import AgentMessage, decode_message

GUARD = 60.0  # seconds; far above what anything here takes
COMMAND = (sys.executable, "-m", "laneway")


def environment(home: Path, **more: str) -> dict[str, str]:
    """An environment without anybody's keys, proxies and settings, whose home is a folder of the test."""
    keys = {name for provider in builtin_providers().values() for name in (*provider.key_names, *provider.base_url_env)}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in keys and not name.startswith(("LANEWAY", "XDG", "PYTEST")) and not name.lower().endswith("_proxy")
    }
    return {
        **kept,
        "HOME": str(home),
        "LANEWAY_HOME": str(home / "laneway"),
        "LANEWAY_CACHE_DIR": str(home / "cache"),
        "TERM": "xterm-256color",
        **more,
    }


@dataclass
class Done:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str
    peak_mb: float = 0.0

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of `--json`."""
        return [json.loads(line) for line in self.out.split("\n") if line]

    @property
    def messages(self) -> list[AgentMessage]:
        """The transcript of the whole run, from its `message_end` events, decoded strictly."""
        return [decode_message(json.dumps(event["message"])) for event in self.events if event["type"] == "message_end"]

    @property
    def sentences(self) -> list[str]:
        """What laneway itself said on stderr."""
        return [line.removeprefix("laneway: ") for line in self.err.splitlines() if line.startswith("laneway: ")]

    def check(self, code: int, *said: str) -> str:
        """Assert the exit code, that no traceback shows, and that one sentence of stderr has all of `said`; return it."""
        assert "Traceback" not in self.err, self.err
        assert "Exception ignored" not in self.err, self.err
        assert self.code == code, (self.code, self.out[-2000:], self.err[-2000:])
        if not said:
            return ""
        found = [line for line in self.sentences if all(part in line for part in said)]
        assert len(found) == 1, (said, self.err)
        return found[0]

    def check_transcript(self) -> list[AgentMessage]:
        """Assert that the run was told to its end and that the conversation could go on from there; return its messages."""
        kinds = [event["type"] for event in self.events]
        assert kinds[0] == "run"
        assert kinds[1] == "agent_start"
        assert kinds[-1] == "agent_end"
        assert unsendable(self.messages) == []
        return self.messages


def heed_signals() -> None:
    """Undo, in a child that was just forked, what it inherits from a shell's background job or from nohup: signals that are ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Running:
    """A command under way."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._out, self._err = bytearray(), bytearray()
        self._news = asyncio.Event()
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [asyncio.ensure_future(self._read(process.stdout, self._out)), asyncio.ensure_future(self._read(process.stderr, self._err))]

    async def _read(self, stream: asyncio.StreamReader, into: bytearray) -> None:
        while chunk := await stream.read(65536):
            into += chunk
            self._news.set()

    async def until(self, text: str) -> None:
        """Return when stdout or stderr has said `text`."""
        async with asyncio.timeout(GUARD):
            while text.encode() not in self._out and text.encode() not in self._err:
                assert self.process.returncode is None, (self._out, self._err)
                self._news.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.5)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def end(self, guard: float = GUARD) -> Done:
        """Wait for the end."""
        async with asyncio.timeout(guard):
            await asyncio.gather(*self._readers)
            code = await self.process.wait()
        return Done(code=code, out=self._out.decode("utf-8", "replace"), err=self._err.decode("utf-8", "replace"))


@asynccontextmanager
async def started(
    words: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None, stdin: Any = DEVNULL, command: Sequence[str] = COMMAND
) -> AsyncIterator[Running]:
    """Start a command; it is killed on the way out if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *command, *words, stdin=stdin, stdout=PIPE, stderr=PIPE, env=dict(env), cwd=cwd,
        preexec_fn=heed_signals,
    )  # fmt: skip
    running = Running(process)
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.gather(*running._readers)
        process._transport.close()  # type: ignore[attr-defined]  # pipes that nobody read to the end


async def run(
    words: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: Path | None = None,
    stdin: bytes | None = None,
    command: Sequence[str] = COMMAND,
    guard: float = GUARD,
) -> Done:
    """Run a command to its end; without `stdin` it has none."""
    async with started(words, env, cwd=cwd, stdin=DEVNULL if stdin is None else PIPE, command=command) as running:
        if stdin is not None:
            assert running.process.stdin is not None
            running.process.stdin.write(stdin)
            running.process.stdin.close()
        return await running.end(guard)


class Terminal:
    """A command in a terminal of its own: what it printed, and keys to press."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid, self._fd = pid, fd
        self.screen = ""
        self._bytes = bytearray()
        self._news = asyncio.Event()
        self._closed = False
        asyncio.get_running_loop().add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            chunk = os.read(self._fd, 65536)
        except OSError:  # the other side is gone
            chunk = b""
        if chunk:
            self._bytes += chunk
            self.screen = self._bytes.decode("utf-8", "replace").replace("\r\n", "\n")
        else:
            self._closed = True
            asyncio.get_running_loop().remove_reader(self._fd)
        self._news.set()

    async def until(self, text: str) -> None:
        """Return when `text` has been printed."""
        async with asyncio.timeout(GUARD):
            while text not in self.screen:
                assert not self._closed, self.screen
                self._news.clear()
                await self._news.wait()

    def press(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    async def end(self) -> int:
        """Wait for the end; return the exit code."""
        async with asyncio.timeout(GUARD):
            while not self._closed:
                self._news.clear()
                await self._news.wait()
        return await self.exit_code()

    async def exit_code(self) -> int:
        """Wait for the end of the process, whatever its terminal says."""
        async with asyncio.timeout(GUARD):
            while (found := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):  # noqa: ASYNC222 - it does not wait
                await asyncio.sleep(0.02)
        self.pid = 0
        return os.waitstatus_to_exitcode(found[1])

    def hang_up(self) -> None:
        """Close the terminal, as a window that is closed does."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        self.hang_up()
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


_LEAD = (
    "import os, sys, fcntl, termios\n"
    "os.chdir(os.environ['PWD']); os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


def _spawn(argv: Sequence[str], env: Mapping[str, str], columns: int) -> tuple[int, int]:
    """Start a program in a new terminal; return the terminal's other end and the process id."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    actions = [*((os.POSIX_SPAWN_DUP2, slave, fd) for fd in range(3)), (os.POSIX_SPAWN_CLOSE, master)]
    heeded = [signal.SIGINT, signal.SIGHUP]  # see heed_signals
    pid = os.posix_spawn(sys.executable, [sys.executable, "-S", "-E", "-c", _LEAD, *argv], dict(env), file_actions=actions, setsigdef=heeded)
    os.close(slave)
    return master, pid


@asynccontextmanager
async def terminal(
    words: Sequence[str], env: Mapping[str, str], *, cwd: Path, columns: int = 100, command: Sequence[str] = COMMAND
) -> AsyncIterator[Terminal]:
    """Start a command in a new terminal, as the leader of its session: Ctrl-C is a byte that is typed there."""
    master, pid = _spawn([*command, *words], {**env, "PWD": str(cwd)}, columns)
    running = Terminal(pid, master)
    try:
        yield running
    finally:
        running.close()


def without_styles(text: str) -> str:
    """Text as it reads on a screen that was written to line by line: the styles and the erased status lines taken out."""
    text = re.sub(r"\r\x1b\[K[^\n\r]*(?=\r\x1b\[K)", "", text)
    return re.sub(r"\r?\x1b\[[0-9;]*[A-Za-z]", "", text)
