"""The bash tool: one shell command, watched until its end, with everything it prints."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import signal as signals
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from laneway.abort import AbortSignal
from laneway.errors import ToolError
from laneway.tools._arguments import as_object, required
from laneway.tools._output import Output, Shown
from laneway.tools._paths import Workspace, describe
from laneway.tools._process import GRACE, Command, Control, Ended, end_all_commands, run_to_end
from laneway.tools._truncate import MAX_BYTES, MAX_LINES, format_size, printable, with_notices
from laneway.tools._work import in_thread
from laneway.tools.base import AgentTool, ToolHost, ToolResult, UpdateFn, current_host, text_result

__all__ = ["bash_tool", "end_all_commands"]

_log = logging.getLogger(__name__)

Environment = Mapping[str, str | None] | Callable[[], Mapping[str, str | None]]

SESSION_VARIABLES = ("LANEWAY_SESSION_ID", "LANEWAY_SESSION_FILE", "LANEWAY_PROVIDER", "LANEWAY_MODEL", "LANEWAY_REASONING_LEVEL")
_ALIASES = {"cmd": "command", "script": "command", "timeout_seconds": "timeout"}
_MAX_TIMEOUT = 2_147_483  # seconds; more does not fit a poll
_MAX_COMMAND = 128 * 1024  # bytes that Linux takes as one argument
_NOT_STARTED = "The command was aborted before it started"
_UPDATE_EVERY = 0.1
_CHECKPOINT_EVERY = 2.0
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "Shell command to run"},
        "timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": _MAX_TIMEOUT, "description": "Seconds after which to end it (default: none)"},
    },
    "required": ["command"],
}


def bash_tool(
    cwd: str | os.PathLike[str] = ".",
    *,
    shell: str | Sequence[str] | None = None,
    env: Environment | None = None,
    prefix: str | None = None,
    timeout: float | None = None,
    max_lines: int = MAX_LINES,
    max_bytes: int = MAX_BYTES,
    spill_dir: str | None = None,
    kill_grace: float = GRACE,
) -> AgentTool:
    """Return the tool that runs shell commands: `bash(command, timeout=None)`.

    The command runs in `cwd` with no input, in a process group and session of its own. Output and errors come back together, the last
    `max_lines` lines or `max_bytes` bytes; if that is not all of it, everything is in a file that only the user can read, named in a
    notice. Terminal codes and control characters are left out. Partial results are reported at most ten times a second, and made durable
    every two seconds in the durable harness.

    A non-zero exit code is an error result with the output. A time limit (`timeout` is the default for calls without one) or an abort ends
    the whole group: SIGTERM, `kill_grace` seconds, SIGKILL. Processes that a command leaves in the background when it ends by itself go on
    without being listened to. Needs a POSIX system.

    `shell` is the path of a shell or the words before the command, such as `("docker", "exec", "box", "bash", "-c")`. `env` adds variables
    (None removes one), or is called for each command to get them; the session variables `LANEWAY_SESSION_ID`, … are never inherited.
    `prefix` is a line to run before each command. `details`, also on errors, has `exit_code`, `reason` (`exit`, `timeout`, `abort`),
    `duration_ms`, `truncation`, `full_output_path` and `background_group`.
    """
    workspace = Workspace(cwd)

    async def execute(tool_call_id: str, args: Any, signal: AbortSignal, update: UpdateFn) -> ToolResult:
        arguments = _prepare(args)
        command, limit = required(arguments, "command"), _time_limit(arguments.get("timeout"), timeout)
        text = printable(f"{prefix}\n{command}" if prefix else command)
        if "\0" in text or len(text.encode()) >= _MAX_COMMAND:
            why = "has a NUL character" if "\0" in text else f"is longer than {format_size(_MAX_COMMAND)}"
            raise ToolError(f"The command {why}, so no shell can take it: write it to a file with the write tool and run that")
        argv = [*_shell(shell), text]
        await in_thread(lambda _: workspace.check_cwd(), signal, aborted=_NOT_STARTED)
        output = Output(max_lines=max_lines, max_bytes=max_bytes, spill_dir=spill_dir)
        try:
            ended = await _run(argv, workspace.cwd, _environment(env), limit, kill_grace, output, _Call(signal, update))
        except BaseException:
            output.discard()
            raise
        return _result(ended, output.finish(), limit)

    return AgentTool(
        name="bash",
        label="Bash",
        description=(
            f"Run a shell command in the working directory. Returns output and errors together, the last {max_lines} lines or "
            f"{format_size(max_bytes)} (the rest is saved to a file). No input can be given. Redirect the output of background processes to a file."
        ),
        parameters=_PARAMETERS,
        execute=execute,
        prepare_arguments=_prepare,
        replay="never",
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """What the engine gave to the call that runs the command."""

    signal: AbortSignal
    update: UpdateFn


class _Progress:
    """Passes on what a running command has printed so far: made in the command's thread, delivered on the event loop."""

    def __init__(self, output: Output, control: Control) -> None:
        self._output, self._control = output, control
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._latest: Shown | None = None
        self._stopped = False
        self._reported = 0.0
        self._changed = False

    def on_output(self, chunk: bytes) -> None:
        """Take a chunk; in the command's thread."""
        self._output.feed(chunk)
        self._changed = True

    def on_pause(self) -> float | None:
        """Publish what is new, at most every tenth of a second; in the command's thread."""
        if not self._changed:
            return None
        wait = self._reported + _UPDATE_EVERY - time.monotonic()
        if wait > 0:
            return wait
        self._changed = False
        self._reported = time.monotonic()
        shown = self._output.shown()
        try:
            self._loop.call_soon_threadsafe(self._publish, shown)
        except RuntimeError:  # the loop was closed: nobody waits for this command any more
            self._control.end()
        return None

    async def deliver(self, update: UpdateFn, host: ToolHost | None) -> None:
        """Report partial results until `stop`; only the newest, if delivery is slow."""
        durable_at = time.monotonic()
        while True:
            await self._news.wait()
            self._news.clear()
            if self._stopped:
                return
            shown, self._latest = self._latest, None
            if shown is None:
                continue
            partial = text_result(shown.truncation.content, details=_output_details(shown))
            if host is not None and time.monotonic() - durable_at >= _CHECKPOINT_EVERY:
                await host.update(partial, True)
                durable_at = time.monotonic()
            else:
                update(partial)

    def stop(self) -> None:
        """Report nothing more."""
        self._stopped = True
        self._news.set()

    def _publish(self, shown: Shown) -> None:
        self._latest = shown
        self._news.set()


