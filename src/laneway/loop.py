"""Layer 1: the loop. One stateless function: context, configuration and an event sink in; events and new messages out.

It forgets everything when it returns. `_run_loop` is the whole algorithm; what it calls is named for what it does.

Four entries: `agent_loop` and `agent_loop_continue` give an `EventStream` (order only, the run never waits for the consumer);
`run_agent_loop` and `run_agent_loop_continue` await an `emit` callback for every event (a barrier).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct

from laneway._effects.batch import BatchRunner
from laneway._effects.call_tools import After, Before, Outcome, Prepared, plain_args
from laneway._effects.decisions import Block, PatchResult, ReplaceArgs, call_hook
from laneway._effects.respond import StreamGuard, respond
from laneway._event_stream import EventStream
from laneway.abort import AbortController, AbortSignal, Sharing, abort_scope, end_of
from laneway.errors import Aborted, LoopInputError
from laneway.events import (
    AgentEnd,
    AgentEndReason,
    AgentEvent,
    AgentStart,
    BlockEvent,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    StreamStart,
    TurnEnd,
    TurnStart,
)
from laneway.llm._writer import describe
from laneway.llm.base import Model, StreamFn, StreamOptions, ThinkingLevel, Transcript
from laneway.messages import AgentMessage, AssistantMessage, ErrorInfo, Message, SystemMessage, ToolCall, ToolResult, ToolResultMessage
from laneway.tools.base import AgentTool, ExecutionMode
from laneway.transcript import Projection, ToolDeclarer

__all__ = [
    "AfterToolCall", "AgentContext", "BeforeToolCall", "Block", "CompletedTurn", "Continue", "End", "EventStream", "LoopConfig", "LoopLimits",
    "PatchResult", "ReplaceArgs", "RequestContext", "RequestUpdate", "TurnUpdate", "agent_loop", "agent_loop_continue", "run_agent_loop",
    "run_agent_loop_continue",
]  # fmt: skip

MAX_REPEATED_TRUNCATIONS = 3  # the same calls cut off by the output limit this often in a row end the run
HOOK_GRACE = 5.0  # seconds that finish_turn has after an abort, when its answer does not count any more
CANCEL_GRACE = 10.0  # seconds that a run may take to settle after the task that awaits it was cancelled

logger = logging.getLogger("laneway")
T = TypeVar("T")
Emit: TypeAlias = Callable[[AgentEvent], "Awaitable[None] | None"]
Poll: TypeAlias = Callable[[], "Awaitable[list[AgentMessage]] | list[AgentMessage]"]


# ---------------------------------------------------------------------------------------------------- what goes in


@dataclass(slots=True, kw_only=True)
class AgentContext:
    """The transcript, and the tools that can be executed. What the model may call is declared by the transcript's system messages."""

    messages: list[AgentMessage] = field(default_factory=list[AgentMessage])
    tools: list[AgentTool] = field(default_factory=list[AgentTool])


class LoopLimits(Struct, kw_only=True, frozen=True):
    """Bounds of a run, checked between turns: a batch is never cut, no call is left without a result. `deadline` is seconds from the start."""

    max_turns: int | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    max_cost: float | None = None
    deadline: float | None = None


class CompletedTurn(Struct, kw_only=True, frozen=True):
    """A finished turn: `context` is the live running context, `new_messages` all that the run had added by then."""

    message: AssistantMessage
    tool_results: list[ToolResultMessage]
    context: AgentContext
    new_messages: list[AgentMessage]


class RequestContext(Struct, kw_only=True, frozen=True):
    """What the next request will be made from."""

    context: AgentContext
    model: Model
    thinking_level: ThinkingLevel


class RequestUpdate(Struct, kw_only=True, frozen=True):
    """Answer of `prepare_request`; None keeps what is there, anything else stays for later turns too."""

    context: AgentContext | None = None
    model: Model | None = None
    thinking_level: ThinkingLevel | None = None


class TurnUpdate(Struct, kw_only=True, frozen=True):
    """Answer of `prepare_next_turn`; `messages` are added before what was queued. None keeps what is there."""

    context: AgentContext | None = None
    messages: list[AgentMessage] | None = None
    model: Model | None = None
    thinking_level: ThinkingLevel | None = None


class End(Struct, frozen=True):
    """Answer of `finish_turn`: end the run after this turn; the queues are not looked at."""


