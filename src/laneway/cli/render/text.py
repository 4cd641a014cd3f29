"""Shows a run to a person: the answer on stdout, tool activity and trouble on stderr."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from laneway.cli.config import wants_colour
from laneway.events import AgentEvent
from laneway.messages import AssistantMessage, TextContent, ToolResult, ToolResultMessage

_DIM, _BOLD, _RED, _RESET = "\033[2m", "\033[1m", "\033[31m", "\033[0m"
_PREVIEW_LINES = 6
_PREVIEW_WIDTH = 160


class TextRenderer:
    """Prints events as they come. On a terminal the model's text streams; into a pipe only the final answer goes to stdout."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, *, quiet: bool = False) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._streams = self._out.isatty()
        self._colour = wants_colour(self._err)
        self._quiet = quiet
        self._at_line_start = True

    def __call__(self, event: AgentEvent, _: object = None) -> None:
        match event.type:
            case "message_update":
                if event.event.type == "text_delta" and self._streams and not self._quiet:
                    self._write(event.event.delta)
            case "message_end":
                if isinstance(event.message, AssistantMessage):
                    self._end_of_answer(event.message)
            case "tool_execution_start":
                self._say(f"{self._bold('●')} {event.tool_name} {_arguments(event.args)}")
            case "tool_execution_end":
                self._result(event.result, event.is_error)
            case _:
                pass

    def _end_of_answer(self, message: AssistantMessage) -> None:
        final = not message.tool_calls and message.stop_reason in ("stop", "length")
        if self._streams and not self._quiet:
            if message.text and not message.text.endswith("\n"):
                self._write("\n")
        elif final:
            self._write(message.text if message.text.endswith("\n") or not message.text else message.text + "\n")
        elif message.text.strip():
            self._say(message.text.strip())

    def _result(self, result: ToolResult, is_error: bool) -> None:
        lines = preview(result)
        for index, line in enumerate(lines):
            lead = "  └ " if index == 0 else "    "
            self._say(lead + (self._red(line) if is_error else self._dim(line)))

    def note(self, text: str) -> None:
        """Say one line about the run itself."""
        self._say(self._dim(text))

    def _write(self, text: str) -> None:
        self._out.write(printable(text))
        self._out.flush()
        if text:
            self._at_line_start = text.endswith("\n")

    def _say(self, text: str) -> None:
        if self._quiet:
            return
        if not self._at_line_start and self._streams:
            self._write("\n")
        print(printable(text, keep_escapes=self._colour), file=self._err, flush=True)

    def _dim(self, text: str) -> str:
        return f"{_DIM}{text}{_RESET}" if self._colour else text

    def _bold(self, text: str) -> str:
        return f"{_BOLD}{text}{_RESET}" if self._colour else text

    def _red(self, text: str) -> str:
        return f"{_RED}{text}{_RESET}" if self._colour else text


def printable(text: str, *, keep_escapes: bool = False) -> str:
    """Make text safe for a terminal: no control characters (a model must not steer it), no lone surrogates."""
    kept = "\n\t\033" if keep_escapes else "\n\t"
    return "".join(c if c in kept or (c >= " " and not "\x7f" <= c < "\xa0" and not "\ud800" <= c <= "\udfff") else "\ufffd" for c in text)


def preview(result: ToolResult | ToolResultMessage) -> list[str]:
    """Return the first lines of a result, each cut to a screen's width, and how many more there are."""
    text = "\n".join(block.text if isinstance(block, TextContent) else f"[image, {block.mime_type}]" for block in result.content)
    lines = printable(text).strip("\n").split("\n")
    shown = [line if len(line) <= _PREVIEW_WIDTH else line[: _PREVIEW_WIDTH - 1] + "…" for line in lines[:_PREVIEW_LINES]]
    if len(lines) > _PREVIEW_LINES:
        shown.append(f"… {len(lines) - _PREVIEW_LINES} more lines")
    return shown if text.strip() else ["(no output)"]


def _arguments(args: dict[str, Any]) -> str:
    shown = ", ".join(f"{name}={_value(value)}" for name, value in args.items())
    return printable(shown.replace("\n", "⏎")) if len(shown) <= _PREVIEW_WIDTH else printable(shown[: _PREVIEW_WIDTH - 1].replace("\n", "⏎")) + "…"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
