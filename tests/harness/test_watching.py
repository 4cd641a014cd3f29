"""Events, snapshots, and replicas that stay exact."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from crash.enumeration import Script
from crash.scripts import SCRIPTS
from harness.conftest import Fixture, tool, until
from harness.double import call, calls, deferred, error, text
from laneway.harness import Prompt, RetryPolicy, Suspend, apply_event
from laneway.harness import _bus as bus_module
from laneway.messages import TextContent, ToolResult
from laneway.tools.base import current_host


class Replica:
    """Folds a watcher's events over its snapshot."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    async def follow(self, lane: Any) -> Replica:
        self.lane = lane
        self.watch = await lane.watch()
        self.state = self.watch.snapshot
        self.watch.start(self.apply)
        return self

    def apply(self, event: Any) -> None:
        self.events.append(event)
        self.state = apply_event(self.state, event)

    async def check(self) -> None:
        """The folded state is what a fresh snapshot says."""
        fresh = await self.lane.watch()
        fresh.unsubscribe()
        await self.lane._line.runtime.bus.deliver()  # what is bound by now comes before the snapshot
        assert self.state == fresh.snapshot


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
async def test_a_folded_replica_is_a_fresh_snapshot(script: Script) -> None:
    """Decision 19: over every script, checked at every event that a listener can see."""
    world = script.world()
    harness, lane, _ = await world.open(None, **script.options(world))
    replica = await Replica().follow(lane)
    checks: list[str] = []

    async def check(event: Any) -> None:
        fresh = await lane.watch()
        fresh.unsubscribe()
        checks.append(event.type)

    for name in ("before_run", "before_request", "before_tool", "after_tool", "before_run_end", "before_compaction", "after_response"):
        if not (name == "before_tool" and "approval" in script.name):
            harness.hooks.on(name, lambda event: _during(replica, checks))
    async with asyncio.timeout(20):
        await script.play(world, harness, lane)
        await replica.check()
    assert checks
    await harness.close()


async def _during(replica: Replica, checks: list[str]) -> None:
    await replica.check()
    checks.append("hook")


async def test_a_replica_is_exact_at_every_leaf(lane_of: Any) -> None:
    """V-10, V-13: streaming, running tools with progress, suspended calls, retries, deferred responses, aborts."""
    progress, go_on = asyncio.Event(), asyncio.Event()

    async def work(args: Any) -> str:
        host = current_host()
        assert host is not None
        await host.update(ToolResult(content=[TextContent(text="50%")]), args.get("n") == 1)
        progress.set()
        await go_on.wait()
        return "done"

    gate = asyncio.Event()
    fixture = await lane_of(
        error("busy", kind="overloaded"), calls(call("work", n=1), call("ask"), call("quick"), text="thinking aloud"), deferred("d1"),
        text("final answer", gate=gate), tools=[tool("work", work), tool("ask"), tool("quick")], retry=RetryPolicy(base_delay=0.05),
    )  # fmt: skip
    fixture.harness.hooks.on("before_tool", lambda event: Suspend("sure?") if event.tool_name == "ask" else None)
    replica = await Replica().follow(fixture.lane)
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    scheduled = asyncio.Event()
    fixture.harness.events.on("retry_scheduled", lambda event: scheduled.set())
    await scheduled.wait()
    await replica.check()
    assert replica.state.operation.retry.attempt == 2
    await progress.wait()
    await until(lambda: fixture.told("tool_end"))
    await replica.check()
    tools = {one.tool_name: (one.status, one.partial_result) for one in replica.state.operation.running_tools}
    assert tools["work"][0] == "running"
    assert tools["work"][1].content[0].text == "50%"
    assert tools["quick"] == ("settled", None)
    assert [c.tool_name for c in replica.state.operation.suspended_calls] == ["ask"]
    go_on.set()
    waiting = await running
    await replica.check()
    assert replica.state.operation.status == "open"
    await fixture.lane.approve(waiting.calls[0].tool_call_id)
    await replica.check()
    await fixture.lane.drive(waiting.operation_id)
    await replica.check()
    assert replica.state.operation.deferred.handle.id == "d1"
    polling = asyncio.ensure_future(fixture.lane.resume())
    await until(lambda: not (replica.state.operation.streaming_message is None or not replica.state.operation.streaming_message.text))
    await replica.check()
    assert replica.state.operation.streaming_message.text == "final "  # the other half waits
    await fixture.lane.steer("s1")
    await fixture.lane.set_thinking_level("high")
    await replica.check()
    await fixture.lane.request_abort(waiting.operation_id)
    await replica.check()
    assert (await polling).status == "aborted"
    await replica.check()
    assert (replica.state.operation, replica.state.last_result.status) == (None, "aborted")


