"""`laneway resume`: go on with a run that was left open by a crash, a closed terminal or a decision that was missing."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec
from msgspec import Struct

from laneway.cli._exit import ABORTED, DONE, LOCKED, SUSPENDED, CliError, say
from laneway.cli.commands._durable import DurableAgent, Task, kept_model, open_session
from laneway.cli.commands._model import choose_model
from laneway.cli.commands._planned import Planned, field_of, not_asked
from laneway.cli.commands._tools import choose_tools
from laneway.cli.commands.run import aside, finish, make_renderer, run_to_the_end
from laneway.cli.config import sessions_dir, somebody_answers
from laneway.cli.render._terminal import one_line
from laneway.errors import StorageError
from laneway.harness import keys
from laneway.harness._snapshot import LaneSnapshot
from laneway.messages import AssistantMessage, ToolCall, ToolResultMessage, UserMessage
from laneway.session import Session, SqliteRepo
from laneway.storage.base import MessageEntry
from laneway.tools.base import AgentTool

_LOOK_AT = 50
"""How many of the newest sessions are looked at for one that was left open."""


def resume(arguments: argparse.Namespace) -> int:
    """Find the session, show what is open in it, and go on, abort or leave it; return the exit code."""
    return run_to_the_end(_resume(arguments, os.path.realpath(os.getcwd()), sys.stdout))


async def _resume(given: argparse.Namespace, here: str, out: TextIO) -> int:
    repo = SqliteRepo(sessions_dir(given.session_dir))
    session = await _open(repo, given.id, here)
    try:
        agent, tools, note = await _attach(session, given, out)
    except BaseException:
        await session.close()
        raise
    try:
        return await _decide(agent, tools, given, note)
    finally:
        await agent.close()


async def _open(repo: SqliteRepo, text: str | None, here: str) -> Session:
    """Open the session that was named, else the newest one that was left open, those of this folder first; not one that runs elsewhere."""
    if text is not None:
        from laneway.cli.commands.sessions import resolve

        return await open_session(repo, await resolve(repo, text))
    listed = await repo.list(limit=_LOOK_AT)
    runs: CliError | None = None
    for info in sorted(listed, key=lambda i: i.cwd != here):
        if await is_open(repo, info.id):
            try:
                return await open_session(repo, info.id)
            except CliError as error:
                if error.code != LOCKED:
                    raise
                runs = runs or error
    raise runs or CliError("nothing was left open: no run is waiting to go on")


async def is_open(repo: SqliteRepo, session_id: str) -> bool:
    """Whether a session has an operation that is not over, or a prompt that was not asked; reads without taking the session over."""
    try:
        async with repo.reading(session_id) as storage:
            states = await storage.scan_values(keys.LANE_STATE)
            return any(field_of(state.value, "current_operation_id") for state in states) or bool(await not_asked(storage, session_id))
    except StorageError:
        return False


async def _attach(session: Session, given: argparse.Namespace, out: TextIO) -> tuple[DurableAgent, list[AgentTool], Any]:
    metadata = session.metadata
    cwd = Path(metadata.cwd or ".")
    if not await asyncio.to_thread(cwd.is_dir):
        raise CliError(f"the session's folder {cwd} is not there any more; bring it back, or fork the session somewhere else")
    task = msgspec.convert((metadata.metadata or {}).get("cli") or {}, Task)
    choice = choose_model(given.model, kept=await kept_model(session.storage))
    tools = choose_tools("read,bash,edit,write,grep,find,ls", cwd=cwd, read_only=False, allow_outside=task.allow_outside)
    renderer = make_renderer(given, {"model": choice.model.spec, "cwd": str(cwd), "session": metadata.id}, out)
    agent = await DurableAgent.open(session, model=choice.model, tools=tools, active=None, thinking=None, task=task, note=aside(given, renderer))
    if given.model:
        await agent.lane.set_model(choice.model)
    return agent, tools, renderer


async def _decide(agent: DurableAgent, tools: list[AgentTool], given: argparse.Namespace, renderer: Any) -> int:
    handle = await agent.lane.watch()
    snapshot = handle.snapshot
    handle.unsubscribe()
    unasked = await agent.unasked()
    if snapshot.operation is None and not unasked:
        renderer.note("nothing is open in this session: its last run is over")
        return DONE
    card = Card.of(snapshot, {tool.name for tool in tools if tool.replay == "safe"}, unasked)
    if not given.json:
        say(card.text(agent.session_id))
    match "r" if given.yes else _ask():
        case "r":
            return await finish(agent, renderer, unasked, first=agent.resume if snapshot.operation is not None else None)
        case "a":
            back: list[str] = []
            if snapshot.operation is not None:
                handed = await agent.lane.abort()
                back = [_said(message) for message in [*handed.steer, *handed.follow_up]]
            await agent.settle()
            lost = [f"not delivered: {text}" for text in back] + [f"not asked: {text}" for text in card.next]
            renderer.note("; ".join(["aborted", *lost]))
            return ABORTED
        case _:
            renderer.note(f"left as it is; laneway resume {agent.session_id} goes on with it")
            return SUSPENDED


def _ask() -> str:
    if not somebody_answers():
        return "l"
    while True:
        print("resume, abort or later? [r/a/l] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline().strip().lower()[:1]
        if answer in ("r", "a", "l", ""):
            return answer or "l"


class Card(Struct, kw_only=True, frozen=True):
    """What a person should know before going on. `asked` is None where no run is open; `next` are prompts that were not asked yet."""

    asked: str | None = None
    done: list[str] = []
    uncertain: list[str] = []
    again: list[str] = []
    not_started: list[str] = []
    suspended: list[str] = []
    queued: list[str] = []
    next: list[str] = []

    @classmethod
    def of(cls, snapshot: LaneSnapshot, safe: set[str], unasked: Sequence[Planned] = ()) -> Card:
        """Read it off a lane's snapshot; `safe` are the tools that run again after a crash."""
        after = [_said(prompt) for prompt in unasked]
        operation = snapshot.operation
        if operation is None:
            return cls(next=after)
        messages: list[Any] = [entry.message for entry in snapshot.transcript if isinstance(entry, MessageEntry)]
        asked = next((_said(m) for m in reversed(messages) if isinstance(m, UserMessage)), "(nothing)")
        last = next((i for i in range(len(messages) - 1, -1, -1) if isinstance(messages[i], AssistantMessage)), None)
        calls: list[ToolCall] = messages[last].tool_calls if last is not None and messages[last].stop_reason not in ("error", "aborted") else []
        results = {m.tool_call_id for m in messages if isinstance(m, ToolResultMessage)}
        since = next((i for i in range(len(messages) - 1, -1, -1) if isinstance(messages[i], UserMessage)), 0)
        before = [c for m in messages[since:last] if isinstance(m, AssistantMessage) for c in m.tool_calls if c.id in results] if last else []
        running = {tool.tool_call_id: tool for tool in operation.running_tools}
        waiting = {call.tool_call_id for call in operation.suspended_calls}
        begun = [call for call in calls if call.id in running and running[call.id].status == "running"]
        settled = [call for call in calls if call.id in results or (call.id in running and running[call.id].status == "settled")]
        return cls(
            asked=asked,
            done=[_called(call) for call in (*before, *settled)],
            uncertain=[_called(call) for call in begun if call.name not in safe],
            again=[_called(call) for call in begun if call.name in safe],
            not_started=[_called(call) for call in calls if call.id not in results and call.id not in running and call.id not in waiting],
            suspended=[f"{one_line(call.tool_name, 40)}: {one_line(call.reason, 100)}" for call in operation.suspended_calls],
            queued=[_said(item.message) if item.message is not None else str(item.custom_type) for item in snapshot.queues],
            next=after,
        )

    def text(self, session_id: str) -> str:
        """Return the card as lines."""
        if self.asked is None:
            parts = [f"session {session_id} was left before all was asked"]
        else:
            parts = [f"session {session_id} was left in the middle of a run", f"  asked          {self.asked}"]
        for label, items in (
            ("done", self.done),
            ("uncertain", self.uncertain),
            ("will run again", self.again),
            ("not started", self.not_started),
            ("to be decided", self.suspended),
            ("queued", self.queued),
            ("not asked yet", self.next),
        ):
            parts += [f"  {label if index == 0 else '':<14} {item}" for index, item in enumerate(items)]
        if self.uncertain:
            parts.append("  What is uncertain had begun when the process ended, and may still be running. It is not repeated; the model is told so.")
        return "\n".join(parts)


def _called(call: ToolCall) -> str:
    return one_line(f"{call.name} {', '.join(f'{k}={v}' for k, v in call.arguments.items())}", 120)


def _said(message: Any) -> str:
    return one_line(getattr(message, "text", "") or str(getattr(message, "content", "")), 120)