class Continue(Struct, frozen=True):
    """Answer of `finish_turn`: make at least one more request. Any natural one (tool results, queued messages) satisfies it."""


class BeforeToolCall(Struct, kw_only=True, frozen=True):
    """`args` are the validated arguments as JSON data; `tool_call` is the model's own call."""

    assistant_message: AssistantMessage
    tool_call: ToolCall
    args: Any
    context: AgentContext


class AfterToolCall(Struct, kw_only=True, frozen=True):
    """A call that ran, with its result before any patch."""

    assistant_message: AssistantMessage
    tool_call: ToolCall
    args: Any
    result: ToolResult
    is_error: bool
    context: AgentContext


@dataclass(slots=True, kw_only=True)
class LoopConfig:
    """How a run behaves. Every hook may be sync or async; none can skip a turn, reorder calls or go back.

    `transform_context(messages)` and `convert_to_llm(messages)` shape one request without touching the transcript; `get_api_key(provider)` is
    asked before each request and falls back to `stream_options.api_key`. `batch_interrupt()` gives the signal that stops the batch about to run.
    `has_queued_messages()` says whether a poll would give something: a limit or an abort that keeps a message from being answered is why the
    run ends, also after an answer that would have ended it.
    """

    model: Model
    thinking_level: ThinkingLevel = "off"
    stream_options: StreamOptions = field(default_factory=StreamOptions)
    convert_to_llm: Callable[[list[AgentMessage]], Awaitable[list[Message]] | list[Message]] | None = None
    transform_context: Callable[[list[AgentMessage]], Awaitable[list[AgentMessage]] | list[AgentMessage]] | None = None
    get_api_key: Callable[[str], Awaitable[str | None] | str | None] | None = None
    prepare_request: Callable[[RequestContext, AbortSignal], Awaitable[RequestUpdate | None] | RequestUpdate | None] | None = None
    prepare_next_turn: Callable[[CompletedTurn, AbortSignal], Awaitable[TurnUpdate | None] | TurnUpdate | None] | None = None
    finish_turn: Callable[[CompletedTurn, AbortSignal], Awaitable[End | Continue | None] | End | Continue | None] | None = None
    get_steering_messages: Poll | None = None
    get_follow_up_messages: Poll | None = None
    tool_execution: ExecutionMode = "parallel"
    before_tool_call: Callable[[BeforeToolCall, AbortSignal], Awaitable[Block | ReplaceArgs | None] | Block | ReplaceArgs | None] | None = None
    after_tool_call: Callable[[AfterToolCall, AbortSignal], Awaitable[PatchResult | None] | PatchResult | None] | None = None
    tool_abort_grace: float = 0.5
    limits: LoopLimits | None = None
    batch_interrupt: Callable[[], AbortSignal] | None = None
    has_queued_messages: Callable[[], bool] | None = None


# ---------------------------------------------------------------------------------------------------- entries


def agent_loop(
    prompts: Sequence[AgentMessage],
    context: AgentContext,
    config: LoopConfig,
    *,
    signal: AbortSignal | None = None,
    stream_fn: StreamFn | None = None,
) -> EventStream[AgentEvent, list[AgentMessage]]:
    """Run `prompts` on a copy of `context` and return the stream of events; its result is all new messages, prompts included.

    Order only: the run is in a task of its own and never waits for the consumer. Abandoning the stream aborts the run.
    """
    return _stream(list(prompts), context, config, signal, stream_fn)


def agent_loop_continue(
    context: AgentContext, config: LoopConfig, *, signal: AbortSignal | None = None, stream_fn: StreamFn | None = None
) -> EventStream[AgentEvent, list[AgentMessage]]:
    """Go on from `context` as it is; otherwise like `agent_loop`.

    Raises:
        LoopInputError: no messages, only system messages, or the last one is an assistant message. Raised by the call itself.
    """
    _check_can_continue(context)
    return _stream([], context, config, signal, stream_fn)


async def run_agent_loop(
    prompts: Sequence[AgentMessage],
    context: AgentContext,
    config: LoopConfig,
    emit: Emit,
    *,
    signal: AbortSignal | None = None,
    stream_fn: StreamFn | None = None,
) -> list[AgentMessage]:
    """Run `prompts` on a copy of `context`; return all new messages, prompts included.

    A barrier: every `emit` (sync or async) is awaited before the loop goes on. Cancelling the calling task aborts the run, waits until it
    has settled (`agent_end` included) and then raises `CancelledError`.

    Raises:
        Exception: what `emit`, `finish_turn` or `prepare_next_turn` raises; a provider's or tool's fault never is.
    """
    with AbortController(signal) as controller:
        return await settle_on_cancel(_whole(_Run(list(prompts), context, config, _as_async(emit), controller.signal, stream_fn)), controller)


