"""Queues: what waits, when it is taken, and how it is handed back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.conftest import tool, until
from harness.double import call, calls, text, texts
from laneway.harness import Aborting, InvalidMessage, NoActiveOperation, OperationMismatch, Prompt
from laneway.messages import AssistantMessage, ImageContent, ToolResultMessage


async def test_queueing_is_one_commit_and_gives_the_entrys_id(lane_of: Any) -> None:
    """Q-01: payload and lane record; the whole queue is told; the id becomes the entry's."""
    fixture = await lane_of(text("ok"))
    entry_id = await fixture.lane.steer("s1")
    await fixture.lane.next_run("n1")
    assert fixture.writes == [["pending.entry", "lane.state"]] * 2
    assert [[item.kind for item in event.queues] for event in fixture.told("queue_update")] == [["steer"], ["steer", "next_run"]]
    await fixture.lane.prompt("go")
    assert (await fixture.harness.session.get_entry(entry_id)).message.content == "s1"


async def test_invalid_input_is_not_queued(lane_of: Any) -> None:
    """Q-02: empty, streaming, images where they cannot go."""
    fixture = await lane_of()
    image = ImageContent(data="aa", mime_type="image/png")
    for given, images, reason in (
        ("", None, "empty"),
        (AssistantMessage(content=[], stop_reason="pending"), None, "pending_assistant"),
        (ToolResultMessage(tool_call_id="x", tool_name="t"), [image], "images_with_non_user"),
    ):
        with pytest.raises(InvalidMessage) as refused:
            await fixture.lane.steer(given, images=images)
        assert refused.value.reason == reason
    assert fixture.recording.commits == []


async def test_acceptance_takes_the_whole_queue_in_its_order(lane_of: Any) -> None:
    """Q-03: entries, deletions, tip, meta, state, lane record; the empty queue is told last."""
    fixture = await lane_of()
    admission = (await fixture.lane.accept(Prompt("first"))).unwrap()
    await fixture.lane.append_custom_entry("w1")
    await fixture.lane.request_abort(admission.operation_id)
    await fixture.lane.abort()
    for kind in ("steer", "next_run", "follow_up"):
        await getattr(fixture.lane, kind)(kind)
    fixture.recording.commits.clear()
    fixture.events.clear()
    await fixture.lane.accept(Prompt("u1"))
    assert fixture.writes == [
        ["+custom", "+user", "+user", "+user", "+user", "-pending.entry", "-pending.entry", "-pending.entry", "-pending.entry", "branch.tip",
         "op.meta", "op.state=starting", "lane.state"]
    ]  # fmt: skip
    assert (await fixture.history())[1:] == ["custom", "user:steer", "user:next_run", "user:follow_up", "user:u1"]
    assert fixture.events[-1].queues == []


async def test_steering_waits_for_the_batch_and_is_delivered_once(lane_of: Any) -> None:
    """Q-05, B02, B03: it stays queued while the tool runs, then stands after the results, once."""
    may_end = asyncio.Event()
    started = asyncio.Event()

    async def slow(args: Any) -> str:
        started.set()
        await may_end.wait()
        return "slow"

    fixture = await lane_of(call("slow"), call("quick"), call("quick"), text("done"), tools=[tool("slow", slow), tool("quick")])
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await started.wait()
    await fixture.lane.steer("why so long")
    watch = await fixture.lane.watch()
    assert [item.message.content for item in watch.snapshot.queues] == ["why so long"]
    may_end.set()
    await running
    assert texts(fixture.script.requests[1])[-2:] == ["tool_result:slow", "user:why so long"]
    assert all(texts(request).count("user:why so long") == 1 for request in fixture.script.requests[1:])
    assert len([e for e in fixture.told("message_end") if getattr(e.message, "content", "") == "why so long"]) == 1
    await fixture.check()


async def test_a_listener_of_turn_end_can_still_steer_the_next_request(lane_of: Any) -> None:
    """The boundary is decided after the turn's end was told."""
    fixture = await lane_of(call("t"), text("done"), tools=[tool("t")])
    steered: list[str] = []

    async def steer(event: Any) -> None:
        if not steered:
            steered.append(await fixture.lane.steer("now"))

    fixture.harness.events.on("turn_end", steer)
    async with asyncio.timeout(5):
        await fixture.lane.prompt("go")
    assert texts(fixture.script.requests[1])[-1] == "user:now"


