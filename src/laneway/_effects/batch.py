"""All tool calls of one response, for the loop: order of events, parallel or sequential, truncation, abort and interruption."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, cast

from laneway._effects.call_tools import (
    INTERRUPTED,
    NOT_STARTED,
    TRUNCATED,
    After,
    Before,
    Outcome,
    Prepared,
    RunningCall,
    failure,
    look_up,
    prepare,
    result_message,
)
from laneway.abort import AbortSignal, soon
from laneway.events import AgentEvent, MessageEnd, MessageStart, ToolExecutionEnd, ToolExecutionStart, ToolExecutionUpdate
from laneway.messages import ToolCall, ToolResult, ToolResultMessage
from laneway.tools.base import AgentTool, ExecutionMode

Emit: TypeAlias = Callable[[AgentEvent], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Batch:
    """The calls of one response and what they run under. `before` and `after` make the hook of one call."""

    calls: list[ToolCall]
    tools: Mapping[str, AgentTool]
    signal: AbortSignal
    interrupt: AbortSignal | None = None
    mode: ExecutionMode = "parallel"
    grace: float = 0.5
    before: Callable[[ToolCall], Before] | None = None
    after: Callable[[ToolCall, Prepared], After] | None = None
    on_result: Callable[[ToolResultMessage], None]
    outcomes: list[Outcome | None] = field(default_factory=list[Outcome | None])
    watch: AbortWatch | None = None

    @property
    def stopped(self) -> Outcome | None:
        """What a call that has not begun gets, if nothing may begin any more."""
        if self.signal.aborted:
            return failure(NOT_STARTED, cut="aborted")
        if self.interrupt is not None and self.interrupt.aborted:
            return failure(INTERRUPTED, cut="interrupted")
        return None


async def run_batch(batch: Batch, emit: Emit) -> bool:
    """Run every call; each gets exactly one result, in the order of the calls. Return whether all results agree to terminate.

    Parallel: preflight (lookup, validation, before hook) one call at a time in source order, then all allowed calls at once; end events
    in the order of completion, result messages in source order when all are done. Sequential (when configured, or when any called tool
    asks for it): each call is finished, result message included, before the next starts. `on_result` gets each message right
    before its events.

    Raises:
        Exception: what `emit` raises; what still runs is cancelled first.
    """
    batch.outcomes = [None] * len(batch.calls)
    called = [tool for call in batch.calls if (tool := batch.tools.get(call.name)) is not None]
    if batch.mode == "sequential" or any(tool.execution_mode == "sequential" for tool in called):
        await _sequential(batch, emit)
    else:
        await _parallel(batch, emit)
    return bool(batch.calls) and all(outcome is not None and outcome.result.terminate for outcome in batch.outcomes)


async def fail_truncated(batch: Batch, emit: Emit) -> None:
    """Answer every call of a response that the output limit cut off; none of them runs, nothing terminates."""
    for call in batch.calls:
        outcome = failure(TRUNCATED)
        await emit(ToolExecutionStart(tool_call_id=call.id, tool_name=call.name, args=call.arguments))
        await _emit_end(call, outcome, emit)
        await _emit_result(batch, call, outcome, emit)


async def _sequential(batch: Batch, emit: Emit) -> None:
    for index, call in enumerate(batch.calls):
        outcome = await _preflight(batch, call, emit)
        if isinstance(outcome, Prepared):
            running = _Running(batch, emit)
            try:
                running.start(index, call, outcome)
                await running.drain()
            finally:
                if not running.release():
                    await running.stop()
            outcome = batch.outcomes[index]
            assert outcome is not None
        else:
            batch.outcomes[index] = outcome
            await _emit_end(call, outcome, emit)
        await _emit_result(batch, call, outcome, emit)


async def _parallel(batch: Batch, emit: Emit) -> None:
    prepared: list[tuple[int, ToolCall, Prepared]] = []
    for index, call in enumerate(batch.calls):
        outcome = await _preflight(batch, call, emit)
        if type(outcome) is Prepared:
            prepared.append((index, call, outcome))
        else:
            settled = batch.outcomes[index] = cast(Outcome, outcome)
            await _emit_end(call, settled, emit)
    running = _Running(batch, emit)
    try:
        for index, call, ready in prepared:
            stopped = batch.stopped
            if stopped is None:
                running.start(index, call, ready)
            else:
                batch.outcomes[index] = stopped
                await _emit_end(call, stopped, emit)
        await running.drain()
    finally:
        if not running.release():
            await running.stop()
    for call, outcome in zip(batch.calls, batch.outcomes, strict=True):
        assert outcome is not None
        await _emit_result(batch, call, outcome, emit)


async def _preflight(batch: Batch, call: ToolCall, emit: Emit) -> Prepared | Outcome:
    await emit(ToolExecutionStart(tool_call_id=call.id, tool_name=call.name, args=call.arguments))
    if (stopped := batch.stopped) is not None:
        return stopped
    if batch.before is None:
        return look_up(call, batch.tools)
    return await prepare(call, batch.tools, before=batch.before(call), signal=batch.signal, interrupt=batch.interrupt)


class AbortWatch:
    """Tells the calls under way of an abort or interruption. A run keeps one for all its batches: it registers once per signal."""

    __slots__ = ("_detach", "_loop", "_running", "_signals")

    def __init__(self) -> None:
        self._signals: tuple[AbortSignal | None, AbortSignal | None] = (None, None)
        self._detach: list[Callable[[], None]] = []
        self._running: _Running | None = None
        self._loop = asyncio.get_running_loop()

    def follow(self, signal: AbortSignal, interrupt: AbortSignal | None, running: _Running) -> None:
        """Tell `running` from now on."""
        self._running = running
        if self._signals[0] is signal and self._signals[1] is interrupt:
            return
        self.release(keep=False)
        self._running, self._signals = running, (signal, interrupt)
        self._detach.append(signal.on_abort(lambda: soon(self._loop, self._abort)))
        if interrupt is not None:
            self._detach.append(interrupt.on_abort(lambda: soon(self._loop, self._interrupt)))

    def release(self, *, keep: bool) -> None:
        """Let go of the calls and, unless `keep`, of the signals."""
        self._running = None
        if not keep:
            for detach in self._detach:
                detach()
            self._detach, self._signals = [], (None, None)

    def _abort(self) -> None:
        if self._running is not None:
            self._running.abort()

    def _interrupt(self) -> None:
        interrupt = self._signals[1]
        if self._running is not None and interrupt is not None and interrupt.aborted:  # else it was meant for the batch before
            self._running.interrupt()


class _Running:
    """Calls under way. One place emits for all of them, so listeners see one event at a time, whatever runs at once."""

    __slots__ = ("_batch", "_calls", "_closed", "_deliveries", "_emit", "_left", "_loop", "_news", "_wake", "_watch")

    def __init__(self, batch: Batch, emit: Emit) -> None:
        self._batch, self._emit = batch, emit
        self._calls: dict[int, RunningCall] = {}
        self._news: list[tuple[int, ToolResult | None]] = []  # a partial result, or None: the call is settled
        self._deliveries: dict[int, asyncio.Future[None]] = {}
        self._closed = False
        self._wake: asyncio.Future[None] | None = None
        self._left = 0
        self._loop = asyncio.get_running_loop()
        self._watch = batch.watch or AbortWatch()
        self._watch.follow(batch.signal, batch.interrupt, self)

    def start(self, index: int, call: ToolCall, prepared: Prepared) -> None:
        batch = self._batch
        self._left += 1
        self._calls[index] = RunningCall(
            prepared,
            signal=batch.signal,
            on_update=partial(self._update, index),
            after=None if batch.after is None else batch.after(call, prepared),
            grace=batch.grace,
            on_settled=partial(self._tell, (index, None)),
            watch=False,
        )

    async def _update(self, index: int, result: ToolResult) -> None:
        if self._closed:
            return
        delivered = self._deliveries[index] = self._loop.create_future()
        self._tell((index, result))
        await delivered

    def _tell(self, news: tuple[int, ToolResult | None]) -> None:
        self._news.append(news)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def abort(self) -> None:
        """The run was aborted."""
        for running in self._calls.values():
            running.abort()

    def interrupt(self) -> None:
        """A new message cannot wait."""
        for running in self._calls.values():
            running.interrupt()

    async def drain(self) -> None:
        """Emit updates and ends as they come until every call is settled."""
        outcomes = self._batch.outcomes
        while self._left:
            if not self._news:
                self._wake = self._loop.create_future()
                await self._wake
            news, self._news = self._news, []
            for index, result in news:
                call = self._batch.calls[index]
                if result is None:
                    self._left -= 1
                    outcome = outcomes[index] = self._calls[index].result
                    assert outcome is not None
                    await _emit_end(call, outcome, self._emit)
                else:
                    await self._deliver(index, call, result)

    async def _deliver(self, index: int, call: ToolCall, result: ToolResult) -> None:
        try:
            if not self._calls[index].done:  # an abandoned call is over, whatever it still reports
                event = ToolExecutionUpdate(tool_call_id=call.id, tool_name=call.name, args=call.arguments, partial_result=result)
                await self._emit(event)
        finally:
            self._delivered(self._deliveries.pop(index))

    @staticmethod
    def _delivered(delivery: asyncio.Future[None]) -> None:
        if not delivery.done():
            delivery.set_result(None)

    def release(self) -> bool:
        """Let go of the signals; say whether every call is settled."""
        self._closed = True
        self._watch.release(keep=self._batch.watch is not None)
        return not self._left

    async def stop(self) -> None:
        """Cancel what still runs (an emit raised, or the task was cancelled) and wait for it to settle."""
        for delivery in self._deliveries.values():
            self._delivered(delivery)
        for running in self._calls.values():
            running.kill()
        await asyncio.wait([running.outcome for running in self._calls.values()])


def _emit_end(call: ToolCall, outcome: Outcome, emit: Emit) -> Awaitable[None]:
    return emit(ToolExecutionEnd(tool_call_id=call.id, tool_name=call.name, result=outcome.result, is_error=outcome.is_error))


async def _emit_result(batch: Batch, call: ToolCall, outcome: Outcome, emit: Emit) -> None:
    message = result_message(call, outcome)
    batch.on_result(message)
    await emit(MessageStart(message=message))
    await emit(MessageEnd(message=message))
