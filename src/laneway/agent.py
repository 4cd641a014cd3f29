"""Layer 2: `Agent`. A conversation in memory around the loop: transcript, subscribers, queues, abort. It remembers until the process ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from inspect import iscoroutinefunction as is_coroutine_function
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from laneway._effects.call_tools import ABORTED, failure, result_message
from laneway._event_stream import EventStream
from laneway.abort import AbortController, AbortSignal, being_cancelled, first_step, soon, start_task
from laneway.errors import Aborted, AgentBusy, LoopInputError, WouldDeadlock
from laneway.events import AgentEnd, AgentEvent, MessageEnd, MessageStart, MessageUpdate, ToolExecutionEnd, ToolExecutionStart
from laneway.llm.base import Model, StreamFn, StreamOptions, ThinkingLevel
from laneway.loop import AgentContext, LoopConfig, LoopLimits, run_in_loop, settle_on_cancel
from laneway.messages import AgentMessage, AssistantMessage, ImageContent, SystemMessage, TextContent, ToolResultMessage, UserMessage, is_message
from laneway.tools.base import AgentTool, ExecutionMode
from laneway.transcript import current_system_message, current_system_prompt, initial_system_message

__all__ = ["Agent", "AgentState", "PendingMessages", "QueueMode"]

QueueMode = Literal["one-at-a-time", "all"]
Listener: TypeAlias = Callable[[AgentEvent, AbortSignal], "Awaitable[None] | None"]
Input: TypeAlias = "str | AgentMessage | Sequence[AgentMessage]"

_inside: ContextVar[tuple[_ActiveRun, ...]] = ContextVar("laneway_agent_runs", default=())


class PendingMessages(Struct, kw_only=True, frozen=True):
    """Both queues, whole, oldest first."""

    steering: list[AgentMessage]
    follow_up: list[AgentMessage]


class AgentState:
    """What an `Agent` knows. Assigning `messages` or `tools` copies the list; the rest below `tools` is read-only."""

    def __init__(self, model: Model, thinking_level: ThinkingLevel, tools: Iterable[AgentTool], messages: Iterable[AgentMessage]) -> None:
        self._model = model
        self.thinking_level: ThinkingLevel = thinking_level
        self._tools = list(tools)
        self._messages = list(messages)
        self._run: _ActiveRun | None = None
        self._streaming_message: AssistantMessage | None = None
        self._pending: set[str] = set()
        self._pending_seen: frozenset[str] | None = None  # made when it is read: a copy per call would make a large batch quadratic
        self._error: str | None = None

    @property
    def model(self) -> Model:
        """The model of the next run; assign a `Model` or a "provider/id" spec. (Within a run, `prepare_request` changes it.)"""
        return self._model

    @model.setter
    def model(self, model: Model | str) -> None:
        self._model = _resolve(model)

    @property
    def tools(self) -> list[AgentTool]:
        """The tools that can be executed; a change is declared to the model at the start of the next run."""
        return self._tools

    @tools.setter
    def tools(self, tools: Iterable[AgentTool]) -> None:
        self._tools = _checked(tools)

    @property
    def messages(self) -> list[AgentMessage]:
        """The transcript, system messages included."""
        return self._messages

    @messages.setter
    def messages(self, messages: Iterable[AgentMessage]) -> None:
        self._messages = list(messages)

    @property
    def system_prompt(self) -> str:
        """The prompt in force, replayed from the transcript's system messages."""
        return current_system_prompt(self._messages)

    @system_prompt.setter
    def system_prompt(self, _: str) -> None:
        raise AttributeError(
            "system_prompt is read from the transcript: append a SystemMessage to state.messages instead (content adds, sections replace by name)"
        )

    @property
    def is_streaming(self) -> bool:
        """Whether a run is going on, its last listeners included."""
        return self._run is not None

    @property
    def streaming_message(self) -> AssistantMessage | None:
        """The live partial of the response that is streaming."""
        return self._streaming_message

    @property
    def pending_tool_calls(self) -> frozenset[str]:
        """Ids of the calls under way; every change makes a new set."""
        if self._pending_seen is None:
            self._pending_seen = frozenset(self._pending)
        return self._pending_seen

    @property
    def error_message(self) -> str | None:
        """Why the last turn failed or was aborted; None once another run starts."""
        return self._error

    def _settle(self) -> None:
        """Nothing is under way any more."""
        self._streaming_message = self._run = self._pending_seen = None
        self._pending.clear()

    # What each event changes; applied before any listener sees it.

    def _on_start(self, event: MessageStart) -> None:
        if isinstance(event.message, AssistantMessage):
            self._streaming_message = event.message

    def _on_end(self, event: MessageEnd) -> None:
        message = event.message
        self._messages.append(message)
        if isinstance(message, AssistantMessage):
            self._streaming_message = None
            if message.stop_reason in ("error", "aborted"):
                self._error = message.error_message

    def _on_tool_start(self, event: ToolExecutionStart) -> None:
        self._pending.add(event.tool_call_id)
        self._pending_seen = None

    def _on_tool_end(self, event: ToolExecutionEnd) -> None:
        self._pending.discard(event.tool_call_id)
        self._pending_seen = None

    def _on_agent_end(self, event: AgentEnd) -> None:
        if event.reason == "aborted" and self._error is None and self._run is not None:  # not in a response: between two, or while tools ran
            self._error = str(Aborted(self._run.signal.reason))