async def run_agent_loop_continue(
    context: AgentContext, config: LoopConfig, emit: Emit, *, signal: AbortSignal | None = None, stream_fn: StreamFn | None = None
) -> list[AgentMessage]:
    """Go on from `context` as it is; otherwise like `run_agent_loop`.

    Raises:
        LoopInputError: no messages, only system messages, or the last one is an assistant message.
    """
    _check_can_continue(context)
    return await run_agent_loop([], context, config, emit, signal=signal, stream_fn=stream_fn)


async def run_in_loop(
    prompts: Sequence[AgentMessage],
    context: AgentContext,
    config: LoopConfig,
    emit: Callable[[AgentEvent], Awaitable[None]],
    *,
    signal: AbortSignal,
    stream_fn: StreamFn | None,
) -> list[AgentMessage]:
    """`run_agent_loop` for an owner, like `Agent`, that has a task and an abort controller of its own for the run."""
    return await _whole(_Run(list(prompts), context, config, emit, signal, stream_fn))


def _stream(
    prompts: list[AgentMessage], context: AgentContext, config: LoopConfig, signal: AbortSignal | None, stream_fn: StreamFn | None
) -> EventStream[AgentEvent, list[AgentMessage]]:
    controller = AbortController(signal)
    copied = AgentContext(messages=list(context.messages), tools=list(context.tools))

    async def produce(put: Callable[[AgentEvent], Awaitable[None]]) -> list[AgentMessage]:
        with controller:
            return await settle_on_cancel(_whole(_Run(prompts, copied, config, put, controller.signal, stream_fn)), controller)

    return EventStream(produce, controller)


def _check_can_continue(context: AgentContext) -> None:
    conversation = [message for message in context.messages if not isinstance(message, SystemMessage)]
    if not conversation:
        raise LoopInputError("cannot continue: the context has no messages to answer; start with a prompt")
    if isinstance(context.messages[-1], AssistantMessage):
        raise LoopInputError("cannot continue: the last message is the assistant's own; add a user message first")


def _as_async(emit: Emit) -> Callable[[AgentEvent], Awaitable[None]]:
    if inspect.iscoroutinefunction(emit):
        return cast("Callable[[AgentEvent], Awaitable[None]]", emit)

    async def emit_and_wait(event: AgentEvent) -> None:
        done = emit(event)
        if done is not None and hasattr(done, "__await__"):  # a lambda may return anything
            await done

    return emit_and_wait


async def settle_on_cancel(run: Coroutine[Any, Any, Any] | asyncio.Task[Any], controller: AbortController, grace: float = CANCEL_GRACE) -> Any:
    """Await `run` in a task of its own, so that cancelling the caller aborts it instead of tearing it apart half-way.

    The cancellation is raised again once the run has settled, or after `grace` seconds, or at a second cancellation.
    """
    task = run if isinstance(run, asyncio.Task) else asyncio.create_task(run)
    try:
        if not task.done():  # what never had to wait is done already
            await end_of(task)
        return task.result()
    except asyncio.CancelledError:
        if not task.done():
            controller.abort("the task that awaited the run was cancelled")
            try:
                await asyncio.wait([task], timeout=grace)
            finally:
                if not task.done():
                    task.cancel()
                    await _turns(3)  # for the run to end, also under a scope that cancels again each turn
        if task.done() and not task.cancelled():
            task.exception()  # the cancellation is what the caller asked for; the run's own error would hide it
        raise


async def _turns(count: int) -> None:
    """Let the loop turn, whoever cancels meanwhile: the caller raises a cancellation already."""
    for _ in range(count):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


# ---------------------------------------------------------------------------------------------------- the loop


async def _whole(run: _Run) -> list[AgentMessage]:
    try:
        return await _run_loop(run)
    finally:
        run.close()  # also when it is torn: an emit that raises, a second cancellation


