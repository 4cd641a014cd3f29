"""`laneway run`: one task in a folder, then exit."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import redirect_stdout, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from signal import Signals as Signal
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeAlias

from msgspec import Struct

from laneway.abort import AbortSignal
from laneway.agent import Agent
from laneway.cli._exit import ABORTED, DONE, FAILED, SUSPENDED, USAGE, CliError
from laneway.cli._signals import Signals
from laneway.cli.commands._model import Choice, choose_model
from laneway.cli.commands._prompt import Prompt, build_prompts
from laneway.cli.commands._tools import choose_tools, system_prompt
from laneway.cli.commands.sessions import failures, resolve
from laneway.cli.config import sessions_dir
from laneway.events import AgentEnd, AgentEvent
from laneway.llm.base import StreamOptions
from laneway.loop import LoopLimits
from laneway.messages import AssistantMessage, ImageContent
from laneway.session import SqliteRepo
from laneway.tools.base import AgentTool

if TYPE_CHECKING:
    from laneway.cli.commands._durable import DurableAgent
    from laneway.cli.commands._planned import Planned

_Step: TypeAlias = Callable[[], Awaitable[object]]

RETRIES = 2
"""How often a request is sent again that failed before anything of the answer had come; a Retry-After is kept."""
_CLEAN_UP = 1.0
"""Seconds that what still runs after the last prompt gets to end."""


class Renderer(Protocol):
    """What shows a run: a listener of the agent that can also say something itself."""

    def __call__(self, event: AgentEvent, signal: AbortSignal, /) -> None: ...
    def note(self, text: str) -> None: ...
    def session(self, session_id: str) -> None: ...


class Conversation(Protocol):
    """What a run needs of `Agent` or of a durable one."""

    @property
    def state(self) -> Any: ...
    def subscribe(self, listener: Callable[[AgentEvent, AbortSignal], None], /) -> object: ...
    def prompt(self, prompt: str, /, *, images: Sequence[ImageContent] | None = None) -> Awaitable[object]: ...
    def abort(self, reason: object = None, /) -> None: ...


def run(arguments: argparse.Namespace) -> int:
    """Do the task; return the exit code.

    Raises:
        CliError: nothing was asked of a model, because the command line or the configuration does not allow it.
    """
    kept = _Kept() if arguments.session is None else asyncio.run(_look(arguments))
    cwd = _folder(arguments.cwd or kept.cwd, "--cwd" if arguments.cwd else "the session's folder")
    tools = choose_tools(arguments.tools, cwd=cwd, read_only=arguments.read_only, allow_outside=arguments.allow_outside)
    choice = choose_model(arguments.model, kept=kept.model)
    header: dict[str, Any] = {"model": choice.model.spec, "cwd": str(cwd)}
    renderer = make_renderer(arguments, header)
    prompts = build_prompts(arguments.task, stdin=sys.stdin, note=renderer.note)
    if choice.note and not arguments.quiet:
        renderer.note(choice.note)
    if any(prompt.images for prompt in prompts) and "image" not in choice.model.input:
        renderer.note(f"{choice.model.spec} is not known to see images: it is only told that there is one")
    system = system_prompt(tools, cwd, replace=arguments.system, append=arguments.append_system)
    if arguments.no_session:
        agent = Agent(
            model=choice.model,
            tools=tools,
            system_prompt=system,
            thinking_level=arguments.thinking,
            limits=LoopLimits(max_turns=arguments.max_turns, max_cost=arguments.max_cost),
            stream_options=StreamOptions(max_retries=RETRIES, max_tokens=arguments.max_tokens),
        )
        return run_to_the_end(_Run(agent, renderer).all(prompts))
    return run_to_the_end(_durably(arguments, kept.id, choice, tools, cwd, system, renderer, prompts))


class _Kept(Struct, kw_only=True, frozen=True):
    """What the session that `--session` names goes on with, unless the command line says otherwise."""

    id: str | None = None
    cwd: str = "."
    model: str | None = None


async def _look(given: argparse.Namespace) -> _Kept:
    """Read what the session has, without its lease: what is refused or announced before it is opened has to be about its model and folder."""
    from laneway.cli.commands._durable import kept_model

    repo = SqliteRepo(sessions_dir(given.session_dir))
    session_id = await resolve(repo, given.session)
    with failures():
        async with repo.reading(session_id) as storage:
            metadata = (await repo.view(session_id, storage)).metadata
            return _Kept(id=session_id, cwd=metadata.cwd or ".", model=await kept_model(storage))


async def _durably(
    given: argparse.Namespace, session_id: str | None, choice: Choice, tools: list[AgentTool], cwd: Path, system: str, renderer: Renderer,
    prompts: list[Prompt],
) -> int:  # fmt: skip
    """Run in a session on SQLite: a new one, or the one that was named."""
    from laneway.cli.commands._durable import DurableAgent, Task, create_session, open_session

    task = Task(system=system, allow_outside=given.allow_outside, max_tokens=given.max_tokens, max_turns=given.max_turns, max_cost=given.max_cost)
    repo = SqliteRepo(sessions_dir(given.session_dir))
    session = await create_session(repo, cwd, task) if session_id is None else await open_session(repo, session_id)
    try:
        agent = await DurableAgent.open(
            session,
            model=choice.model,
            tools=tools,
            active=[tool.name for tool in tools],
            thinking=given.thinking,
            task=task,
            note=aside(given, renderer),
        )
    except BaseException:
        await session.close()
        raise
    try:
        if session_id is not None:
            await agent.configure(choice.model if given.model else None, [tool.name for tool in tools], given.thinking)
        renderer.session(agent.session_id)
        await agent.plan(prompts)
        return await finish(agent, renderer, prompts)
    finally:
        await agent.close()


def aside(given: argparse.Namespace, renderer: Renderer) -> Callable[[str], None]:
    """Where to say what happens on the way: nowhere with `--quiet`."""
    return (lambda _: None) if given.quiet else renderer.note


async def finish(agent: DurableAgent, renderer: Renderer, prompts: Sequence[Prompt | Planned], *, first: _Step | None = None) -> int:
    """Do `first`, then ask the planned prompts, under signals; return the exit code."""
    code = await _Run(agent, renderer).all(prompts, first=first)
    await agent.settle()
    return code


def _folder(name: str, what: str) -> Path:
    more = "" if what == "--cwd" else "; --cwd names another"
    try:
        path = Path(name).expanduser()
        if not path.is_dir():
            raise CliError(f"{what}: {name} is not a folder{more}" if path.exists() else f"{what}: there is no folder {name}{more}")
        return path.resolve(strict=True)
    except FileNotFoundError:
        raise CliError("the current folder was deleted: change to one that exists, or say --cwd") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise CliError(f"{what}: {name} cannot be used: {error}{more}") from error


def make_renderer(arguments: argparse.Namespace, header: dict[str, Any], out: TextIO | None = None) -> Renderer:
    """Return what shows a run: events as lines with `--json` (after `header`), text otherwise."""
    if arguments.json:
        from laneway.cli.render.json_lines import JsonRenderer

        return JsonRenderer(header, (out or sys.stdout).buffer)
    from laneway.cli.render.text import TextRenderer

    return TextRenderer(out, quiet=arguments.quiet)


def run_to_the_end(work: Coroutine[object, object, int]) -> int:
    """`asyncio.run`, except that nothing that hangs can hold the process: a thread may still be loading a model when all is done.

    stdout is for the answer: what a library prints meanwhile goes to stderr.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        with redirect_stdout(sys.stderr):
            return loop.run_until_complete(_tidily(work))
    finally:
        asyncio.set_event_loop(None)
        with suppress(OSError, RuntimeError):
            loop.close()