_CHANGES: dict[type[Any], Callable[[AgentState, Any], None]] = {
    MessageStart: AgentState._on_start,  # pyright: ignore[reportPrivateUsage] - the table belongs to the class above
    MessageEnd: AgentState._on_end,  # pyright: ignore[reportPrivateUsage] - as above
    ToolExecutionStart: AgentState._on_tool_start,  # pyright: ignore[reportPrivateUsage] - as above
    AgentEnd: AgentState._on_agent_end,  # pyright: ignore[reportPrivateUsage] - as above
    ToolExecutionEnd: AgentState._on_tool_end,  # pyright: ignore[reportPrivateUsage] - as above
}


class _Subscription:
    """A listener, and whether what it returns is always a coroutine. One that wants no more events has a listener that ignores them."""

    __slots__ = ("is_async", "listener")

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.is_async = is_coroutine_function(listener)

    def end(self) -> None:
        self.listener, self.is_async = _ignore, False


def _ignore(event: AgentEvent, signal: AbortSignal) -> None:
    """Stand for the listener of a subscription that ended."""


class _ActiveRun:
    """One run: its abort, its listeners' failures, what it took from the queues, and the batch that an interrupting steer may stop."""

    __slots__ = ("batch", "controller", "failures", "idle", "loop", "owner", "signal", "silenced", "sink", "skip_first_poll", "state", "taken")

    def __init__(self, owner: Agent, controller: AbortController, sink: Callable[[AgentEvent], Awaitable[None]] | None) -> None:
        self.owner, self.state, self.controller, self.signal, self.sink = owner, owner.state, controller, controller.signal, sink
        self.loop = asyncio.get_running_loop()
        self.failures: list[Exception] = []
        self.silenced: set[_Subscription] = set()
        self.batch: AbortController | None = None
        self.skip_first_poll = False
        self.taken: list[tuple[deque[AgentMessage], AgentMessage]] = []
        self.idle: asyncio.Event = asyncio.Event()

    async def emit(self, event: AgentEvent) -> None:
        """Reduce the event into the state, then serve each listener, then the stream."""
        listeners = self.owner.listeners
        if self.failures:
            listeners = tuple(subscription for subscription in listeners if subscription not in self.silenced)
            if isinstance(event, AgentEnd):
                event = msgspec.structs.replace(event, reason="error")
        kind = type(event)
        if kind is MessageUpdate:  # of most there are, so no call for it
            update: Any = event
            self.state._streaming_message = update.message  # pyright: ignore[reportPrivateUsage] - the table above does the same
        elif (change := _CHANGES.get(kind)) is not None:
            change(self.state, event)
        for subscription in listeners:
            try:
                listener = subscription.listener  # a local: before Python 3.12, calling an attribute that is no method is slow
                done: Any = listener(event, self.signal)
                if subscription.is_async or (done is not None and hasattr(done, "__await__")):  # a lambda may return anything
                    await done
            except Exception as error:
                self.fail(subscription, error)
            except asyncio.CancelledError as error:
                if being_cancelled():
                    raise
                text = f"a listener's own work was cancelled while it handled {event.type}"
                self.fail(subscription, RuntimeError(text).with_traceback(error.__traceback__))
        if self.sink is not None:
            await self.sink(event)

    def poll_steering(self) -> list[AgentMessage]:
        """What the loop gets of the steering queue now."""
        if self.skip_first_poll:  # it was drained to start this run: the same message must not be eaten twice
            self.skip_first_poll = False
            return []
        owner = self.owner
        return self._take(owner._steering, owner.steering_mode) if owner._steering else []  # pyright: ignore[reportPrivateUsage] - the owner's part

    def poll_follow_up(self) -> list[AgentMessage]:
        """What the loop gets of the follow-up queue now."""
        owner = self.owner
        return self._take(owner._follow_up, owner.follow_up_mode) if owner._follow_up else []  # pyright: ignore[reportPrivateUsage] - as above

    def _take(self, queue: deque[AgentMessage], mode: QueueMode) -> list[AgentMessage]:
        drained = self.owner._drain(queue, mode)  # pyright: ignore[reportPrivateUsage] - as above
        self.taken += [(queue, message) for message in drained]
        return drained

    def batch_interrupt(self) -> AbortSignal:
        """The signal that stops the batch about to run; set already if a message that cannot wait is queued."""
        if self.batch is None or self.batch.signal.aborted:
            self.batch = AbortController()
        if self.owner._cannot_wait():  # pyright: ignore[reportPrivateUsage] - as above
            self.batch.abort()
        return self.batch.signal

    def fail(self, subscription: _Subscription, error: Exception) -> None:
        """Stop the run for a listener that raised: the exception is its author's, `prompt()` raises it once all has settled."""
        self.silenced.add(subscription)
        self.failures.append(error)
        self.controller.abort(error)


