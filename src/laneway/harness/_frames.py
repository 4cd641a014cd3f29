"""Pieces of a response that streams, kept so that a crash loses little of it.

A frame is a JSON list of steps; all frames of a response, in order, rebuild its content. Deltas of one block are joined, so the
size is that of the text. `Frames` collects and says when to write: at the latest 250 ms after the first piece that is not
written, or when 16 KiB have come together. A crash can lose that much of a partial, and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol, cast

from laneway.events import (
    BlockEvent,
    TextDelta,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from laneway.llm._partial_json import parse_partial
from laneway.messages import AssistantContent, TextContent, ThinkingContent, ToolCall

FLUSH_AFTER = 0.25  # seconds
FLUSH_SIZE = 16 * 1024  # characters


class Frames:
    """Collects the steps of one frame after another. Each event costs a constant."""

    __slots__ = ("_index", "_parts", "_steps", "size")

    def __init__(self) -> None:
        self._steps: list[list[Any]] = []
        self._index = -1  # the block that the last step adds to, and its pieces
        self._parts: list[str] = []
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, event: BlockEvent) -> None:
        """Take up one event."""
        kind = type(event)
        if kind is TextDelta or kind is ThinkingDelta or kind is ToolCallDelta:
            step: Any = event  # the exact type was just tested: this is per delta
            index: int = step.content_index
            delta: str = step.delta
            if index != self._index:
                self._index, self._parts = index, []
                self._steps.append(["+", index, self._parts])
            self._parts.append(delta)
            self.size += len(delta)
            return
        self._index = -1
        match event:
            case TextStart():
                self._steps.append(["text", event.content_index])
            case ThinkingStart():
                self._steps.append(["thinking", event.content_index])
            case ToolCallStart():
                call = cast(ToolCall, event.partial.content[event.content_index])
                self._steps.append(["call", event.content_index, call.id, call.name])
            case ToolCallEnd():
                self._steps.append(["call_end", event.content_index, event.tool_call.id, event.tool_call.name, event.tool_call.arguments])
            case ThinkingEnd():
                block = event.partial.content[event.content_index]
                if isinstance(block, ThinkingContent) and (block.signature or block.redacted):
                    text = event.content if block.redacted else None
                    self._steps.append(["thinking_end", event.content_index, block.signature, block.redacted, text])
            case _:
                pass

    def take(self) -> list[list[Any]]:
        """Return the frame and begin the next."""
        steps, self._steps, self.size = self._steps, [], 0
        self._index = -1
        for step in steps:
            if step[0] == "+":
                step[2] = "".join(step[2])
        return steps


class Flushing(Protocol):
    """A response that streams: when its oldest unwritten piece came (the loop's time), and how to write what there is."""

    since: float

    def flush(self) -> None: ...


class FrameClock:
    """Says when `FLUSH_AFTER` is over: one timer for all responses of a pass, as most have ended before it is due."""

    __slots__ = ("_now", "_timer")

    def __init__(self) -> None:
        self._now: Flushing | None = None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, streaming: Flushing) -> None:
        """Flush this response in time."""
        self._now = streaming
        loop = asyncio.get_running_loop()
        streaming.since = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(FLUSH_AFTER, self._tick)

    def drop(self) -> None:
        """The response has ended, or has just been written."""
        self._now = None

    def _tick(self) -> None:
        now, self._timer = self._now, None
        if now is None:
            return
        loop = asyncio.get_running_loop()
        left = now.since + FLUSH_AFTER - loop.time()
        if left > 0.001:
            self._timer = loop.call_later(left, self._tick)
        else:
            now.flush()

    def stop(self) -> None:
        """Forget everything."""
        self._now = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def rebuild(frames: Iterable[list[list[Any]]]) -> list[AssistantContent]:
    """Return the content that committed frames hold; arguments of a call that had not ended are what can be read of them.

    Raises what the garbage it is given leads to.
    """
    blocks: dict[int, dict[str, Any]] = {}
    for step in (step for frame in frames for step in frame):
        kind, index = step[0], step[1]
        if kind in ("text", "thinking"):
            blocks[index] = {"kind": kind, "text": []}
        elif kind == "call":
            blocks[index] = {"kind": "call", "id": step[2], "name": step[3], "text": []}
        elif kind == "call_end":
            blocks[index] = {"kind": "call", "id": step[2], "name": step[3], "arguments": step[4]}
        elif kind == "thinking_end":
            block = blocks.setdefault(index, {"kind": "thinking", "text": []})
            block |= {"signature": step[2], "redacted": step[3]}
            if step[4] is not None:
                block["text"] = [step[4]]
        elif kind == "+":
            blocks.setdefault(index, {"kind": "text", "text": []}).setdefault("text", []).append(step[2])
        else:
            raise ValueError(f"there is no step {kind!r} in a response")
    return [_block(blocks[index]) for index in sorted(blocks)]


def _block(block: dict[str, Any]) -> AssistantContent:
    text = "".join(block.get("text", ()))
    if block["kind"] == "thinking":
        return ThinkingContent(thinking=text, signature=block.get("signature"), redacted=bool(block.get("redacted")))
    if block["kind"] == "text":
        return TextContent(text=text)
    arguments = block["arguments"] if "arguments" in block else parse_partial(text)
    return ToolCall(id=block["id"], name=block["name"], arguments=arguments)
