"""A conversation of the command line on the durable harness: what was settled survives a killed process, and `laneway resume` goes on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from laneway import events as agent_events
from laneway.abort import AbortController, AbortSignal
from laneway.cli._exit import SUSPENDED, CliError
from laneway.cli.commands import _planned
from laneway.cli.commands._planned import LANE, Planned, field_of
from laneway.cli.commands._prompt import Prompt
from laneway.cli.commands.sessions import locked
from laneway.errors import HarnessClosed, SessionLocked, StorageError
from laneway.events import AgentEnd, AgentEndReason, AgentEvent
from laneway.harness import AgentHarness, AgentLane, LaneBusy, OperationResult, RetryPolicy, Settled, Waiting, keys
from laneway.harness import Prompt as Request
from laneway.harness.results import Refused
from laneway.llm import Model, StreamOptions, ThinkingLevel
from laneway.loop import LoopLimits
from laneway.messages import AgentMessage, ImageContent
from laneway.session import Session, SqliteRepo
from laneway.storage.base import Storage
from laneway.tools.base import AgentTool

_RETRY = RetryPolicy(max_retries=2, base_delay=0.5)
_Listener = Callable[[AgentEvent, AbortSignal], object]


class Task(Struct, kw_only=True, frozen=True):
    """What a run is made of, as far as it must be known again to go on in another process; kept in the session's metadata."""

    system: str = ""
    allow_outside: bool = False
    max_tokens: int | None = None
    max_turns: int | None = None
    max_cost: float | None = None

    @property
    def limits(self) -> LoopLimits:
        return LoopLimits(max_turns=self.max_turns, max_cost=self.max_cost)


class State:
    """What a listener may want to know besides the events; as `Agent.state` has it."""

    error_message: str | None = None


