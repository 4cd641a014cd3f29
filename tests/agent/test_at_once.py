"""Calls that begin at once: what a tool may do in its first step, and what a loop with ideas of its own makes of it."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from laneway import Agent, AgentTool, AssistantMessage, ToolResult
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream
from laneway.testing import Scripted, call, calls, text


def agent_of(script: Scripted, *tools: AgentTool, **options: Any) -> Agent:
    return Agent(model=script.model, stream_fn=script.stream_fn, tools=tools, **options)


def quick(name: str, work: Any = None, **options: Any) -> AgentTool:
    """A tool that never waits."""

    async def execute(*_: Any) -> ToolResult:
        if work is not None:
            work()
        return ToolResult()

    return AgentTool(name=name, description=name, parameters={"type": "object"}, execute=execute, **options)


async def test_a_task_factory_that_wraps_its_coroutines() -> None:
    """As tracers do: the work is started by the wrapper, once."""

    def wrapping(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        async def traced() -> Any:
            return await work

        return asyncio.Task(traced(), loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(wrapping)
    agent = agent_of(Scripted([calls(call("a"), call("b")), text("done")]), quick("a"), quick("b"))
    async with asyncio.timeout(10):
        messages = await agent.prompt("go")
    assert [m.is_error for m in messages if m.role == "tool_result"] == [False, False]
    assert not agent.state.is_streaming


async def test_a_stream_whose_end_hangs_is_cut_off() -> None:
    """An abort is heard while the source is being closed after its last event."""
    closing = asyncio.Event()

    def stream_fn(model: Any, transcript: Any, options: Any) -> AssistantStream:
        writer = StreamWriter(model)

        async def respond() -> Any:
            try:
                writer.start()
                writer.done("stop")
                for event in writer.take():
                    yield event
            finally:
                closing.set()
                await asyncio.Event().wait()

        return AssistantStream(respond(), fallback=writer.fail, signal=options.signal)

    agent = Agent(model=Scripted([]).model, stream_fn=stream_fn)
    running = asyncio.ensure_future(agent.prompt("go"))
    async with asyncio.timeout(8):
        await closing.wait()
        agent.abort()
        await running
    assert isinstance(agent.state.messages[-1], AssistantMessage)


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_a_batch_of_tools_that_never_wait_hears_an_abort(mode: Any) -> None:
    """Their calls are many and slow: between two of them, others have a turn."""
    ran: list[int] = []
    enough = threading.Event()

    def work() -> None:
        ran.append(1)
        if len(ran) == 3:
            enough.set()
        threading.Event().wait(0.01)

    script = Scripted([calls(*(call("work") for _ in range(300))), text("done")])
    agent = agent_of(script, quick("work", work), tool_execution=mode)
    stopper = threading.Thread(target=lambda: (enough.wait(), agent.abort("enough")))
    stopper.start()
    messages = await agent.prompt("go")
    stopper.join()
    assert len(ran) < 100
    assert len([m for m in messages if m.role == "tool_result"]) == 300


def test_ctrl_c_in_the_first_step_of_the_only_call_is_ctrl_c() -> None:
    """And not an error of our own that `except Exception` would swallow."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    agent = agent_of(Scripted([call("stop"), text("done")]), quick("stop", interrupt))
    with pytest.raises(KeyboardInterrupt):
        agent.prompt_sync("go")
    assert not agent.state.is_streaming


async def test_a_call_that_is_over_leaves_no_timer_behind() -> None:
    """A timeout of an hour keeps nothing alive once the call has ended."""
    from laneway._effects.call_tools import RunningCall

    def alive() -> int:
        gc.collect()
        return sum(isinstance(one, RunningCall) for one in gc.get_objects())

    before = alive()
    agent = agent_of(Scripted([*(call("quick") for _ in range(20)), text("done")]), quick("quick", timeout=3600))
    await agent.prompt("go")
    assert alive() <= before
