"""Run a command in a process group of its own, watch it from a thread, and end the whole group when it must end.

A command gets no input (`/dev/null`) and its own session, so nothing it sends to "its" group reaches this process. Every way to end
it early (time limit, abort, enough output, the interpreter's exit) is the same: SIGTERM to the group, a moment to clean up, SIGKILL to what
is left. When a command ends by itself, processes it left in the background go on; what they write is waited for only until the
pipe has been quiet for a moment.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Literal

from laneway.abort import AbortSignal

GRACE = 0.25  # seconds between SIGTERM and SIGKILL
QUIET = 0.1  # seconds without output after which nothing more is expected from an ended command
DRAIN = 1.0  # seconds after which an ended command's background processes are not listened to any more
_REAP = 2.0  # seconds that a killed process gets to go away; one stuck in the kernel is left behind
_CHUNK = 1 << 20

Reason = Literal["exit", "timeout", "abort", "enough"]


@dataclass(kw_only=True, frozen=True, slots=True)
class Ended:
    """How a command ended: exit code (128 + n for signal n, None if it could not be waited for), why, seconds it ran, and the id of its
    process group if processes that it left in the background are alive."""

    exit_code: int | None
    reason: Reason
    seconds: float
    survivors: int | None = None


class Control:
    """Ends a running command from any thread. Make one for each command; `close` when the command has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: Reason | None = None
        self.wake_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)

    @property
    def reason(self) -> Reason | None:
        """Why the command must end; None while it may go on."""
        return self._reason

    def end(self, reason: Reason = "abort") -> None:
        """Ask for the end; the first reason counts. Does nothing after `close`."""
        with self._lock:
            if self._reason is None and self._write_fd >= 0:
                self._reason = reason
                os.write(self._write_fd, b"x")

    def close(self) -> None:
        """Release the descriptors."""
        with self._lock:
            os.close(self.wake_fd)
            os.close(self._write_fd)
            self._write_fd = -1


class Command:
    """One command from its start to its end. `run` blocks; use it in a thread.

    `on_output` gets every chunk of standard output, with standard error mixed in unless `on_error` takes it. `on_pause` is called
    between chunks and returns the seconds after which it wants to be called again, None if it does not care.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str] | None,
        control: Control,
        on_output: Callable[[bytes], None],
        on_error: Callable[[bytes], None] | None = None,
        on_pause: Callable[[], float | None] = lambda: None,
        timeout: float | None = None,
        grace: float = GRACE,
    ) -> None:
        self._argv, self._cwd, self._env = argv, cwd, env
        self._control, self._on_pause, self._timeout, self._grace = control, on_pause, timeout, grace
        self._sinks: dict[int, Callable[[bytes], None]] = {}
        self._on_output, self._on_error = on_output, on_error
        self._poller = select.poll()
        self._awake = True

    def run(self) -> Ended:
        """Start the command and return when it has ended. `OSError` or `ValueError` if it cannot be started."""
        started = time.monotonic()
        process, pipes = self._start()
        try:
            with _tracked(process.pid):
                return self._watch(process, started)
        except BaseException:
            self._terminate(process)
            raise
        finally:
            for pipe in pipes:
                pipe.close()
            process.poll()

    def _start(self) -> tuple[subprocess.Popen[bytes], list[IO[bytes]]]:
        process = subprocess.Popen(
            self._argv,
            cwd=self._cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if self._on_error is None else subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        pipes: list[IO[bytes]] = []
        for pipe, sink in ((process.stdout, self._on_output), (process.stderr, self._on_error)):
            if pipe is None or sink is None:
                continue
            os.set_blocking(pipe.fileno(), False)
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)  # a bigger pipe means fewer wake-ups; Linux only
            self._sinks[pipe.fileno()] = sink
            self._poller.register(pipe, select.POLLIN)
            pipes.append(pipe)
        self._poller.register(self._control.wake_fd, select.POLLIN)
        return process, pipes

    def _watch(self, process: subprocess.Popen[bytes], started: float) -> Ended:
        with _ExitWatch(process, self._poller) as exit_watch:
            deadline = None if self._timeout is None else started + self._timeout
            while not exit_watch.ended:
                now = time.monotonic()
                if self._control.reason is None and deadline is not None and now >= deadline:
                    self._control.end("timeout")
                if self._control.reason is not None:
                    self._terminate(process)
                    return self._ended(process, started, self._control.reason)
                self._step(min(self._pause(), exit_watch.interval, float("inf") if deadline is None else deadline - now))
        seconds = time.monotonic() - started
        self._drain(deadline)
        survivors = process.pid if _alive(process.pid) else None
        return Ended(exit_code=_as_shell_code(process.returncode), reason="exit", seconds=seconds, survivors=survivors)

    def _step(self, seconds: float) -> bool:
        """Wait for something to happen, at most `seconds`, and pass on what was written; return whether anything was.

        The first time that there is a reason to end, it does not wait: the caller may have looked just before the reason came.
        """
        if self._awake and self._control.reason is not None:  # it wakes once; from then on only the pipes count
            self._awake = False
            self._poller.unregister(self._control.wake_fd)
            return False
        events = self._poller.poll(None if seconds == float("inf") else max(0, seconds) * 1000)
        heard = [self._read(fd) for fd, _ in events if fd in self._sinks]
        return any(heard)

    def _read(self, fd: int) -> bool:
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if chunk:
            self._sinks[fd](chunk)
            return True
        self._poller.unregister(fd)
        del self._sinks[fd]
        return False

    def _pause(self) -> float:
        seconds = self._on_pause()
        return float("inf") if seconds is None else seconds

    def _drain(self, deadline: float | None) -> None:
        """Collect what is still in the pipes, until they are quiet, closed, asked to stop, or listened to for long enough."""
        stop = time.monotonic() + DRAIN
        if deadline is not None:
            stop = min(stop, max(deadline, time.monotonic() + QUIET))
        quiet_at = time.monotonic() + QUIET
        while self._sinks and self._control.reason is None and (now := time.monotonic()) < min(stop, quiet_at):
            if self._step(min(stop, quiet_at, now + self._pause()) - now):
                quiet_at = time.monotonic() + QUIET

    def _terminate(self, process: subprocess.Popen[bytes]) -> None:
        """End the group: ask it to, listen for what it still says, then kill what is left."""
        give_up = time.monotonic() + self._grace
        _signal_group(process.pid, signal.SIGTERM)
        look_at = 0.0  # looking through all processes takes a moment
        while (now := time.monotonic()) < give_up:
            self._step(min(0.01, give_up - now))
            if process.poll() is not None and time.monotonic() >= look_at:
                if not _alive(process.pid):
                    break
                look_at = time.monotonic() + 0.04
        _signal_group(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP)
        give_up = time.monotonic() + DRAIN
        while self._sinks and time.monotonic() < give_up and self._step(0):
            pass

    def _ended(self, process: subprocess.Popen[bytes], started: float, reason: Reason) -> Ended:
        code = process.returncode
        return Ended(exit_code=None if code is None else _as_shell_code(code), reason=reason, seconds=time.monotonic() - started)


async def run_to_end(command: Command, control: Control, abort: AbortSignal) -> Ended:
    """Run a command in a thread of its own, so that long commands do not take the threads that other work needs.

    An abort or a cancellation ends the command; the call returns or raises (what starting it or a callback raised, or `CancelledError`)
    only when the command has ended.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Ended] = loop.create_future()

    def settle(ended: Ended | None, error: BaseException | None) -> None:
        if ended is not None:
            future.set_result(ended)
        else:
            future.set_exception(error or RuntimeError("the command has no result"))

    def work() -> None:
        ended, failed = None, None
        try:
            ended = command.run()
        except BaseException as error:
            failed = error
        control.close()
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(settle, ended, failed)

    threading.Thread(target=work, name="laneway-command", daemon=True).start()
    unsubscribe = abort.on_abort(control.end)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        control.end()
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise
    finally:
        unsubscribe()


