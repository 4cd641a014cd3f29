"""Every race in both orders: exactly one of the two outcomes, and nothing in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from crash.invariants import check_idle, check_transcript
from harness.conftest import tool, until
from harness.double import call, calls, texts
from harness.double import text as say
from laneway.harness import AgentHarness, Err, FollowUp, LaneBusy, Ok, Prompt, RetryPolicy
from laneway.session import Session
from laneway.storage.base import CommitResult, SetValue, Write
from laneway.storage.memory import MemoryStorage
from laneway.testing import RecordingStorage, Scripted


class Gated(RecordingStorage):
    """Holds a commit back until it is let through."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.hold: Any = None  # says of a commit whether to hold it
        self.held = asyncio.Event()
        self.release = asyncio.Event()

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        if self.hold is not None and self.hold(writes):
            self.hold = None
            self.held.set()
            await self.release.wait()
        return await super().commit(writes)


def at(name: str) -> Any:
    """Whether a commit brings the operation to this leaf."""
    return lambda writes: any(isinstance(w, SetValue) and w.namespace == "op.state" and w.value["at"] == name for w in writes)


def ends(writes: Sequence[Write]) -> bool:
    """Whether a commit ends an operation."""
    return any(getattr(w, "namespace", "") == "op.result" for w in writes)


class Racing:
    """A lane over a gated store."""

    def __init__(self, replies: list[Any], **options: Any) -> None:
        self.script = Scripted(replies)
        self.store = Gated(MemoryStorage())
        self.options = options

    async def __aenter__(self) -> Racing:
        options = {"retry": RetryPolicy(base_delay=0.0), "model": self.script.model, "stream_fn": self.script.stream_fn, **self.options}
        self.harness, _ = await AgentHarness.create(session=Session.over(self.store), **options)
        self.lane = await self.harness.lane("main")
        return self

    async def __aexit__(self, *_: Any) -> None:
        await check_idle(self.store)
        await check_transcript(self.store)
        self.store.release.set()
        async with asyncio.timeout(10):
            await self.harness.close()

    async def said(self) -> list[str]:
        entries = await self.lane.find_entries(order="oldest_first", type="message")
        return [e.message.content if isinstance(e.message.content, str) else e.message.text for e in entries if e.message.role != "tool_result"]


async def test_two_acceptances() -> None:
    """accept/accept: one is admitted, the other is refused as busy."""
    async with Racing([say("ok")]) as racing:
        first, second = await asyncio.gather(racing.lane.accept(Prompt("a")), racing.lane.accept(Prompt("b")))
        assert isinstance(first, Ok)
        assert isinstance(second, Err)
        assert isinstance(second.error, LaneBusy)
        await racing.lane.resume()
        assert await racing.said() == ["a", "ok"]


@pytest.mark.parametrize("abort_first", [True, False])
async def test_an_abort_and_the_settlement_of_a_response(abort_first: bool) -> None:
    """abort/settlement: aborted either way, the response in the history once, its calls never run if the abort came first."""
    ran: list[int] = []
    gate = asyncio.Event()
    async with Racing([calls(call("t"), call("t"), gate=gate)], tools=[tool("t", lambda args: ran.append(1) or "ok")]) as racing:
        running = asyncio.ensure_future(racing.lane.prompt("go"))
        await until(lambda: racing.script.requests)
        operation = (await racing.lane.inspect()).current.id
        racing.store.hold = (lambda writes: True) if abort_first else at("tools")
        if abort_first:
            aborting = asyncio.ensure_future(racing.lane.request_abort(operation))
            await racing.store.held.wait()
            gate.set()
        else:
            gate.set()
            await racing.store.held.wait()
            aborting = asyncio.ensure_future(racing.lane.request_abort(operation))
        await asyncio.sleep(0.01)
        racing.store.release.set()
        assert isinstance(await aborting, Ok)
        assert (await running).status == "aborted"
        assert ran == []


