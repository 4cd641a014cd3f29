"""Asking a model: what goes into a request of a lane, and what is told and kept while the answer streams."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from laneway._effects.respond import respond
from laneway.errors import HarnessFault
from laneway.events import BlockEvent, StreamStart
from laneway.harness import _telemetry, keys
from laneway.harness._events import MessageStart, MessageUpdate
from laneway.harness._frames import FLUSH_SIZE, Frames
from laneway.harness._hooks import AfterResponse, BeforePayload, BeforeRequest, TransformContext, patched
from laneway.harness.results import Refused
from laneway.harness.state import AssistantEffectPending, DeferredEffectPending, LaneConfiguration, Operation
from laneway.llm._writer import describe
from laneway.llm.base import Model, ResponseInfo, StreamOptions, Transcript
from laneway.messages import AgentMessage, AssistantMessage, ErrorInfo, Message, SystemMessage
from laneway.storage.base import AppendList
from laneway.transcript import normalise

if TYPE_CHECKING:
    from laneway.harness._drive import Drive
    from laneway.harness._environment import ToProvider


# ---------------------------------------------------------------------------------------------------- options


def step_options(drive: Drive, configuration: LaneConfiguration, captured: Mapping[str, Any]) -> StreamOptions:
    """Return the options of a step's requests: what it captured, and this process's keys and callbacks."""
    known = drive.options
    if known is not None and known[0] is captured and known[1] is configuration and known[2] is drive.environment.stream_options:
        return known[3]
    live = drive.environment.stream_options
    durable = cast("dict[str, Any]", msgspec.to_builtins(captured))
    options = StreamOptions(
        **durable,
        api_key=live.api_key,
        headers=live.headers,
        on_payload=live.on_payload,
        on_response=live.on_response,
        reasoning=None if configuration.thinking_level == "off" else configuration.thinking_level,
        session_id=f"{drive.runtime.session.metadata.id}:{drive.line.name}",
        signal=drive.gate.signal,
    )
    drive.options = captured, configuration, live, options
    return options


async def request_patch(drive: Drive, model: Model, step: str, attempt: int, options: StreamOptions) -> dict[str, Any]:
    """Ask `before_request`."""
    if not drive.hooks.has("before_request"):
        return {}
    return await drive.hooks.before_request(BeforeRequest(**drive.asked, model=model, step=step, attempt=attempt, stream_options=options))


class Wire:
    """The callbacks of one request: asks `before_payload`, remembers the response's status and headers."""

    def __init__(self, drive: Drive, options: StreamOptions) -> None:
        self._drive, self._options = drive, options
        self.info: ResponseInfo | None = None

    def options(self) -> StreamOptions:
        """Return the options with the signal and these callbacks in place."""
        hooks = self._drive.hooks
        if not hooks.has("before_payload") and not hooks.has("after_response"):
            return self._options
        return msgspec.structs.replace(
            self._options,
            on_payload=self._on_payload if hooks.has("before_payload") else self._options.on_payload,
            on_response=self._on_response if hooks.has("after_response") else self._options.on_response,
        )

    async def _on_payload(self, payload: dict[str, Any], model: Model) -> dict[str, Any] | None:
        if self._options.on_payload is not None:
            changed = self._options.on_payload(payload, model)
            if inspect.isawaitable(changed):
                changed = await changed
            payload = payload if changed is None else changed
        return await self._drive.hooks.before_payload(BeforePayload(**self._drive.asked, model=model, payload=payload))

    async def _on_response(self, info: ResponseInfo, model: Model) -> None:
        self.info = info
        if self._options.on_response is not None:
            told = self._options.on_response(info, model)
            if told is not None:
                await told

    async def after_response(self, message: AssistantMessage) -> AssistantMessage:
        """Ask `after_response`; its message may not be one that still streams."""
        if not self._drive.hooks.has("after_response"):
            return message
        status, headers = (None, None) if self.info is None else (self.info.status, self.info.headers)
        changed = await self._drive.hooks.after_response(AfterResponse(**self._drive.asked, status=status, headers=headers, message=message))
        return message if changed.stop_reason == "pending" else changed


# ---------------------------------------------------------------------------------------------------- transcript


async def transcript(drive: Drive, configuration: LaneConfiguration) -> Transcript:
    """Return what the request sees: system prompt and tools, then the lane's context, as a provider may be sent it."""
    environment = drive.environment
    prompt = await environment.prompt_text()
    convert = environment.to_provider_messages
    if drive.hooks.has("transform_context"):
        messages = await drive.line.messages()
        changed = await drive.hooks.transform_context(TransformContext(**drive.asked, messages=messages, system_prompt=prompt))
        prompt = changed.system_prompt
        sent = drive.line.project(changed.messages) if convert is None else await _converted(convert, changed.messages)
    elif convert is None:
        sent = await drive.line.projected()
    else:
        sent = await _converted(convert, await drive.line.messages())
    system = _system(drive, prompt, configuration)
    if system is not None:
        sent.insert(0, system)
    return Transcript(messages=sent)


async def _converted(convert: ToProvider, messages: list[AgentMessage]) -> list[Message]:
    converted = convert(messages)
    if hasattr(converted, "__await__"):
        converted = await cast("Any", converted)
    return normalise(cast("list[Message]", converted))


