"""What a reply of the script means to a server: the blocks that it streams, and how it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from laneway.messages import AssistantMessage, ErrorKind, StopReason, TextContent, ThinkingContent, ToolCall, Usage
from laneway.testing._replies import Call, Reply
from laneway.testing._scripted import of_message, text_of

BlockKind: TypeAlias = Literal["text", "thinking", "call"]
End: TypeAlias = Literal["stop", "length", "tool_use"]


class ScriptError(Exception):
    """A reply that no server of this wire could give."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One block of the response. `text` is what is streamed: text, thinking, or a call's arguments as JSON text."""

    index: int
    kind: BlockKind
    text: str
    signature: str | None = None
    redacted: bool = False
    call_id: str = ""
    name: str = ""
    number: int = 0
    """Of a call: its place among the calls of this response."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """How a response fails. Without a `status`, "network" and "incomplete" mean that the connection breaks."""

    message: str
    kind: ErrorKind
    status: int | None = None
    retry_after: float | None = None
    code: str | None = None

    @property
    def breaks(self) -> bool:
        """Whether nothing is said: the connection is reset."""
        return self.status is None and self.kind in ("network", "incomplete")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A response to be streamed."""

    blocks: tuple[Block, ...]
    end: End
    usage: Usage
    failure: Failure | None = None
    delay: float = 0.0
    delta_size: int | None = None
    gate: asyncio.Event | None = None


def plan_of(reply: Reply | AssistantMessage, *, make_id: Any, request_bytes: int) -> Plan:
    """Return how a reply is streamed; `make_id(name)` gives the id of a call that has none.

    Raises:
        ScriptError: no wire can say it.
    """
    message = reply if isinstance(reply, AssistantMessage) else None
    plain = of_message(message) if message is not None else cast(Reply, reply)
    if plain.deferred_id is not None or (message is not None and message.stop_reason in ("deferred", "pending")):
        raise ScriptError("no wire has deferred or pending responses yet; use Scripted for them")
    blocks: list[Block] = []
    for item in cast("tuple[Any, ...]", plain.blocks):
        blocks.append(_block(len(blocks), item, sum(block.kind == "call" for block in blocks), make_id))
    failure = None
    if plain.failure is not None:
        text = plain.failure_text if message is None else message.error_message or "the response failed"
        wait = plain.failure.retry_after_ms
        failure = Failure(message=text, kind=plain.failure.kind, status=plain.failure.status, retry_after=None if wait is None else wait / 1000)
    return Plan(
        blocks=tuple(blocks),
        end=_end(message.stop_reason if message is not None else plain.stop_reason, blocks),
        usage=plain.usage or _estimate(request_bytes, blocks),
        failure=failure,
        delay=plain.delay,
        delta_size=plain.delta_size,
        gate=plain.gate,
    )


def _block(index: int, item: Any, number: int, make_id: Any) -> Block:
    text = text_of(item)
    if isinstance(item, TextContent):
        return Block(index=index, kind="text", text=text, signature=item.signature)
    if isinstance(item, ThinkingContent):
        return Block(index=index, kind="thinking", text="" if item.redacted else text, signature=item.signature, redacted=item.redacted)
    given = item.id if isinstance(item, ToolCall) else cast(Call, item).call_id
    signature = item.signature if isinstance(item, ToolCall) else None
    return Block(index=index, kind="call", text=text, signature=signature, call_id=given or make_id(item.name), name=item.name, number=number)


def _end(stop: StopReason | None, blocks: list[Block]) -> End:
    if stop in ("stop", "length", "tool_use"):
        return stop
    return "tool_use" if any(block.kind == "call" for block in blocks) else "stop"


def _estimate(request_bytes: int, blocks: list[Block]) -> Usage:
    """A token per four characters of the request body and of what is said."""
    tokens_in, tokens_out = max(1, -(-request_bytes // 4)), max(1, -(-sum(len(block.text) for block in blocks) // 4))
    return Usage(input=tokens_in, output=tokens_out, total_tokens=tokens_in + tokens_out)
