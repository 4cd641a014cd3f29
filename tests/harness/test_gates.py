"""Hooks that guard a call, when an abort or a message that cannot wait comes while they are asked: nothing gets past them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.conftest import Fixture, Opener, tool
from harness.double import call, calls, text
from laneway.harness import Block, PatchResult
from laneway.messages import TextContent, ToolResult, Usage
from laneway.storage.base import UsageScan

COST = Usage(input=2, total_tokens=2)
SECRET = ToolResult(content=[TextContent(text="the secret")], details={"the": "secret"}, usage=COST)


def redact(event: Any) -> PatchResult:
    """What a redacting handler does."""
    return PatchResult(content=[TextContent(text=block.text.replace("secret", "***")) for block in event.content], details={})


async def everything(fixture: Fixture) -> str:
    """All that the store holds of the lane, as text."""
    return repr(await fixture.lane.find_entries())


# ---------------------------------------------------------------------------------------------------- after_tool


@pytest.mark.parametrize("kind", ["hangs", "raises"])
async def test_a_result_that_no_handler_answered_for_is_not_kept(lane_of: Opener, kind: str) -> None:
    """B26: an interrupting message comes while a handler is asked. A redacting handler that does not come to its end fails closed; what the
    tool cost is in the ledger all the same.
    """
    asked = asyncio.Event()

    async def handler(event: Any) -> None:
        asked.set()
        await event.signal.wait()
        if kind == "raises":
            raise ValueError("stopped")
        await asyncio.Event().wait()

    fixture = await lane_of(call("leak"), text("ok"), tools=[tool("leak", lambda args: SECRET)])
    fixture.harness.hooks.on("after_tool", handler)
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    async with asyncio.timeout(10):
        await asked.wait()
        await fixture.lane.steer("never mind", interrupt=True)
        assert (await running).status == "completed"
    assert "check after it failed" in (await fixture.history())[2]
    assert "secret" not in await everything(fixture)
    assert 2 in [row.usage.total_tokens for row in await fixture.storage.scan_usage(UsageScan())]
    await fixture.check()


# ---------------------------------------------------------------------------------------------------- before_tool


async def test_a_message_that_cannot_wait_ends_an_approval_that_waits(lane_of: Opener) -> None:
    """Decision 14: the handler is cancelled, its call is not started, nor the one after it, and the message is placed."""
    ran: list[Any] = []
    asked = asyncio.Event()
    ended: list[str] = []

    async def handler(event: Any) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(event.tool_call_id)

    fixture = await lane_of(calls(call("t", n=1), call("t", n=2)), text("fine"), tools=[tool("t", lambda args: ran.append(args["n"]) or "ran")])
    fixture.harness.hooks.on("before_tool", handler)
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    async with asyncio.timeout(5):
        await asked.wait()
        await fixture.lane.steer("never mind", interrupt=True)
        assert (await running).status == "completed"
    assert ran == []
    assert len(ended) == 1
    history = await fixture.history()
    assert all("Interrupted by a new message: the call was not started." in line for line in history[2:4])
    assert history[4:] == ["user:never mind", "assistant:fine"]
    await fixture.check()


async def test_an_approval_that_waits_does_not_hold_up_what_runs(lane_of: Opener) -> None:
    """Decision 14: a call that runs beside it is told at once, and keeps what it gives in time."""
    asked = asyncio.Event()

    async def stopped(args: Any) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("stopped")
        return "never"

    async def handler(event: Any) -> None:
        if event.tool_name == "t":
            asked.set()
            await asyncio.Event().wait()

    told: list[str] = []
    fixture = await lane_of(calls(call("slow"), call("t")), text("fine"), tools=[tool("slow", stopped), tool("t")])
    fixture.harness.hooks.on("before_tool", handler)
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    async with asyncio.timeout(5):
        await asked.wait()
        await fixture.lane.steer("never mind", interrupt=True)
        assert (await running).status == "completed"
    assert told == ["stopped"]
    assert (await fixture.history())[2:4] == [
        "tool_result:Interrupted by a new message: the call was not finished.",
        "tool_result:Interrupted by a new message: the call was not started.",
    ]
    await fixture.check()


async def test_an_answer_that_comes_with_the_message_is_too_late(lane_of: Opener) -> None:
    """Decision 14: whichever was first, the tool's work is never done half without a result that says so."""
    for first in ("answer", "message"):
        ran: list[int] = []
        answer, asked = asyncio.Event(), asyncio.Event()

        async def handler(event: Any, answer: asyncio.Event = answer, asked: asyncio.Event = asked) -> None:
            asked.set()
            await answer.wait()

        async def work(args: Any) -> str:
            ran.append(1)
            await asyncio.Event().wait()
            return "never"

        fixture = await lane_of(call("t"), text("fine"), tools=[tool("t", work)])
        fixture.harness.hooks.on("before_tool", handler)
        running = asyncio.ensure_future(fixture.lane.prompt("go"))
        async with asyncio.timeout(5):
            await asked.wait()
            steering = asyncio.ensure_future(fixture.lane.steer("never mind", interrupt=True)) if first == "message" else None
            answer.set()
            await (steering or fixture.lane.steer("never mind", interrupt=True))
            assert (await running).status == "completed"
        line = (await fixture.history())[2]
        assert line.startswith("tool_result:Interrupted by a new message")
        assert "not finished" in line or ran == []
        await fixture.check()


@pytest.mark.parametrize("answer", ["nothing", "a block"])
async def test_an_abort_ends_an_approval_that_waits(lane_of: Opener, answer: str) -> None:
    """Q-19: after its grace; the model reads that the call was not executed, or the reason that the handler still gave."""
    asked = asyncio.Event()

    async def handler(event: Any) -> Any:
        asked.set()
        await event.signal.wait()
        if answer == "a block":
            return Block(reason="no way")
        return await asyncio.Event().wait()

    fixture = await lane_of(call("t"), tools=[tool("t")])
    fixture.harness.hooks.on("before_tool", handler)
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    async with asyncio.timeout(5):
        await asked.wait()
        await fixture.lane.abort()
    assert (await running).status == "aborted"
    line = (await fixture.history())[2]
    assert ("no way" if answer == "a block" else "not executed") in line
    assert "check before it failed" not in line
    await fixture.check()