async def _run_loop(run: _Run) -> list[AgentMessage]:
    """The algorithm. Two nested loops: the inner one answers tool results and steering, the outer one exists for follow-ups."""
    await run.emit(AgentStart())
    await run.emit(TurnStart())
    await run.add(run.prompts)
    pending = await run.poll_steering()  # A: typed while waiting
    first = True
    results: list[ToolResultMessage] = []
    wanted = False
    while True:
        more = True
        while more or pending:
            if not first:
                pending = await run.prepare_next_turn(pending)
                if run.raised is not None:
                    await run.add(pending)  # taken from a queue already: it must not be lost
                    return await run.end("error")
                pending = pending or await run.poll_steering()  # B: preparation may have taken long
                await run.emit(TurnStart())
            await run.add(pending)
            pending, first = [], False
            message = await run.respond()
            if message.stop_reason in ("error", "aborted"):  # exit 1
                await run.finish_turn(message, [])
                return await run.end("aborted" if message.stop_reason == "aborted" else "error")
            results, more = await run.call_tools(message)
            decision = await run.finish_turn(message, results)
            if (reason := run.must_end(decision, results, more)) is not None:  # exit 3, and what cannot go on
                return await run.end(reason)
            pending = await run.poll_steering()  # C
            wanted = isinstance(decision, Continue) and not more and not pending
            more = more or run.failed
        pending = await run.poll_follow_up()  # the only place
        if not pending and not wanted and not run.failed:  # D: else exactly one more request with the same context
            return await run.end(natural_end(results))  # exits 2 and 4


def natural_end(results: list[ToolResultMessage]) -> AgentEndReason:
    """Why a run ends that has nothing left to do: after a batch, all its results agreed to terminate."""
    return "terminated" if results else "stop"