class Agent:
    """A conversation with a model, its tools and whoever watches.

    ::

        agent = Agent(model="openai/gpt-5", tools=[read_tool()])
        await agent.prompt("What does notes.txt say?")

    One run at a time. While it goes on, `steer` delivers a message at the next turn boundary, `follow_up` when the agent would stop.
    Listeners are awaited in the order of subscription and see the state already updated. `steer`, `follow_up` and `abort` may be called from
    any thread; everything else belongs to the event loop that runs the agent.

    Keyword arguments beyond the first line are the hooks and settings of the loop (see `LoopConfig`); each is a public attribute and may be
    reassigned, which the next run sees. `stream_options` is the base of every request's options.
    """

    state: AgentState

    def __init__(
        self,
        *,
        model: Model | str,
        system_prompt: str = "",
        tools: Iterable[AgentTool] = (),
        messages: Iterable[AgentMessage] = (),
        thinking_level: ThinkingLevel | None = None,
        stream_fn: StreamFn | None = None,
        steering_mode: QueueMode = "one-at-a-time",
        follow_up_mode: QueueMode = "one-at-a-time",
        convert_to_llm: Any = None,
        transform_context: Any = None,
        get_api_key: Any = None,
        prepare_request: Any = None,
        prepare_next_turn: Any = None,
        finish_turn: Any = None,
        before_tool_call: Any = None,
        after_tool_call: Any = None,
        tool_execution: ExecutionMode = "parallel",
        tool_abort_grace: float = 0.5,
        abort_grace: float = 10.0,
        limits: LoopLimits | None = None,
        session_id: str | None = None,
        thinking_budgets: dict[str, int] | None = None,
        stream_options: StreamOptions | None = None,
    ) -> None:
        resolved, checked, transcript = _resolve(model), _checked(tools), list(messages)
        if not (transcript and isinstance(transcript[0], SystemMessage)):
            initial = initial_system_message(system_prompt, [tool.declaration for tool in checked])
            transcript[:0] = [initial] if initial is not None else []
        level = thinking_level or resolved.default_thinking_level or "off"
        self.state = AgentState(resolved, level, checked, transcript)
        self.steering_mode: QueueMode = steering_mode
        self.follow_up_mode: QueueMode = follow_up_mode
        self.stream_fn = stream_fn
        self.convert_to_llm = convert_to_llm
        self.transform_context = transform_context
        self.get_api_key = get_api_key
        self.prepare_request = prepare_request
        self.prepare_next_turn = prepare_next_turn
        self.finish_turn = finish_turn
        self.before_tool_call = before_tool_call
        self.after_tool_call = after_tool_call
        self.tool_execution: ExecutionMode = tool_execution
        self.tool_abort_grace = tool_abort_grace
        self.abort_grace = abort_grace
        self.limits = limits
        self.session_id = session_id
        self.thinking_budgets = thinking_budgets
        self.stream_options = stream_options or StreamOptions()
        self._steering: deque[AgentMessage] = deque()
        self._follow_up: deque[AgentMessage] = deque()
        self._urgent: set[int] = set()  # ids of the queued messages that cannot wait for the batch
        self.listeners: tuple[_Subscription, ...] = ()  # replaced, never changed: a run may be iterating over it
        self._run: _ActiveRun | None = None

    # ------------------------------------------------------------------------------------------------ start

    async def prompt(self, prompt: Input, *, images: Sequence[ImageContent] | None = None) -> list[AgentMessage]:
        """Run until the agent stops and every listener of the last event has finished; return all new messages, prompts included.

        `prompt` is a text (with `images` after it), a message, or several. A failing provider or tool is in the transcript, not raised:
        see `state.error_message`. Cancelling the awaiting task aborts the run, waits until it has settled (at most `abort_grace` seconds)
        and raises `CancelledError`.

        Raises:
            AgentBusy: a run is going on; use `steer()` or `follow_up()`.
            Exception: what a listener raised, after the run was stopped (several: an ExceptionGroup).
        """
        self._check_idle("prompt() cannot start a second run while one is going on: use steer() or follow_up() to add a message")
        return await self._start(to_messages(prompt, images), AbortController())

    async def continue_(self) -> list[AgentMessage]:
        """Go on without a new prompt: answer the last message, or, after an answer, deliver what is queued (steering first).

        Raises:
            AgentBusy: a run is going on.
            LoopInputError: nothing to answer: no conversation yet, or an answered one with empty queues. The queues are untouched.
        """
        prompts, source = self._continuation()
        return await self._start(prompts, AbortController(), source)

    def stream(self, prompt: Input | None = None, *, images: Sequence[ImageContent] | None = None) -> EventStream[AgentEvent, list[AgentMessage]]:
        """The same run as an async iterator of events: `async for event in agent.stream("…")`; without a prompt it continues.

        Listeners are served first. The run does not wait for the iteration. Leaving the iteration (or `async with`) early aborts the run.

        Raises:
            AgentBusy, LoopInputError: as `prompt` and `continue_`, at the call.
        """
        asyncio.get_running_loop()  # before anything is taken from a queue
        source = None
        if prompt is None:
            prompts, source = self._continuation()
        else:
            self._check_idle("stream() cannot start a second run while one is going on: use steer() or follow_up() to add a message")
            prompts = to_messages(prompt, images)
        controller = AbortController()

        def produce(put: Callable[[AgentEvent], Any]) -> Any:
            return self._start(prompts, controller, source, put)

        return EventStream(produce, controller, inside=lambda: any(run.controller is controller for run in _inside.get()))

    def prompt_sync(self, prompt: Input, *, images: Sequence[ImageContent] | None = None) -> list[AgentMessage]:
        """`prompt` for scripts without an event loop; Ctrl-C aborts the run and leaves the transcript valid.

        Raises:
            WouldDeadlock: an event loop runs in this thread; await `prompt()` there.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.prompt(prompt, images=images))
        raise WouldDeadlock("prompt_sync() was called inside a running event loop, which it would block: use `await agent.prompt(…)`")

    def _continuation(self) -> tuple[list[AgentMessage], deque[AgentMessage] | None]:
        """What a continuing run starts with, and the queue that it was drained from."""
        self._check_idle("continue_() cannot start a second run while one is going on: it will answer what is queued by itself")
        conversation = [message for message in self.state.messages if not isinstance(message, SystemMessage)]
        if not conversation:
            raise LoopInputError("cannot continue: there are no messages yet; start with prompt()")
        if not isinstance(conversation[-1], AssistantMessage):
            return [], None
        if self._steering:
            return self._drain(self._steering, self.steering_mode), self._steering
        if self._follow_up:
            return self._drain(self._follow_up, self.follow_up_mode), self._follow_up
        raise LoopInputError("cannot continue: the last message is the assistant's answer and nothing is queued; use prompt()")

    def _check_idle(self, text: str) -> None:
        if self._current_run() is not None:
            raise AgentBusy(text)

    def _current_run(self) -> _ActiveRun | None:
        run = self._run
        if run is not None and run.loop.is_closed():  # closed on it: nothing of it can ever end
            self._let_go(run, torn=True)
        return self._run

    # ------------------------------------------------------------------------------------------------ the run

    def _start(
        self,
        prompts: list[AgentMessage],
        controller: AbortController,
        source: deque[AgentMessage] | None = None,
        sink: Callable[[AgentEvent], Awaitable[None]] | None = None,
    ) -> Awaitable[list[AgentMessage]]:
        """Mark the agent busy at once, before anything is awaited. `source` is the queue that the prompts were drained from."""
        run = self._run = self.state._run = _ActiveRun(self, controller, sink)  # pyright: ignore[reportPrivateUsage] - the state is the agent's own
        self.state._error = None  # pyright: ignore[reportPrivateUsage] - as above
        if source is not None:
            run.taken += [(source, message) for message in prompts]
        run.skip_first_poll = source is self._steering
        task = start_task(
            run.loop, self._body(run, prompts), at_once=sink is None, ended=lambda _: self._let_go(run, torn=True)
        )  # a stream is there before its first event
        return settle_on_cancel(task, controller, self.abort_grace)

    async def _body(self, run: _ActiveRun, prompts: list[AgentMessage]) -> list[AgentMessage]:
        torn = True
        try:
            await first_step()
            _inside.set((*_inside.get(), run))
            context = AgentContext(messages=self.state.messages, tools=self.state.tools)
            config = self._config(run)
            new = await run_in_loop(prompts, context, config, run.emit, signal=run.controller.signal, stream_fn=self.stream_fn)
            torn = False
        except Exception as error:  # of a hook, raised when all is settled
            if not run.failures:
                raise
            raise ExceptionGroup("listeners and a hook raised", [*run.failures, error]) from None
        finally:
            self._let_go(run, torn=torn)
        if run.failures:
            raise run.failures[0] if len(run.failures) == 1 else ExceptionGroup("several listeners raised", run.failures)
        return new

    def _let_go(self, run: _ActiveRun, *, torn: bool) -> None:
        """Make the agent idle, once per run. One that was torn apart (a listener outlasted the grace of a cancellation, say) is repaired."""
        if self._run is not run:
            return
        state = self.state
        if torn:
            self._answer_open_calls()
            there = {id(message) for message in state.messages}
            for queue, message in reversed(run.taken):
                if id(message) not in there:  # taken, but not delivered
                    queue.appendleft(message)
        state._settle()  # pyright: ignore[reportPrivateUsage] - as above
        self._run = None
        if not run.loop.is_closed():
            run.idle.set()

    def _answer_open_calls(self) -> None:
        """Give the calls that a torn run left open a result each: whatever happened, the transcript can go on."""
        messages = self.state.messages
        last = next((index for index in range(len(messages) - 1, -1, -1) if isinstance(messages[index], AssistantMessage)), None)
        response = messages[last] if last is not None else None
        if last is None or not isinstance(response, AssistantMessage) or response.stop_reason in ("error", "aborted"):
            return
        answered = {message.tool_call_id for message in messages[last + 1 :] if isinstance(message, ToolResultMessage)}
        outcome = failure(ABORTED, cut="aborted")
        messages += [result_message(call, outcome) for call in response.tool_calls if call.id not in answered]

    def _config(self, run: _ActiveRun) -> LoopConfig:
        options = self.stream_options
        if self.session_id is not None or self.thinking_budgets is not None:
            options = msgspec.structs.replace(
                options,
                session_id=options.session_id if self.session_id is None else self.session_id,
                thinking_budgets=options.thinking_budgets if self.thinking_budgets is None else self.thinking_budgets,
            )
        return LoopConfig(
            model=self.state.model,
            thinking_level=self.state.thinking_level,
            stream_options=options,
            convert_to_llm=self.convert_to_llm,
            transform_context=self.transform_context,
            get_api_key=self.get_api_key,
            prepare_request=self.prepare_request,
            prepare_next_turn=self.prepare_next_turn,
            finish_turn=self.finish_turn,
            get_steering_messages=run.poll_steering,
            get_follow_up_messages=run.poll_follow_up,
            tool_execution=self.tool_execution,
            before_tool_call=self.before_tool_call,
            after_tool_call=self.after_tool_call,
            tool_abort_grace=self.tool_abort_grace,
            limits=self.limits,
            batch_interrupt=run.batch_interrupt,
            has_queued_messages=lambda: self.has_queued_messages,
        )

    # ------------------------------------------------------------------------------------------------ queues

    def steer(self, message: Input, *, interrupt: bool = False) -> None:
        """Queue a message for the run under way: delivered at the next turn boundary, after the current tool batch.

        With `interrupt` the running batch is stopped: finished calls keep their results, the others get an error result. The message is
        delivered at once then, together with what was queued before it.
        Without a run it is delivered at the start of the next one. Several messages are queued one by one. Any thread.

        Raises:
            LoopInputError: as `prompt`: it is empty, or not a text or registered messages.
        """
        messages = to_messages(message)
        if interrupt:  # marked before they can be taken
            self._urgent.update(id(message) for message in messages)
        self._steering.extend(messages)
        run = self._run
        if interrupt and run is not None and run.batch is not None:
            batch = run.batch
            self._on_loop(run, lambda: batch.abort("a new message") if self._cannot_wait() else None)

    def _cannot_wait(self) -> bool:
        """Whether a message is queued that may stop a batch; once it is taken, it may not."""
        return bool(self._urgent) and any(id(message) in self._urgent for message in list(self._steering))

    def follow_up(self, message: Input) -> None:
        """Queue a message that is delivered only when the agent would otherwise stop. Any thread.

        Raises:
            LoopInputError: as `steer`.
        """
        self._follow_up.extend(to_messages(message))

    def clear_steering_queue(self) -> list[AgentMessage]:
        """Empty the steering queue and hand its messages back."""
        return self._take_all(self._steering)

    def clear_follow_up_queue(self) -> list[AgentMessage]:
        """Empty the follow-up queue and hand its messages back."""
        return self._take_all(self._follow_up)

    def clear_all_queues(self) -> PendingMessages:
        """Empty both queues and hand their messages back."""
        return PendingMessages(steering=self._take_all(self._steering), follow_up=self._take_all(self._follow_up))

    @property
    def has_queued_messages(self) -> bool:
        """Whether anything is queued."""
        return bool(self._steering or self._follow_up)

    def peek_queued_messages(self) -> list[AgentMessage]:
        """What the next drain would take (steering first, honouring the modes), without taking it."""
        queue, mode = (self._steering, self.steering_mode) if self._steering else (self._follow_up, self.follow_up_mode)
        return list(queue)[: self._next_count(queue, mode)]

    def pending_messages(self) -> PendingMessages:
        """Both queues, whole."""
        return PendingMessages(steering=list(self._steering), follow_up=list(self._follow_up))

    def _drain(self, queue: deque[AgentMessage], mode: QueueMode) -> list[AgentMessage]:
        drained = [queue.popleft() for _ in range(self._next_count(queue, mode))]
        if self._urgent:
            self._urgent.difference_update(map(id, drained))
        return drained

    def _next_count(self, queue: deque[AgentMessage], mode: QueueMode) -> int:
        """How many messages of a queue are delivered next."""
        count = len(queue) if mode == "all" else min(1, len(queue))
        if self._urgent:  # what cannot wait comes with what was queued before it
            count = max([count, *(place for place, message in enumerate(list(queue), 1) if id(message) in self._urgent)])
        return count

    def _take_all(self, queue: deque[AgentMessage]) -> list[AgentMessage]:
        return self._drain(queue, "all")

    # ------------------------------------------------------------------------------------------------ watch and control

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(event, signal)`, sync or async, for every event from now on; returns the function that ends it.

        A listener is a barrier: the run waits for it. One that raises stops the run (see `prompt`). It may `steer`, `follow_up` and
        `abort`; it cannot wait for the run it is part of.
        """
        subscription = _Subscription(listener)
        self.listeners = (*self.listeners, subscription)

        def unsubscribe() -> None:
            subscription.end()
            self.listeners = tuple(other for other in self.listeners if other is not subscription)

        return unsubscribe

    @property
    def signal(self) -> AbortSignal | None:
        """The abort signal of the run under way, None when idle."""
        return self._run.controller.signal if self._run is not None else None

    def abort(self, reason: object = None) -> None:
        """Stop the run: the response is cut, tools see the signal. Queued messages stay queued. Nothing happens when idle. Any thread."""
        run = self._run
        if run is not None:
            self._on_loop(run, lambda: run.controller.abort(reason))

    @staticmethod
    def _on_loop(run: _ActiveRun, call: Callable[[], None]) -> None:
        try:
            here = asyncio.get_running_loop() is run.loop
        except RuntimeError:
            here = False
        if here:
            call()
        else:
            soon(run.loop, call)

    async def wait_for_idle(self) -> None:
        """Return when no run is going on and every listener of its last event has finished.

        Raises:
            WouldDeadlock: called from inside the run (a tool, a hook, a listener).
        """
        run = self._current_run()
        if run is None:
            return
        if run in _inside.get():
            raise WouldDeadlock("wait_for_idle() was called from inside the run it waits for: return first, or use follow_up()")
        await run.idle.wait()

    def reset(self) -> None:
        """Start over: drop messages, queues and the error; keep one system message with the prompt and tools in force.

        Raises:
            AgentBusy: a run is going on; abort() it and wait_for_idle() first.
        """
        self._check_idle("reset() cannot drop messages while a run is going on: abort() it and await wait_for_idle() first")
        baseline = current_system_message(self.state.messages)
        self.state.messages = [] if baseline is None else [baseline]
        self.state._error = None  # pyright: ignore[reportPrivateUsage] - the state is the agent's own
        self.clear_all_queues()


