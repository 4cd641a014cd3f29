"""A model that says what the test told it to, in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions, Transcript
from laneway.messages import AssistantMessage, DeferredHandle, Message, Usage


@dataclass
class Request:
    """What a request carried."""

    model: Model
    messages: list[Message]
    options: StreamOptions

    @property
    def texts(self) -> list[str]:
        """The roles and texts of all but the system message."""
        return [f"{m.role}:{_text(m)}" for m in self.messages if m.role != "system"]


def _text(message: Any) -> str:
    content = message.content
    return content if isinstance(content, str) else "".join(getattr(block, "text", "") for block in content)


@dataclass(kw_only=True)
class Reply:
    """One answer."""

    text: str = ""
    thinking: str = ""
    calls: list[tuple[str, dict[str, Any], str | None]] = field(default_factory=list)
    stop: Any = None
    error: str | None = None
    status: int | None = None
    kind: Any = "unknown"
    handle: str | None = None
    usage: Usage = field(default_factory=lambda: Usage(input=10, output=5, total_tokens=15))
    delta_size: int = 8
    gate: asyncio.Event | None = None
    message: AssistantMessage | None = None


def text(content: str, **options: Any) -> Reply:
    return Reply(text=content, **options)


def call(name: str, /, call_id: str | None = None, **arguments: Any) -> Reply:
    return Reply(calls=[(name, arguments, call_id)])


def calls(*several: Reply, text: str = "", **options: Any) -> Reply:
    return Reply(text=text, calls=[one for reply in several for one in reply.calls], **options)


def truncated(reply: Reply | str) -> Reply:
    reply = text(reply) if isinstance(reply, str) else reply
    reply.stop = "length"
    return reply


def error(message: str, *, kind: Any = "unknown", **options: Any) -> Reply:
    return Reply(error=message, kind=kind, **options)


def overflow() -> Reply:
    return Reply(error="prompt is too long: 250000 tokens > 200000 maximum", kind="overflow")


def deferred(id: str) -> Reply:
    return Reply(handle=id)


class Scripted:
    """Gives its replies in order; `requests` is what was asked."""

    def __init__(self, replies: Iterable[Reply | Callable[[Request], Reply]]) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.polls: list[StreamOptions] = []
        self.cancelled: list[DeferredHandle] = []
        self.model = Model(id="scripted", provider="test", api="scripted", context_window=200_000, max_tokens=8_192)

    @property
    def models(self) -> Scripted:
        return self

    def get(self, provider: str, id: str) -> Model | None:
        return self.model if (provider, id) == (self.model.provider, self.model.id) else None

    def stream(self, model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
        request = Request(model, list(transcript.messages), options)
        self.requests.append(request)
        return self._answer(model, options, request)

    @property
    def stream_fn(self) -> Any:
        return self.stream

    def fetch_deferred(self, handle: DeferredHandle, options: StreamOptions | None = None) -> AssistantStream:
        options = options or StreamOptions()
        self.polls.append(options)
        return self._answer(self.model, options, Request(self.model, [], options))

    async def cancel_deferred(self, handle: DeferredHandle, options: StreamOptions | None = None) -> None:
        self.cancelled.append(handle)

    def _answer(self, model: Model, options: StreamOptions, request: Request) -> AssistantStream:
        writer = StreamWriter(model)
        return AssistantStream(self._events(writer, model, request, options), fallback=writer.fallback, signal=options.signal)

    async def _events(self, writer: StreamWriter, model: Model, request: Request, options: StreamOptions) -> Any:
        planned = self.replies.pop(0)
        reply = planned(request) if callable(planned) else planned
        writer.start()
        if reply.thinking:
            index = writer.open_thinking()
            writer.text(index, reply.thinking)
            writer.close(index)
        if reply.text:
            index = writer.open_text()
            for at in range(0, len(reply.text), reply.delta_size):
                writer.text(index, reply.text[at : at + reply.delta_size])
        for place, (name, arguments, call_id) in enumerate(reply.calls):
            index = writer.open_call(call_id or f"call_{len(self.requests)}_{place}", name)
            writer.arguments(index, json.dumps(arguments))
            writer.close(index)
        for event in writer.take():
            yield event
        if reply.gate is not None:
            waits = [asyncio.ensure_future(reply.gate.wait())]
            if options.signal is not None:
                waits.append(asyncio.ensure_future(options.signal.wait()))
            _, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            if options.signal is not None:
                options.signal.raise_if_aborted()
        if reply.error is not None:
            raise ProviderFailure(reply.error, kind=reply.kind, status=reply.status)
        writer.set(usage=reply.usage)
        if reply.handle is not None:
            writer.done("deferred", deferred=DeferredHandle(id=reply.handle, provider=model.provider, model_id=model.id, api=model.api))
        else:
            writer.done(reply.stop or ("tool_use" if reply.calls else "stop"))
        for event in writer.take():
            yield event
