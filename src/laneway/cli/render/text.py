"""Shows a run to a person: the answer on stdout, tool activity and trouble on stderr."""

from __future__ import annotations

import sys
from typing import Any, TextIO, cast

from laneway.cli._exit import say
from laneway.cli.config import is_terminal, wants_colour
from laneway.cli.render._terminal import StatusLine, one_line, printable
from laneway.events import AgentEvent, MessageUpdate, ToolExecutionEnd, ToolExecutionStart, ToolExecutionUpdate
from laneway.messages import AssistantMessage, TextContent, ToolResult, ToolResultMessage

_DIM, _BOLD, _RED, _RESET = "\033[2m", "\033[1m", "\033[31m", "\033[0m"
_PREVIEW_LINES = 6
_PREVIEW_WIDTH = 160


class TextRenderer:
    """Prints events as they come.

    On a terminal the model's text streams to stdout, and a line on stderr says what is waited for. Into a pipe or file only final
    answers go to stdout; what the model says on the way goes to stderr. `quiet` leaves only the answers. An answer that cannot be
    written raises; what goes to stderr is not worth ending a run for.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, *, quiet: bool = False) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._streams = self._out.isatty() and not quiet
        self._colour = wants_colour(self._err)
        self._quiet = quiet
        self._at_line_start = True
        self._status = StatusLine(self._err if is_terminal(self._err) and not quiet else None)
        self._running: dict[str, str] = {}

    def __call__(self, event: AgentEvent, _: object = None) -> None:
        match event.type:
            case "turn_start":
                self._status.say("waiting for the model")
            case "message_update":
                self._update(event)
            case "message_end":
                if isinstance(event.message, AssistantMessage):
                    self._end_of_answer(event.message)
            case "tool_execution_start":
                self._call(event)
            case "tool_execution_update":
                self._progress(event)
            case "tool_execution_end":
                self._result(event)
            case "agent_end":
                self._status.clear()
            case _:
                pass

    def note(self, text: str) -> None:
        """Say something about the run itself, below what has been printed so far."""
        self._status.hide()
        if not self._at_line_start:
            self._write("\n")
        say(f"laneway: {printable(text)}", self._err)

    def session(self, session_id: str) -> None:
        """Say where the run is kept, to a person who may have to resume it."""
        if is_terminal(self._err) and not self._quiet:
            self.note(f"session {session_id}")

    # -- the model

    def _update(self, event: MessageUpdate) -> None:
        inner = event.event
        if inner.type == "text_delta":
            if self._streams:
                self._status.clear()
                self._write(inner.delta)
        elif inner.type == "thinking_start":
            self._status.say("the model is thinking")
        elif inner.type == "toolcall_start":
            self._break_line()
            self._status.say("the model is writing a call")

    def _end_of_answer(self, message: AssistantMessage) -> None:
        self._status.clear()
        if self._streams:
            self._break_line()
        elif not message.tool_calls and message.stop_reason in ("stop", "length"):
            self._write(message.text if message.text.endswith("\n") or not message.text else message.text + "\n")
        elif message.text.strip():
            self._say(printable(message.text.strip()))

    # -- its tools

    def _call(self, event: ToolExecutionStart) -> None:
        name = one_line(event.tool_name, 80)
        self._running[event.tool_call_id] = name
        self._say(f"{self._style(_BOLD, '●')} {name} {_arguments(event.args)}".rstrip())
        self._say_running()

    def _progress(self, event: ToolExecutionUpdate) -> None:
        if len(self._running) == 1:
            lines = _text_of(event.partial_result).rstrip().rsplit("\n", 1)
            self._status.say(f"{self._running.get(event.tool_call_id, event.tool_name)}: {lines[-1].strip()}", restart=False)

    def _result(self, event: ToolExecutionEnd) -> None:
        self._running.pop(event.tool_call_id, None)
        for index, line in enumerate(preview(event.result)):
            self._say(("  └ " if index == 0 else "    ") + self._style(_RED if event.is_error else _DIM, line))
        self._say_running()

    def _say_running(self) -> None:
        if self._running:
            names = ", ".join(self._running.values())
            self._status.say(f"{names} is running" if len(self._running) == 1 else f"{len(self._running)} calls are running: {names}", restart=False)
        else:
            self._status.clear()

    # -- output

    def _write(self, text: str) -> None:
        if text:
            self._status.hide()
            self._out.write(printable(text))
            self._out.flush()
            self._at_line_start = text.endswith("\n")

    def _break_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _say(self, text: str) -> None:
        """Print a line of our own; what came from elsewhere was made `printable` before it got its colours."""
        if self._quiet:
            return
        self._status.hide()
        if self._streams:
            self._break_line()
        say(text, self._err)

    def _style(self, code: str, text: str) -> str:
        return f"{code}{text}{_RESET}" if self._colour else text


def preview(result: ToolResult | ToolResultMessage) -> list[str]:
    """Return the first lines of a result, each cut to a screen's width, and how many more there are."""
    text = _text_of(result).strip("\n")
    if not text.strip():
        return ["(no output)"]
    lines = text.split("\n")
    shown = [one_line(line, _PREVIEW_WIDTH) for line in lines[:_PREVIEW_LINES]]
    if len(lines) > _PREVIEW_LINES:
        more = len(lines) - _PREVIEW_LINES
        shown.append(f"… {more} more line{'s' if more > 1 else ''}")
    return shown


def _text_of(result: ToolResult | ToolResultMessage) -> str:
    return "\n".join(block.text if isinstance(block, TextContent) else f"[image, {block.mime_type}]" for block in result.content)


def _arguments(args: Any) -> str:
    if not isinstance(args, dict):
        return one_line(repr(args), _PREVIEW_WIDTH)
    named = cast("dict[str, Any]", args)
    return one_line(", ".join(f"{name}={_value(value)}" for name, value in named.items()), _PREVIEW_WIDTH)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
