"""Every hook, when its handler raises, hangs, or takes its time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.conftest import Fixture, Opener, tool
from harness.double import call, text
from laneway.errors import HarnessFault
from laneway.harness import OperationResult
from laneway.harness._hooks import HOOK_NAMES

SUMMARISES = ("before_compaction", "before_navigation")


async def opened(lane_of: Opener, name: str) -> Fixture:
    """A lane whose next operation reaches the hook: a run with a tool call, or a summary."""
    if name not in SUMMARISES:
        return await lane_of(call("t"), text("done"), tools=[tool("t")])
    fixture = await lane_of(text("first"), text("second"), text("## Goal\nthe summary"))
    await fixture.lane.prompt("one")
    await fixture.lane.prompt("two")
    return fixture


async def work(fixture: Fixture, name: str) -> OperationResult:
    """The operation that reaches the hook."""
    if name == "before_compaction":
        return await fixture.lane.compact()
    if name == "before_navigation":
        entries = await fixture.lane.find_entries(order="oldest_first")
        return await fixture.lane.navigate(entries[1].id, summarize=True)
    result = await fixture.lane.prompt("go")
    assert isinstance(result, OperationResult)
    return result


@pytest.mark.parametrize("name", HOOK_NAMES)
async def test_a_handler_that_raises_does_not_stop_the_work(lane_of: Opener, name: str) -> None:
    """H-02: it is reported by name; only `before_drive` ends its pass, and the next one goes on; a guard fails closed."""
    fixture = await opened(lane_of, name)
    ran: list[str] = []

    def broken(event: Any) -> None:
        ran.append(event.operation_id)
        if len(ran) == 1 or name != "before_drive":
            raise ValueError("broken")

    fixture.harness.hooks.on(name, broken)
    if name == "before_drive":
        with pytest.raises(ValueError, match="broken"):
            await work(fixture, name)
        ended = await fixture.lane.resume()
    else:
        ended = await work(fixture, name)
    assert ended.status == "completed"
    assert ran
    assert {(report.kind, report.name) for report in fixture.told("handler_error")} == {("hook", name)}
    assert all("broken" in report.error for report in fixture.told("handler_error"))
    guards = {"before_tool": "check before it failed", "after_tool": "check after it failed"}
    if name in guards:
        assert guards[name] in (await fixture.history())[2]
    assert fixture.told("fault") == []
    await fixture.check()


@pytest.mark.parametrize("name", HOOK_NAMES)
async def test_a_handler_that_hangs_can_be_aborted(lane_of: Opener, name: str) -> None:
    """H-14: it is cut off after its grace; the operation ends aborted, with a result for every call."""
    fixture = await opened(lane_of, name)
    asked = asyncio.Event()
    ended: list[str] = []

    async def hangs(event: Any) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    fixture.harness.hooks.on(name, hangs)
    running = asyncio.ensure_future(work(fixture, name))
    async with asyncio.timeout(10):
        await asked.wait()
        await fixture.lane.abort()
        assert (await running).status == "aborted"
    assert ended == [name]
    assert fixture.told("fault") == []
    await fixture.check()


@pytest.mark.parametrize("name", HOOK_NAMES)
async def test_a_handler_that_hangs_does_not_hold_up_a_close(lane_of: Opener, name: str) -> None:
    """X-02: the next process, whose handler does not hang, brings the operation to its end."""
    fixture = await opened(lane_of, name)
    asked = asyncio.Event()

    async def hangs(event: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    fixture.harness.hooks.on(name, hangs)
    running = asyncio.ensure_future(work(fixture, name))
    async with asyncio.timeout(10):
        await asked.wait()
        await fixture.reopen()
        await asyncio.gather(running, return_exceptions=True)
        fixture.script.add(text("again"), text("and again"))
        assert (await fixture.lane.resume()).status == "completed"
    await fixture.check()


@pytest.mark.parametrize("name", HOOK_NAMES)
async def test_a_slow_handler_is_waited_for(lane_of: Opener, name: str) -> None:
    """No hook has a timeout of its own: a person may be asked."""
    fixture = await opened(lane_of, name)
    answered: list[str] = []

    async def slow(event: Any) -> None:
        await asyncio.sleep(0.05)
        answered.append(name)

    fixture.harness.hooks.on(name, slow)
    async with asyncio.timeout(10):
        assert (await work(fixture, name)).status == "completed"
    assert answered
    assert fixture.told("handler_error") == []
    await fixture.check()


class _Outcome(BaseException):
    """What a test framework raises: no Exception."""


async def test_what_is_no_exception_stops_the_harness_and_nobody_waits(lane_of: Any) -> None:
    """A hook that raises a BaseException: the one who prompted is told, and so is an abort."""
    fixture = await lane_of(text("ok"))

    def hook(event: Any) -> None:
        raise _Outcome("failed")

    fixture.harness.hooks.on("before_request", hook)
    async with asyncio.timeout(10):
        with pytest.raises(HarnessFault, match="_Outcome: failed"):
            await fixture.lane.prompt("go")