@pytest.mark.parametrize("abort_first", [True, False])
async def test_an_abort_and_the_settlement_of_a_tool(abort_first: bool) -> None:
    """abort/tool commit: the tool's own result is kept in both orders."""
    may_end, started = asyncio.Event(), asyncio.Event()

    async def work(args: Any) -> str:
        started.set()
        await may_end.wait()
        return "its own"

    async with Racing([call("work")], tools=[tool("work", work)]) as racing:
        running = asyncio.ensure_future(racing.lane.prompt("go"))
        await started.wait()
        operation = (await racing.lane.inspect()).current.id
        racing.store.hold = lambda writes: True
        if abort_first:
            aborting = asyncio.ensure_future(racing.lane.request_abort(operation))
            await racing.store.held.wait()
            may_end.set()
        else:
            may_end.set()
            await racing.store.held.wait()
            aborting = asyncio.ensure_future(racing.lane.request_abort(operation))
        await asyncio.sleep(0.01)
        racing.store.release.set()
        await aborting
        assert (await running).status == "aborted"
        result = (await racing.lane.find_entries(type="message"))[0].message
        assert result.content[0].text == "its own"


@pytest.mark.parametrize("abort_first", [True, False])
async def test_an_abort_and_the_end_of_a_run(abort_first: bool) -> None:
    """Q-21: completed with the queue untouched, or aborted with the payloads handed back; never both."""
    async with Racing([say("ok")]) as racing:
        await racing.lane.accept(Prompt("go"))
        operation = (await racing.lane.inspect()).current.id
        racing.store.hold = ends
        running = asyncio.ensure_future(racing.lane.resume())
        if abort_first:
            # the abort stands in the line before the end: let it take the line while the response settles, which is a commit
            # of its own where somebody listens
            racing.harness.events.on("run_end", lambda _: None)
            racing.store.hold = at("checkpoint")
        await racing.store.held.wait()
        queued = asyncio.ensure_future(racing.lane.next_run("kept"))
        aborting = asyncio.ensure_future(racing.lane.request_abort(operation))
        await asyncio.sleep(0.01)
        racing.store.release.set()
        outcome, result = await aborting, await running
        await queued
        assert isinstance(outcome, Ok) == (result.status == "aborted") == abort_first
        watch = await racing.lane.watch()
        assert [item.message.content for item in watch.snapshot.queues] == ["kept"]


@pytest.mark.parametrize("abort_first", [True, False])
async def test_an_abort_and_the_mediation_of_the_end(abort_first: bool) -> None:
    """abort/before_run_end: a follow-up of a handler is not asked for once the run is aborted."""
    async with Racing([say("ok"), say("more")]) as racing:
        asked, may_answer = asyncio.Event(), asyncio.Event()
        answers = iter([FollowUp("go on"), None])

        async def handler(event: Any) -> Any:
            asked.set()
            await may_answer.wait()
            return next(answers)

        racing.harness.hooks.on("before_run_end", handler)
        running = asyncio.ensure_future(racing.lane.prompt("go"))
        await asked.wait()
        operation = (await racing.lane.inspect()).current.id
        if abort_first:
            await racing.lane.request_abort(operation)
        may_answer.set()
        assert (await running).status == ("aborted" if abort_first else "completed")
        assert len(racing.script.requests) == (1 if abort_first else 2)


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_cancelled_item_and_the_boundary(cancel_first: bool) -> None:
    """Q-11: placed or cancelled, exactly one."""
    async with Racing([call("t"), say("ok")], tools=[tool("t")]) as racing:
        admission = (await racing.lane.accept(Prompt("go"))).unwrap()
        item = await racing.lane.steer("s1")
        racing.store.hold = at("assistant.effect_pending")
        if cancel_first:
            racing.store.hold = lambda writes: True
            cancelling = asyncio.ensure_future(racing.lane.cancel_queued(item))
            await racing.store.held.wait()
            running = asyncio.ensure_future(racing.lane.drive(admission.operation_id))
        else:
            running = asyncio.ensure_future(racing.lane.drive(admission.operation_id))
            await racing.store.held.wait()
            cancelling = asyncio.ensure_future(racing.lane.cancel_queued(item))
        await asyncio.sleep(0.01)
        racing.store.release.set()
        assert await cancelling == ("cancelled" if cancel_first else "already_consumed")
        await running
        assert ("s1" in await racing.said()) != cancel_first


