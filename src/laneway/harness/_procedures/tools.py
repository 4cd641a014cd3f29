"""`tools`: a batch of calls. Each call is an intent, an effect and a settlement of its own; results are placed in source order.

```
planned ──intent──▶ effect_pending ──outcome──▶ outcome_ready ──placement──▶ completed
   │ └─suspended──▶ approved ──intent─▶ …                         ▲
   └── blocked, unknown, invalid, rejected, cancelled ────────────┘
```

An outcome whose earlier siblings are all placed is placed in the commit that settles it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from laneway._effects.call_tools import (
    INTERRUPTED,
    NOT_STARTED,
    TRUNCATED,
    Outcome,
    Prepared,
    RunningCall,
    error_text,
    failure,
    finalise,
    plain_args,
    prepare,
)
from laneway._effects.decisions import Block, PatchResult, ReplaceArgs
from laneway.abort import AbortController
from laneway.errors import Aborted, ToolError
from laneway.harness import _telemetry, keys
from laneway.harness._events import RunResume, RunSuspend, ToolStart, ToolSuspended, TurnStart
from laneway.harness._hooks import AfterTool, BeforeTool, Suspend
from laneway.harness._line import Invariant, Move
from laneway.harness._procedures._host import CallHost
from laneway.harness._procedures._results import capped, interrupted_outcome, jsonable, settle_outcome, suspended_calls, with_call
from laneway.harness.results import Waiting
from laneway.harness.state import (
    ApprovedCall,
    Batch,
    Call,
    CompletedCall,
    Lane,
    Operation,
    PendingCall,
    PlannedCall,
    ReadyCall,
    RejectedCall,
    SuspendedCall,
    Tools,
)
from laneway.messages import AssistantMessage, ToolCall, ToolResult
from laneway.session._mutation import Mutation
from laneway.storage.base import DeleteValue, MessageEntry, SetValue, Write
from laneway.tools._validate import validate_value

if TYPE_CHECKING:
    from laneway.harness._drive import Drive

NOT_BEGUN = "Interrupted by a new message: the call was not started."


async def work_off(drive: Drive, state: Tools) -> Waiting | None:
    """Bring the batch as far as it goes: to its end, or to calls that wait for a decision."""
    message = await response_of(drive, state.batch)
    drive.interrupted = AbortController()
    work = _Work(drive, message, state.batch)
    if work.recovery:
        drive.runtime.bus.post(TurnStart(**drive.told, recovery=True, turn_id=state.batch.turn_id))
    if any(type(call) is ApprovedCall or type(call) is RejectedCall for call in state.batch.calls):
        drive.runtime.bus.post(RunResume(**drive.told))
    try:
        await work.go_on()
    finally:
        drive.interrupted = None
    batch = work.batch
    if batch is None:
        return None
    drive.gate.admit()
    calls = await suspended_calls(drive.line, batch, message)
    if drive.progressed or work.moved:
        drive.runtime.bus.post(RunSuspend(**drive.told, reason="approval", calls=calls))
    return Waiting(reason="approval", operation_id=drive.operation_id, calls=calls)


async def response_of(drive: Drive, batch: Batch) -> AssistantMessage:
    """Return the response that asked for a batch."""
    known = drive.responses.get(batch.assistant_entry_id)
    if known is None:
        entry = await drive.runtime.session.get_entry(batch.assistant_entry_id)
        if not isinstance(entry, MessageEntry) or not isinstance(entry.message, AssistantMessage):
            raise Invariant(f"the response {batch.assistant_entry_id} of a tool batch is missing")
        known = entry.message
        drive.responses = {batch.assistant_entry_id: known}
    return known


class _Work:
    """One pass over one batch."""

    def __init__(self, drive: Drive, message: AssistantMessage, batch: Batch) -> None:
        self.drive, self.message = drive, message
        self.turn_id = batch.turn_id
        self.tools = drive.environment.active(batch.configuration)
        cleared = drive.cleared
        self.recovery = any(
            (type(call) is PendingCall or type(call) is ReadyCall) and call.result_entry_id not in cleared for call in batch.calls
        )
        self.running: dict[str, asyncio.Task[None]] = {}
        self.moved = False
        self._context: list[Any] = []
        operation = drive.line.current(drive.operation_id)
        assert operation is not None
        names = {self.call_of(call).name for call in batch.calls}
        self.one_at_a_time = operation.meta.settings.tool_execution == "sequential" or any(
            self.tools[name].execution_mode == "sequential" for name in names if name in self.tools
        )

    # ------------------------------------------------------------------------------------------------ the batch

    @property
    def batch(self) -> Batch | None:
        """The batch as it is now; None when it is complete."""
        operation = self.drive.line.current(self.drive.operation_id)
        return operation.state.batch if operation is not None and isinstance(operation.state, Tools) else None

    def call_of(self, call: Call) -> ToolCall:
        """Return the model's own call."""
        block = self.message.content[call.source_index]
        assert isinstance(block, ToolCall)
        return block

    async def go_on(self) -> None:
        """Take up calls in source order, as many at once as the batch allows, until none is left that could run."""
        only = self.batch
        if only is not None and len(only.calls) == 1 and not only.interrupted and self.drive.gate.state == "open":
            call = only.calls[0]
            ready = self.drive.cleared.get(call.result_entry_id)
            if ready is not None:  # its intent came with the response: nothing else is left to do for this batch
                self.moved = True
                await self._start(call, ready, alone=True)
                return
        try:
            while (batch := self.batch) is not None:
                if batch.interrupted:
                    self.drive.interrupted.abort(INTERRUPTED)
                await self._take_up_all(batch)
                if self.running:
                    await self._wait()
                elif not self._left():
                    return
        finally:
            await self._abandon()

    def _left(self) -> bool:
        batch = self.batch
        return self.drive.gate.state == "open" and batch is not None and any(self._startable(call, batch) for call in batch.calls)

    def _startable(self, call: Call, batch: Batch) -> bool:
        if call.result_entry_id in self.running or isinstance(call, CompletedCall):
            return False
        if isinstance(call, SuspendedCall):
            return batch.interrupted
        return not isinstance(call, ReadyCall) or self._placeable(call, batch)

    @staticmethod
    def _placeable(call: Call, batch: Batch) -> bool:
        first = next(c for c in batch.calls if not isinstance(c, CompletedCall))
        return first.result_entry_id == call.result_entry_id

    async def _take_up_all(self, batch: Batch) -> None:
        for index in range(len(batch.calls)):
            if self.drive.sharing.due():
                await self.drive.sharing.turn()
            now = self.batch
            if now is None or self.drive.gate.state != "open":
                return
            call = now.calls[index]
            if not self._startable(call, now) or (self.one_at_a_time and self.running):
                continue
            await self._take_up(call, alone=self.one_at_a_time or len(batch.calls) == 1)
            self.moved = True

    async def _wait(self) -> None:
        waiting: list[asyncio.Future[None]] = list(self.running.values())
        batch = self.batch
        if self.drive.gate.state == "open" and batch is not None and any(isinstance(call, SuspendedCall) for call in batch.calls):
            waiting.append(self.drive.line.waiter())  # a decision may come meanwhile
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for key, task in list(self.running.items()):
            if task.done():
                del self.running[key]
                task.result()

    async def _abandon(self) -> None:
        """Wait for what still runs (after a fault or a close; the gate has told it to stop)."""
        if self.running:
            self.drive.interrupted.abort("the harness stopped")
            await asyncio.wait(self.running.values())
            for task in self.running.values():
                if not task.cancelled():
                    task.exception()

    # ------------------------------------------------------------------------------------------------ one call

    async def _take_up(self, call: Call, *, alone: bool) -> None:
        """Settle a call that cannot run, suspend one that must not yet, start one that may."""
        match call:
            case ReadyCall():
                await settle_outcome(self.drive, self.message, call, None, recovery=self.recovery)
            case PendingCall():
                await self._pending(call, alone=alone)
            case RejectedCall():
                await self._synthetic(call, failure(f"The call was not allowed: {call.reason}" if call.reason else "The call was not allowed."))
            case PlannedCall() | ApprovedCall() | SuspendedCall():
                await self._planned(call, alone=alone)
            case CompletedCall():
                raise Invariant("a completed call was taken up again")

    async def _planned(self, call: PlannedCall | ApprovedCall | SuspendedCall, *, alone: bool) -> None:
        batch = self.batch
        if batch is not None and batch.interrupted:
            await self._synthetic(call, failure(NOT_BEGUN, cut="interrupted"))
            return
        if self.message.stop_reason == "length":
            await self._synthetic(call, failure(TRUNCATED))
            return
        try:
            ready = await (self._approved(call) if isinstance(call, ApprovedCall) else self._prepare(call))
            if isinstance(ready, Prepared):
                await self._tool_context()
        except _ContextFailed as failed:
            ready = failure(f"The tool could not be called: its context failed ({error_text(failed.error)}).")
        match ready:
            case Suspend():
                return
            case Outcome():
                await self._synthetic(call, ready)
            case Prepared():
                if await self._intend(call, ready):
                    await self._start(call, ready, alone=alone)

    async def _prepare(self, call: Call) -> Prepared | Outcome | Suspend:
        """Find, validate, ask `before_tool`; a call that must wait for a decision is suspended durably.

        A handler that waits is cut off by an abort after its grace, by an interrupting message at once.
        """
        asked = self.call_of(call)
        if asked.name not in self.tools:
            return self._unavailable(asked)
        suspend: list[tuple[Suspend, Any]] = []
        aborted: list[Aborted] = []

        async def before(args: Any) -> Block | ReplaceArgs | None:
            event = BeforeTool(**self.drive.asked, tool_call_id=asked.id, tool_name=asked.name, args=args)
            try:
                answer, final = await self.drive.hooks.before_tool(event)
            except Aborted as error:
                aborted.append(error)
                raise
            if isinstance(answer, Suspend):
                suspend.append((answer, final))
                return Block()
            return answer if answer is not None else None if final is args else ReplaceArgs(final)

        asks = before if self.drive.hooks.has("before_tool") else None
        ready = await prepare(asked, self.tools, before=asks, signal=None, interrupt=self.drive.interrupted.signal)
        if suspend:
            return await self._suspend(call, asked, *suspend[0])
        if aborted:
            return failure(NOT_STARTED, cut="aborted")
        if isinstance(ready, Outcome) and ready.cut == "interrupted":
            return failure(NOT_BEGUN, cut="interrupted")
        return _storable(ready) if isinstance(ready, Prepared) else ready

    def _unavailable(self, asked: ToolCall) -> Outcome:
        available = f" Available tools: {', '.join(self.tools)}." if self.tools else " No tools are available."
        return failure(f'Tool "{asked.name}" is unavailable: there is no tool of that name.{available}')

    async def _suspend(self, call: Call, asked: ToolCall, answer: Suspend, args: Any) -> Suspend | Outcome:
        try:
            args, payload = jsonable(args), capped(answer.payload)
        except (TypeError, ValueError) as error:
            return failure(f"The call was not allowed: the question about it cannot be stored ({error}).")
        suspended = SuspendedCall(source_index=call.source_index, result_entry_id=call.result_entry_id, reason=answer.reason, payload=payload)
        told = ToolSuspended(
            **self.drive.told, tool_call_id=asked.id, tool_name=asked.name, args=args, reason=answer.reason, payload=answer.payload
        )

        def plan(_: Lane, operation: Operation, __: Mutation) -> Move:
            writes = [SetValue(keys.OP_TOOL_ARGS, self._args_key(call), args)]
            return Move(state=with_call(operation.state, suspended), writes=[*writes], events=lambda _: [told])

        await self.drive.line.advance(self.drive.operation_id, plan)
        return answer

    async def _approved(self, call: ApprovedCall) -> Prepared | Outcome:
        """Prepare an approved call from its stored arguments; nobody is asked again."""
        asked = self.call_of(call)
        if asked.name not in self.tools:
            return self._unavailable(asked)
        return await self._stored(call, asked)

    async def _stored(self, call: Call, asked: ToolCall) -> Prepared | Outcome:
        if isinstance(call, PendingCall) and call.as_asked:
            args = jsonable(asked.arguments)
        else:
            stored = await self.drive.runtime.session.get_value(keys.OP_TOOL_ARGS, self._args_key(call))
            if stored is None:
                raise Invariant(f"the arguments of call {asked.id} are missing")
            args = stored.value
        tool = self.tools[asked.name]
        try:
            return Prepared(asked, tool, validate_value(tool, args))
        except Exception as error:
            return failure(f"The stored arguments no longer fit the tool: {error_text(error)}")

    async def _intend(self, call: Call, ready: Prepared) -> bool:
        """Commit the intent. False: the operation was cancelled first."""
        asked = ready.call
        args = plain_args(ready.args)
        as_asked = args == asked.arguments and not isinstance(call, ApprovedCall)
        pending = PendingCall(
            source_index=call.source_index, result_entry_id=call.result_entry_id, replay=ready.tool.replay, as_asked=as_asked
        )
        told = ToolStart(**self.drive.told, turn_id=self.turn_id, tool_call_id=asked.id, tool_name=asked.name, args=asked.arguments)

        def plan(_: Lane, operation: Operation, __: Mutation) -> Move:
            writes: list[Write] = [] if as_asked else [SetValue(keys.OP_TOOL_ARGS, self._args_key(call), args)]
            return Move(state=with_call(operation.state, pending), writes=writes, events=lambda _: [told])

        if await self.drive.line.advance(self.drive.operation_id, plan) != "moved":
            return False
        self.drive.cleared[call.result_entry_id] = ready
        return True

    async def _start(self, call: Call, ready: Prepared, *, alone: bool, recovery: bool = False) -> None:
        """Execute a call whose intent is durable; what comes of it is settled by the task that this leaves behind."""
        if self.drive.gate.state != "open":
            return
        self.drive.cleared.pop(call.result_entry_id, None)
        settled = self._execute(call, ready, recovery=recovery)
        if alone:
            await settled
        else:
            self.running[call.result_entry_id] = asyncio.get_running_loop().create_task(settled, name=f"laneway call {ready.call.name}")
            await asyncio.sleep(0)  # it is under way before anything is asked about the next call

    def _run(self, call: Call, ready: Prepared, *, recovery: bool) -> RunningCall:
        drive, asked = self.drive, ready.call
        host = CallHost(drive, call, asked, self.turn_id, context=self._context[0] if self._context else None, recovery=recovery)

        async def told(partial: ToolResult) -> None:
            await host.tell(partial)

        running = RunningCall(
            ready,
            signal=drive.gate.signal,
            interrupt=drive.interrupted.signal,
            on_update=told,
            host=host,
        )
        running.outcome.add_done_callback(lambda _: host.close())
        return running

    async def _execute(self, call: Call, ready: Prepared, *, recovery: bool) -> None:
        traced = self.drive.traced
        with _telemetry.tool_span(name=ready.call.name, call_id=ready.call.id) if traced else _telemetry.NOTHING as span:
            outcome = await self._run(call, ready, recovery=recovery).outcome
            if outcome.cut is None and not self.drive.gate.signal.aborted and self.drive.hooks.has("after_tool"):
                outcome = await self._checked(ready.call, plain_args(ready.args), outcome)
            _telemetry.executed(span, ready.call.arguments, outcome.result.content, failed=outcome.is_error)
        await settle_outcome(self.drive, self.message, call, _storable_outcome(outcome), recovery=recovery)

    async def _checked(self, asked: ToolCall, args: Any, outcome: Outcome) -> Outcome:
        """Ask `after_tool` about what a tool gave. An interrupting message leaves the handlers a grace, then an error stands in the result's
        place. An abort asks no handler any more: the tool's own result stands, also where one was at work.
        """
        drive, result = self.drive, outcome.result
        stop = AbortController(parent=drive.gate.signal)
        detach = drive.interrupted.signal.on_abort(lambda: stop.abort(INTERRUPTED))
        event = AfterTool(
            **drive.told, signal=stop.signal, tool_call_id=asked.id, tool_name=asked.name, args=args, content=result.content,
            details=result.details, is_error=outcome.is_error, usage=result.usage,
        )  # fmt: skip

        async def after(_: Outcome) -> PatchResult | None:
            try:
                return await drive.hooks.after_tool(event)
            except Aborted:
                if drive.gate.signal.aborted:
                    return None
                raise ToolError("it was stopped before it answered, so the result is not kept") from None

        try:
            checked = await finalise(outcome, after)
        finally:
            detach()
            stop.close()
        if checked.result.usage is None and result.usage is not None:  # what it cost, it cost
            checked = Outcome(msgspec.structs.replace(checked.result, usage=result.usage), is_error=checked.is_error, cut=checked.cut)
        return checked

    async def _synthetic(self, call: Call, outcome: Outcome) -> None:
        """Settle a call that never ran."""
        await settle_outcome(self.drive, self.message, call, _storable_outcome(outcome), synthetic=True)

    # ------------------------------------------------------------------------------------------------ calls of an earlier pass

    async def _pending(self, call: PendingCall, *, alone: bool) -> None:
        """A call whose intent is durable: this pass's own, one to run again, or one that nobody knows the end of."""
        ready = self.drive.cleared.get(call.result_entry_id)
        if ready is not None:
            await self._start(call, ready, alone=alone)
            return
        asked = self.call_of(call)
        tool = self.tools.get(asked.name)
        batch = self.batch
        replay = call.replay == "safe" and tool is not None and tool.replay == "safe" and batch is not None and not batch.interrupted
        if not replay:
            await settle_outcome(self.drive, self.message, call, await interrupted_outcome(self.drive, call), recovery=True)
            return
        await self._replay(call, asked, alone=alone)

    async def _replay(self, call: PendingCall, asked: ToolCall, *, alone: bool) -> None:
        ready = await self._stored(call, asked)
        try:
            await self._tool_context()
        except _ContextFailed as failed:
            ready = failure(f"The tool could not be called again: its context failed ({error_text(failed.error)}).")
        if isinstance(ready, Outcome):
            await settle_outcome(self.drive, self.message, call, ready, recovery=True)
            return
        key = keys.under(self.drive.operation_id, call.result_entry_id)
        if await self.drive.runtime.session.get_value(keys.PENDING_TOOL_OUTPUT, key) is not None:
            await self.drive.line.write([DeleteValue(keys.PENDING_TOOL_OUTPUT, key)], while_=lambda _: True)
        self.drive.gate.admit()
        self.drive.line.live.progress.pop(call.result_entry_id, None)
        stored = plain_args(ready.args)
        told = ToolStart(**self.drive.told, recovery=True, turn_id=self.turn_id, tool_call_id=asked.id, tool_name=asked.name, args=stored)
        self.drive.runtime.bus.post(told)
        await self._start(call, ready, alone=alone, recovery=True)

    # ------------------------------------------------------------------------------------------------ small things

    async def _tool_context(self) -> None:
        """Resolve the tools' context, once per pass over a batch, and only if something is going to run."""
        if not self._context:
            try:
                self._context.append(await self.drive.environment.resolve_tool_context())
            except Exception as error:
                raise _ContextFailed(error) from error

    def _args_key(self, call: Call) -> str:
        return keys.under(self.drive.operation_id, self.turn_id, call.source_index)


class _ContextFailed(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _storable(ready: Prepared) -> Prepared | Outcome:
    """Refuse arguments that cannot be stored (a hook may have put anything there)."""
    try:
        jsonable(plain_args(ready.args))
    except (TypeError, ValueError) as error:
        return failure(f"The call was not executed: its arguments cannot be stored ({error}).")
    return ready


def _storable_outcome(outcome: Outcome) -> Outcome:
    """Return the outcome with details as the JSON that is stored; what cannot be JSON becomes an error that says so."""
    if outcome.result.details is None:
        return outcome
    try:
        details = capped(outcome.result.details)
    except (TypeError, ValueError) as error:
        return failure(f"The tool ran, but its details cannot be stored ({error}).", cut=outcome.cut)
    return Outcome(msgspec.structs.replace(outcome.result, details=details), is_error=outcome.is_error, cut=outcome.cut)



