"""`laneway run`: one task in a folder, then exit."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from laneway.agent import Agent
from laneway.cli._exit import ABORTED, DONE, FAILED, HANGUP, INTERRUPTED, TERMINATED, USAGE, CliError
from laneway.cli.commands._model import Choice, choose_model
from laneway.cli.commands._prompt import Prompt, build_prompts
from laneway.cli.commands._tools import choose_tools, system_prompt
from laneway.errors import LanewayError
from laneway.events import AgentEnd, AgentEvent
from laneway.llm.base import THINKING_LEVELS, ThinkingLevel
from laneway.loop import LoopLimits
from laneway.messages import AssistantMessage


def run(arguments: argparse.Namespace) -> int:
    """Do the task; return the exit code."""
    cwd = Path(arguments.cwd).expanduser()
    if not cwd.is_dir():
        raise CliError(f"--cwd: {arguments.cwd} is not a folder")
    prompts = build_prompts(arguments.task, stdin=sys.stdin)
    tools = choose_tools(arguments.tools, cwd=cwd.resolve(), read_only=arguments.read_only, allow_outside=arguments.allow_outside)
    choice = choose_model(arguments.model)
    level = _thinking(arguments.thinking)
    limits = LoopLimits(max_turns=arguments.max_turns, max_cost=arguments.max_cost)
    try:
        agent = Agent(
            model=choice.model,
            tools=tools,
            system_prompt=system_prompt(tools, cwd.resolve(), replace=arguments.system, append=arguments.append_system),
            thinking_level=level,
            limits=limits,
        )
    except LanewayError as error:
        raise CliError(str(error)) from error
    renderer = _renderer(arguments, choice, cwd)
    if choice.note and not arguments.quiet:
        print(f"laneway: {choice.note}", file=sys.stderr, flush=True)
    return asyncio.run(_Run(agent, renderer).all(prompts))


def _thinking(level: str | None) -> ThinkingLevel | None:
    if level is None or level in THINKING_LEVELS:
        return level
    raise CliError(f"--thinking: {level!r} is none of {', '.join(THINKING_LEVELS)}")


def _renderer(arguments: argparse.Namespace, choice: Choice, cwd: Path) -> Any:
    if arguments.json:
        from laneway.cli.render.json_lines import JsonRenderer

        return JsonRenderer({"model": choice.model.spec, "cwd": str(cwd.resolve())})
    from laneway.cli.render.text import TextRenderer

    return TextRenderer(quiet=arguments.quiet)


class _Run:
    """The prompts of one command line, one after the other, with signals: the first aborts, the second leaves at once."""

    def __init__(self, agent: Agent, renderer: Any) -> None:
        self._agent = agent
        self._signalled: int | None = None
        self._end: AgentEnd | None = None
        agent.subscribe(renderer)
        agent.subscribe(self._watch)

    def _watch(self, event: AgentEvent, _: object) -> None:
        if event.type == "agent_end":
            self._end = event

    async def all(self, prompts: list[Prompt]) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        for prompt in prompts:
            await self._agent.prompt(prompt.text, images=prompt.images or None)
            code = self._code()
            if code != DONE:
                return code
        return DONE

    def _on_signal(self, number: int) -> None:
        if self._signalled is not None:
            raise SystemExit({signal.SIGTERM: TERMINATED, signal.SIGHUP: HANGUP}.get(signal.Signals(number), INTERRUPTED))
        self._signalled = number
        self._agent.abort(f"received {signal.Signals(number).name}")

    def _code(self) -> int:
        end = self._end
        assert end is not None
        last = next((m for m in reversed(end.messages) if isinstance(m, AssistantMessage)), None)
        if end.reason == "aborted":
            print("laneway: aborted; what had been done so far is shown above", file=sys.stderr)
            return {signal.SIGTERM: TERMINATED, signal.SIGHUP: HANGUP}.get(signal.Signals(self._signalled or signal.SIGINT), ABORTED)
        if end.reason == "error":
            print(f"laneway: the run failed: {self._agent.state.error_message or 'unknown error'}", file=sys.stderr)
            return USAGE if last is not None and last.error is not None and last.error.kind == "configuration" else FAILED
        if end.reason == "limit":
            print(f"laneway: stopped before the task was done: the limit {end.limit} was reached", file=sys.stderr)
            return FAILED
        if last is not None and last.stop_reason == "length":
            print("laneway: the answer is incomplete: the model reached its output limit", file=sys.stderr)
            return FAILED
        return DONE