async def test_follow_ups_wait_for_the_natural_end(lane_of: Any) -> None:
    """Q-06, B05: never between tools; steering first; then by mode, in order."""
    fixture = await lane_of(call("t"), call("t"), text("a"), text("b"), text("c"), text("d"), tools=[tool("t")], follow_up_mode="one-at-a-time")

    async def queue_more(event: Any) -> None:
        if len(fixture.script.requests) == 2:  # the third request is about to be made
            await fixture.lane.steer("s1")

    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    await fixture.lane.follow_up("f1")
    await fixture.lane.follow_up("f2")
    fixture.harness.events.on("turn_start", queue_more)
    await fixture.lane.drive(admission.operation_id)
    said = [[t for t in texts(request) if t.startswith("user:")] for request in fixture.script.requests]
    assert said == [["user:go"]] * 3 + [
        ["user:go", "user:s1"], ["user:go", "user:s1", "user:f1"], ["user:go", "user:s1", "user:f1", "user:f2"],
    ]  # fmt: skip


async def test_next_run_waits_for_the_next_acceptance(lane_of: Any) -> None:
    """Q-07: no boundary takes it."""
    fixture = await lane_of(call("t"), text("a"), text("b"), tools=[tool("t")])
    admission = (await fixture.lane.accept(Prompt("one"))).unwrap()
    await fixture.lane.next_run("n1")
    await fixture.lane.drive(admission.operation_id)
    assert all("user:n1" not in texts(request) for request in fixture.script.requests)
    await fixture.lane.prompt("two")
    assert texts(fixture.script.requests[-1])[-2:] == ["user:n1", "user:two"]


async def test_a_write_to_a_busy_lane_waits_for_the_boundary(lane_of: Any) -> None:
    """Q-09: never between a call and its result; idle, it is an entry at once."""
    async def note(args: Any) -> str:
        ids.append(await fixture.lane.append_custom_entry("note", {"n": 1}))
        return "noted"

    ids: list[str] = []
    fixture = await lane_of(call("t"), text("done"), tools=[tool("t", note)])
    await fixture.lane.prompt("go")
    assert await fixture.history() == ["user:go", "assistant:t", "tool_result:noted", "custom", "assistant:done"]
    assert (await fixture.harness.session.get_entry(ids[0])).data == {"n": 1}
    await fixture.lane.append_message("by hand")
    assert (await fixture.history())[-1] == "user:by hand"
    assert len(fixture.script.requests) == 2
    with pytest.raises(TypeError):
        await fixture.lane.append_custom_entry("bad", {"x": object()})
    await fixture.check()


async def test_a_queued_item_can_be_cancelled_until_it_is_taken(lane_of: Any) -> None:
    """Q-11: cancelled, already consumed, not found."""
    fixture = await lane_of(text("ok"))
    s0 = await fixture.lane.steer("s0")
    await fixture.lane.prompt("go")
    s1 = await fixture.lane.steer("s1")
    fixture.recording.commits.clear()
    assert await fixture.lane.cancel_queued(s1) == "cancelled"
    assert fixture.writes == [["-pending.entry", "lane.state"]]
    assert await fixture.lane.cancel_queued(s1) == "not_found"
    assert await fixture.lane.cancel_queued(s0) == "already_consumed"
    assert await fixture.lane.cancel_queued("nonsense") == "not_found"


async def test_an_idle_lane_has_nothing_to_abort(lane_of: Any) -> None:
    """Q-12: the convenience and the value say so in their ways."""
    fixture = await lane_of(text("ok"))
    last = await fixture.lane.prompt("go")
    with pytest.raises(NoActiveOperation):
        await fixture.lane.abort()
    refusal = (await fixture.lane.request_abort(last.operation_id)).error
    assert isinstance(refusal, OperationMismatch)
    assert (refusal.expected, refusal.last) == (last.operation_id, last.operation_id)


async def test_an_abort_hands_back_steering_and_follow_ups(lane_of: Any) -> None:
    """Q-13, B07: one commit; next_run and writes stay; the record keeps what was drained."""
    fixture = await lane_of()
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    await fixture.lane.steer("s1")
    await fixture.lane.next_run("n1")
    await fixture.lane.follow_up("f1")
    await fixture.lane.append_custom_entry("w1")
    fixture.recording.commits.clear()
    fixture.events.clear()
    aborting: Aborting = (await fixture.lane.request_abort(admission.operation_id)).unwrap()
    assert fixture.writes == [["-pending.entry", "-pending.entry", "op.state=starting", "lane.state"]]
    assert fixture.trace == ["operation_abort", "queue_update"]
    assert aborting.newly_requested is True
    assert [m.content for m in aborting.steer + aborting.follow_up] == ["s1", "f1"]
    again = (await fixture.lane.request_abort(admission.operation_id)).unwrap()
    assert (again.newly_requested, again.steer) == (False, [])
    ended = await fixture.lane.abort()
    assert ended.result.status == "aborted"
    assert [m.content for m in ended.result.drained.steer] == ["s1"]
    assert (await fixture.lane.get_result(admission.operation_id)).drained.follow_up[0].content == "f1"
    assert [item.kind for item in fixture.told("queue_update")[-1].queues] == ["next_run", "write"]


