"""Tasks that begin at once: the same as any other task, only sooner."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from laneway import Agent, tool
from laneway.abort import first_step, start_task
from laneway.testing import Scripted, call, text

where: ContextVar[str] = ContextVar("where", default="outside")


async def test_work_that_never_waits_is_done_when_the_call_returns() -> None:
    """No turn of the event loop is needed."""

    async def work() -> int:
        await first_step()
        return 7

    task = start_task(asyncio.get_running_loop(), work())
    assert task.done()
    assert task.result() == 7


async def test_the_work_is_the_current_task_in_a_context_of_its_own() -> None:
    """What it sets does not leak, what it asks names itself, also across the first wait; the caller is who it was."""
    seen: list[Any] = []

    async def work() -> None:
        await first_step()
        seen.append(asyncio.current_task())
        where.set("inside")
        async with asyncio.timeout(5):  # remembers its task
            await asyncio.sleep(0)
        seen.append((asyncio.current_task(), where.get()))

    me = asyncio.current_task()
    task = start_task(asyncio.get_running_loop(), work())
    assert asyncio.current_task() is me
    assert where.get() == "outside"
    await task
    assert seen == [task, (task, "inside")]
    assert asyncio.current_task() is me


async def test_a_timeout_entered_before_the_first_wait_cancels_the_work_alone() -> None:
    """It would be the caller's, had the work run as part of the caller."""

    async def work() -> str:
        try:
            await first_step()
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "never"

    assert await start_task(asyncio.get_running_loop(), work()) == "timed out"


@pytest.mark.parametrize("error", [ValueError("bad"), asyncio.CancelledError()])
async def test_what_the_work_raises_is_the_tasks(error: BaseException) -> None:
    """Nothing reaches the caller of `start_task`, who is the current task again."""

    async def work() -> None:
        await first_step()
        raise error

    me = asyncio.current_task()
    task = start_task(asyncio.get_running_loop(), work())
    assert asyncio.current_task() is me
    with pytest.raises(type(error)):
        await task


async def test_one_inside_another() -> None:
    """A tool that prompts an agent of its own: each is the current task in its turn."""
    order: list[Any] = []

    async def inner() -> str:
        await first_step()
        order.append(asyncio.current_task())
        return "inner"

    async def outer() -> Any:
        await first_step()
        mine = asyncio.current_task()
        task = start_task(asyncio.get_running_loop(), inner())
        assert asyncio.current_task() is mine
        order.append(mine)
        return task

    task = start_task(asyncio.get_running_loop(), outer())
    assert order == [task.result(), task]


async def test_a_run_that_never_waits_shares_its_loop() -> None:
    """A scripted model and quick tools, for long: whoever else is there can still stop it."""

    @tool
    async def step() -> str:
        """Do a step."""
        return "done"

    script = Scripted([call("step") for _ in range(20_000)])
    agent = Agent(model=script.model, stream_fn=script.stream_fn, tools=[step])
    running = asyncio.ensure_future(agent.prompt("go"))
    await asyncio.sleep(0.05)
    assert not running.done()
    agent.abort("enough")
    async with asyncio.timeout(10):
        messages = await running
    assert agent.state.error_message is not None
    assert len(messages) > 3


async def test_a_stream_is_there_before_its_first_event() -> None:
    """A listener may use the stream that it is served beside."""
    script = Scripted([text("hello")])
    agent = Agent(model=script.model, stream_fn=script.stream_fn)
    told: list[Any] = []
    agent.subscribe(lambda event, signal: told.append(stream))
    stream = agent.stream("go")
    assert told == []
    await stream.result()
    assert set(told) == {stream}
