"""Local servers: one process per model file, started when it is first needed, ended with this process whatever ends it.

The engine would freeze this process while it loads a model (it holds the interpreter's lock) and while it stops; a crash in it would take
the agent along. In a process of its own it does neither. It is told what to do on its standard input, and exits when that closes, which
also happens when this process is killed.
"""

from __future__ import annotations

import atexit
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from laneway.errors import ModelError

START_SECONDS = 180.0
STOP_SECONDS = 3.0
DEFAULT_CONTEXT = 8192
MAX_THREADS = 8
"""More threads than this wait for each other more than they help."""
SLOTS = 2
"""How many requests are served at once; more wait their turn."""


class LocalServer(Struct, kw_only=True, frozen=True):
    """A server that runs. `context` is in tokens; `calls_tools` says whether the model's own chat template knows tools."""

    url: str
    key: str
    context: int
    parameters: int
    calls_tools: bool
    pid: int

    def __repr__(self) -> str:
        return f"LocalServer({self.url!r}, pid={self.pid})"


class _Running:
    """A server's process and what it said of itself."""

    def __init__(self, process: subprocess.Popen[bytes], server: LocalServer) -> None:
        self.process, self.server, self.owner = process, server, os.getpid()

    def stop(self) -> None:
        if self.owner != os.getpid():  # a fork of the process that started it
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_running: dict[Path, _Running] = {}
_locks: dict[Path, threading.Lock] = {}
_lock = threading.Lock()


def ensure_server(file: Path) -> LocalServer:
    """Return the server of a model file, starting it if it does not run (any more). Blocks while it loads; safe from any thread.

    Raises:
        ModelError: it does not start; the text says what the engine said.
    """
    with _lock:
        lock = _locks.setdefault(file, threading.Lock())
    with lock:
        running = _running.get(file)
        if running is not None and running.process.poll() is None:
            return running.server
        if running is not None:
            running.stop()  # it ended by itself: collect what is left of it
        running = _start(file)
        with _lock:
            _running[file] = running
        return running.server


def stop_servers() -> None:
    """Stop every local server of this process. The next request starts its server again."""
    with _lock:
        stopping = list(_running.values())
        _running.clear()
    for running in stopping:
        running.stop()


atexit.register(stop_servers)


def _start(file: Path) -> _Running:
    key = secrets.token_urlsafe(24)
    told: dict[str, Any] = {
        "path": str(file),
        "name": file.stem,
        "key": key,
        "context": _number("LANEWAY_LOCAL_CONTEXT", DEFAULT_CONTEXT),
        "slots": SLOTS,
    }
    told["threads"] = _number("LANEWAY_LOCAL_THREADS", min(os.cpu_count() or 1, MAX_THREADS))
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("_serve.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        ready: dict[str, Any] | None = None
        try:
            process.stdin.write(msgspec.json.encode(told) + b"\n")
            process.stdin.flush()
            ready = _first_line(process.stdout, process)
        except BrokenPipeError:
            pass
        finally:
            process.stdout.close()
            if ready is None:
                process.kill()
                process.wait()
                process.stdin.close()
        if ready is None:
            raise ModelError(f"the local model {file.name} did not start: {_last_words(said)}; is {file} a complete GGUF model?")
    server = LocalServer(key=key, pid=process.pid, **ready)
    return _Running(process, server)


def _first_line(stream: IO[bytes], process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """Wait for the line with which the server says that it is ready; None if it ends before, or takes too long."""
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
        line = stream.readline()
        return msgspec.json.decode(line, type=dict[str, Any]) if line.strip() else None
    finally:
        timer.cancel()


def _last_words(said: IO[bytes]) -> str:
    said.seek(0)
    lines = [line.strip() for line in said.read()[-8192:].decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:400] if lines else f"no answer within {START_SECONDS:.0f} s"


def _number(variable: str, otherwise: int) -> int:
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else otherwise
