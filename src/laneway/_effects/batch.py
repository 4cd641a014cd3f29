"""All tool calls of one response, for the loop: order of events, parallel or sequential, truncation, abort and interruption."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

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
from laneway.abort import AbortSignal, Sharing, soon
from laneway.events import AgentEvent, MessageEnd, MessageStart, ToolExecutionEnd, ToolExecutionStart, ToolExecutionUpdate
from laneway.messages import ToolCall, ToolResult, ToolResultMessage
from laneway.tools.base import AgentTool

Emit: TypeAlias = Callable[[AgentEvent], Awaitable[None]]


class BatchRunner:
    """Runs the batches of one run, one after the other; it registers with the run's signals once.

    `before` and `after` make the hook of one call. `keep` gets each result message right before its events. One place emits for all
    calls of a batch, so listeners see one event at a time, whatever runs at once.
    """

    __slots__ = (
        "_after", "_before", "_calls", "_detach", "_emit", "_grace", "_interrupt", "_keep", "_left", "_loop", "_news", "_running", "_sharing",
        "_signal", "_tools", "_updates", "_wake",
    )  # fmt: skip

    def __init__(
        self,
        *,
        signal: AbortSignal,
        emit: Emit,
        keep: Callable[[ToolResultMessage], None],
        sharing: Sharing,
        grace: float = 0.5,
        before: Callable[[ToolCall], Before] | None = None,
        after: Callable[[ToolCall, Prepared], After] | None = None,
    ) -> None:
        self._signal, self._emit, self._keep, self._sharing, self._grace = signal, emit, keep, sharing, grace
        self._before, self._after = before, after
        self._loop = asyncio.get_running_loop()
        self._interrupt: AbortSignal | None = None
        self._calls: list[ToolCall] = []
        self._tools: Mapping[str, AgentTool] = {}
        self._running: dict[int, RunningCall] = {}
        self._left = 0  # calls under way
        self._news: list[tuple[int, ToolResult | None]] = []  # a partial result, or None: the call is settled
        self._updates: dict[int, asyncio.Future[None]] = {}  # partial results that no listener has had yet
        self._wake: asyncio.Future[None] | None = None
        self._detach: list[Callable[[], None]] = [signal.on_abort(lambda: soon(self._loop, self._abort))]

    def close(self) -> None:
        """Let go of the signals."""
        for detach in self._detach:
            detach()
        self._detach, self._interrupt = [], None

    async def run(
        self, calls: list[ToolCall], tools: Mapping[str, AgentTool], *, interrupt: AbortSignal | None = None, one_by_one: bool = False
    ) -> bool:
        """Run every call; each gets exactly one result, in the order of the calls. Return whether all results agree to terminate.

        At once: preflight (lookup, validation, before hook) one call at a time in source order, then all allowed calls together; end
        events in the order of completion, result messages in source order when all are done. `one_by_one`: each call is finished, result
        message included, before the next starts.

        Raises:
            Exception: what `emit` raises; what still runs is cancelled first.
        """
        self._tools = tools
        if interrupt is not self._interrupt:
            self._follow(interrupt)
        if not one_by_one:
            return await self._together(calls)
        agreed = True
        for call in calls:
            agreed = await self._together([call]) and agreed
        return agreed

    async def fail_truncated(self, calls: list[ToolCall]) -> None:
        """Answer every call of a response that the output limit cut off; none of them runs, nothing terminates."""
        for call in calls:
            outcome = failure(TRUNCATED)
            await self._emit(ToolExecutionStart(tool_call_id=call.id, tool_name=call.name, args=call.arguments))
            await self._emit_end(call, outcome)
            await self._emit_result(call, outcome)

    async def _together(self, calls: list[ToolCall]) -> bool:
        self._calls, self._running, self._news = calls, {}, []
        signal, interrupt, emit = self._signal, self._interrupt, self._emit
        outcomes: list[Any] = []  # of Prepared or Outcome, then of Outcome alone; a cast is a call, and this is per tool call
        for call in calls:
            await emit(ToolExecutionStart(tool_call_id=call.id, tool_name=call.name, args=call.arguments))
            if signal.aborted or (interrupt is not None and interrupt.aborted):
                outcome: Any = self._not_begun()
            elif self._before is None:
                outcome = look_up(call, self._tools)
            else:
                outcome = await prepare(call, self._tools, before=self._before(call), signal=signal, interrupt=interrupt)
            outcomes.append(outcome)
            if type(outcome) is not Prepared:
                await self._emit_end(call, outcome)
        try:
            for index, ready in enumerate(outcomes):
                if type(ready) is Prepared:
                    if self._sharing.due():
                        await self._sharing.turn()
                    if signal.aborted or (interrupt is not None and interrupt.aborted):
                        outcomes[index] = self._not_begun()
                        await self._emit_end(calls[index], outcomes[index])
                    else:
                        self._start(index, ready)
            if self._left:
                await self._drain(outcomes)
        finally:
            if self._left:
                await self._stop()
        agreed = bool(calls)
        for call, final in zip(calls, outcomes, strict=True):
            agreed = agreed and final.result.terminate
            await self._emit_result(call, final)
        return agreed

    def _not_begun(self) -> Outcome:
        """What a call gets that may not begin any more."""
        return failure(NOT_STARTED, cut="aborted") if self._signal.aborted else failure(INTERRUPTED, cut="interrupted")

    # -- calls under way

    def _start(self, index: int, prepared: Prepared) -> None:
        self._running[index] = RunningCall(
            prepared,
            signal=self._signal,
            on_update=partial(self._update, self._running, index),
            after=None if self._after is None else self._after(prepared.call, prepared),
            grace=self._grace,
            on_settled=partial(self._tell, (index, None)),
            watch=False,
        )
        self._left += 1

    async def _update(self, batch: dict[int, RunningCall], index: int, result: ToolResult) -> None:
        if batch is not self._running or not self._left:  # an abandoned call still reports, to a batch that is over
            return
        delivered = self._updates[index] = self._loop.create_future()
        self._tell((index, result))
        await delivered

    def _tell(self, news: tuple[int, ToolResult | None]) -> None:
        self._news.append(news)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _drain(self, outcomes: list[Any]) -> None:
        """Emit updates and ends as they come until every call is settled."""
        while self._left:
            if not self._news:
                self._wake = self._loop.create_future()
                await self._wake
            news, self._news = self._news, []
            for index, result in news:
                if result is None:
                    self._left -= 1
                    outcome = self._running[index].result
                    assert outcome is not None
                    outcomes[index] = outcome
                    await self._emit_end(self._calls[index], outcome)
                else:
                    await self._deliver(index, result)

    async def _deliver(self, index: int, result: ToolResult) -> None:
        call = self._calls[index]
        try:
            if not self._running[index].done:  # an abandoned call is over, whatever it still reports
                await self._emit(ToolExecutionUpdate(tool_call_id=call.id, tool_name=call.name, args=call.arguments, partial_result=result))
        finally:
            _delivered(self._updates.pop(index))

    async def _stop(self) -> None:
        """Cancel what still runs (an emit raised, or the task was cancelled) and wait for it to settle."""
        self._left = 0
        for delivery in self._updates.values():
            _delivered(delivery)
        self._updates.clear()
        for running in self._running.values():
            running.kill()
        if self._running:
            await asyncio.wait([running.outcome for running in self._running.values()])

    # -- abort and interruption

    def _follow(self, interrupt: AbortSignal | None) -> None:
        for detach in self._detach[1:]:
            detach()
        del self._detach[1:]
        self._interrupt = interrupt
        if interrupt is not None:
            self._detach.append(interrupt.on_abort(lambda: soon(self._loop, self._interrupted)))

    def _abort(self) -> None:
        if self._left:
            for running in self._running.values():
                running.abort()

    def _interrupted(self) -> None:
        if self._left and self._interrupt is not None and self._interrupt.aborted:  # else it was meant for the batch before
            for running in self._running.values():
                running.interrupt()

    # -- events

    def _emit_end(self, call: ToolCall, outcome: Outcome) -> Awaitable[None]:
        emit = self._emit
        return emit(ToolExecutionEnd(tool_call_id=call.id, tool_name=call.name, result=outcome.result, is_error=outcome.is_error))

    async def _emit_result(self, call: ToolCall, outcome: Outcome) -> None:
        message = result_message(call, outcome)
        keep, emit = self._keep, self._emit
        keep(message)
        await emit(MessageStart(message=message))
        await emit(MessageEnd(message=message))


def _delivered(delivery: asyncio.Future[None]) -> None:
    if not delivery.done():
        delivery.set_result(None)
