"""`Context`: cancelling a call ends a wait, and never the work."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from harness.conftest import Fixture, Opener, until
from harness.double import text
from laneway import AbortController, Aborted, Context
from laneway.harness import AgentHarness, AgentLane, Compact, Navigate, Prompt, WatchHandle
from laneway.messages import Usage
from laneway.session import Session
from laneway.storage.base import CommitResult, Write
from laneway.storage.memory import MemoryStorage
from laneway.testing import RecordingStorage, Scripted


@pytest.mark.parametrize("kind", [AgentHarness, AgentLane, WatchHandle])
def test_every_public_async_method_takes_a_context(kind: type) -> None:
    """Decision 17: an optional keyword, the same everywhere."""
    methods = [name for name, value in vars(kind).items() if not name.startswith("_") and inspect.iscoroutinefunction(getattr(kind, name))]
    assert methods
    for name in methods:
        parameter = inspect.signature(getattr(kind, name)).parameters["context"]
        assert (parameter.kind, parameter.default) == (inspect.Parameter.KEYWORD_ONLY, None), name


async def test_cancelling_a_context_ends_the_wait_and_not_the_run(lane_of: Opener) -> None:
    """Q-23, decision 18: as cancelling the task that awaits does; control stays running and whoever wants joins the pass."""
    gate, stop = asyncio.Event(), AbortController()
    fixture = await lane_of(text("a", gate=gate))
    running = asyncio.ensure_future(fixture.lane.prompt("go", context=Context(signal=stop.signal)))
    await until(lambda: fixture.script.requests)
    stop.abort("enough")
    async with asyncio.timeout(5):
        with pytest.raises(Aborted, match="enough"):
            await running
    current = (await fixture.lane.inspect()).current
    assert current is not None
    assert current.status == "running"
    joined = asyncio.ensure_future(fixture.lane.resume())
    await asyncio.sleep(0)
    gate.set()
    assert (await joined).status == "completed"
    assert await fixture.history() == ["user:go", "assistant:a"]
    assert fixture.told("operation_abort") == []
    await fixture.check()


async def test_the_task_itself_can_still_be_cancelled(lane_of: Opener) -> None:
    """A cancellation of the task is a `CancelledError`, with a context as without."""
    gate = asyncio.Event()
    fixture = await lane_of(text("a", gate=gate))
    running = asyncio.ensure_future(fixture.lane.prompt("go", context=Context(signal=AbortController().signal)))
    await until(lambda: fixture.script.requests)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.set()
    assert (await fixture.lane.resume()).status == "completed"


CALLS: dict[str, Callable[[Fixture, Context], Any]] = {
    "accept": lambda f, c: f.lane.accept(Prompt("go"), context=c),
    "drive": lambda f, c: f.lane.drive("x", context=c),
    "request_abort": lambda f, c: f.lane.request_abort("x", context=c),
    "prompt": lambda f, c: f.lane.prompt("go", context=c),
    "skill": lambda f, c: f.lane.skill("s", context=c),
    "prompt_from_template": lambda f, c: f.lane.prompt_from_template("t", context=c),
    "compact": lambda f, c: f.lane.compact(context=c),
    "navigate": lambda f, c: f.lane.navigate(None, context=c),
    "resume": lambda f, c: f.lane.resume(context=c),
    "abort": lambda f, c: f.lane.abort(context=c),
    "steer": lambda f, c: f.lane.steer("x", context=c),
    "append_custom_entry": lambda f, c: f.lane.append_custom_entry("x", 1, context=c),
    "set_model": lambda f, c: f.lane.set_model("a/b", context=c),
    "record_usage": lambda f, c: f.lane.record_usage(Usage(input=1, total_tokens=1), context=c),
    "run_when_idle": lambda f, c: f.lane.run_when_idle(lambda: f.lane.steer("x"), context=c),
    "watch": lambda f, c: f.lane.watch(context=c),
    "lane": lambda f, c: f.harness.lane("other", context=c),
    "set_name": lambda f, c: f.harness.set_name("x", context=c),
    "set_steering_mode": lambda f, c: f.harness.set_steering_mode("one-at-a-time", context=c),
    "close": lambda f, c: f.harness.close(context=c),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_context_that_is_cancelled_already_does_nothing(lane_of: Opener, name: str) -> None:
    """04 §13: raised before anything is read, written or installed."""
    stop = AbortController()
    stop.abort("before")
    fixture = await lane_of(text("a"), resources={"skills": {"s": "do"}, "templates": {"t": "do"}})
    with pytest.raises(Aborted, match="before"):
        await CALLS[name](fixture, Context(signal=stop.signal))
    assert fixture.recording.commits == []
    assert fixture.events == []
    assert fixture.script.requests == []
    assert not fixture.harness.closed
    assert await fixture.harness.get_steering_mode() == "all"
    assert (await fixture.lane.prompt("go")).status == "completed"


class Held(RecordingStorage):
    """A store whose commits wait until they may."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.may, self.asked = asyncio.Event(), asyncio.Event()
        self.may.set()

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        self.asked.set()
        await self.may.wait()
        return await super().commit(writes)


