"""The workloads of `benchlib` on laneway: the same fake model as the floors, through the library's own stream classes.

Variants: "" = `Agent` with one async subscriber; "stream" = `async for event in agent.stream(…)`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import laneway
from benchlib import ADD_JSON, DELTA, NAP_S, Timer, arg_chunks, cli, emit, rss_mb, version
from laneway import Agent, Model, tool
from laneway.events import AssistantEvent
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, StreamOptions, Transcript

MODEL = Model(id="fake", provider="fake", api="fake")


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@tool
async def nap(i: int) -> str:
    """Wait a little."""
    await asyncio.sleep(NAP_S)
    return str(i)


@tool
async def write(text: str) -> str:
    """Count characters."""
    return str(len(text))


def fillers(n: int) -> list[laneway.AgentTool]:
    async def execute(*_: object) -> laneway.ToolResult:
        raise AssertionError("never called")

    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    return [laneway.AgentTool(name=f"filler_{i}", description="unused", parameters=schema, execute=execute) for i in range(n)]


class FakeModel:
    """Streams `turns` tool-call responses, then one text response."""

    def __init__(self, turns: int = 0, parallel: int = 0, deltas: int = 0, args: list[str] | None = None) -> None:
        self.turns, self.parallel, self.deltas, self.args, self.calls = turns, parallel, deltas, args, 0

    def __call__(self, model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
        k = self.calls
        self.calls += 1
        writer = StreamWriter(model)
        return AssistantStream(self.respond(writer, k), fallback=writer.fail, signal=options.signal)

    async def respond(self, writer: StreamWriter, k: int) -> AsyncIterator[AssistantEvent]:
        writer.start()
        stop = "tool_use"
        if self.parallel and k == 0:
            for i in range(self.parallel):
                index = writer.open_call(f"c{i}", "nap")
                writer.arguments(index, f'{{"i": {i}}}')
                for event in writer.take():
                    yield event
        elif self.args and k == 0:
            index = writer.open_call("c0", "write")
            for chunk in self.args:
                writer.arguments(index, chunk)
                for event in writer.take():
                    yield event
        elif k < self.turns:
            index = writer.open_call(f"c{k}", "add")
            writer.arguments(index, ADD_JSON)
        else:
            stop = "stop"
            index = writer.open_text()
            for _ in range(self.deltas or 1):
                writer.text(index, DELTA)
                for event in writer.take():
                    yield event
        writer.done(stop)
        for event in writer.take():
            yield event


def agent_for(model: FakeModel, tools: int = 1) -> Agent:
    return Agent(model=MODEL, tools=[add, nap, write, *fillers(tools - 1)], stream_fn=model)


async def drain(model: FakeModel, tools: int = 1) -> int:
    n = 0

    async def listener(event: laneway.AgentEvent, _: laneway.AbortSignal) -> None:
        nonlocal n
        if event.type == "message_update":
            n += 1

    agent = agent_for(model, tools)
    agent.subscribe(listener)
    await agent.prompt("go")
    return n


async def drain_stream(model: FakeModel, tools: int = 1) -> int:
    n = 0
    async for event in agent_for(model, tools).stream("go"):
        if event.type == "message_update":
            n += 1
    return n


async def main() -> None:
    a = cli()
    run = drain_stream if a.variant == "stream" else drain
    v = version("laneway")
    if a.workload == "w4":
        agent_for(FakeModel())
        emit("laneway", v, a, 1, 0)
        return
    await run(FakeModel(turns=20))
    base = rss_mb()
    if a.workload in ("w1", "w1s"):
        with Timer() as t:
            await run(FakeModel(turns=a.turns), a.tools)
        emit("laneway", v, a, a.turns, t.seconds)
    elif a.workload in ("w2", "w2args"):
        model = FakeModel(deltas=a.deltas) if a.workload == "w2" else FakeModel(args=arg_chunks(a.deltas))
        with Timer() as t:
            n = await run(model)
        assert n >= a.deltas, n
        emit("laneway", v, a, a.deltas, t.seconds)
    elif a.workload == "w3":
        await run(FakeModel(parallel=3))
        with Timer() as t:
            await run(FakeModel(parallel=a.tool_parallel))
        emit("laneway", v, a, a.tool_parallel, t.seconds, overhead_ms=round((t.seconds - NAP_S) * 1e3, 3))
    elif a.workload == "w6":
        with Timer() as t:
            await asyncio.gather(*(run(FakeModel(turns=a.turns)) for _ in range(a.agents)))
        emit("laneway", v, a, a.agents * a.turns, t.seconds, grown_mb=round(rss_mb() - base, 1))


if __name__ == "__main__":
    started = time.perf_counter()
    asyncio.run(main())