async def _tidily(work: Coroutine[object, object, int]) -> int:
    try:
        return await work
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CLEAN_UP)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.get_running_loop().shutdown_asyncgens(), _CLEAN_UP)


class _Run:
    """The prompts of one command line, one after the other, with signals: the first aborts and settles, the second leaves at once."""

    def __init__(self, agent: Conversation, renderer: Renderer) -> None:
        self._agent, self._renderer = agent, renderer
        self._end: AgentEnd | None = None
        agent.subscribe(renderer)
        agent.subscribe(self._watch)

    def _watch(self, event: AgentEvent, _: AbortSignal) -> None:
        if event.type == "agent_end":
            self._end = event

    async def all(self, prompts: Sequence[Prompt | Planned], *, first: _Step | None = None) -> int:
        """Do `first`, then ask prompt after prompt, until something does not end well; return the exit code."""
        steps: list[_Step] = [] if first is None else [first]
        steps += [partial(self._agent.prompt, prompt.text, images=prompt.images or None) for prompt in prompts]
        return await self._under_signals(lambda signals: self._do(steps, signals))

    async def _under_signals(self, work: Callable[[Signals], Awaitable[int]]) -> int:
        loop = asyncio.get_running_loop()
        outside = copy_context()  # a signal comes in the middle of anything, a listener of the run for example: this is not part of it

        def stop(received: Signal) -> None:
            leave = None if received is Signal.SIGINT else getattr(self._agent, "leave", None)
            if leave is not None:  # the run stays open: going on with it is cheaper than doing it again
                loop.call_soon_threadsafe(leave, context=outside)
            else:
                loop.call_soon_threadsafe(self._agent.abort, f"received {received.name}", context=outside)

        with Signals(stop) as signals:
            try:
                code = await work(signals)
            except OSError:  # of the output: after a signal it may be gone with the terminal
                if signals.exit_code is None:
                    raise
                code = FAILED
            return signals.exit_code or code

    async def _do(self, steps: list[_Step], signals: Signals) -> int:
        code = DONE
        for number, step in enumerate(steps):
            if signals.received is not None:  # it came between two runs; what it asks for is on its way
                await asyncio.sleep(0)
                self._renderer.note(f"stopped by {signals.received.name}{self._rest(len(steps) - number)}")
                break
            try:
                await step()
            except Exception:
                if left := len(steps) - number - 1:
                    self._renderer.note(f"stopped{self._rest(left)}")
                raise
            code = self._code(signals, left=len(steps) - number - 1)
            if code != DONE:
                break
        return code

    def _code(self, signals: Signals, left: int) -> int:
        """Say what there is to say about the end of one prompt's run, and return its exit code."""
        end = self._end
        assert end is not None
        last = next((m for m in reversed(end.messages) if isinstance(m, AssistantMessage)), None)
        trouble, code = self._trouble(end, last, signals)
        if trouble:
            self._renderer.note(trouble + (self._rest(left) if left and code != DONE else ""))
        return code

    def _rest(self, left: int) -> str:
        """Say what becomes of the prompts that were not asked."""
        prompts = f"{left} more prompt{'s' if left > 1 else ''}"
        if getattr(self._agent, "stays", False):
            return f"; {prompts} will be asked by laneway resume {getattr(self._agent, 'session_id', '')}"
        return f"; {prompts} {'were' if left > 1 else 'was'} not asked"

    def _left_open(self, signals: Signals) -> tuple[str, int] | None:
        """Of a durable run that is not over: why, and how to go on."""
        waiting, left = getattr(self._agent, "waiting", None), getattr(self._agent, "left", False)
        if waiting is None and not left:
            return None
        how = f"laneway resume {getattr(self._agent, 'session_id', '')} goes on with it"
        if left:
            why = signals.received.name if signals.received is not None else "something else"
            return f"stopped by {why}; the run is open: {how}", SUSPENDED
        reason = waiting.reason if waiting is not None else ""
        what = {"approval": "a tool call waits for a decision", "deferred": "the provider has not finished"}.get(reason, "the run waits")
        return f"{what}; {how}", SUSPENDED

    def _trouble(self, end: AgentEnd, last: AssistantMessage | None, signals: Signals) -> tuple[str, int]:
        if (open_run := self._left_open(signals)) is not None:
            return open_run
        if end.reason == "aborted":
            why = f" by {signals.received.name}" if signals.received is not None else ""
            return f"aborted{why}; what had been done until then stays done", signals.exit_code or ABORTED
        if end.reason == "error":
            return f"the run failed: {self._agent.state.error_message or 'nobody said why'}", USAGE if _is_setup(last) else FAILED
        if end.reason == "limit":
            return f"stopped before the task was done: the limit {end.limit} was reached", FAILED
        if last is not None and last.stop_reason == "length":
            return "the answer is incomplete: the model reached its output limit", FAILED
        if last is not None and not last.text.strip() and not last.tool_calls:
            return "the model gave an empty answer", DONE
        return "", DONE


def _is_setup(message: AssistantMessage | None) -> bool:
    """Whether a run failed for want of a key or the like, before anything was asked: as wrong as a wrong option."""
    error = message.error if message is not None else None
    return error is not None and (error.kind == "configuration" or (error.kind == "auth" and error.status is None))
