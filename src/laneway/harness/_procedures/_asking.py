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
from laneway.harness._events import HarnessEvent, MessageStart, MessageUpdate
from laneway.harness._frames import FLUSH_AFTER, FLUSH_SIZE, Frames
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


# ---------------------------------------------------------------------------------------------------- options


def step_options(drive: Drive, configuration: LaneConfiguration, captured: Mapping[str, Any]) -> StreamOptions:
    """Return the options of a step's requests: what it captured, and this process's keys and callbacks."""
    live = drive.environment.stream_options
    durable = cast("dict[str, Any]", msgspec.to_builtins(captured))
    return StreamOptions(
        **durable,
        api_key=live.api_key,
        headers=live.headers,
        on_payload=live.on_payload,
        on_response=live.on_response,
        reasoning=None if configuration.thinking_level == "off" else configuration.thinking_level,
        session_id=f"{drive.runtime.session.metadata.id}:{drive.line.name}",
    )


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
        return msgspec.structs.replace(
            self._options,
            signal=self._drive.gate.signal,
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
    messages = await drive.line.messages()
    if drive.hooks.has("transform_context"):
        changed = await drive.hooks.transform_context(TransformContext(**drive.asked, messages=messages, system_prompt=prompt))
        prompt, messages = changed.system_prompt, changed.messages
    sent = await _for_provider(drive, messages)
    system = _system(drive, prompt, configuration)
    return Transcript(messages=sent if system is None else [system, *sent])


async def _for_provider(drive: Drive, messages: list[AgentMessage]) -> list[Message]:
    convert = drive.environment.to_provider_messages
    if convert is None:
        return drive.line.projection.project(messages)
    converted = convert(messages)
    if hasattr(converted, "__await__"):
        converted = await cast("Any", converted)
    return normalise(cast("list[Message]", converted))


def _system(drive: Drive, prompt: str, configuration: LaneConfiguration) -> SystemMessage | None:
    declarations = [tool.declaration for tool in drive.environment.active(configuration).values()]
    if not prompt and not declarations:
        return None
    message = SystemMessage(content=prompt, tools_added=declarations or None, timestamp=0)
    if drive.line.system != message:
        drive.line.system = message
    return drive.line.system


# ---------------------------------------------------------------------------------------------------- streaming


class Streaming:
    """Tells and keeps one response as it arrives. Frames are written in the background; `close()` waits for the last."""

    def __init__(self, drive: Drive, state: AssistantEffectPending | DeferredEffectPending, *, recovery: bool = False) -> None:
        self._drive, self._state, self._recovery = drive, state, recovery
        self._frames = Frames()
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.started = False

    async def on_event(self, event: StreamStart | BlockEvent) -> None:
        """Take one event of the stream."""
        if not self.started:
            self._start(event)
        if type(event) is StreamStart:
            return
        block = cast(BlockEvent, event)
        self._frames.add(block)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_AFTER, self._flush)
        elif self._frames.size >= FLUSH_SIZE:
            self._flush()
        bus = self._drive.runtime.bus
        if bus.listened and bus.post(MessageUpdate(**self._drive.told, recovery=self._recovery, message=block.partial, event=block)):
            await bus.deliver()

    def _start(self, event: StreamStart | BlockEvent) -> None:
        self.started = True
        self._drive.line.live.streaming = event.partial
        self._post(MessageStart(**self._drive.told, recovery=self._recovery, message=event.partial))

    def _post(self, event: HarnessEvent) -> None:
        if self._drive.runtime.bus.listened:
            self._drive.runtime.bus.post(event)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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
                if not await line.write([AppendList(keys.PENDING_FRAMES, key, self._frames.take())], while_=owns):
                    return
        except (HarnessFault, Refused):
            return  # the fault, or the close, is everybody's already

    async def close(self, *, keep: bool = False) -> None:
        """Wait for the write under way; with `keep`, write what is left first (something slow comes before the settlement)."""
        if keep and self._frames:
            self._flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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
    wire = Wire(drive, patched(step_options(drive, state.context.configuration, state.context.stream_options), patch))
    try:
        request = await transcript(drive, state.context.configuration)
    except Exception as error:
        drive.gate.admit()
        return _unsent(model, error), streaming
    drive.gate.admit()
    with _telemetry.request_span(provider=model.provider, model_id=model.id, step="assistant", attempt=state.attempt) as span:
        message = await respond(model, request, wire.options(), stream_fn=drive.environment.streamer(), on_event=streaming.on_event)
        _telemetry.answered(span, message, request.messages)
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
