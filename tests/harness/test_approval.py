"""Calls that wait for a person, in this process or a later one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.conftest import tool
from harness.double import call, calls, text
from laneway.harness import NotSuspended, Suspend, Waiting


def ask_for(*names: str) -> Any:
    """A handler that wants a decision on these tools."""
    return lambda event: Suspend("sure?", {"tool": event.tool_name}) if event.tool_name in names else None


async def test_a_suspended_call_waits_while_the_others_run(lane_of: Any) -> None:
    """Decision 16: the drive ends waiting, and says which call wants what."""
    ran: list[str] = []
    fixture = await lane_of(
        calls(call("rm", n=1), call("ls")), text("done"),
        tools=[tool("rm", lambda args: ran.append("rm") or "gone"), tool("ls", lambda args: ran.append("ls") or "files")],
    )  # fmt: skip
    fixture.harness.hooks.on("before_tool", ask_for("rm"))
    waiting = await fixture.lane.prompt("go")
    assert isinstance(waiting, Waiting)
    (asked,) = waiting.calls
    assert (waiting.reason, asked.tool_name, asked.args, asked.reason, asked.payload) == ("approval", "rm", {"n": 1}, "sure?", {"tool": "rm"})
    assert ran == ["ls"]
    assert [e.type for e in fixture.events if e.type in ("tool_suspended", "run_suspend")] == ["tool_suspended", "run_suspend"]
    await fixture.lane.approve(asked.tool_call_id)
    assert (await fixture.lane.resume()).status == "completed"
    assert ran == ["ls", "rm"]
    assert (await fixture.history())[2:4] == ["tool_result:gone", "tool_result:files"]
    await fixture.check()


async def test_two_decisions_in_two_processes_reach_their_own_calls(lane_of: Any) -> None:
    """B77: distinct ids; the answered one runs once; the other is still pending after the restart and asked once."""
    ran: list[Any] = []
    fixture = await lane_of(calls(call("rm", n=1), call("rm", n=2)), text("done"), tools=[tool("rm", lambda args: ran.append(args["n"]) or "ok")])
    asked: list[str] = []

    def handler(event: Any) -> Suspend:
        asked.append(event.tool_call_id)
        return Suspend("sure?")

    fixture.harness.hooks.on("before_tool", handler)
    waiting = await fixture.lane.prompt("go")
    first, second = waiting.calls
    await fixture.lane.approve(second.tool_call_id, {"n": 22})
    still = await fixture.lane.resume()
    assert [c.tool_call_id for c in still.calls] == [first.tool_call_id]
    assert ran == [22]
    await fixture.reopen()
    fixture.harness.hooks.on("before_tool", handler)
    still = await fixture.lane.resume()
    assert [c.tool_call_id for c in still.calls] == [first.tool_call_id]
    await fixture.lane.approve(first.tool_call_id)
    assert (await fixture.lane.resume()).status == "completed"
    assert ran == [22, 1]
    assert len(asked) == 2
    await fixture.check()


async def test_a_rejection_is_what_the_model_reads(lane_of: Any) -> None:
    """Decision 16: durable at once, an error result at the next drive."""
    ran: list[int] = []
    fixture = await lane_of(call("rm"), text("understood"), tools=[tool("rm", lambda args: ran.append(1) or "gone")])
    fixture.harness.hooks.on("before_tool", ask_for("rm"))
    waiting = await fixture.lane.prompt("go")
    await fixture.lane.reject(waiting.calls[0].tool_call_id, "not on Fridays")
    await fixture.reopen()
    assert (await fixture.lane.resume()).status == "completed"
    assert "not on Fridays" in (await fixture.history())[2]
    assert ran == []
    with pytest.raises(NotSuspended):
        await fixture.lane.approve(waiting.calls[0].tool_call_id)


async def test_a_suspended_lane_takes_steering_and_aborts(lane_of: Any) -> None:
    """Decision 16: every call still gets a result."""
    fixture = await lane_of(call("rm"), tools=[tool("rm")])
    fixture.harness.hooks.on("before_tool", ask_for("rm"))
    await fixture.lane.prompt("go")
    await fixture.lane.steer("hurry")
    ended = await fixture.lane.abort()
    assert [m.content for m in ended.steer] == ["hurry"]
    assert "not executed" in (await fixture.history())[2]
    await fixture.check()


async def test_an_interrupting_message_answers_suspended_calls(lane_of: Any) -> None:
    """Decision 14 and 16 together: the call is settled as interrupted, the message is placed."""
    fixture = await lane_of(call("rm"), text("fine"), tools=[tool("rm")])
    fixture.harness.hooks.on("before_tool", ask_for("rm"))
    await fixture.lane.prompt("go")
    await fixture.lane.steer("never mind", interrupt=True)
    assert (await fixture.lane.resume()).status == "completed"
    assert (await fixture.history())[3:] == ["user:never mind", "assistant:fine"]
    await fixture.check()


async def test_an_approval_while_the_batch_runs_starts_the_call_at_once(lane_of: Any) -> None:
    """The pass under way takes the decision up; it need not end first."""
    may_end, approved_ran = asyncio.Event(), asyncio.Event()

    async def slow(args: Any) -> str:
        await may_end.wait()
        return "slow"

    async def rm(args: Any) -> str:
        approved_ran.set()
        return "gone"

    fixture = await lane_of(calls(call("slow"), call("rm")), text("done"), tools=[tool("slow", slow), tool("rm", rm)])
    fixture.harness.hooks.on("before_tool", ask_for("rm"))
    suspended = asyncio.Event()
    fixture.harness.events.on("tool_suspended", lambda event: suspended.set())
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    async with asyncio.timeout(5):
        await suspended.wait()
        await fixture.lane.approve(fixture.told("tool_suspended")[0].tool_call_id)
        await approved_ran.wait()
        may_end.set()
        assert (await running).status == "completed"


async def test_arguments_that_no_longer_fit_are_an_error(lane_of: Any) -> None:
    """Replaced arguments are validated against the tool of the process that runs them."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    fixture = await lane_of(call("rm", n=1), text("ok"), tools=[tool("rm", parameters=schema)])
    fixture.harness.hooks.on("before_tool", ask_for("rm"))
    waiting = await fixture.lane.prompt("go")
    await fixture.lane.approve(waiting.calls[0].tool_call_id, {"m": "x"})
    await fixture.lane.resume()
    assert "no longer fit" in (await fixture.history())[2]