def _system(drive: Drive, prompt: str, configuration: LaneConfiguration) -> SystemMessage | None:
    line, tools = drive.line, drive.environment.tools
    if line.system_of is not None and line.system_of[0] is tools and line.system_of[1:] == (prompt, configuration.active_tools):
        return line.system
    declarations = [tool.declaration for tool in drive.environment.active(configuration).values()]
    message = SystemMessage(content=prompt, tools_added=declarations or None, timestamp=0) if prompt or declarations else None
    if line.system != message:
        line.system = message
    line.system_of = tools, prompt, configuration.active_tools
    return line.system


# ---------------------------------------------------------------------------------------------------- streaming


class Streaming:
    """Tells and keeps one response as it arrives. Frames are written in the background; `close()` waits for the last."""

    def __init__(self, drive: Drive, state: AssistantEffectPending | DeferredEffectPending, *, recovery: bool = False) -> None:
        self._drive, self._state, self._recovery = drive, state, recovery
        self._bus, self._lane, self._operation_id = drive.runtime.bus, drive.line.name, drive.operation_id
        self._frames = Frames()
        self._writer: asyncio.Task[None] | None = None
        self._watched = False
        self.since = 0.0
        self.started = False
        self.framed = False  # whether a frame may have been stored

    async def on_event(self, event: StreamStart | BlockEvent) -> None:
        """Take one event of the stream."""
        if not self.started:
            self._start(event)
        if isinstance(event, StreamStart):
            return
        block: BlockEvent = event
        self._frames.add(block)
        if not self._watched:
            self._watched = True
            self._drive.clock.watch(self)
        elif self._frames.size >= FLUSH_SIZE:
            self.flush()
        if self._bus.listened and self._bus.post(
            MessageUpdate(lane=self._lane, operation_id=self._operation_id, recovery=self._recovery, message=block.partial, event=block)
        ):
            await self._bus.deliver()

    def _start(self, event: StreamStart | BlockEvent) -> None:
        self.started = True
        self._drive.line.live.streaming = event.partial
        if self._bus.listened:
            self._bus.post(MessageStart(**self._drive.told, recovery=self._recovery, message=event.partial))

    def flush(self) -> None:
        """Begin to write what has come and is not written."""
        if self._watched:
            self._watched = False
            self._drive.clock.drop()
        if self._frames and (self._writer is None or self._writer.done()):
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="laneway frames")

    async def _write(self) -> None:
        state, line = self._state, self._drive.line
        key = keys.under(self._drive.operation_id, state.response_entry_id)

        def owns(operation: Operation) -> bool:
            now = operation.state
            return isinstance(now, (AssistantEffectPending, DeferredEffectPending)) and now.response_entry_id == state.response_entry_id

        try:
            while self._frames:
                self.framed = True
                if not await line.write([AppendList(keys.PENDING_FRAMES, key, self._frames.take())], while_=owns):
                    return
        except (HarnessFault, Refused):
            return  # the fault, or the close, is everybody's already

    async def close(self, *, keep: bool = False) -> None:
        """Wait for the write under way; with `keep`, write what is left first (something slow comes before the settlement)."""
        if keep and self._frames:
            self.flush()
        if self._watched:
            self._watched = False
            self._drive.clock.drop()
        if self._writer is not None and not self._writer.done():
            await asyncio.wait((self._writer,))


async def ask(
    drive: Drive,
    state: AssistantEffectPending,
    *,
    model: Model,
    patch: Mapping[str, Any],
) -> tuple[AssistantMessage, Streaming]:
    """Perform one generation request and return its final message; never raises for a provider, a prompt or a conversion."""
    streaming = Streaming(drive, state)
    options = step_options(drive, state.context.configuration, state.context.stream_options)
    wire = Wire(drive, patched(options, patch) if patch else options)
    try:
        request = await transcript(drive, state.context.configuration)
    except Exception as error:
        drive.gate.admit()
        return _unsent(model, error), streaming
    drive.gate.admit()
    stream_fn, on_event = drive.environment.streamer(), streaming.on_event
    if drive.traced:
        with _telemetry.request_span(provider=model.provider, model_id=model.id, step="assistant", attempt=state.attempt) as span:
            message = await respond(model, request, wire.options(), stream_fn=stream_fn, on_event=on_event, guard=drive.guard)
            _telemetry.answered(span, message, request.messages)
    else:
        message = await respond(model, request, wire.options(), stream_fn=stream_fn, on_event=on_event, guard=drive.guard)
    return await finished(drive, wire, streaming, message), streaming


async def finished(drive: Drive, wire: Wire, streaming: Streaming, message: AssistantMessage) -> AssistantMessage:
    """Do what comes between the end of a stream and its settlement."""
    await streaming.close(keep=drive.hooks.has("after_response"))
    if drive.gate.state == "closed":
        drive.gate.admit()
    return message if drive.gate.signal.aborted else await wire.after_response(message)


def _unsent(model: Model, error: Exception) -> AssistantMessage:
    """Stand for a response to a request that could not be made."""
    return AssistantMessage(
        content=[],
        api=model.api,
        provider=model.provider,
        model=model.id,
        stop_reason="error",
        error_message=f"the request could not be prepared: {describe(error)}",
        error=ErrorInfo(kind="configuration"),
    )
