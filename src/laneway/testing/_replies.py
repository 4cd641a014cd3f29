"""What a scripted model answers: small values, made by functions that read like the script of a conversation."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from laneway.llm._errors import classify
from laneway.messages import AssistantMessage, ErrorInfo, ErrorKind, StopReason, TextContent, ThinkingContent, Usage

if TYPE_CHECKING:
    from laneway.testing._scripted import Request

SIGNATURE = "scripted"
"""Signature of scripted thinking: like a real model's, it may be sent back to the model that made it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call. `arguments` is the JSON text as it streams; `call_id` None gets the next of "call_1", "call_2", …"""

    name: str
    arguments: str
    call_id: str | None = None

    def __add__(self, other: Reply | Call | str) -> Reply:
        return as_reply(self) + other


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One response. Replies are joined with `+`: `thinking("hm") + text("Let me look.") + call("read", path="a")`."""

    blocks: tuple[TextContent | ThinkingContent | Call, ...] = ()
    stop_reason: StopReason | None = None  # None: "tool_use" with calls, else "stop"
    failure: ErrorInfo | None = None
    failure_text: str = ""
    deferred_id: str | None = None
    usage: Usage | None = None
    delay: float = 0.0
    delta_size: int | None = None
    gate: asyncio.Event | None = None

    def __post_init__(self) -> None:
        if self.delta_size is not None and self.delta_size < 1:
            raise ValueError(f"delta_size is a number of characters, at least 1, not {self.delta_size}")

    def __add__(self, other: Reply | Call | str) -> Reply:
        more = as_reply(other)
        given = {f.name: getattr(more, f.name) for f in dataclasses.fields(more) if f.name != "blocks" and getattr(more, f.name) != f.default}
        return dataclasses.replace(self, blocks=self.blocks + more.blocks, **given)


ReplyLike: TypeAlias = Reply | Call | AssistantMessage | str | Exception
"""A reply, or what stands for one: a string is `text(...)`, a `call(...)` is `calls(call(...))`, an exception is raised by the stream."""
Answer: TypeAlias = "ReplyLike | Callable[[Request], ReplyLike | Awaitable[ReplyLike]]"


def as_reply(value: Reply | Call | str) -> Reply:
    """Return the reply that a value stands for."""
    if isinstance(value, Reply):
        return value
    return Reply(blocks=(value if isinstance(value, Call) else TextContent(text=value),))


def check_answer(value: Any) -> Any:
    """Return `value` if it can be an entry of a script.

    Raises:
        TypeError: it cannot.
    """
    if isinstance(value, (Reply, Call, AssistantMessage, str, Exception)) or callable(value):
        return value
    raise TypeError(f"a scripted reply is text(...), call(...), another reply, an AssistantMessage or a function of the request, not {value!r}")


# ---------------------------------------------------------------------------------------------------- the replies


def text(content: str, *, usage: Usage | None = None, delay: float = 0.0, delta_size: int | None = None, gate: asyncio.Event | None = None) -> Reply:
    """Answer with text and stop.

    Every reply takes: `usage` (default: an estimate of a token per four characters, input included), `delay` (seconds before it), `delta_size`
    (characters per delta; default: one delta per block), `gate` (an event that the stream waits for when half of it is out).
    """
    return Reply(blocks=(TextContent(text=content),), usage=usage, delay=delay, delta_size=delta_size, gate=gate)


def thinking(
    content: str,
    *,
    signature: str | None = SIGNATURE,
    usage: Usage | None = None,
    delay: float = 0.0,
    delta_size: int | None = None,
    gate: asyncio.Event | None = None,
) -> Reply:
    """Think, and say nothing; join it with what is said: `thinking("hm") + text("Yes.")`."""
    block = ThinkingContent(thinking=content, signature=signature)
    return Reply(blocks=(block,), usage=usage, delay=delay, delta_size=delta_size, gate=gate)


def call(name: str, arguments: dict[str, Any] | str | None = None, /, *, call_id: str | None = None, **more_arguments: Any) -> Call:
    """Call a tool: `call("read", path="a.txt")` or `call("read", {"path": "a.txt"})`.

    A string for `arguments` is sent as it is, for arguments that are no valid JSON. Ids are "call_1", "call_2", … per `Scripted`, or `call_id`.
    """
    if isinstance(arguments, str):
        if more_arguments:
            raise TypeError("call() takes the arguments as raw text or by name, not both")
        return Call(name, arguments, call_id)
    return Call(name, msgspec.json.encode({**(arguments or {}), **more_arguments}).decode(), call_id)


def calls(
    *tool_calls: Call,
    text: str = "",
    usage: Usage | None = None,
    delay: float = 0.0,
    delta_size: int | None = None,
    gate: asyncio.Event | None = None,
) -> Reply:
    """Say `text`, if any, then call several tools."""
    if not all(isinstance(item, Call) for item in cast("tuple[Any, ...]", tool_calls)):
        raise TypeError("calls() takes what call(...) returns; join replies with +")
    said = (TextContent(text=text),) if text else ()
    return Reply(blocks=(*said, *tool_calls), usage=usage, delay=delay, delta_size=delta_size, gate=gate)


def truncated(
    reply: Reply | Call | str, *, usage: Usage | None = None, delay: float = 0.0, delta_size: int | None = None, gate: asyncio.Event | None = None
) -> Reply:
    """Answer so, but end in "length". Its calls look complete, as a repaired call would: nothing but the stop reason tells that they are not."""
    return as_reply(reply) + Reply(stop_reason="length", usage=usage, delay=delay, delta_size=delta_size, gate=gate)


def error(
    message: str,
    status: int | None = None,
    *,
    kind: ErrorKind | None = None,
    retry_after: float | None = None,
    usage: Usage | None = None,
    delay: float = 0.0,
    delta_size: int | None = None,
    gate: asyncio.Event | None = None,
) -> Reply:
    """Fail like a provider. Alone it fails before anything has arrived; `text("Hel") + error("lost")` fails in the middle.

    `kind` defaults to what laneway makes of such a status and text (429 is "rate_limit", 401 "auth", 500 "server", …); `retry_after`
    is the wait in seconds that the provider asks for.
    """
    wait = None if retry_after is None else int(retry_after * 1000)
    info = ErrorInfo(kind=kind or classify(status=status, text=message), status=status, retry_after_ms=wait)
    return Reply(failure=info, failure_text=message, usage=usage, delay=delay, delta_size=delta_size, gate=gate)


def overflow(*, usage: Usage | None = None, delay: float = 0.0, delta_size: int | None = None, gate: asyncio.Event | None = None) -> Reply:
    """Fail because the context is too long, in the words of a real provider."""
    message = "prompt is too long: 213462 tokens > 200000 maximum"
    return error(message, 400, kind="overflow", usage=usage, delay=delay, delta_size=delta_size, gate=gate)


def deferred(id: str, *, usage: Usage | None = None, delay: float = 0.0, delta_size: int | None = None, gate: asyncio.Event | None = None) -> Reply:
    """Promise to answer later. The replies after it are those of its polls; `deferred(id)` again means that it is not ready yet."""
    return Reply(stop_reason="deferred", deferred_id=id, usage=usage, delay=delay, delta_size=delta_size, gate=gate)