async def test_an_abort_of_a_live_response_keeps_what_arrived(lane_of: Any) -> None:
    """Q-15: the signal follows the commit; the partial is settled as aborted; one turn, one end."""
    gate = asyncio.Event()
    fixture = await lane_of(text("partial answer", gate=gate))
    streaming = asyncio.Event()
    fixture.harness.events.on("message_update", lambda event: streaming.set())
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await streaming.wait()
    fixture.events.clear()
    await fixture.lane.abort()
    assert (await running).status == "aborted"
    assert fixture.trace == ["operation_abort", "message_end", "entry_added", "usage", "turn_end", "run_end"]
    assert fixture.leaves[-2:] == ["assistant.effect_pending", "checkpoint"]
    last = (await fixture.lane.find_entry()).message
    assert last.stop_reason == "aborted"
    assert last.text
    assert "partial answer".startswith(last.text)
    await fixture.check()


async def test_an_abort_before_the_request_sends_nothing(lane_of: Any) -> None:
    """Q-17: the intent is settled with an empty aborted response under the reserved ids."""
    fixture = await lane_of(text("never"))

    async def abort(event: Any) -> None:
        operation = (await fixture.lane.inspect()).current
        await fixture.lane.request_abort(operation.id)

    fixture.harness.hooks.on("transform_context", abort)
    async with asyncio.timeout(5):
        result = await fixture.lane.prompt("go")
    assert result.status == "aborted"
    assert fixture.script.requests == []
    assert fixture.trace[-5:] == ["message_start(rec)", "message_end(rec)", "entry_added(rec)", "usage", "run_end"]
    await fixture.check()


async def test_an_abort_of_a_running_tool_gives_every_call_a_result(lane_of: Any) -> None:
    """Q-18: the running one keeps its own, its hint is dropped, after_tool is not asked; the others were not started."""
    started = asyncio.Event()

    async def slow(args: Any, signal: Any, update: Any) -> Any:
        from laneway.messages import TextContent, ToolResult

        started.set()
        await signal.wait()
        return ToolResult(content=[TextContent(text="stopped cleanly")], terminate=True)

    fixture = await lane_of(calls(call("slow"), call("slow")), tools=[tool("slow", slow)], tool_execution="sequential")
    asked: list[Any] = []
    fixture.harness.hooks.on("after_tool", lambda event: asked.append(event))
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await started.wait()
    async with asyncio.timeout(5):
        await fixture.lane.abort()
    assert (await running).status == "aborted"
    history = await fixture.history()
    assert history[2] == "tool_result:stopped cleanly"
    assert "not executed" in history[3]
    assert asked == []
    assert [e.terminate for e in fixture.told("tool_end")] == [False, False]
    assert fixture.trace[-2:] == ["turn_end", "run_end"]
    await fixture.check()


async def test_an_abort_during_before_tool_stops_the_call(lane_of: Any) -> None:
    """Q-19: the handler sees the signal; whatever it allows then is refused; a reason it gives is kept."""
    from laneway.harness import Block

    for answer in (None, Block(reason="no way")):
        ran: list[int] = []
        fixture = await lane_of(calls(call("t"), call("t")), tools=[tool("t", lambda args, ran=ran: ran.append(1) or "ok")])
        asked = asyncio.Event()

        async def handler(event: Any, answer: Any = answer, asked: asyncio.Event = asked) -> Any:
            asked.set()
            await event.signal.wait()
            return answer

        fixture.harness.hooks.on("before_tool", handler)
        running = asyncio.ensure_future(fixture.lane.prompt("go"))
        await asked.wait()
        async with asyncio.timeout(5):
            await fixture.lane.abort()
        assert (await running).status == "aborted"
        assert ran == []
        first = (await fixture.history())[2]
        assert ("no way" in first) == (answer is not None)
        assert not await fixture.storage.scan_values("op.tool_args")
        await fixture.check()


