"""A world that outlives processes: a store, a model that answers by what it is sent, and tools that remember what they did."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laneway.harness import AgentHarness, AgentLane, RetryPolicy
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions, Transcript
from laneway.messages import AssistantMessage, DeferredHandle, Message, ToolResultMessage, Usage, UserMessage
from laneway.session import Session
from laneway.storage.base import CommitResult, Storage, Write
from laneway.storage.memory import MemoryStorage
from laneway.testing import Crash, CrashingStorage
from laneway.tools.base import AgentTool, current_host, text_result

MODEL = Model(id="m", provider="p", api="x", context_window=200_000, max_tokens=4_096)


@dataclass
class Reply:
    """What the model answers: text, then calls; or an error."""

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    error: str | None = None
    kind: Any = "overloaded"
    stop: Any = None
    tokens: int = 15
    handle: str | None = None


Brain = Callable[[list[Message]], Reply]


def results_in(messages: list[Message]) -> list[str]:
    """The tool results that a request holds, as text."""
    return ["".join(getattr(b, "text", "") for b in m.content) for m in messages if isinstance(m, ToolResultMessage)]


def said_by_user(messages: list[Message]) -> list[str]:
    """The user messages that a request holds."""
    return [m.content if isinstance(m.content, str) else "" for m in messages if isinstance(m, UserMessage)]


@dataclass
class World:
    """Everything that a killed process does not take with it."""

    brain: Brain
    storage: Storage = field(default_factory=MemoryStorage)
    requests: list[list[Message]] = field(default_factory=list)
    executed: Counter[str] = field(default_factory=Counter)
    running: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: bool = False
    summaries: bool = False  # lost requests of a summary have no ledger row, so they cannot be counted
    log: Path | None = None
    polls: list[str] = field(default_factory=list)

    def note(self, key: str) -> None:
        """Remember that a tool ran; a tool's work in the world is not undone by a crash either."""
        self.executed[key] += 1
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{key}\n")

    def stream(self, model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
        """The stream function of every process."""
        self.requests.append(list(transcript.messages))
        self.summaries = self.summaries or any("<conversation>" in text for text in said_by_user(transcript.messages))
        reply = self.brain(transcript.messages)
        writer = StreamWriter(model)
        number = len([m for m in transcript.messages if isinstance(m, AssistantMessage)])

        async def events():
            writer.start()
            if reply.text:
                index = writer.open_text()
                for at in range(0, len(reply.text), 9_000):  # long texts come in pieces, so that frames of them are stored
                    writer.text(index, reply.text[at : at + 9_000])
                    for event in writer.take():
                        yield event
                    await asyncio.sleep(0)
            for place, (name, arguments) in enumerate(reply.calls):
                index = writer.open_call(f"call-{number}-{place}", name)
                writer.arguments(index, json.dumps(arguments))
            for event in writer.take():
                yield event
            if reply.error is not None:
                raise ProviderFailure(reply.error, kind=reply.kind)
            writer.set(usage=Usage(input=max(reply.tokens - 5, 0), output=min(5, reply.tokens), total_tokens=reply.tokens))
            if reply.handle is not None:
                writer.done("deferred", deferred=DeferredHandle(id=reply.handle, provider=model.provider, model_id=model.id, api=model.api))
            else:
                writer.done(reply.stop or ("tool_use" if reply.calls else "stop"))
            for event in writer.take():
                yield event

        return AssistantStream(events(), fallback=writer.fallback, signal=options.signal)

    def fetch_deferred(self, handle: DeferredHandle, options: StreamOptions | None = None) -> AssistantStream:
        """Polls, for those who have no registry."""
        self.polls.append(handle.id)
        return self.stream(MODEL, Transcript(messages=[]), options or StreamOptions())

    async def cancel_deferred(self, handle: DeferredHandle, options: StreamOptions | None = None) -> None:
        """Nothing to stop."""

    __call__ = stream

    def tool(self, name: str, *, replay: Any = "never", act: Any = None, mode: Any = None) -> AgentTool:
        """A tool that counts its executions by idempotency key."""

        async def execute(call_id: str, args: Any, signal: Any, update: Any) -> Any:
            host = current_host()
            assert host is not None
            self.note(host.idempotency_key)
            if act is not None:
                return await act(self, call_id, args, signal, update)
            await asyncio.sleep(0)
            return text_result(f"{name}:{args.get('n', '')}")

        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        return AgentTool(name=name, description=name, parameters=schema, execute=execute, replay=replay, execution_mode=mode)

    async def open(self, storage: Storage | None = None, **options: Any) -> tuple[AgentHarness, AgentLane, list[Any]]:
        """Start a process over the store (or over a wrapper of it)."""
        session = Session.over(storage or self.storage)
        options.setdefault("retry", RetryPolicy(max_retries=3, base_delay=0.0, max_delay=0.0))
        harness, found = await AgentHarness.create(session=session, model=MODEL, stream_fn=self, **options)
        return harness, await harness.lane("main"), found


class LosingStorage(CrashingStorage):
    """Crash after a commit is applied, but before whoever made it hears of it."""

    def __init__(self, storage: Storage, at: int) -> None:
        super().__init__(storage, at)

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        self._touch()
        result = await self.storage.commit(writes)
        self.commits += 1
        if self.commits >= self.at:
            self.crashed = True
            raise Crash(f"the process died in commit {self.at}")
        return result
