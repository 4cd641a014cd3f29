"""`AgentHarness`: a durable runtime over one session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from laneway.errors import BranchExists, StorageError
from laneway.harness import _environment, _observe, _restore, keys
from laneway.harness._bus import Bus
from laneway.harness._environment import Environment, Resources, SystemPrompt, ToProvider
from laneway.harness._events import ConfigUpdate, HarnessEvent, LaneCreated, ValueUpdate
from laneway.harness._hooks import Hooks
from laneway.harness._line import Commit, Decision, Invariant, Line, Return
from laneway.harness._observe import WatchHandle
from laneway.harness._runtime import Runtime
from laneway.harness._snapshot import LaneInfo, SessionSnapshot
from laneway.harness.context import Context, in_context
from laneway.harness.lane import AgentLane
from laneway.harness.results import OpenOperation, UnknownTarget
from laneway.harness.state import CompactionSettings, Lane, Limits, QueueMode
from laneway.llm._retry import RetryPolicy
from laneway.llm.base import Model, StreamFn, StreamOptions, ThinkingLevel
from laneway.messages import now_ms
from laneway.session import Session
from laneway.session._mutation import Mutation
from laneway.tools.base import AgentTool, ExecutionMode

if TYPE_CHECKING:
    from laneway.llm import Models
    from laneway.loop import LoopLimits
    from laneway.session._context import EntryProjector

CLOSE_PATIENCE = 10.0  # seconds that close() waits for what runs to react


class Attached(NamedTuple):
    """A harness, and what earlier processes left open in its session. Unpacks as a pair."""

    harness: AgentHarness
    open: list[OpenOperation]


class AgentHarness:
    """Runs agents over one session so that a killed process loses nothing that was settled.

    Create it with `create`, get lanes with `lane`. `hooks` and `events` are of this process. `close()` (or leaving `async with`)
    writes nothing: what is open stays open, and reopening goes on with it. Every async method takes the call's `Context`.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lanes: dict[str, AgentLane] = {}
        self._releases: dict[str, Callable[[], None]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._forget_lease: Callable[[], None] | None = None

    @classmethod
    @in_context
    async def create(
        cls,
        *,
        session: Session,
        model: Model | str,
        models: Models | None = None,
        tools: Sequence[AgentTool] = (),
        active_tools: Sequence[str] | None = None,
        thinking_level: ThinkingLevel | None = None,
        system_prompt: SystemPrompt = "",
        resources: Resources | Mapping[str, Mapping[str, str]] | None = None,
        tool_context: Any = None,
        stream_options: StreamOptions | None = None,
        stream_fn: StreamFn | None = None,
        retry: RetryPolicy | None = None,
        compaction: CompactionSettings | None = None,
        steering_mode: QueueMode = "all",
        follow_up_mode: QueueMode = "all",
        tool_execution: ExecutionMode = "parallel",
        limits: LoopLimits | None = None,
        to_provider_messages: ToProvider | None = None,
        entry_projectors: Mapping[str, EntryProjector] | None = None,
        clock: Callable[[], int] = now_ms,
        context: Context | None = None,
    ) -> Attached:
        """Open a session's lanes and say what is open in them. Runs nothing and writes nothing.

        `model`, `thinking_level` and `active_tools` (None: all tools) are what a new lane begins with; everything else is of this process.
        `clock` gives Unix milliseconds and exists for tests.

        Raises:
            TypeError, ValueError: an option is wrong; the session was not read.
            HarnessFault: the session holds something that cannot be; `__cause__` names it.
            BranchExists: another harness of this process has the session's lanes.
        """
        environment = Environment(
            model=_resolve(model, models),
            models=models,
            stream_fn=stream_fn,
            tools=_environment.check_tools(tools),
            active_tools=None if active_tools is None else list(active_tools),
            thinking_level=thinking_level or _default_level(model, models),
            system_prompt=system_prompt,
            resources=_environment.as_resources(resources),
            tool_context=tool_context,
            stream_options=stream_options or StreamOptions(),
            retry=_environment.check_retry(retry or RetryPolicy()),
            compaction=_environment.check_compaction(compaction or CompactionSettings()),
            steering_mode=_environment.check_mode(steering_mode, "steering_mode"),
            follow_up_mode=_environment.check_mode(follow_up_mode, "follow_up_mode"),
            tool_execution=_check_execution(tool_execution),
            limits=_limits(limits),
            to_provider_messages=to_provider_messages,
            entry_projectors=dict(entry_projectors or {}),
            clock=clock,
        )
        runtime = Runtime(session, environment)
        try:
            found = await _restore.restore(runtime)
        except (Invariant, StorageError) as error:
            raise runtime.fail(error) from error
        harness = cls(runtime)
        harness._forget_lease = session.on_lost(runtime.lost)
        try:
            for name in runtime.lines:
                harness._claim(name)
        except BranchExists:
            harness._let_go()
            raise
        return Attached(harness, found)

    # ------------------------------------------------------------------------------------------------ what it is made of

    @property
    def hooks(self) -> Hooks:
        """The handlers that may change what happens; see `Hooks.on`."""
        return self._runtime.hooks

    @property
    def events(self) -> Bus:
        """The listeners that are told what happened; see `Bus.on`."""
        return self._runtime.bus

    @property
    def session(self) -> Session:
        """The session. Lanes write to it; do not move their branches behind their back."""
        return self._runtime.session

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._runtime.closed

    # ------------------------------------------------------------------------------------------------ lanes

    @in_context
    async def lane(self, name: str, *, create_at: str | None = None, context: Context | None = None) -> AgentLane:
        """Return the lane of this name. A new one begins at entry `create_at` (None: before the first); a branch without a lane keeps its tip.

        Raises:
            ValueError: the name is empty or holds a NUL.
            UnknownTarget: there is no entry `create_at`.
            BranchExists: another harness of this process has the lane; nothing was written.
        """
        runtime = self._runtime
        runtime.check()
        if not name or "\0" in name:
            raise ValueError(f"a lane cannot be called {name!r}: a name has at least one character and no NUL")
        if name not in runtime.lines:
            self._claim(name)  # first: a lane that another harness of this session has must not be written over
            try:
                await self._create_lane(name, create_at)
            except BaseException:
                if name not in runtime.lines:
                    self._release(name)
                raise
        if name not in self._lanes:
            self._claim(name)
            self._lanes[name] = AgentLane(runtime.lines[name])
        return self._lanes[name]

    async def _create_lane(self, name: str, create_at: str | None) -> None:
        runtime = self._runtime
        configuration = runtime.environment.default_configuration()
        line = Line(name, Lane(tip_id=None, configuration=configuration), runtime, restored=False)

        async def plan(_: Lane, mutation: Mutation) -> Decision[None]:
            if name in runtime.lines:
                return Return(None)
            stored = await mutation.get_value(keys.BRANCH_TIP, name)
            tip = create_at if stored is None else stored.value
            if stored is None and tip is not None and tip not in await mutation.get_entries([tip]):
                raise UnknownTarget(f"lane {name!r} cannot begin at {tip!r}: there is no such entry in this session")
            lane = Lane(tip_id=tip, configuration=configuration)
            writes = [keys.set_config(name, configuration), keys.set_lane_state(name, lane)]
            if stored is None:
                writes.insert(0, keys.set_tip(name, tip))

            def created(_: object) -> None:
                runtime.lines[name] = line

            return Commit(writes=[*writes], next=lane, value=created, events=lambda _: [LaneCreated(lane=name, at=tip)])

        await line.command(plan)

    def _claim(self, name: str) -> None:
        if name not in self._releases:
            self._releases[name] = self._runtime.session.claim_branch(name)

    def _release(self, name: str) -> None:
        release = self._releases.pop(name, None)
        if release is not None:
            release()

    @in_context
    async def lanes(self, *, context: Context | None = None) -> list[LaneInfo]:
        """Return every lane in brief, by name."""
        self._runtime.check()
        return [_observe.lane_info(line) for _, line in sorted(self._runtime.lines.items())]

    @in_context
    async def watch_session(self, *, context: Context | None = None) -> WatchHandle[SessionSnapshot]:
        """Return a snapshot of all lanes and a handle on every event after it."""
        self._runtime.check()
        return await _observe.watch_session(self._runtime)

    # ------------------------------------------------------------------------------------------------ the session's metadata

    @in_context
    async def get_name(self, *, context: Context | None = None) -> str | None:
        """Return the session's display name."""
        self._runtime.check()
        return await self._runtime.session.get_name()

    @in_context
    async def set_name(self, name: str | None, *, context: Context | None = None) -> None:
        """Set the session's display name; None removes it."""
        await self._store(self._runtime.session.set_name(name), ValueUpdate(value="session_name", text=name))

    @in_context
    async def get_label(self, entry_id: str, *, context: Context | None = None) -> str | None:
        """Return the label of an entry."""
        self._runtime.check()
        return await self._runtime.session.get_label(entry_id)

    @in_context
    async def set_label(self, entry_id: str, label: str | None, *, context: Context | None = None) -> None:
        """Label an entry (it need not exist yet); None removes the label."""
        await self._store(self._runtime.session.set_label(entry_id, label), ValueUpdate(value="entry_label", entry_id=entry_id, text=label))

    async def _store(self, write: Any, event: HarnessEvent) -> None:
        runtime = self._runtime
        try:
            runtime.check()
        except BaseException:
            write.close()
            raise
        try:
            await write
        except StorageError as error:
            runtime.check()
            raise runtime.fail(error) from error
        await self._tell(event)

    async def _tell(self, event: HarnessEvent) -> None:
        if self._runtime.bus.listened:
            self._runtime.bus.bind([event])
            await self._runtime.bus.deliver()

    # ------------------------------------------------------------------------------------------------ live settings

    @in_context
    async def get_tools(self, *, context: Context | None = None) -> list[AgentTool]:
        """Return the tools of this process."""
        return list(self._runtime.environment.tools.values())

    @in_context
    async def set_tools(self, tools: Sequence[AgentTool], *, context: Context | None = None) -> None:
        """Replace the tools. A call under way is not touched. Raises TypeError if two have one name."""
        await self._set("tools", _environment.check_tools(tools), shown=[tool.name for tool in tools])

    @in_context
    async def get_resources(self, *, context: Context | None = None) -> Resources:
        """Return skills and prompt templates."""
        return self._runtime.environment.resources

    @in_context
    async def set_resources(self, resources: Resources | Mapping[str, Mapping[str, str]] | None, *, context: Context | None = None) -> None:
        """Replace skills and prompt templates."""
        value = _environment.as_resources(resources)
        await self._set("resources", value, shown={"skills": sorted(value.skills), "templates": sorted(value.templates)})

    @in_context
    async def get_stream_options(self, *, context: Context | None = None) -> StreamOptions:
        """Return the options that requests are made with."""
        return self._runtime.environment.stream_options

    @in_context
    async def set_stream_options(self, options: StreamOptions, *, context: Context | None = None) -> None:
        """Replace them; a step captures them when it begins."""
        await self._set("stream_options", options, shown=None)

    @in_context
    async def get_retry_policy(self, *, context: Context | None = None) -> RetryPolicy:
        """Return the retry policy."""
        return self._runtime.environment.retry

    @in_context
    async def set_retry_policy(self, policy: RetryPolicy, *, context: Context | None = None) -> None:
        """Replace it; a step captures it when it begins. Raises ValueError for a bad number."""
        await self._set("retry", _environment.check_retry(policy))

    @in_context
    async def get_compaction_settings(self, *, context: Context | None = None) -> CompactionSettings:
        """Return the compaction settings."""
        return self._runtime.environment.compaction

    @in_context
    async def set_compaction_settings(self, settings: CompactionSettings, *, context: Context | None = None) -> None:
        """Replace them; an operation captures them when it is accepted. Raises ValueError for a bad number."""
        await self._set("compaction", _environment.check_compaction(settings))

    @in_context
    async def get_steering_mode(self, *, context: Context | None = None) -> QueueMode:
        """Return how much steering a boundary takes."""
        return self._runtime.environment.steering_mode

    @in_context
    async def set_steering_mode(self, mode: QueueMode, *, context: Context | None = None) -> None:
        """Change it; an operation captures it when it is accepted."""
        await self._set("steering_mode", _environment.check_mode(mode, "steering_mode"))

    @in_context
    async def get_follow_up_mode(self, *, context: Context | None = None) -> QueueMode:
        """Return how many follow-ups the end of a run takes."""
        return self._runtime.environment.follow_up_mode

    @in_context
    async def set_follow_up_mode(self, mode: QueueMode, *, context: Context | None = None) -> None:
        """Change it; an operation captures it when it is accepted."""
        await self._set("follow_up_mode", _environment.check_mode(mode, "follow_up_mode"))

    @in_context
    async def get_tool_execution(self, *, context: Context | None = None) -> ExecutionMode:
        """Return whether the calls of a batch run at once."""
        return self._runtime.environment.tool_execution

    @in_context
    async def set_tool_execution(self, mode: ExecutionMode, *, context: Context | None = None) -> None:
        """Change it; an operation captures it when it is accepted."""
        await self._set("tool_execution", _check_execution(mode))

    async def _set(self, name: str, value: Any, *, shown: Any = ...) -> None:
        runtime = self._runtime
        runtime.check()
        previous = getattr(runtime.environment, name)
        setattr(runtime.environment, name, value)
        before = sorted(previous) if name == "tools" else None if shown is not ... else previous
        await self._tell(ConfigUpdate(property=name, value=value if shown is ... else shown, previous=before))

    # ------------------------------------------------------------------------------------------------ the end

    @in_context
    async def close(self, *, context: Context | None = None) -> None:
        """Stop everything of this process and release the session. Writes nothing: what is open can be resumed. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        runtime = self._runtime
        runtime.closed = True
        drives = [line.drive for line in runtime.lines.values() if line.drive is not None]
        runtime.stop_drives()
        for drive in drives:
            drive.refuse()
        tasks = [drive.task for drive in drives if drive.task is not None and drive.task is not asyncio.current_task()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_PATIENCE)
            for task in late:
                task.cancel()
        await runtime.bus.close()
        self._let_go()
        await runtime.session.close()

    def _let_go(self) -> None:
        """Give back what others may have now: the lanes, and the word about the lease."""
        if self._forget_lease is not None:
            self._forget_lease()
        for name in list(self._releases):
            self._release(name)

    async def __aenter__(self) -> AgentHarness:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


def _resolve(model: Model | str, models: Models | None) -> Model:
    if isinstance(model, Model):
        return model
    if models is not None:
        provider, _, model_id = model.partition("/")
        known = models.get(provider, model_id)
        if known is not None:
            return known
    from laneway.llm import model as find_model

    return find_model(model)


def _default_level(model: Model | str, models: Models | None) -> ThinkingLevel:
    return _resolve(model, models).default_thinking_level or "off"


def _check_execution(mode: Any) -> ExecutionMode:
    if mode not in ("parallel", "sequential"):
        raise ValueError(f'tool_execution must be "parallel" or "sequential", not {mode!r}')
    return mode


def _limits(limits: LoopLimits | None) -> Limits | None:
    if limits is None:
        return None
    return Limits(
        max_turns=limits.max_turns, max_tool_calls=limits.max_tool_calls, max_output_tokens=limits.max_output_tokens, max_cost=limits.max_cost,
        deadline=limits.deadline,
    )  # fmt: skip