async def test_a_replica_that_recovers_is_exact(lane_of: Any) -> None:
    """Decision 12, 19: what an earlier process left is in the snapshot; the recovery's events change it rightly."""
    started = asyncio.Event()
    told = 0

    async def slow(args: Any) -> str:
        nonlocal told
        host = current_host()
        assert host is not None
        await host.update(ToolResult(content=[TextContent(text="half")]), True)
        told += 1
        if told == 2:  # both are half done
            started.set()
        await asyncio.sleep(60)
        return "late"

    fixture = await lane_of(
        calls(call("slow"), call("safe")), text("partial", gate=asyncio.Event()), text("done"),
        tools=[tool("slow", slow), tool("safe", slow, replay="safe")],
    )  # fmt: skip
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await started.wait()
    await fixture.reopen(tools=[tool("slow"), tool("safe", replay="safe")])
    await asyncio.gather(running, return_exceptions=True)
    replica = await Replica().follow(fixture.lane)
    assert [one.partial_result.content[0].text for one in replica.state.operation.running_tools] == ["half", "half"]
    running = asyncio.ensure_future(fixture.lane.resume())
    await until(lambda: len(fixture.script.requests) >= 2)
    await replica.check()
    await fixture.reopen()
    await asyncio.gather(running, return_exceptions=True)
    replica = await Replica().follow(fixture.lane)
    await fixture.lane.resume()
    await replica.check()


async def test_recipients_are_bound_when_something_is_told(lane_of: Any) -> None:
    """V-01: a listener added by a listener gets what is told after the batch that is being delivered."""
    fixture = await lane_of(text("ok"))
    later: list[str] = []

    def first(event: Any) -> None:
        if event.type == "run_start":
            fixture.harness.events.on("*", lambda event: later.append(event.type))

    fixture.harness.events.on("*", first)
    await fixture.lane.prompt("go")
    assert later[0] == "turn_start"


async def test_a_listener_that_raises_disturbs_nobody(lane_of: Any) -> None:
    """V-03, B08: it is reported; a failing handler_error listener goes no further; the run is whole."""
    fixture = await lane_of(text("ok"))
    seen: list[str] = []

    def broken(event: Any) -> None:
        raise ValueError("broken")

    async def broken_too(event: Any) -> None:
        raise ValueError("broken too")

    fixture.harness.events.on("run_end", broken)
    fixture.harness.events.on("run_end", broken_too)
    fixture.harness.events.on("handler_error", broken)
    fixture.harness.events.on("*", lambda event: seen.append(event.type))
    assert (await fixture.lane.prompt("go")).status == "completed"
    assert seen.count("run_end") == 1
    assert [report.kind for report in fixture.told("handler_error")] == ["event", "event"]
    assert (await fixture.lane.inspect()).current is None


async def test_a_public_call_returns_after_its_events_are_delivered(lane_of: Any) -> None:
    """V-02: a slow listener is a barrier, across lanes and in order."""
    fixture = await lane_of(text("a"), text("b"))
    other = await fixture.harness.lane("other")
    seen: list[tuple[str, str]] = []

    async def slow(event: Any) -> None:
        await asyncio.sleep(0.001)
        seen.append((event.lane, event.type))

    fixture.harness.events.on("*", slow)
    await fixture.lane.set_thinking_level("low")
    assert seen == [("main", "config_update")]
    seen.clear()
    await asyncio.gather(fixture.lane.prompt("one"), other.prompt("two"))
    for lane in ("main", "other"):
        own = [type for name, type in seen if name == lane]
        assert own[0] == "run_start"
        assert own[-1] == "run_end"
    names = [name for name, type in seen if type in ("run_start", "message_start", "entry_added")][:6]
    assert names[:3] in (["main"] * 3, ["other"] * 3)  # an acceptance is one batch, whatever the other lane does


async def test_a_listener_that_never_returns_does_not_stop_the_run(lane_of: Any) -> None:
    """A night's work must not hang on a dead screen: it is reported, and still gets its events in order if it recovers."""
    fixture = await lane_of(call("t"), text("ok"), tools=[tool("t")])
    fixture.harness.events.patience = 0.05
    stuck, seen = asyncio.Event(), list[str]()

    async def never(event: Any) -> None:
        await stuck.wait()
        seen.append(event.type)

    fixture.harness.events.on("*", never)
    async with asyncio.timeout(5):
        assert (await fixture.lane.prompt("go")).status == "completed"
    assert len(fixture.told("handler_error")) == 1
    stuck.set()
    await asyncio.sleep(0.01)
    assert [type for type in seen if type not in ("handler_error", "message_update")] == [t for t in fixture.trace if t != "handler_error"]