async def test_a_commit_under_way_is_made_and_one_that_waits_is_not(lane_of: Opener) -> None:
    """Decision 18: what is cancelled is a caller; the line is never left in between."""
    script = Scripted([])
    held = Held(MemoryStorage())
    harness, _ = await AgentHarness.create(session=Session.over(held), model=script.model, stream_fn=script.stream_fn)
    lane = await harness.lane("main")
    held.may.clear()
    held.asked.clear()
    first, second = AbortController(), AbortController()
    under_way = asyncio.ensure_future(lane.steer("made", context=Context(signal=first.signal)))
    await held.asked.wait()
    waits = asyncio.ensure_future(lane.steer("not made", context=Context(signal=second.signal)))
    await asyncio.sleep(0)
    first.abort()
    second.abort()
    with pytest.raises(Aborted):
        await waits
    assert not under_way.done()
    held.may.set()
    with pytest.raises(Aborted):
        await under_way
    snapshot = (await lane.watch()).snapshot
    assert [item.message.content for item in snapshot.queues] == ["made"]
    await harness.close()


async def test_an_abort_that_nobody_waits_for_any_more_is_durable_all_the_same(lane_of: Opener) -> None:
    """Decision 18: the gate was shut, so the marker follows."""
    gate, stop = asyncio.Event(), AbortController()
    fixture = await lane_of(text("a", gate=gate))
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await until(lambda: fixture.script.requests)
    aborting = asyncio.ensure_future(fixture.lane.abort(context=Context(signal=stop.signal)))
    await asyncio.sleep(0)
    stop.abort()
    async with asyncio.timeout(5):
        with pytest.raises(Aborted):
            await aborting
        assert (await running).status == "aborted"
    await fixture.check()


async def test_waits_of_every_kind_end(lane_of: Opener) -> None:
    """Decision 17: for idleness, for the lane to oneself, for a close."""
    gate = asyncio.Event()
    fixture = await lane_of(text("a", gate=gate))
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await until(lambda: fixture.script.requests)
    stop = AbortController()
    context = Context(signal=stop.signal)
    waits = [
        asyncio.ensure_future(fixture.lane.wait_for_idle(context=context)),
        asyncio.ensure_future(fixture.lane.run_when_idle(lambda: fixture.lane.get_tip(), context=context)),
    ]
    await asyncio.sleep(0)
    stop.abort()
    async with asyncio.timeout(5):
        assert [type(end) for end in await asyncio.gather(*waits, return_exceptions=True)] == [Aborted, Aborted]
        gate.set()
        assert (await running).status == "completed"
        assert await fixture.lane.run_when_idle(lambda: fixture.lane.get_tip()) is not None


async def test_a_signal_may_be_set_from_another_thread(lane_of: Opener) -> None:
    """A host's own worker thread may give up on a call."""
    fixture = await lane_of(text("a", gate=asyncio.Event()))
    stop = AbortController()
    running = asyncio.ensure_future(fixture.lane.prompt("go", context=Context(signal=stop.signal)))
    await until(lambda: fixture.script.requests)
    await asyncio.to_thread(stop.abort)
    async with asyncio.timeout(5):
        with pytest.raises(Aborted):
            await running


async def test_structural_operations_take_one_too(lane_of: Opener) -> None:
    """The operation of a caller who left is there to be driven by the next one."""
    fixture = await lane_of(text("a"), text("## summary", gate=(gate := asyncio.Event())))
    await fixture.lane.prompt("go")
    stop = AbortController()
    compacting = asyncio.ensure_future(fixture.lane.compact(context=Context(signal=stop.signal)))
    await until(lambda: len(fixture.script.requests) == 2)
    stop.abort()
    with pytest.raises(Aborted):
        await compacting
    gate.set()
    assert (await fixture.lane.resume()).status == "completed"
    for request in (Compact(), Navigate(None)):
        with pytest.raises(TypeError, match=r"laneway\.Context, not object"):
            await fixture.lane.accept(request, context=object())  # type: ignore[arg-type] - what the test is about
