"""Puts guided tool calling together: one request through another stream function, its response turned into a call or an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from laneway.abort import Aborted
from laneway.events import AssistantEvent, StreamDone, StreamError, StreamStart, TextDelta, ThinkingDelta, ThinkingEnd, ThinkingStart
from laneway.llm._guided.decode import GuidedDecoder
from laneway.llm._guided.dialogue import dialogue
from laneway.llm._guided.policy import GuidedPolicy, without_guidance
from laneway.llm._guided.schema import Schema, call_schema, full_arguments, response_schema
from laneway.llm._guided.small import STOP, answer_messages, choice_messages, choice_schema, last_request
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, ResponseStream, StreamFn, StreamOptions, Transcript
from laneway.messages import AssistantMessage, ErrorInfo, Message, ToolDeclaration
from laneway.transcript import current_system_prompt, current_tools, normalise


class GuidedRequest(Struct, kw_only=True, frozen=True):
    """What is asked: the messages, and the schema that holds the reply (None: plain text)."""

    messages: list[Message]
    schema: Schema | None = None
    stop: str | None = None


def guided(stream_fn: StreamFn, policy: GuidedPolicy) -> StreamFn:
    """Return a stream function that calls tools through `stream_fn` by a response schema."""

    def stream(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
        taken = list(transcript.messages)
        writer = StreamWriter(model)
        return AssistantStream(_events(stream_fn, policy, model, taken, options, writer), fallback=writer.fallback, signal=options.signal)

    return stream


# ---------------------------------------------------------------------------------------------------- the request


def plan_request(messages: Sequence[Message], model: Model, policy: GuidedPolicy, tool_choice: Any = None) -> GuidedRequest:
    """Decide what to ask: to choose (a tool or an answer), or for an answer only. Pure."""
    tools, forced = _choosable(current_tools(messages), tool_choice)
    healed = normalise(messages)
    request, results = last_request(healed)
    choosing = bool(tools) and (forced or len(results) < policy.calls)
    if not policy.small:
        told = dialogue(current_system_prompt(messages), healed, tools if choosing else (), model, result_chars=policy.result_chars)
        calls = [call_schema(tool, full_arguments(tool)) for tool in tools]
        return GuidedRequest(messages=told, schema=response_schema(calls, answer=not forced) if choosing else None)
    if choosing:
        return GuidedRequest(messages=choice_messages(request, tools, model), schema=choice_schema(request, tools, answer=not forced))
    if results:
        return GuidedRequest(messages=answer_messages(request, results, model, policy.result_chars), stop=STOP)
    return GuidedRequest(messages=dialogue(current_system_prompt(messages), healed, (), model, result_chars=policy.result_chars))


def _choosable(tools: list[ToolDeclaration], choice: Any) -> tuple[list[ToolDeclaration], bool]:
    """Return the tools that may be called, and whether one must be, after `StreamOptions.tool_choice` in any of its forms."""
    if choice is None or choice == "auto":
        return tools, False
    if choice == "none":
        return [], False
    if choice in ("any", "required"):
        return tools, True
    if isinstance(choice, dict):
        given = cast("dict[str, Any]", choice)
        function: Any = given.get("function")
        choice = function.get("name") if isinstance(function, dict) else given.get("name") or given.get("type")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - JSON
        if choice in ("auto", "none", "any", "required"):
            return _choosable(tools, choice)
    named = [tool for tool in tools if tool.name == choice]
    if not named:
        raise ProviderFailure(f"tool_choice names {choice!r}, which is none of the tools", kind="invalid_request")
    return named, True


def request_options(asked: GuidedRequest, policy: GuidedPolicy, options: StreamOptions) -> StreamOptions:
    """Return the options of the request under the guidance; what the caller set wins over the policy."""
    sampling = {name: value for name, value in policy.sampling.items() if name != "temperature" or options.temperature is None}
    if asked.stop is not None:
        sampling["stop"] = [asked.stop]
    sampling |= options.sampling_params or {}
    if asked.schema is not None:
        sampling["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": asked.schema}}
    return replace(options, tool_choice=None, sampling_params=sampling)


def _new_call_id(messages: Sequence[Message]) -> str:
    """Return an id that no call of the conversation has; the same conversation gives the same id."""
    taken = {call.id for message in messages if isinstance(message, AssistantMessage) for call in message.tool_calls}
    number = len(taken) + 1
    while f"call_{number}" in taken:
        number += 1
    return f"call_{number}"


# ---------------------------------------------------------------------------------------------------- the response


async def _events(
    stream_fn: StreamFn, policy: GuidedPolicy, model: Model, messages: list[Message], options: StreamOptions, writer: StreamWriter
) -> AsyncGenerator[AssistantEvent]:
    asked = plan_request(messages, model, policy, options.tool_choice)
    opened = stream_fn(without_guidance(model), Transcript(messages=asked.messages), request_options(asked, policy, options))
    inner: ResponseStream = await opened if isinstance(opened, Awaitable) else opened
    try:
        decoder = GuidedDecoder(writer, _new_call_id(messages), plain=asked.schema is None)
        async for event in inner:
            try:
                _translate(event, writer, decoder)
            except (ProviderFailure, Aborted):
                for translated in writer.take():
                    yield translated
                raise
            for translated in writer.take():
                yield translated
    finally:
        close = getattr(inner, "aclose", None)
        if close is not None:
            await close()


def _translate(event: AssistantEvent, writer: StreamWriter, decoder: GuidedDecoder) -> None:
    if type(event) is TextDelta:
        decoder.feed(event.delta)
    elif type(event) is StreamStart:
        writer.start()
    elif type(event) is ThinkingStart:
        writer.open_thinking()
    elif type(event) is ThinkingDelta:
        writer.text(len(writer.partial.blocks) - 1, event.delta)
    elif type(event) is ThinkingEnd:
        writer.close(len(writer.partial.blocks) - 1)
    elif type(event) is StreamDone:
        message = event.message
        _take_facts(message, writer)
        decoder.finish()
        reason = message.stop_reason if message.stop_reason == "length" else "tool_use" if decoder.called else "stop"
        writer.done(reason, raw=message.raw_stop_reason)
    elif type(event) is StreamError:
        _take_facts(event.message, writer)
        raise _failure(event.message)


def _take_facts(message: AssistantMessage, writer: StreamWriter) -> None:
    for name in ("usage", "response_id", "response_model", "diagnostics", "raw_stop_reason"):
        writer.set(**{name: getattr(message, name)})


def _failure(message: AssistantMessage) -> Exception:
    if message.stop_reason == "aborted":
        return Aborted(message.error_message)
    info = message.error or ErrorInfo()
    return ProviderFailure(message.error_message or "the response failed", kind=info.kind, status=info.status, retry_after_ms=info.retry_after_ms)
