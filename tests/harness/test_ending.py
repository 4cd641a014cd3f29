"""Closing, faults, and what is left after them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from crash.invariants import check_idle, check_transcript
from harness.conftest import Fixture, Opener, tool, until
from harness.double import call, calls, error, text
from laneway.errors import HarnessClosed, HarnessFault, LeaseLost, WouldDeadlock
from laneway.harness import AgentHarness, Closed, CompactionSettings, Err, Prompt, RetryPolicy
from laneway.session import Session
from laneway.storage.base import CommitResult
from laneway.storage.memory import MemoryStorage
from laneway.testing import RecordingStorage, Scripted


class Failing(RecordingStorage):
    """Fails one commit, with an error of choice."""

    def __init__(self, storage: Any, at: int, error: Exception) -> None:
        super().__init__(storage)
        self.at, self.error = at, error

    async def commit(self, writes: Any) -> CommitResult:
        if len(self.commits) + 1 == self.at:
            raise self.error
        return await super().commit(writes)


async def test_closing_twice_is_closing_once(lane_of: Opener) -> None:
    """X-01: values say Closed, everything else raises it."""
    fixture: Fixture = await lane_of()
    await fixture.harness.close()
    await fixture.harness.close()
    refusal = await fixture.lane.accept(Prompt("go"))
    assert isinstance(refusal, Err)
    assert isinstance(refusal.error, Closed)
    assert isinstance((await fixture.lane.drive("x")).error, Closed)
    for attempt in (
        fixture.lane.steer("x"), fixture.lane.get_tip(), fixture.lane.set_model("a/b"), fixture.lane.prompt("x"), fixture.harness.lane("y"),
        fixture.lane.watch(), fixture.harness.set_name("x"), fixture.lane.wait_for_idle(),
    ):  # fmt: skip
        with pytest.raises(HarnessClosed):
            await attempt
    assert fixture.harness.session.closed


@pytest.mark.parametrize("where", ["streaming", "tool", "hook", "retry", "compaction", "waiting line"])
async def test_a_close_in_the_middle_writes_nothing_and_can_be_resumed(lane_of: Opener, where: str) -> None:
    """X-02, decision 18: at every kind of effect; observers are told, the leaf is as it was, the next process finishes."""
    gate = asyncio.Event()
    reached = asyncio.Event()

    async def slow(args: Any) -> str:
        reached.set()
        await gate.wait()
        return "ok"

    replies = {
        "streaming": [text("half", gate=gate), text("ok")],
        "tool": [call("slow"), text("ok")],
        "hook": [text("ok")],
        "retry": [error("busy", kind="overloaded"), text("ok")],
        "compaction": [text("ok"), text("## s", gate=gate), text("## s")],
        "waiting line": [text("ok"), text("ok")],
    }[where]
    fixture: Fixture = await lane_of(*replies, tools=[tool("slow", slow)], retry=RetryPolicy(base_delay=0.2 if where == "retry" else 0.0))
    if where == "hook":

        async def handler(event: Any) -> None:
            reached.set()
            await gate.wait()

        fixture.harness.hooks.on("before_run", handler)
    if where == "compaction":
        await fixture.lane.prompt("first")
    working = asyncio.ensure_future(fixture.lane.compact() if where == "compaction" else fixture.lane.prompt("go"))
    requests = 2 if where == "compaction" else 1
    if where in ("tool", "hook"):
        await reached.wait()
    elif where == "retry":
        await until(lambda: fixture.told("retry_scheduled"))
    else:
        await until(lambda: len(fixture.script.requests) >= requests)
    async with asyncio.timeout(5):
        await fixture.harness.close()
    commits = len(fixture.recording.commits)
    with pytest.raises(HarnessClosed):
        await working
    await asyncio.sleep(0.01)
    assert len(fixture.recording.commits) == commits
    assert fixture.harness._runtime.fault is None
    gate.set()
    await fixture.open()
    assert (await fixture.lane.resume()).status == "completed"
    await fixture.check()


@pytest.mark.parametrize("at", range(1, 12))
async def test_a_store_that_fails_at_any_commit_stops_the_harness_and_loses_nothing(at: int) -> None:
    """X-04, decision 22: the caller, every lane and every later call get the one fault; memory and store agree; reopening goes on."""
    script = Scripted([calls(call("t", n=1), call("t", n=2)), text("ok"), text("ok"), text("ok"), text("ok")])
    store = MemoryStorage()
    failing = Failing(store, at, OSError("disk full"))
    harness, _ = await AgentHarness.create(session=Session.over(failing), model=script.model, stream_fn=script.stream_fn, tools=[tool("t")])
    faults: list[Any] = []
    harness.events.on("fault", faults.append)

    async def work() -> None:
        lane = await harness.lane("main")
        await lane.steer("s1")
        await lane.prompt("go")

    with pytest.raises(HarnessFault) as caught:
        await work()
    assert isinstance(caught.value.__cause__, OSError)
    if faults:
        assert len(faults) == 1
    with pytest.raises(HarnessFault) as again:
        await harness.lane("other")
    assert again.value is caught.value
    await harness.close()
    harness, _ = await AgentHarness.create(
        session=Session.over(store.reopen()), model=script.model, stream_fn=script.stream_fn, tools=[tool("t")], retry=RetryPolicy(base_delay=0.0)
    )
    lane = await harness.lane("main")
    if (await lane.inspect()).current is not None:
        await lane.resume()
    else:
        await lane.prompt("again")
    await check_idle(harness.session.storage)
    await check_transcript(harness.session.storage)
    await harness.close()


async def test_a_lost_lease_is_a_fault_that_says_so(lane_of: Opener) -> None:
    """Decision 5: effects are stopped, nothing more is written, the operation stays open."""
    script = Scripted([call("t"), text("ok")])
    store = MemoryStorage()
    failing = Failing(store, 5, LeaseLost("another process took over"))
    harness, _ = await AgentHarness.create(session=Session.over(failing), model=script.model, stream_fn=script.stream_fn, tools=[tool("t")])
    faults: list[Any] = []
    harness.events.on("fault", faults.append)
    lane = await harness.lane("main")
    with pytest.raises(HarnessFault) as caught:
        await lane.prompt("go")
    assert isinstance(caught.value.__cause__, LeaseLost)
    assert [fault.code for fault in faults] == ["lease_lost"]
    assert len(await store.scan_values("op.meta")) == 1
    await harness.close()


async def test_a_fault_is_told_once_and_nothing_after_it(lane_of: Opener) -> None:
    """V-15, X-07: the same object everywhere; a snapshot taken before shows it after folding."""
    script = Scripted([text("ok")])
    failing = Failing(MemoryStorage(), 4, OSError("disk full"))
    harness, _ = await AgentHarness.create(session=Session.over(failing), model=script.model, stream_fn=script.stream_fn)
    lane = await harness.lane("main")
    other = await harness.lane("other")
    seen: list[str] = []
    harness.events.on("*", lambda event: seen.append(event.type))
    with pytest.raises(HarnessFault) as caught:
        await lane.prompt("go")
    for attempt in (other.steer("x"), lane.wait_for_idle(), lane.drive("x"), lane.accept(Prompt("x"))):
        with pytest.raises(HarnessFault) as again:
            await attempt
        assert again.value is caught.value
    assert seen[-1] == "fault"
    assert seen.count("fault") == 1
    await harness.close()


async def test_a_procedure_that_makes_no_progress_is_a_fault(lane_of: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """P-31: no silent spinning."""
    fixture: Fixture = await lane_of()

    async def nothing(drive: Any, state: Any) -> None:
        return

    monkeypatch.setattr("laneway.harness._procedures.starting.start_run", nothing)
    with pytest.raises(HarnessFault, match="no progress"):
        await fixture.lane.prompt("go")


async def test_an_abort_and_a_close_at_once_end(lane_of: Opener) -> None:
    """X-08: both orders; closed or aborted, never hanging."""
    for close_first in (False, True):
        fixture: Fixture = await lane_of(text("never", gate=asyncio.Event()))
        running = asyncio.ensure_future(fixture.lane.prompt("go"))
        await until(lambda fixture=fixture: fixture.script.requests)
        operation_id = (await fixture.lane.inspect()).current.id
        calls_: list[Any] = [fixture.lane.request_abort(operation_id), fixture.harness.close()]
        async with asyncio.timeout(5):
            await asyncio.gather(*(reversed(calls_) if close_first else calls_), running, return_exceptions=True)


async def test_waiting_for_idle_from_inside_is_refused(lane_of: Opener) -> None:
    """B10: a tool that would wait for its own run gets an error it can report."""
    async def wait(args: Any) -> str:
        await fixture.lane.wait_for_idle()
        return "idle"

    async def resume(args: Any) -> str:
        await fixture.lane.resume()
        return "resumed"

    fixture: Fixture = await lane_of(calls(call("wait"), call("resume")), text("ok"), tools=[tool("wait", wait), tool("resume", resume)])
    async with asyncio.timeout(5):
        await fixture.lane.prompt("go")
    assert all("WouldDeadlock" in line for line in (await fixture.history())[2:4])


async def test_a_listener_of_the_end_may_prompt_again(lane_of: Opener) -> None:
    """B10: nothing hangs; from outside, idle is idle."""
    fixture: Fixture = await lane_of(text("a"), text("b"))
    again: list[Any] = []

    async def more(event: Any) -> None:
        if not again:
            again.append(None)
            again.append(await fixture.lane.prompt("next"))

    fixture.harness.events.on("run_end", more)
    async with asyncio.timeout(10):
        await fixture.lane.prompt("go")
        await fixture.lane.wait_for_idle()
    assert again[1].status == "completed"


async def test_an_idle_lane_can_be_had_for_oneself(lane_of: Opener) -> None:
    """X-12: waits for the run, takes turns, holds off changes but not looks, and is given back when it raises."""
    gate = asyncio.Event()
    fixture: Fixture = await lane_of(text("a", gate=gate), text("b"))
    order: list[str] = []
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await until(lambda: fixture.script.requests)

    async def first() -> str:
        order.append("first")
        steering.append(asyncio.ensure_future(fixture.lane.steer("held off")))
        await asyncio.sleep(0.01)
        assert not steering[0].done()
        assert (await fixture.lane.inspect()).current is None
        (await fixture.lane.watch()).unsubscribe()
        order.append("first done")
        return "value"

    async def second() -> None:
        order.append("second")
        with pytest.raises(WouldDeadlock):
            await fixture.lane.steer("from inside")
        raise ValueError("mine")

    steering: list[asyncio.Future[str]] = []
    maintenance = [asyncio.ensure_future(fixture.lane.run_when_idle(first)), asyncio.ensure_future(fixture.lane.run_when_idle(second))]
    await asyncio.sleep(0)
    assert order == []
    gate.set()
    await running
    async with asyncio.timeout(5):
        results = await asyncio.gather(*maintenance, return_exceptions=True)
        await steering[0]
    assert results[0] == "value"
    assert isinstance(results[1], ValueError)
    assert order == ["first", "first done", "second"]
    assert (await fixture.lane.prompt("on")).status == "completed"


async def test_memos_have_names_and_an_end(lane_of: Opener) -> None:
    """X-06: misuse is the tool's error, never a fault."""
    from laneway.tools.base import current_host

    kept: list[Any] = []

    async def work(args: Any) -> str:
        host: Any = current_host()
        kept.append(host)
        for name in ("", "a:b"):
            with pytest.raises(Exception, match="no name"):
                await host.set_memo(name, 1)
        await host.set_memo("a", {"x": 1})
        assert await host.get_memo("a") == {"x": 1}
        await host.set_memo("a", None)
        assert await host.get_memo("a") is None
        await host.set_memo("b", 2)
        return "ok"

    fixture: Fixture = await lane_of(call("work"), text("ok"), tools=[tool("work", work)])
    await fixture.lane.prompt("go")
    assert (await fixture.history())[2] == "tool_result:ok"
    with pytest.raises(Exception, match="no longer owns"):
        await kept[0].set_memo("a", 1)
    await fixture.check()


@pytest.mark.parametrize(
    "option",
    [
        {"retry": RetryPolicy(max_retries=-1)}, {"retry": RetryPolicy(max_retries=1.5)}, {"retry": RetryPolicy(base_delay=-1.0)},
        {"compaction": CompactionSettings(reserve_tokens=-1)}, {"compaction": CompactionSettings(keep_recent_tokens=2**70)},
        {"steering_mode": "some"}, {"tool_execution": "fast"}, {"tools": [tool("a"), tool("a")]}, {"resources": 5},
    ],
)  # fmt: skip
async def test_a_wrong_option_is_the_callers_error(lane_of: Opener, option: dict[str, Any]) -> None:
    """R-09: raised plainly, before the session is read."""
    with pytest.raises((ValueError, TypeError)):
        await lane_of(**option)
    fixture: Fixture = await lane_of()
    with pytest.raises(ValueError, match="max_retries"):
        await fixture.harness.set_retry_policy(RetryPolicy(max_retries=-1))
    with pytest.raises(TypeError, match="two tools"):
        await fixture.harness.set_tools([tool("a"), tool("a")])
    assert await fixture.lane.prompt("go") is not None