class DurableAgent:
    """One lane of one session, with the few verbs of `Agent` that the command line uses; tells its listeners the loop's events.

    `waiting` is set when a run stopped because somebody has to decide or a provider has to finish; `left` when it was left open on purpose.
    """

    def __init__(self, harness: AgentHarness, lane: AgentLane, note: Callable[[str], None]) -> None:
        self.harness, self.lane = harness, lane
        self.state = State()
        self.waiting: Waiting | None = None
        self.left = False
        self._note = note
        self._listeners: list[_Listener] = []
        self._controller = AbortController()
        self._messages: list[AgentMessage] = []
        self._in_turn = False
        self._planned: deque[Planned] = deque()
        self._leaving = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: Exception | None = None
        self._outside = copy_context()  # what stops a run waits for its end, so it must not count as a part of it
        harness.events.on("*", self._tell)

    @classmethod
    async def open(
        cls,
        session: Session,
        *,
        model: Model,
        tools: Sequence[AgentTool],
        active: Sequence[str] | None,
        thinking: ThinkingLevel | None,
        task: Task,
        note: Callable[[str], None],
    ) -> DurableAgent:
        """Attach to a session; a new lane begins with `model`, `active` tools and `thinking`, an old one keeps its own."""
        harness, _ = await AgentHarness.create(
            session=session,
            model=model,
            tools=tools,
            active_tools=active,
            thinking_level=thinking,
            system_prompt=task.system,
            stream_options=StreamOptions(max_tokens=task.max_tokens),
            retry=_RETRY,
            limits=task.limits,
        )
        return cls(harness, await harness.lane(LANE), note)

    async def configure(self, model: Model | None, tools: Sequence[str], thinking: ThinkingLevel | None) -> None:
        """Change what an old lane goes on with; None keeps what it has."""
        if model is not None:
            await self.lane.set_model(model)
        await self.lane.set_active_tools(list(tools))
        if thinking is not None:
            await self.lane.set_thinking_level(thinking)

    @property
    def session_id(self) -> str:
        """The session's id, as `laneway resume` takes it."""
        return self.harness.session.metadata.id

    def subscribe(self, listener: _Listener) -> None:
        """Tell `listener` the events of every run from now on."""
        self._listeners.append(listener)

    async def plan(self, prompts: Sequence[Prompt]) -> None:
        """Make prompts durable; then each of them is to be handed to `prompt`, in this order.

        Raises:
            CliError: the session has a run that is not over, or prompts that were not asked yet; nothing was stored.
        """
        if await _planned.open_operation(self.harness.session.storage) is not None:
            raise self._busy()
        if left := await self.unasked():
            what = "a prompt that was" if len(left) == 1 else f"{len(left)} prompts that were"
            raise CliError(f"this session has {what} not asked yet: laneway resume {self.session_id} goes on with it", SUSPENDED)
        self._planned = deque(await _planned.store(self.harness.session, prompts))

    async def unasked(self) -> list[Planned]:
        """Return the planned prompts, of whichever process, that were not asked yet; `prompt` takes them in this order."""
        left = await _planned.not_asked(self.harness.session.storage, self.session_id)
        self._planned = deque(left)
        return left

    @property
    def stays(self) -> bool:
        """Whether what is not done stays for `laneway resume`: the process was told to leave, or the run waits."""
        return self._leaving or self.left or self.waiting is not None

    async def settle(self) -> None:
        """Forget the planned prompts, unless they stay."""
        if not self.stays:
            await _planned.forget(self.harness.session)

    async def prompt(self, text: str, *, images: Sequence[ImageContent] | None = None) -> None:
        """Run one prompt to its end, or to where it has to wait."""
        operation_id = self._planned.popleft().operation_id if self._planned else None
        await self._run(self._ask(Request(text, list(images) if images else None), operation_id))

    async def _ask(self, request: Request, operation_id: str | None) -> OperationResult | Waiting:
        admission = (await self.lane.accept(request, operation_id=operation_id)).unwrap()
        outcome = (await self.lane.drive(admission.operation_id, wait_for_retry=True)).unwrap()
        return outcome.record if isinstance(outcome, Settled) else outcome

    async def resume(self) -> None:
        """Go on with the run that was left open."""
        await self._run(self.lane.resume())

    async def _run(self, work: Any) -> None:
        self._messages, self.state.error_message = [], None
        self._in_turn = False
        self._emit(agent_events.AgentStart())
        if self._failure is not None:  # nobody can be told, so nothing begins
            work.close()
            raise self._failure
        reason: AgentEndReason = "aborted"
        limit = None
        try:
            outcome = await work
        except HarnessClosed:
            self.left = True
        except LaneBusy as error:
            raise self._busy() from error
        else:
            if isinstance(outcome, OperationResult):
                reason, limit = _ending(outcome), outcome.limit
                self.state.error_message = outcome.error.message if outcome.error is not None else None
            else:
                self.waiting = outcome
                reason = "ended"
        self._emit(AgentEnd(messages=self._messages, reason=reason, limit=limit))
        if self._failure is not None:
            raise self._failure

    def _busy(self) -> CliError:
        return CliError(f"this session has a run that is not over: laneway resume {self.session_id} goes on with it", SUSPENDED)

    def abort(self, reason: object = None) -> None:
        """Stop the run for good: the response is cut, tools are stopped, and every call gets its result."""
        self._controller.abort(reason)
        self._spawn(self.lane.abort())

    def leave(self) -> None:
        """Stop this process's part in the run and leave it open, as a crash would, for `laneway resume`."""
        self._leaving = True
        self._spawn(self.harness.close())

    def _spawn(self, work: Any) -> None:
        async def run() -> None:
            with suppress(HarnessClosed, Refused):  # nothing runs any more: there is nothing to stop
                await work

        task = asyncio.get_running_loop().create_task(run(), context=self._outside)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Let go of the session."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.harness.close()
        await self.harness.session.close()

    # -- events

    def _tell(self, event: Any) -> None:
        if self._failure is not None:
            if event.type == "turn_start":  # the first word to stop may have come before there was anything to stop
                self.abort(self._failure)
            return
        if event.type == "message_end":
            self._messages.append(event.message)
        elif event.type == "retry_scheduled":
            self._note(f"{event.error_message}; trying again in {event.delay:g} s")
        elif event.type == "compaction_start":
            self._note("the conversation is getting long; it is being summarised")
        if event.type in _OF_A_TURN:
            self._begin_turn()
        elif event.type == "turn_end":
            self._in_turn = False
        told = translate(event)
        if told is not None:
            self._emit(told)

    def _begin_turn(self) -> None:
        """Tell that a turn begins, once. The harness tells it with the request; for the loop the messages that lead to it are a part of it."""
        if not self._in_turn:
            self._in_turn = True
            self._emit(agent_events.TurnStart())

    def _emit(self, event: AgentEvent) -> None:
        if self._failure is not None:
            return
        try:
            for listener in self._listeners:
                listener(event, self._controller.signal)
        except Exception as error:  # whoever shows the run cannot: it stops, as `Agent` would, and the cause is raised at its end
            self._failure = error
            self.abort(error)