@pytest.mark.parametrize("set_first", [True, False])
async def test_a_change_of_settings_and_the_start_of_a_step(set_first: bool) -> None:
    """set_model/step start: the step has what was in force when it began."""
    async with Racing([say("ok"), say("ok")]) as racing:
        admission = (await racing.lane.accept(Prompt("go"))).unwrap()
        racing.store.hold = lambda writes: True
        change = racing.lane.set_thinking_level("high")
        drive = racing.lane.drive(admission.operation_id)
        order = [asyncio.ensure_future(change), None] if set_first else [None, asyncio.ensure_future(drive)]
        await racing.store.held.wait()
        order = [order[0] or asyncio.ensure_future(change), order[1] or asyncio.ensure_future(drive)]
        await asyncio.sleep(0.01)
        racing.store.release.set()
        await asyncio.gather(*order)
        assert racing.script.requests[0].options.reasoning == ("high" if set_first else None)


@pytest.mark.parametrize("queue_first", [True, False])
async def test_a_next_run_message_and_an_acceptance(queue_first: bool) -> None:
    """next_run/acceptance: in this run or kept for the next one, never lost."""
    async with Racing([say("ok"), say("ok")]) as racing:
        racing.store.hold = lambda writes: True
        queue, accept = racing.lane.next_run("n1"), racing.lane.accept(Prompt("go"))
        tasks = [asyncio.ensure_future(one) for one in ((queue, accept) if queue_first else (accept, queue))]
        await racing.store.held.wait()
        await asyncio.sleep(0.01)
        racing.store.release.set()
        await asyncio.gather(*tasks)
        await racing.lane.resume()
        assert ("n1" in await racing.said()) == queue_first
        await racing.lane.prompt("again")
        assert (await racing.said()).count("n1") == 1


@pytest.mark.parametrize("write_first", [True, False])
async def test_a_write_and_an_abort(write_first: bool) -> None:
    """write/abort: a deferred write survives the abort in both orders."""
    async with Racing([say("ok")]) as racing:
        admission = (await racing.lane.accept(Prompt("go"))).unwrap()
        write, abort = racing.lane.append_custom_entry("note"), racing.lane.request_abort(admission.operation_id)
        await asyncio.gather(*((write, abort) if write_first else (abort, write)))
        await racing.lane.resume()
        watch = await racing.lane.watch()
        assert [item.kind for item in watch.snapshot.queues] == ["write"]


@pytest.mark.parametrize("steer_first", [True, False])
async def test_steering_and_the_end_of_a_run(steer_first: bool) -> None:
    """steer/finish: answered in this run, or kept for the next; never lost."""
    async with Racing([say("ok"), say("ok"), say("ok")]) as racing:
        if steer_first:  # a response is a commit of its own, before the end, where somebody listens
            racing.harness.events.on("run_end", lambda _: None)
        racing.store.hold = at("checkpoint") if steer_first else ends
        running = asyncio.ensure_future(racing.lane.prompt("go"))
        await racing.store.held.wait()
        steering = asyncio.ensure_future(racing.lane.steer("s1"))
        await asyncio.sleep(0.01)
        racing.store.release.set()
        await steering
        await running
        assert ("s1" in await racing.said()) == steer_first
        await racing.lane.prompt("again")
        assert (await racing.said()).count("s1") == 1
        assert texts(racing.script.requests[-1]).count("user:s1") == 1


@pytest.mark.parametrize("abort_first", [True, False])
async def test_an_abort_and_a_structural_commit(abort_first: bool) -> None:
    """abort/structural commit: the compaction is there and completed, or not there and aborted."""
    gate = asyncio.Event()
    async with Racing([say("ok"), say("## Goal\ns", gate=gate)]) as racing:
        await racing.lane.prompt("one")
        running = asyncio.ensure_future(racing.lane.compact())
        await until(lambda: len(racing.script.requests) == 2)
        operation = (await racing.lane.inspect()).current.id
        racing.store.hold = (lambda writes: True) if abort_first else ends
        gate.set()
        await racing.store.held.wait()
        aborting = asyncio.ensure_future(racing.lane.request_abort(operation))
        await asyncio.sleep(0.01)
        racing.store.release.set()
        outcome, result = await aborting, await running
        assert result.status == ("aborted" if abort_first else "completed")
        assert isinstance(outcome, Ok) == abort_first
        found = await racing.lane.find_entry(type="compaction")
        assert (found is None) == abort_first
