"""What changed between a crash and the next process: models, tools, their policies, clocks."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from harness.conftest import Fixture, Opener, tool
from harness.double import MODEL, Scripted, call, calls, deferred, error, text
from laneway.harness import CompactionSettings, OperationResult, Prompt, RetryPolicy, Suspend, Waiting

OTHER = msgspec.structs.replace(MODEL, id="other")


async def left(fixture: Fixture, at: str, working: Any, reached: asyncio.Event) -> None:
    """End the process at a leaf."""
    running = asyncio.ensure_future(working)
    async with asyncio.timeout(10):
        await reached.wait()
    assert (await fixture.lane.inspect()).at == at
    await fixture.harness.close()
    await asyncio.gather(running, return_exceptions=True)


def stopping_in(fixture: Fixture, hook: Any) -> asyncio.Event:
    """Hold the operation in a hook."""
    reached = asyncio.Event()

    async def hold(event: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    fixture.harness.hooks.on(hook, hold)
    return reached


async def at_leaf(lane_of: Opener, at: str) -> Fixture:
    """A session whose process ended at a leaf that a model is needed to leave."""
    gate = asyncio.Event()
    replies: dict[str, list[Any]] = {
        "assistant.ready": [],
        "assistant.effect_pending": [text("half", gate=gate)],
        "assistant.retry_wait": [error("busy", kind="overloaded")],
        "deferred.suspended": [deferred("d1")],
        "summary.deciding": [text("one")],
        "summary.effect_pending": [text("one"), text("half", gate=gate)],
    }
    retry = RetryPolicy(base_delay=60.0 if at == "assistant.retry_wait" else 0.0)
    fixture = await lane_of(*replies[at], retry=retry, compaction=CompactionSettings(keep_recent_tokens=1))
    lane, asked = fixture.lane, asyncio.Event()
    match at:
        case "assistant.ready":
            await left(fixture, at, lane.prompt("go"), stopping_in(fixture, "before_request"))
        case "assistant.retry_wait":
            fixture.harness.events.on("retry_scheduled", lambda event: asked.set())
            await left(fixture, at, lane.prompt("go"), asked)
        case "deferred.suspended":
            assert isinstance(await lane.prompt("go"), Waiting)
            asked.set()
            await left(fixture, at, asyncio.sleep(0), asked)
        case "summary.deciding":
            await lane.prompt("go")
            await left(fixture, at, lane.compact(), stopping_in(fixture, "before_compaction"))
        case _:
            if at.startswith("summary"):
                await lane.prompt("go")
            wanted = len(fixture.script.requests) + 1
            running = asyncio.ensure_future(lane.compact() if at.startswith("summary") else lane.prompt("go"))
            while len(fixture.script.requests) < wanted:
                await asyncio.sleep(0)
            asked.set()
            await left(fixture, at, running, asked)
    return fixture


LEAVES = [
    "assistant.ready", "assistant.effect_pending", "assistant.retry_wait", "deferred.suspended", "summary.deciding", "summary.effect_pending",
]  # fmt: skip


@pytest.mark.parametrize("at", LEAVES)
async def test_a_model_that_is_gone_fails_the_operation_and_names_it(lane_of: Opener, at: str) -> None:
    """P-17, K-05: nothing is asked; the record says which model; with another one the lane goes on."""
    fixture = await at_leaf(lane_of, at)
    script = Scripted([text("from the other")])
    fixture.script = script
    await fixture.open(model=OTHER, models=None, stream_fn=script.stream_fn, retry=RetryPolicy(base_delay=0.0), clock=lambda: 2**50)
    async with asyncio.timeout(10):
        ended = await fixture.lane.resume()
    assert isinstance(ended, OperationResult)
    assert ended.status == "failed"
    assert ended.error is not None
    assert ended.error.code == "model_unavailable"
    assert "test/scripted" in ended.error.message
    assert script.requests == []
    await fixture.check()
    await fixture.lane.set_model("test/other")
    assert (await fixture.lane.prompt("on")).status == "completed"
    await fixture.check()


@pytest.mark.parametrize("was", ["never", "safe"])
@pytest.mark.parametrize("then", ["never", "safe", "gone", "renamed"])
async def test_a_call_under_way_is_run_again_only_if_it_was_and_is_safe(lane_of: Opener, was: Any, then: str) -> None:
    """K-13, K-16: whatever became of the tool, the call has one result that the model can read."""
    started = asyncio.Event()
    ran: list[str] = []

    async def work(args: Any) -> str:
        ran.append("ran")
        if len(ran) == 1:
            started.set()
            await asyncio.Event().wait()
        return "done"

    def tools(name: str, replay: Any) -> list[Any]:
        return [tool(name, work, replay=replay)]

    fixture = await lane_of(call("t"), text("ok"), tools=tools("t", was))
    await left(fixture, "tools", fixture.lane.prompt("go"), started)
    await fixture.open(tools={"gone": [], "renamed": tools("u", "safe")}.get(then, tools("t", then)))
    assert (await fixture.lane.resume()).status == "completed"
    again = was == then == "safe"
    assert len(ran) == (2 if again else 1)
    line = (await fixture.history())[2]
    assert line == "tool_result:done" if again else "Interrupted" in line
    await fixture.check()


@pytest.mark.parametrize("when", ["planned", "suspended", "approved", "rejected"])
async def test_a_tool_that_was_renamed_before_its_call_began(lane_of: Opener, when: str) -> None:
    """Code changed between crash and resume: the model reads that there is no such tool, and which there are."""
    fixture = await lane_of(calls(call("old"), call("kept")), text("ok"), tools=[tool("old"), tool("kept")])
    if when == "planned":
        await left(fixture, "tools", fixture.lane.prompt("go"), stopping_in(fixture, "before_tool"))
    else:
        fixture.harness.hooks.on("before_tool", lambda event: Suspend("sure?") if event.tool_name == "old" else None)
        waiting = await fixture.lane.prompt("go")
        (asked,) = waiting.calls
        if when == "approved":
            await fixture.lane.approve(asked.tool_call_id)
        if when == "rejected":
            await fixture.lane.reject(asked.tool_call_id, "no")
        await fixture.harness.close()
    await fixture.open(tools=[tool("new"), tool("kept")])
    if when == "suspended":
        waiting = await fixture.lane.resume()
        await fixture.lane.approve(waiting.calls[0].tool_call_id)
    assert (await fixture.lane.resume()).status == "completed"
    line = (await fixture.history())[2]
    assert "not allowed: no" in line if when == "rejected" else ('"old" is unavailable' in line and "new" in line)
    assert (await fixture.history())[3] == "tool_result:kept:"
    await fixture.check()


async def test_a_clock_that_went_back_over_a_crash_does_not_make_a_wait_longer(lane_of: Opener) -> None:
    """K-10: the next process waits at most what was scheduled, whatever its clock says."""
    now = [10_000_000]
    fixture = await lane_of(error("busy", kind="overloaded"), text("ok"), retry=RetryPolicy(base_delay=0.02), clock=lambda: now[0])
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    assert isinstance((await fixture.lane.drive(admission.operation_id)).unwrap(), Waiting)
    now[0] = 0
    await fixture.reopen()
    async with asyncio.timeout(5):
        assert (await fixture.lane.resume()).status == "completed"
    await fixture.check()


async def test_arguments_that_no_longer_fit_a_safe_tool_are_an_error(lane_of: Opener) -> None:
    """K-15: a tool that asks for more now is not run with what was stored."""
    started = asyncio.Event()
    ran: list[int] = []

    async def work(args: Any) -> str:
        ran.append(1)
        started.set()
        await asyncio.Event().wait()
        return "never"

    fixture = await lane_of(call("t", n=1), text("ok"), tools=[tool("t", work, replay="safe")])
    await left(fixture, "tools", fixture.lane.prompt("go"), started)
    strict = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    await fixture.open(tools=[tool("t", work, replay="safe", parameters=strict)])
    assert (await fixture.lane.resume()).status == "completed"
    assert len(ran) == 1
    assert "no longer fit" in (await fixture.history())[2]
    await fixture.check()
