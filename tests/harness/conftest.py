"""A lane over a recording store in memory, with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from crash.invariants import check_idle, check_transcript
from harness.double import Scripted
from laneway.harness import AgentHarness, AgentLane, RetryPolicy
from laneway.session import Session
from laneway.storage.base import MessageEntry, Write
from laneway.storage.memory import MemoryStorage
from laneway.testing import RecordingStorage
from laneway.tools.base import AgentTool, text_result


class Fixture:
    """One lane and everything around it; `open` again over the same store is the next process."""

    def __init__(self, replies: list[Any], **options: Any) -> None:
        self.script = Scripted(replies)
        self.storage = MemoryStorage()
        self.recording = RecordingStorage(self.storage)
        self.options = options
        self.events: list[Any] = []
        self.harness: AgentHarness
        self.lane: AgentLane
        self.open_operations: list[Any] = []

    async def open(self, **changes: Any) -> Fixture:
        """Start a process; the one before it must be gone."""
        if self.storage._closed:  # the process before has closed it
            self.storage = self.storage.reopen()
            self.recording.storage = self.storage
        options = {"retry": RetryPolicy(base_delay=0.0), **self.options, **changes}
        options.setdefault("model", self.script.model)
        options.setdefault("models", self.script.models)
        session = Session.over(self.recording)
        self.harness, self.open_operations = await AgentHarness.create(session=session, **options)
        self.lane = await self.harness.lane("main")
        self.events = []
        self.unlisten = self.harness.events.on("*", self.events.append)
        self.recording.commits.clear()
        return self

    async def reopen(self, **changes: Any) -> Fixture:
        """End this process without a word and start the next."""
        await self.harness.close()
        return await self.open(**changes)

    # -- what happened

    @property
    def trace(self) -> list[str]:
        """The events' names, without stream updates; `(rec)` marks recovery."""
        return [f"{e.type}{'(rec)' if e.recovery else ''}" for e in self.events if e.type != "message_update"]

    def told(self, type: str) -> list[Any]:
        """The events of one type."""
        return [event for event in self.events if event.type == type]

    @property
    def writes(self) -> list[list[str]]:
        """Each commit, in short."""
        return [[_short(write) for write in commit] for commit in self.recording.commits]

    @property
    def leaves(self) -> list[str]:
        """The leaves as they were committed, without repetitions."""
        found: list[str] = []
        for commit in self.recording.commits:
            for write in commit:
                if getattr(write, "namespace", None) == "op.state" and hasattr(write, "value"):
                    at = write.value["at"]
                    if not found or found[-1] != at:
                        found.append(at)
        return found

    async def history(self) -> list[str]:
        """The lane's messages, oldest first, as role:text."""
        entries = await self.lane.find_entries(order="oldest_first")
        return [f"{e.message.role}:{_content(e.message)}" if isinstance(e, MessageEntry) else e.type for e in entries]

    async def check(self) -> None:
        """The invariants of an idle lane."""
        await check_idle(self.storage)
        await check_transcript(self.storage)


def _content(message: Any) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(getattr(block, "text", "") or getattr(block, "name", "") for block in message.content)


def _short(write: Write) -> str:
    name = type(write).__name__
    if name == "InsertEntry":
        entry: Any = write.entry  # type: ignore[union-attr] - just tested
        return f"+{entry.message.role}" if isinstance(entry, MessageEntry) else f"+{entry.type}"
    if name == "InsertUsage":
        return "+usage"
    namespace = write.namespace  # type: ignore[union-attr] - the others have one
    if name.startswith("Delete"):
        return f"-{namespace}"
    at = write.value.get("at") if namespace == "op.state" else None  # type: ignore[union-attr] - as above
    return f"{namespace}={at}" if at else namespace


Opener = Callable[..., Any]


@pytest.fixture
async def lane_of() -> AsyncIterator[Opener]:
    """Open a lane with these replies; everything is closed and checked for leaks afterwards."""
    opened: list[Fixture] = []

    async def open_lane(*replies: Any, **options: Any) -> Fixture:
        fixture = Fixture(list(replies), **options)
        opened.append(fixture)
        return await fixture.open()

    yield open_lane
    for fixture in opened:
        if hasattr(fixture, "harness"):  # it may have refused to open
            async with asyncio.timeout(15):
                await fixture.harness.close()


async def until(condition: Callable[[], Any]) -> None:
    """Let others run until something is so."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def tool(name: str, run: Any = None, **options: Any) -> AgentTool:
    """A tool that answers `name:n`, or does what `run(args)` does."""

    async def execute(call_id: str, args: Any, signal: Any, update: Any) -> Any:
        if run is None:
            return text_result(f"{name}:{args.get('n', '')}")
        result = run(args) if run.__code__.co_argcount == 1 else run(args, signal, update)
        if hasattr(result, "__await__"):
            result = await result
        return text_result(result) if isinstance(result, str) else result

    schema = options.pop("parameters", {"type": "object", "properties": {"n": {"type": "integer"}}})
    return AgentTool(name=name, description=name, parameters=schema, execute=execute, **options)