async def test_an_abort_interrupts_a_retry_wait(lane_of: Any) -> None:
    """Q-22: no further attempt, no retry_end."""
    from harness.double import error
    from laneway.harness import RetryPolicy

    fixture = await lane_of(error("busy", kind="overloaded"), retry=RetryPolicy(base_delay=60.0))
    scheduled = asyncio.Event()
    fixture.harness.events.on("retry_scheduled", lambda event: scheduled.set())
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await scheduled.wait()
    async with asyncio.timeout(5):
        await fixture.lane.abort()
    assert (await running).status == "aborted"
    assert "retry_end" not in fixture.trace
    assert len(fixture.script.requests) == 1


async def test_cancelling_the_caller_does_not_abort(lane_of: Any) -> None:
    """Q-23, decision 18: only the wait ends; the run goes on and can be joined."""
    gate = asyncio.Event()
    fixture = await lane_of(text("answer", gate=gate))
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await until(lambda: fixture.script.requests)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await fixture.lane.inspect()).current.status == "running"
    gate.set()
    assert (await fixture.lane.resume()).status == "completed"


async def test_an_interrupting_message_stops_the_batch(lane_of: Any) -> None:
    """Decision 14: running calls are cancelled, planned ones not started, then the message is placed; the run goes on."""
    started = asyncio.Event()

    async def endless(args: Any) -> str:
        started.set()
        await asyncio.sleep(60)
        return "never"

    fixture = await lane_of(calls(call("endless"), call("endless")), text("changed"), tools=[tool("endless", endless)], tool_execution="sequential")
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await started.wait()
    async with asyncio.timeout(5):
        await fixture.lane.steer("stop that", interrupt=True)
        result = await running
    assert result.status == "completed"
    history = await fixture.history()
    assert "Interrupted by a new message" in history[2]
    assert "not started" in history[3]
    assert history[4:] == ["user:stop that", "assistant:changed"]
    await fixture.check()


async def test_an_interruption_survives_a_crash(lane_of: Any) -> None:
    """Decision 14: it is part of the batch, so a later process honours it."""
    started = asyncio.Event()

    async def endless(args: Any) -> str:
        started.set()
        await asyncio.sleep(60)
        return "never"

    endless_tool = tool("endless", endless, replay="safe")
    fixture = await lane_of(calls(call("endless"), call("endless")), text("changed"), tools=[endless_tool], tool_execution="sequential")
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await started.wait()
    steering = asyncio.ensure_future(fixture.lane.steer("stop that", interrupt=True))
    await asyncio.sleep(0)
    await fixture.reopen()
    await asyncio.gather(running, steering, return_exceptions=True)
    async with asyncio.timeout(5):
        result = await fixture.lane.resume()
    assert result.status == "completed"
    assert (await fixture.history())[-2:] == ["user:stop that", "assistant:changed"]


async def test_a_long_queue_keeps_its_order_across_a_restart(lane_of: Any) -> None:
    """10,000 items: each costs the same, all are there again, in order; some taken out of the middle stay out."""
    fixture = await lane_of(text("ok"))
    fixture.unlisten()  # to tell a listener the whole queue again and again would take its time
    ids = [await fixture.lane.next_run(f"n{number}") for number in range(10_000)]
    assert fixture.writes[63] == ["pending.entry", "lane.state"]
    assert fixture.writes[9_999] == ["pending.entry"]
    for place in (0, 63, 64, 65, 9_999):
        assert await fixture.lane.cancel_queued(ids[place]) == "cancelled"
    await fixture.reopen()
    left = [f"user:n{number}" for number in range(10_000) if number not in (0, 63, 64, 65, 9_999)]
    watch = await fixture.lane.watch()
    assert [f"user:{item.message.content}" for item in watch.snapshot.queues] == left
    watch.unsubscribe()
    await fixture.lane.prompt("go")
    assert texts(fixture.script.requests[0]) == [*left, "user:go"]
    await fixture.check()


@pytest.mark.parametrize("size", [63, 64, 65, 66])
async def test_a_queue_at_the_edge_of_its_list(lane_of: Any, size: int) -> None:
    """One item is taken per run, whatever the record lists; none is lost or doubled across restarts."""
    fixture = await lane_of(*[text("ok")] * 4, steering_mode="one-at-a-time", follow_up_mode="one-at-a-time")
    for number in range(size):
        await fixture.lane.follow_up(f"f{number}")
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    await fixture.reopen()
    watch = await fixture.lane.watch()
    assert [item.message.content for item in watch.snapshot.queues] == [f"f{number}" for number in range(1, size)]
    await fixture.lane.request_abort(admission.operation_id)
    ended = await fixture.lane.resume()
    assert len(ended.drained.follow_up) == size - 1
    await fixture.check()