class _Run:
    """The local variables of one run and the steps that `_run_loop` is told in."""

    def __init__(
        self,
        prompts: list[AgentMessage],
        context: AgentContext,
        config: LoopConfig,
        emit: Callable[[AgentEvent], Awaitable[None]],
        signal: AbortSignal,
        stream_fn: StreamFn | None,
    ) -> None:
        self.prompts = prompts
        self.emit = emit
        self.raised: Exception | None = None  # of finish_turn or prepare_next_turn: raised once agent_end is out
        self._failure: Exception | None = None  # of a poll: the next response settles as an error
        # What a poll gives that finds nothing, twice a turn: awaiting what is done already costs less than a coroutine.
        self._nothing: asyncio.Future[list[AgentMessage]] = asyncio.get_running_loop().create_future()
        self._nothing.set_result([])
        self._context = AgentContext(messages=list(context.messages), tools=list(context.tools))
        self._config = config
        self._signal = signal
        self._stream_fn = stream_fn
        self._model = config.model
        self._thinking_level: ThinkingLevel = config.thinking_level
        self._new: list[AgentMessage] = []
        self._declarer, self._projection = ToolDeclarer(), Projection()
        self._declared: list[AgentTool] | None = None  # the tools that the transcript declares by now
        # Where no hook can reach the running context, it only grows, and its past need not be compared turn by turn.
        self._append_only = not (
            config.prepare_request or config.prepare_next_turn or config.finish_turn or config.before_tool_call or config.after_tool_call
        )
        self._shaped = config.transform_context is not None or config.convert_to_llm is not None
        self._asks = self._shaped or config.prepare_request is not None or config.get_api_key is not None
        self._sharing = Sharing()
        self._guard: StreamGuard | None = None
        self._options: tuple[ThinkingLevel, str | None, StreamOptions] | None = None
        self._tools: tuple[list[AgentTool], dict[str, AgentTool], frozenset[str]] = ([], {}, frozenset())
        self._results: list[ToolResultMessage] = []
        self._limits = _LimitCounter(config.limits)
        self._partial: AssistantMessage | None = None
        self._turn: Any = None  # the last CompletedTurn, kept where a hook wants it
        self._batches: BatchRunner | None = None
        self._message: AssistantMessage | None = None  # the last response, whose calls run

    @property
    def failed(self) -> bool:
        """Whether a poll raised: one more turn reports it."""
        return self._failure is not None

    # -- messages

    async def add(self, messages: list[AgentMessage]) -> None:
        """Put messages into the transcript, with a system message where the tools changed."""
        context = self._context
        if not messages and self._append_only and self._declared == context.tools:
            return
        declared = self._declarer.declare(context.messages, context.tools, messages, append_only=self._append_only)
        self._declared = list(context.tools)
        for message in declared:
            await self.emit(MessageStart(message=message))
            context.messages.append(message)
            self._new.append(message)
            await self.emit(MessageEnd(message=message))

    def poll_steering(self) -> Awaitable[list[AgentMessage]]:
        return self._poll(self._config.get_steering_messages)

    def poll_follow_up(self) -> Awaitable[list[AgentMessage]]:
        return self._poll(self._config.get_follow_up_messages)

    def _poll(self, poll: Poll | None) -> Awaitable[list[AgentMessage]]:
        if poll is None or self._signal.aborted or self._failure is not None:
            return self._nothing
        try:
            polled = poll()
        except Exception as error:
            self._failure = error
            return self._nothing
        return self._nothing if type(polled) is list and not polled else self._polled(polled)

    async def _polled(self, polled: Awaitable[list[AgentMessage]] | list[AgentMessage]) -> list[AgentMessage]:
        try:
            return list(await call_hook(lambda: polled) or ())
        except Exception as error:
            self._failure = error
            return []

    # -- one response

    async def respond(self) -> AssistantMessage:
        """Make one request and put the response into the transcript; whatever goes wrong is an error message there."""
        if self._sharing.due():
            await self._sharing.turn()
        try:
            if self._failure is not None:
                raise self._failure
            if self._asks:
                async with abort_scope(self._signal):
                    transcript, options = await self._request()
            else:
                messages = self._projection.project(self._context.messages, append_only=self._append_only)
                transcript, options = Transcript(messages=messages), self._options_with(None)
        except Exception as error:
            final = self._broken("aborted" if self._signal.aborted else "error", error)
        else:
            if self._guard is None:
                self._guard = StreamGuard(self._signal)
            stream_fn = self._stream_fn or _default_stream_fn()
            final = await respond(self._model, transcript, options, stream_fn=stream_fn, on_event=self._on_stream_event, guard=self._guard)
        return await self._close_message(final)

    async def _request(self) -> tuple[Transcript, StreamOptions]:
        config = self._config
        if config.prepare_request is not None:
            request = RequestContext(context=self._context, model=self._model, thinking_level=self._thinking_level)
            update = _checked("prepare_request", await call_hook(config.prepare_request, request, self._signal), RequestUpdate)
            if update is not None:
                self._apply(update)
        messages = self._context.messages
        if config.transform_context is not None:
            messages = await call_hook(config.transform_context, list(messages))
        if config.convert_to_llm is not None:
            messages = cast("list[AgentMessage]", await call_hook(config.convert_to_llm, list(messages)))
        transcript = Transcript(messages=self._projection.project(messages, append_only=self._append_only and not self._shaped))
        key = None if config.get_api_key is None else await call_hook(config.get_api_key, self._model.provider)
        return transcript, self._options_with(key)

    def _options_with(self, key: str | None) -> StreamOptions:
        level = self._thinking_level
        if self._options is None or self._options[0] != level or self._options[1] != key:
            base = self._config.stream_options
            reasoning = None if level == "off" else level
            options = msgspec.structs.replace(base, signal=self._signal, reasoning=reasoning, api_key=key or base.api_key)
            self._options = (level, key, options)
        return self._options[2]

    def _apply(self, update: RequestUpdate | TurnUpdate) -> None:
        if update.context is not None:
            self._context = AgentContext(messages=list(update.context.messages), tools=list(update.context.tools))
        self._model = update.model or self._model
        self._thinking_level = update.thinking_level or self._thinking_level

    def _broken(self, stop_reason: Any, error: Exception) -> AssistantMessage:
        model = self._model
        return AssistantMessage(
            content=[], api=model.api, provider=model.provider, model=model.id, stop_reason=stop_reason, error_message=describe(error),
            error=None if stop_reason == "aborted" else ErrorInfo(kind="configuration"),
        )  # fmt: skip

    def _on_stream_event(self, event: Any) -> Awaitable[None]:
        if self._partial is not None and type(event) is not StreamStart:
            emit = self.emit  # a local: before Python 3.12, calling an attribute that is no method is slow, and this is per delta
            return emit(MessageUpdate(message=event.partial, event=event))
        return self._open_message(event)

    async def _open_message(self, event: StreamStart | BlockEvent) -> None:
        if self._partial is None:
            self._partial = event.partial
            self._context.messages.append(event.partial)  # hooks and listeners see the answer grow
            emit = self.emit
            await emit(MessageStart(message=event.partial))
        if type(event) is not StreamStart:
            await self.emit(MessageUpdate(message=event.partial, event=cast(BlockEvent, event)))

    async def _close_message(self, final: AssistantMessage) -> AssistantMessage:
        messages = self._context.messages
        if self._partial is None:
            await self.emit(MessageStart(message=final))
        elif messages and messages[-1] is self._partial:
            messages.pop()
        self._partial = None
        messages.append(final)
        self._new.append(final)
        if self._config.limits is not None:
            self._limits.count(final)
        emit = self.emit
        await emit(MessageEnd(message=final))
        return final

    # -- its tool calls

    async def call_tools(self, message: AssistantMessage) -> tuple[list[ToolResultMessage], bool]:
        """Give every call of the response a result; return them, and whether the model has something to answer."""
        calls = message.tool_calls
        if not calls:
            self._limits.truncated(None)
            return [], False
        batches = self._batches
        if batches is None:
            batches = self._batches = self._batch_runner()
        self._message, self._results = message, []
        cut_off = message.stop_reason == "length"
        self._limits.truncated(calls if cut_off else None)
        if cut_off:
            await batches.fail_truncated(calls)
            return self._results, True
        config = self._config
        tools, sequential = self._tools_by_name(self._context.tools)
        agreed = await batches.run(
            calls,
            tools,
            interrupt=None if config.batch_interrupt is None else config.batch_interrupt(),
            one_by_one=config.tool_execution == "sequential" or (bool(sequential) and any(call.name in sequential for call in calls)),
        )
        return self._results, not agreed

    def _batch_runner(self) -> BatchRunner:
        config = self._config
        return BatchRunner(
            signal=self._signal,
            emit=self.emit,
            keep=self._keep,
            sharing=self._sharing,
            grace=config.tool_abort_grace,
            before=None if config.before_tool_call is None else self._before,
            after=None if config.after_tool_call is None else self._after,
        )

    def _keep(self, result: ToolResultMessage) -> None:
        self._results.append(result)
        self._context.messages.append(result)
        self._new.append(result)

    def _before(self, call: ToolCall) -> Before:
        hook, message, context = self._config.before_tool_call, self._message, self._context
        assert hook is not None
        assert message is not None
        return lambda args: hook(BeforeToolCall(assistant_message=message, tool_call=call, args=args, context=context), self._signal)

    def _after(self, call: ToolCall, ready: Prepared) -> After:
        hook, message, context = self._config.after_tool_call, self._message, self._context
        assert hook is not None
        assert message is not None

        def ask(outcome: Outcome) -> Any:
            args, result = plain_args(ready.args), outcome.result  # here, where arguments without a JSON form are this call's own fault
            event = AfterToolCall(assistant_message=message, tool_call=call, args=args, result=result, is_error=outcome.is_error, context=context)
            return hook(event, self._signal)

        return ask

    def _tools_by_name(self, tools: list[AgentTool]) -> tuple[dict[str, AgentTool], frozenset[str]]:
        """Return the tools by name, and the names of those that make a batch sequential."""
        seen, by_name, sequential = self._tools
        if seen != tools:
            by_name = {tool.name: tool for tool in tools}
            sequential = frozenset(name for name, tool in by_name.items() if tool.execution_mode == "sequential")
            self._tools = (list(tools), by_name, sequential)
        return by_name, sequential

    # -- between turns

    async def finish_turn(self, message: AssistantMessage, results: list[ToolResultMessage]) -> End | Continue | None:
        """Ask `finish_turn` and close the turn. What the hook raises ends the run after this turn."""
        decision = None
        hook = self._config.finish_turn
        if hook is not None or self._config.prepare_next_turn is not None:
            self._turn = CompletedTurn(message=message, tool_results=results, context=self._context, new_messages=list(self._new))
        if hook is not None:
            patience = asyncio.timeout(HOOK_GRACE if self._signal.aborted else None)
            try:
                async with patience, abort_scope(None if self._signal.aborted else self._signal):
                    decision = _checked("finish_turn", await call_hook(hook, self._turn, self._signal), End, Continue)
            except Exception as error:
                if patience.expired():
                    logger.warning("finish_turn was given up: it did not return within %g s after the run was aborted", HOOK_GRACE)
                elif not self._cut_off(error):
                    self.raised = error
        emit = self.emit
        await emit(TurnEnd(message=message, tool_results=results))
        return decision

    async def prepare_next_turn(self, pending: list[AgentMessage]) -> list[AgentMessage]:
        """Ask `prepare_next_turn`; return what it adds, then what was pending."""
        hook = self._config.prepare_next_turn
        if hook is None or self._failure is not None or self._signal.aborted:
            return pending
        try:
            async with abort_scope(self._signal):
                update = _checked("prepare_next_turn", await call_hook(hook, self._turn, self._signal), TurnUpdate)
            if update is None:
                return pending
            self._apply(update)
            return [*(update.messages or ()), *pending]
        except Exception as error:
            if not self._cut_off(error):
                self.raised = error
            return pending

    def _cut_off(self, error: Exception) -> bool:
        """Whether an abort of this run stopped a hook; an `Aborted` of something else is the hook's own fault."""
        return isinstance(error, Aborted) and self._signal.aborted

    def must_end(self, decision: End | Continue | None, results: list[ToolResultMessage], more: bool) -> AgentEndReason | None:
        """Why the run cannot go on after this turn, if it cannot; the queues are then left alone."""
        if self.raised is not None:
            return "error"
        if self._signal.aborted:
            return "aborted" if self._goes_on(decision, more) else natural_end(results)
        if isinstance(decision, End):
            return "ended"
        if self._limits.reached() is not None:
            return "limit" if self._goes_on(decision, more) else natural_end(results)
        return None

    def _goes_on(self, decision: End | Continue | None, more: bool) -> bool:
        """Whether there is anything left to do."""
        queued = self._config.has_queued_messages
        return more or isinstance(decision, Continue) or (queued is not None and queued())

    async def end(self, reason: AgentEndReason) -> list[AgentMessage]:
        """Close the run and return its new messages."""
        limit = self._limits.reached() if reason == "limit" else None
        self.close()
        await self.emit(AgentEnd(messages=list(self._new), reason=reason, limit=limit))
        if self.raised is not None:
            raise self.raised
        return self._new

    def close(self) -> None:
        """Let go of the signals and timers of the run."""
        if self._guard is not None:
            self._guard.close()
        if self._batches is not None:
            self._batches.close()