def to_messages(prompt: Input, images: Sequence[ImageContent] | None = None) -> list[AgentMessage]:
    """Turn what a person may pass as a prompt into messages.

    Raises:
        LoopInputError: it is empty, or not a text or registered messages.
    """
    if isinstance(prompt, str):
        blocks: list[TextContent | ImageContent] = [TextContent(text=prompt)] if prompt.strip() else []
        blocks += images or ()
        if not blocks:
            raise LoopInputError("the prompt is empty: give a text, an image or a message")
        return [UserMessage(content=blocks)]
    messages = cast("list[AgentMessage]", [prompt] if is_message(prompt) else list(cast("Iterable[Any]", prompt)))
    if not messages:
        raise LoopInputError("the prompt is empty: the list has no message")
    for message in messages:
        if not is_message(message):
            kind = type(message).__name__
            raise LoopInputError(f"a prompt is a text, a message or a list of messages, not {kind}; register_message() custom roles")
    if images:
        raise LoopInputError("images go with a text prompt; put them into the message's content instead")
    return messages


def _resolve(model: Model | str) -> Model:
    if isinstance(model, str):
        from laneway.llm import model as find

        return find(model)
    return model


def _checked(tools: Iterable[AgentTool]) -> list[AgentTool]:
    checked = list(tools)
    names = [tool.name for tool in checked]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"tool names must be distinct, but these occur more than once: {', '.join(twice)}")
    return checked