class _ExitWatch:
    """Tells when a process has ended: at once where the system has process descriptors, otherwise by looking now and then."""

    def __init__(self, process: subprocess.Popen[bytes], poller: select.poll) -> None:
        self._process, self._poller = process, poller
        self._fd: int | None = None
        self.interval = 0.01

    def __enter__(self) -> _ExitWatch:
        with contextlib.suppress(OSError, AttributeError):
            self._fd = os.pidfd_open(self._process.pid)
            self._poller.register(self._fd, select.POLLIN)
            self.interval = float("inf")
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            self._poller.unregister(self._fd)
            os.close(self._fd)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        if self._process.poll() is not None:
            return True
        if self._fd is None:
            self.interval = min(0.05, self.interval * 1.2)
        return False


_groups: dict[int, int] = {}  # process group -> id of the process that started it (a forked child must not end its parent's)
_groups_lock = threading.Lock()


@contextlib.contextmanager
def _tracked(group: int):
    with _groups_lock:
        _groups[group] = os.getpid()
    try:
        yield
    finally:
        with _groups_lock:
            _groups.pop(group, None)


@atexit.register
def end_all_commands() -> None:
    """End every command that still runs, with all of its group. Called when the interpreter exits; call it before dying of a signal."""
    with _groups_lock:
        groups = [group for group, owner in _groups.items() if owner == os.getpid()]
    for group in groups:
        _signal_group(group, signal.SIGTERM)
    give_up = time.monotonic() + GRACE
    while time.monotonic() < give_up and any(_alive(group) for group in groups):
        time.sleep(0.01)
    for group in groups:
        _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _alive(group: int) -> bool:
    """Return whether a process of the group lives; one that only waits to be collected does not."""
    if not _group_exists(group):
        return False
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return True
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            state, _, member_of = file.read().rpartition(b")")[2].split()[:3]
            if int(member_of) == group and state not in (b"Z", b"X"):
                return True
    return False


def _as_shell_code(code: int) -> int:
    return 128 - code if code < 0 else code