class _LimitCounter:
    """Counts what `LoopLimits` bounds, and responses that the output limit cut off again and again at the same calls."""

    def __init__(self, limits: LoopLimits | None) -> None:
        self._limits = limits
        self._start = time.monotonic()
        self._turns = self._calls = self._tokens = self._repeats = 0
        self._cost = 0.0
        self._cut: list[tuple[str, Any]] | None = None

    def count(self, message: AssistantMessage) -> None:
        self._turns += 1
        self._calls += len(message.tool_calls)
        self._tokens += message.usage.output
        self._cost += message.usage.cost.total

    def truncated(self, calls: list[ToolCall] | None) -> None:
        cut = None if calls is None else [(call.name, copy.copy(call.arguments)) for call in calls]
        self._repeats = 0 if cut is None else self._repeats + 1 if cut == self._cut else 1
        self._cut = cut

    def reached(self) -> str | None:
        limits = self._limits
        if self._repeats >= MAX_REPEATED_TRUNCATIONS:
            return "repeated_truncation"
        if limits is None:
            return None
        if limits.max_turns is not None and self._turns >= limits.max_turns:
            return "max_turns"
        if limits.max_tool_calls is not None and self._calls >= limits.max_tool_calls:
            return "max_tool_calls"
        if limits.max_output_tokens is not None and self._tokens >= limits.max_output_tokens:
            return "max_output_tokens"
        if limits.max_cost is not None and self._cost >= limits.max_cost:
            return "max_cost"
        if limits.deadline is not None and time.monotonic() - self._start >= limits.deadline:
            return "deadline"
        return None


def _checked(hook: str, answer: T, *kinds: type[Any]) -> T:
    """Return a hook's answer; `End` for `End()`, say, is a fault like one that it raises and not "no opinion"."""
    if answer is not None and not isinstance(answer, kinds):
        wanted = " or ".join(f"{kind.__name__}(…)" for kind in kinds)
        raise TypeError(f"{hook} answered {answer!r}, not {wanted} or None")
    return answer


def _default_stream_fn() -> StreamFn:
    from laneway.llm import get_default_stream_fn  # here, so that a loop with a stream_fn of its own loads no registry

    return get_default_stream_fn()
