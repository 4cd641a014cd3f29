"""A model that answers from a script: the stream of a real one, without a provider, deterministic and fast."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import msgspec

from laneway.abort import AbortSignal, abort_scope
from laneway.errors import Aborted
from laneway.events import AssistantEvent, StreamError, ToolCallEnd
from laneway.llm._usage import make_usage
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, ResponseInfo, StreamFn, StreamOptions, Transcript
from laneway.messages import (
    AssistantContent,
    AssistantMessage,
    DeferredHandle,
    ErrorInfo,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    Usage,
)
from laneway.testing._replies import Answer, Call, Reply, as_reply, check_answer
from laneway.transcript import current_tools

if TYPE_CHECKING:
    from laneway.llm._registry import Models

_MODEL = Model(
    id="scripted",
    provider="scripted",
    api="scripted",
    name="Scripted",
    reasoning=True,
    input=("text", "image"),
    context_window=128_000,
    max_tokens=16_384,
)
_IMAGE_CHARACTERS = 4800
_EACH = 64  # so many deltas are followed by a turn of the event loop each, later ones by one per 16


class Request:
    """One request as the model got it. `messages` is a list of its own, which nobody changes later; `handle` is set for a poll.

    `payload` is the request body that `on_payload` saw (or put in its place), None if nobody asked for it.
    """

    def __init__(self, model: Model, messages: list[Message], options: StreamOptions, handle: DeferredHandle | None = None) -> None:
        self.model = model
        self.messages = messages
        self.options = options
        self.handle = handle
        self.payload: dict[str, Any] | None = None

    @cached_property
    def tools(self) -> list[ToolDeclaration]:
        """The tools that the transcript declares."""
        return current_tools(self.messages)

    def __repr__(self) -> str:
        return f"Request(model={self.model.id!r}, {len(self.messages)} messages)"


class _StreamFn:
    """The `stream_fn` of a script. Also completes deferred responses, as `Models` does, for those who have no `Models`."""

    __slots__ = ("_script",)

    def __init__(self, script: Scripted) -> None:
        self._script = script

    def __call__(self, model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
        return self._script._respond(Request(model, list(transcript.messages), options))  # pyright: ignore[reportPrivateUsage] - a part of it

    def fetch_deferred(self, handle: DeferredHandle, options: StreamOptions | None = None) -> AssistantStream:
        return self._script.fetch(None, handle, options or StreamOptions())

    async def cancel_deferred(self, handle: DeferredHandle, options: StreamOptions | None = None) -> None:
        await self._script.cancel(handle, options or StreamOptions())


class Scripted:
    """A scripted model. Each request takes the next reply; a reply may be a function of the request, sync or async.

    Attributes:
        model: give it to an agent, with `stream_fn`; or give `models`.
        requests: every request, in the order of the calls. polls: every poll of a deferred response.
        cancelled: the deferred responses that were cancelled; polling one of them fails.

    A request without a reply left, and a reply that raises, give an `error` message that says so. On a signal that is already aborted nothing
    is taken or recorded, and the stream is a lone `aborted` error. A message's default usage is an estimate: a token per four
    characters, over the whole request and the answer.
    """

    model: Model
    stream_fn: StreamFn
    requests: list[Request]
    polls: list[Request]
    cancelled: list[DeferredHandle]

    def __init__(self, replies: Iterable[Answer] = (), *, model: Model | None = None) -> None:
        self.model = model or _MODEL
        self.stream_fn = _StreamFn(self)
        self.requests = []
        self.polls = []
        self.cancelled = []
        self._replies: list[Answer] = []
        self._taken = 0
        self._call_ids = 0
        self._counted: list[Message] = []  # the messages whose characters are in _characters
        self._characters = 0
        self.add(*replies)

    def add(self, *replies: Answer) -> None:
        """Append replies to the script."""
        self._replies += [check_answer(reply) for reply in replies]

    @property
    def remaining(self) -> int:
        """How many replies are left."""
        return len(self._replies) - self._taken

    @cached_property
    def models(self) -> Models:
        """A `Models` that has this model and no other, and streams and polls it; any id of its provider is a model of it."""
        from laneway.llm._provider import Provider
        from laneway.llm._registry import Models

        models = Models(builtin=False)
        provider = Provider(
            id=self.model.provider,
            name=self.model.name,
            api=self.model.api,
            models=lambda: [self.model],
            open_ended=True,
            key_optional=True,
            default_model=self.model.id,
            stream_fn=self.stream_fn,
            deferred=self,
        )
        models.set_provider(provider)
        return models

    # -- deferred responses

    def fetch(self, model: Model | None, handle: DeferredHandle, options: StreamOptions) -> AssistantStream:
        """Poll a deferred response: the next reply is its answer."""
        return self._respond(Request(model or self.model, [], options, handle))

    async def cancel(self, handle: DeferredHandle, options: StreamOptions) -> None:
        """Cancel a deferred response."""
        self.cancelled.append(handle)

    # -- one response

    def _respond(self, request: Request) -> AssistantStream:
        signal = request.options.signal
        writer = StreamWriter(request.model, thinking_level=request.options.reasoning)
        if signal is not None and signal.aborted:
            answer: Any = Aborted(signal.reason)
        else:
            (self.requests if request.handle is None else self.polls).append(request)
            answer = self._next(request)
        return AssistantStream(self._stream(writer, answer, request), fallback=writer.fallback, signal=signal)

    def _next(self, request: Request) -> Any:
        if request.handle is not None and request.handle in self.cancelled:
            return ProviderFailure(f"the deferred response {request.handle.id} was cancelled", kind="not_found")
        if self._taken == len(self._replies):
            what = f"request {len(self.requests)}" if request.handle is None else f"the poll of {request.handle.id}"
            return ProviderFailure(f"the script has no reply for {what}: all {self._taken} of its replies were taken; add one", kind="configuration")
        self._taken += 1
        return self._replies[self._taken - 1]

    async def _stream(self, writer: StreamWriter, answer: Any, request: Request) -> AsyncIterator[AssistantEvent]:
        options = request.options
        reply = await resolve(answer, request)
        if options.on_payload is not None and request.handle is None:
            await _offer_payload(request)
        message = reply if isinstance(reply, AssistantMessage) else None
        plan = of_message(message) if message is not None else cast(Reply, reply)
        if plan.delay or not plan.blocks:
            async with abort_scope(options.signal):
                await asyncio.sleep(plan.delay)
        elif options.signal is not None:
            options.signal.raise_if_aborted()
        if options.on_response is not None:
            seen = options.on_response(ResponseInfo(status=(plan.failure and plan.failure.status) or 200, headers={}), request.model)
            if inspect.isawaitable(seen):
                await seen
        if plan.failure is not None and message is None and not plan.blocks:
            writer.set(usage=plan.usage or Usage())
            raise _failure(plan)
        blocks = [self._numbered(block) for block in plan.blocks]
        writer.set(usage=plan.usage or self._estimate(request, blocks))
        if blocks or plan.failure is None:
            writer.start()
        async for event in _play(writer, blocks, plan, options.signal):
            yield event
        if message is not None:
            _finish_as(writer, message, request.model)
        elif plan.failure is not None:
            raise _failure(plan)
        else:
            writer.done(plan.stop_reason or ("tool_use" if any(isinstance(b, Call) for b in blocks) else "stop"), deferred=_handle(plan, request))
        for event in writer.take():
            yield event

    def _numbered(self, block: Any) -> Any:
        """Return the block; a call without an id gets the next one."""
        if not isinstance(block, Call) or block.call_id is not None:
            return block
        self._call_ids += 1
        return Call(block.name, block.arguments, f"call_{self._call_ids}")

    def _estimate(self, request: Request, blocks: list[Any]) -> Usage:
        """Count the request (only what is new since the last one) and the answer."""
        messages, known = request.messages, self._counted
        size = len(known)
        if size and (len(messages) < size or messages[0] is not known[0] or messages[size - 1] is not known[-1]):
            size = self._characters = 0
        self._characters += sum(_characters_of(message) for message in messages[size:])
        self._counted = messages
        said = sum(len(text_of(block)) for block in blocks)
        return make_usage(request.model, input=max(1, -(-self._characters // 4)), output=max(1, -(-said // 4)))


# ---------------------------------------------------------------------------------------------------- the stream


async def resolve(answer: Any, request: Any) -> Reply | AssistantMessage:
    """Return what an entry of the script stands for, asking a function for it with `request`; an exception is raised."""
    if callable(answer) and not isinstance(answer, Exception):
        answer = answer(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if callable(answer):
            raise TypeError("a scripted function must return a reply, not another function")
    if isinstance(answer, Exception):
        raise answer
    check_answer(answer)
    return answer if isinstance(answer, AssistantMessage) else as_reply(answer)


async def _offer_payload(request: Request) -> None:
    """Show `on_payload` a request body, and keep what it answers."""
    body = {"model": request.model.id, "messages": msgspec.to_builtins(request.messages), "tools": msgspec.to_builtins(request.tools)}
    assert request.options.on_payload is not None
    changed = request.options.on_payload(body, request.model)
    if inspect.isawaitable(changed):
        changed = await changed
    request.payload = body if changed is None else changed


async def _play(writer: StreamWriter, blocks: list[Any], plan: Reply, signal: AbortSignal | None) -> AsyncIterator[AssistantEvent]:
    """Stream the blocks: open, deltas, close. The last block of a reply that fails stays open."""
    pieces = [split_deltas(text_of(block), plan.delta_size) for block in blocks]
    wait_before = half_way(pieces) if plan.gate is not None else -1
    sent = 0
    for position, (block, deltas) in enumerate(zip(blocks, pieces, strict=True)):
        index = _open(writer, block)
        for delta in deltas:
            if sent == wait_before:
                for event in writer.take():
                    yield event
                await _wait(plan.gate, signal)
            (writer.arguments if isinstance(block, (Call, ToolCall)) else writer.text)(index, delta)
            sent += 1
            for event in writer.take():
                yield event
            if sent <= _EACH or sent % 16 == 0:
                await asyncio.sleep(0)
            if signal is not None and signal.aborted:
                raise Aborted(signal.reason)
        if plan.failure is None or position < len(blocks) - 1:
            _close(writer, index, block)
        for event in writer.take():
            yield event
    for event in writer.take():
        yield event
    if sent <= wait_before:
        await _wait(plan.gate, signal)


async def _wait(gate: asyncio.Event | None, signal: AbortSignal | None) -> None:
    async with abort_scope(signal):
        assert gate is not None
        await gate.wait()


def split_deltas(content: str, size: int | None) -> list[str]:
    if size is None:
        return [content] if content else []
    return [content[start : start + size] for start in range(0, len(content), size)]


def half_way(pieces: list[list[str]]) -> int:
    """Return before which delta to wait; a single delta is split, so that something is out by then."""
    total = sum(map(len, pieces))
    if total == 1:
        only = next(deltas for deltas in pieces if deltas)
        middle = len(only[0]) // 2
        if middle:
            only[:] = [only[0][:middle], only[0][middle:]]
            return 1
        return 0
    return total // 2


def text_of(block: Any) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ThinkingContent):
        return block.thinking
    return block.arguments if isinstance(block, Call) else msgspec.json.encode(cast(ToolCall, block).arguments).decode()


def _open(writer: StreamWriter, block: Any) -> int:
    if isinstance(block, TextContent):
        return writer.open_text(signature=block.signature)
    if isinstance(block, ThinkingContent):
        return writer.open_thinking(signature=block.signature, redacted=block.redacted)
    if isinstance(block, Call):
        return writer.open_call(block.call_id or "", block.name)
    return writer.open_call(block.id, block.name, signature=block.signature)


def _close(writer: StreamWriter, index: int, block: Any) -> None:
    if isinstance(block, ToolCall):  # of a ready message: it ends as it is, `arguments_error` included
        writer.partial.blocks[index] = block
        writer.events.append(ToolCallEnd(content_index=index, tool_call=block, partial=writer.partial))
    else:
        writer.close(index)


# ---------------------------------------------------------------------------------------------------- the end


def _failure(plan: Reply) -> ProviderFailure:
    assert plan.failure is not None
    return ProviderFailure(plan.failure_text, kind=plan.failure.kind, status=plan.failure.status, retry_after_ms=plan.failure.retry_after_ms)


def _handle(plan: Reply, request: Request) -> DeferredHandle | None:
    if plan.deferred_id is None:
        return None
    model = request.model
    return DeferredHandle(id=plan.deferred_id, provider=model.provider, model_id=model.id, api=model.api)


def of_message(message: AssistantMessage) -> Reply:
    """Return how a ready message streams."""
    usage = message.usage if message.usage != Usage() else None
    content = cast("tuple[Any, ...]", tuple(message.content))
    failed = (message.error or ErrorInfo()) if message.stop_reason in ("error", "aborted") else None
    return Reply(blocks=content, usage=usage, failure=failed)


def _finish_as(writer: StreamWriter, message: AssistantMessage, model: Model) -> None:
    """End with the fields of a ready message; the names of the model are the request's where it has none."""
    if message.stop_reason == "pending":
        raise ProviderFailure("the script has a message that is still pending; give it a stop reason", kind="configuration")
    names = {"api": message.api or model.api, "provider": message.provider or model.provider, "model": message.model or model.id}
    kept = {name: getattr(message, name) for name in AssistantMessage.__struct_fields__ if name not in ("content", "usage", *names)}
    writer.set(**kept, **names)
    if message.stop_reason in ("error", "aborted"):
        writer.events.append(StreamError(message=writer.partial.snapshot()))
    else:
        writer.done(message.stop_reason, deferred=message.deferred)


def _characters_of(message: Message) -> int:
    if isinstance(message, SystemMessage):
        sections = sum(len(value or "") for value in (message.sections or {}).values())
        return len(message.content) + sections + (len(msgspec.json.encode(message.tools_added)) if message.tools_added else 0)
    if isinstance(message.content, str):
        return len(message.content)
    return sum(_characters_of_block(block) for block in message.content)


def _characters_of_block(block: AssistantContent | ImageContent) -> int:
    if isinstance(block, ImageContent):
        return _IMAGE_CHARACTERS
    return len(text_of(block)) + (len(block.name) if isinstance(block, ToolCall) else 0)