_OF_A_TURN = frozenset({"turn_start", "message_start", "tool_start"})
"""What can be the first that is heard of a turn: of its request, of a message placed before that, of a call that goes on after a crash."""
_ENDINGS: dict[str, AgentEndReason] = {"completed": "stop", "failed": "error", "aborted": "aborted"}


def _ending(outcome: OperationResult) -> AgentEndReason:
    return "limit" if outcome.limit is not None else _ENDINGS.get(outcome.status, "ended")


def translate(event: Any) -> AgentEvent | None:
    """Return the loop's event for one of the harness's, None where the loop has none. A `turn_start` is told by `DurableAgent`."""
    match event.type:
        case "turn_end":
            return agent_events.TurnEnd(message=event.message, tool_results=event.tool_results)
        case "message_start":
            return agent_events.MessageStart(message=event.message)
        case "message_update":
            return agent_events.MessageUpdate(message=event.message, event=event.event)
        case "message_end":
            return agent_events.MessageEnd(message=event.message)
        case "tool_start":
            return agent_events.ToolExecutionStart(tool_call_id=event.tool_call_id, tool_name=event.tool_name, args=_args(event.args))
        case "tool_update":
            return agent_events.ToolExecutionUpdate(
                tool_call_id=event.tool_call_id, tool_name=event.tool_name, args=_args(event.args), partial_result=event.partial_result
            )
        case "tool_end":
            return agent_events.ToolExecutionEnd(
                tool_call_id=event.tool_call_id, tool_name=event.tool_name, result=event.result, is_error=event.is_error
            )
        case _:
            return None


def _args(args: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", args) if isinstance(args, dict) else {}


async def kept_model(storage: Storage) -> str | None:
    """Return the model that a session goes on with; None before its first run. Only reads."""
    stored = await storage.get_value(keys.LANE_CONFIG, LANE)
    named = field_of(stored.value, "model") if stored is not None else None
    return f"{named['provider']}/{named['model_id']}" if named else None


async def create_session(repo: SqliteRepo, cwd: Path, task: Task) -> Session:
    """Create a session for a task in a folder.

    Raises:
        CliError: it cannot be stored.
    """
    try:
        return await repo.create(cwd=str(cwd), metadata={"cli": msgspec.to_builtins(task)})
    except (StorageError, OSError) as error:
        raise CliError(f"the session cannot be stored: {error}; say --no-session to work without one") from error


async def open_session(repo: SqliteRepo, session_id: str) -> Session:
    """Open a session for writing.

    Raises:
        CliError: it is open elsewhere (exit code 4), or cannot be read.
    """
    try:
        return await repo.open(session_id)
    except SessionLocked as error:
        raise locked(error) from error
    except StorageError as error:
        raise CliError(str(error)) from error