async def test_a_watch_buffers_from_its_snapshot_on(lane_of: Any) -> None:
    """V-06: nothing lost, nothing twice; started once; stopped by unsubscribe."""
    fixture = await lane_of(text("a"), text("b"))
    watch = await fixture.lane.watch()
    await fixture.lane.prompt("one")
    state, seen = watch.snapshot, list[str]()

    def apply(event: Any) -> None:
        nonlocal state
        seen.append(event.type)
        state = apply_event(state, event)

    watch.start(apply)
    with pytest.raises(RuntimeError):
        watch.start(apply)
    fresh = await fixture.lane.watch()
    assert state == fresh.snapshot
    watch.unsubscribe()
    count = len(seen)
    await fixture.lane.prompt("two")
    assert len(seen) == count


async def test_a_resnapshot_drops_what_came_before_it(lane_of: Any) -> None:
    """V-08: two at once are refused; the listener stays."""
    fixture = await lane_of(text("a"), text("b"))
    watch = await fixture.lane.watch()
    await fixture.lane.prompt("one")
    first = asyncio.ensure_future(watch.resnapshot())
    await asyncio.sleep(0)
    again = asyncio.ensure_future(watch.resnapshot())
    results = await asyncio.gather(first, again, return_exceptions=True)
    assert len([r for r in results if isinstance(r, RuntimeError)]) <= 1
    state = watch.snapshot
    assert len(state.transcript) == 2

    def apply(event: Any) -> None:
        nonlocal state
        state = apply_event(state, event)

    watch.start(apply)
    await fixture.lane.prompt("two")
    fresh = await fixture.lane.watch()
    assert state == fresh.snapshot


async def test_a_watcher_that_falls_behind_is_given_a_new_snapshot(lane_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decision 7: bounded memory; the replica is exact again afterwards."""
    monkeypatch.setattr(bus_module, "BUFFER", 5)
    fixture = await lane_of(text("a"), text("b"))
    watch = await fixture.lane.watch()
    await fixture.lane.prompt("one")
    await fixture.lane.prompt("two")
    state, seen = watch.snapshot, list[str]()

    def apply(event: Any) -> None:
        nonlocal state
        seen.append(event.type)
        state = apply_event(state, event)

    watch.start(apply)
    await asyncio.sleep(0.01)
    assert seen[0] == "resnapshot"
    fresh = await fixture.lane.watch()
    assert state == fresh.snapshot


async def test_a_watcher_sees_its_lane_and_everybodys_usage(lane_of: Any) -> None:
    """V-09, M-07: not the other lanes' entries, but totals, names and settings."""
    fixture = await lane_of(text("ok"))
    other = await fixture.harness.lane("other")
    replica = await Replica().follow(fixture.lane)
    await other.prompt("hi")
    await fixture.harness.set_name("a session")
    await fixture.harness.set_tools([tool("t")])
    kinds = {event.type for event in replica.events}
    assert kinds == {"usage", "stats_update", "value_update", "config_update"}
    await replica.check()


async def test_a_session_watch_has_every_lane(lane_of: Any) -> None:
    """Decision 7: it works."""
    fixture = await lane_of(text("a"), text("b"))
    other = await fixture.harness.lane("other")
    watch = await fixture.harness.watch_session()
    assert sorted(watch.snapshot.lanes) == ["main", "other"]
    seen: list[tuple[str, str]] = []
    watch.start(lambda event: seen.append((event.lane, event.type)))
    await fixture.lane.prompt("one")
    await other.prompt("two")
    assert ("main", "run_end") in seen
    assert ("other", "run_end") in seen


async def test_nothing_is_told_after_a_close(lane_of: Any) -> None:
    """V-15: the end is quiet."""
    fixture: Fixture = await lane_of(text("never", gate=asyncio.Event()))
    await fixture.lane.accept(Prompt("go"))
    running = asyncio.ensure_future(fixture.lane.resume())
    await until(lambda: fixture.script.requests)
    await fixture.harness.close()
    count = len(fixture.events)
    await asyncio.gather(running, return_exceptions=True)
    assert len(fixture.events) == count
    assert fixture.told("fault") == []
    assert fixture.harness._runtime.fault is None  # a close is no fault


async def test_an_event_that_does_not_exist_is_refused(lane_of: Any) -> None:
    """A listener for a misspelt type would wait for ever."""
    fixture = await lane_of(text("ok"))
    with pytest.raises(ValueError, match=r"no event 'tool_updates'; did you mean tool_update"):
        fixture.harness.events.on("tool_updates", print)