async def _run(argv: list[str], cwd: str, env: dict[str, str], timeout: float | None, grace: float, output: Output, call: _Call) -> Ended:
    """Run one command to its end with partial results; `ToolError` if it cannot be started."""
    control = Control()
    progress = _Progress(output, control)
    command = Command(argv, cwd=cwd, env=env, control=control, on_output=progress.on_output, on_pause=progress.on_pause, timeout=timeout, grace=grace)
    reports = asyncio.ensure_future(progress.deliver(call.update, current_host()))
    try:
        return await run_to_end(command, control, call.signal)
    except (OSError, ValueError) as error:
        raise ToolError(f"The shell {argv[0]} could not be started: {describe(error) if isinstance(error, OSError) else error}") from error
    finally:
        progress.stop()
        await _quietly(reports)


async def _quietly(reports: asyncio.Future[None]) -> None:
    """Wait for the reports to stop; one that failed is the listener's trouble and must not cost the command's result."""
    while not reports.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([reports])
    if not reports.cancelled() and (error := reports.exception()) is not None:
        _log.warning("a partial result of the bash tool could not be delivered", exc_info=error)


def _prepare(arguments: Any) -> Any:
    return as_object(arguments, _ALIASES)


def _time_limit(given: Any, default: float | None) -> float | None:
    """Return the seconds that a command may take; `ToolError` for anything that is no sensible limit."""
    if given is None or given == "":
        return default
    try:
        seconds = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds <= _MAX_TIMEOUT:
        raise ToolError(f"timeout must be a number of seconds above 0 and up to {_MAX_TIMEOUT}, not {given!r}: nothing was run")
    return seconds


def _shell(setting: str | Sequence[str] | None) -> list[str]:
    """Return the words before the command."""
    if setting is not None and not isinstance(setting, str):
        return list(setting)
    if setting is not None:
        return [setting, "-c"]
    if os.path.exists("/bin/bash"):
        return ["/bin/bash", "-c"]
    return [shutil.which("bash") or "/bin/sh", "-c"]


def _environment(extra: Environment | None) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in SESSION_VARIABLES}
    for name, value in (extra() if callable(extra) else extra or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def _result(ended: Ended, shown: Shown, timeout: float | None) -> ToolResult:
    """Return the result of a command that succeeded; `ToolError` with the same text and details for any other."""
    notices = _notices(shown)
    if ended.survivors is not None:
        notices.append(f"Processes of this command go on in the background (group {ended.survivors}); kill -- -{ended.survivors} ends them")
    text = with_notices(shown.truncation.content, notices)
    details = {
        "exit_code": ended.exit_code,
        "reason": ended.reason,
        "duration_ms": round(ended.seconds * 1000),
        **_output_details(shown),
        "background_group": ended.survivors,
    }
    status = _status(ended, timeout)
    if status is not None:
        raise ToolError(f"{text.rstrip()}\n\n{status}" if text.strip() else status, details=details)
    return text_result(text if text.strip() else "(no output)", details=details)


def _status(ended: Ended, timeout: float | None) -> str | None:
    if ended.reason == "timeout":
        return f"The command timed out after {timeout:g} seconds: it was ended with all its processes"
    if ended.reason == "abort":
        return f"The command was aborted after {ended.seconds:.1f} seconds: it was ended with all its processes"
    if not ended.exit_code:
        return None
    name = ""
    if ended.exit_code > 128:
        with contextlib.suppress(ValueError):
            name = f" ({signals.Signals(ended.exit_code - 128).name})"
    return f"Command exited with code {ended.exit_code}{name}"


def _notices(shown: Shown) -> list[str]:
    cut = shown.truncation
    notices: list[str] = []
    if cut.last_line_partial:
        notices.append(
            f"Showing the last {format_size(cut.output_bytes)} of line {cut.total_lines} ({format_size(shown.last_line_bytes)}); "
            f"the whole output is {format_size(cut.total_bytes)}"
        )
    elif cut.truncated:
        first = cut.total_lines - cut.output_lines + 1
        why = f", {format_size(cut.max_bytes)} limit" if cut.truncated_by == "bytes" else ""
        notices.append(f"Showing lines {first}-{cut.total_lines} of {cut.total_lines} ({format_size(cut.total_bytes)} in all{why})")
    if shown.overwritten:
        states = "state" if shown.overwritten == 1 else "states"
        notices.append(f"{shown.overwritten} earlier {states} of lines that were overwritten with carriage returns left out")
    if shown.full_output_path is not None:
        missing = f" (without the last {format_size(shown.not_stored)}: no space for it)" if shown.not_stored else ""
        notices.append(f"Full output: {shown.full_output_path}{missing}")
    elif cut.truncated:
        notices.append("The full output could not be saved")
    return notices


def _output_details(shown: Shown) -> dict[str, Any]:
    cut = shown.truncation
    return {"truncation": cut.as_details() if cut.truncated else None, "full_output_path": shown.full_output_path}
