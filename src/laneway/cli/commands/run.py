"""`laneway run`: one task in a folder, then exit."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Coroutine
from contextlib import redirect_stdout, suppress
from pathlib import Path
from signal import Signals as Signal
from typing import Protocol

from laneway.abort import AbortSignal
from laneway.agent import Agent
from laneway.cli._exit import ABORTED, DONE, FAILED, USAGE, CliError
from laneway.cli._signals import Signals
from laneway.cli.commands._model import Choice, choose_model
from laneway.cli.commands._prompt import Prompt, build_prompts
from laneway.cli.commands._tools import choose_tools, system_prompt
from laneway.events import AgentEnd, AgentEvent
from laneway.llm.base import StreamOptions
from laneway.loop import LoopLimits
from laneway.messages import AssistantMessage

RETRIES = 2
"""How often a request is sent again that failed before anything of the answer had come; a Retry-After is kept."""
_CLEAN_UP = 1.0
"""Seconds that what still runs after the last prompt gets to end."""


class Renderer(Protocol):
    """What shows a run: a listener of the agent that can also say something itself."""

    def __call__(self, event: AgentEvent, signal: AbortSignal, /) -> None: ...
    def note(self, text: str) -> None: ...


def run(arguments: argparse.Namespace) -> int:
    """Do the task; return the exit code.

    Raises:
        CliError: nothing was asked of a model, because the command line or the configuration does not allow it.
    """
    cwd = _folder(arguments.cwd)
    tools = choose_tools(arguments.tools, cwd=cwd, read_only=arguments.read_only, allow_outside=arguments.allow_outside)
    choice = choose_model(arguments.model)
    renderer = _renderer(arguments, choice, cwd)
    prompts = build_prompts(arguments.task, stdin=sys.stdin, note=renderer.note)
    agent = Agent(
        model=choice.model,
        tools=tools,
        system_prompt=system_prompt(tools, cwd, replace=arguments.system, append=arguments.append_system),
        thinking_level=arguments.thinking,
        limits=LoopLimits(max_turns=arguments.max_turns, max_cost=arguments.max_cost),
        stream_options=StreamOptions(max_retries=RETRIES, max_tokens=arguments.max_tokens),
    )
    if choice.note and not arguments.quiet:
        renderer.note(choice.note)
    if any(prompt.images for prompt in prompts) and "image" not in choice.model.input:
        renderer.note(f"{choice.model.spec} is not known to see images: it is only told that there is one")
    with redirect_stdout(sys.stderr):  # stdout is for the answer: what a library prints does not belong there
        return _run_to_the_end(_Run(agent, renderer).all(prompts))


def _folder(name: str) -> Path:
    try:
        path = Path(name).expanduser()
        if not path.is_dir():
            raise CliError(f"--cwd: {name} is not a folder" if path.exists() else f"--cwd: there is no folder {name}")
        return path.resolve(strict=True)
    except FileNotFoundError:
        raise CliError("the current folder was deleted: change to one that exists, or say --cwd") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise CliError(f"--cwd: {name} cannot be used: {error}") from error


def _renderer(arguments: argparse.Namespace, choice: Choice, cwd: Path) -> Renderer:
    if arguments.json:
        from laneway.cli.render.json_lines import JsonRenderer

        return JsonRenderer({"model": choice.model.spec, "cwd": str(cwd)})
    from laneway.cli.render.text import TextRenderer

    return TextRenderer(quiet=arguments.quiet)


def _run_to_the_end(work: Coroutine[object, object, int]) -> int:
    """`asyncio.run`, except that nothing that hangs can hold the process: a thread may still be loading a model when all is done."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
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

    def __init__(self, agent: Agent, renderer: Renderer) -> None:
        self._agent, self._renderer = agent, renderer
        self._end: AgentEnd | None = None
        agent.subscribe(renderer)
        agent.subscribe(self._watch)

    def _watch(self, event: AgentEvent, _: AbortSignal) -> None:
        if event.type == "agent_end":
            self._end = event

    async def all(self, prompts: list[Prompt]) -> int:
        """Ask prompt after prompt until one does not end well; return the exit code."""
        loop = asyncio.get_running_loop()

        def stop(received: Signal) -> None:
            loop.call_soon_threadsafe(self._agent.abort, f"received {received.name}")

        with Signals(stop) as signals:
            try:
                code = await self._ask(prompts, signals)
            except OSError:  # of the output: after a signal it may be gone with the terminal
                if signals.exit_code is None:
                    raise
                code = FAILED
            return signals.exit_code or code

    async def _ask(self, prompts: list[Prompt], signals: Signals) -> int:
        code = DONE
        for number, prompt in enumerate(prompts, 1):
            if code == DONE and signals.exit_code is None:
                await self._agent.prompt(prompt.text, images=prompt.images or None)
                code = self._code(signals, left=len(prompts) - number)
        return code

    def _code(self, signals: Signals, left: int) -> int:
        """Say what there is to say about the end of one prompt's run, and return its exit code."""
        end = self._end
        assert end is not None
        last = next((m for m in reversed(end.messages) if isinstance(m, AssistantMessage)), None)
        trouble, code = self._trouble(end, last, signals)
        if trouble:
            more = f"; {left} more prompt{'s were' if left > 1 else ' was'} not asked" if left and code != DONE else ""
            self._renderer.note(trouble + more)
        return code

    def _trouble(self, end: AgentEnd, last: AssistantMessage | None, signals: Signals) -> tuple[str, int]:
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
