"""Responses that a provider completes on its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.conftest import tool, until
from harness.double import call, deferred, error, overflow, text, texts
from laneway.harness import Waiting
from laneway.llm.base import StreamOptions
from laneway.storage.base import UsageScan


async def test_a_deferred_response_suspends_the_run(lane_of: Any) -> None:
    """D-01, D-03: the lane stays busy; a drive without a permit does nothing."""
    fixture = await lane_of(deferred("d1"))
    waiting = await fixture.lane.prompt("go")
    assert isinstance(waiting, Waiting)
    assert (waiting.reason, waiting.deferred.id) == ("deferred", "d1")
    assert fixture.trace[-5:] == ["message_end", "entry_added", "usage", "turn_end", "run_suspend"]
    assert (await fixture.lane.inspect()).at == "deferred.suspended"
    commits = len(fixture.recording.commits)
    fixture.events.clear()
    again = (await fixture.lane.drive(waiting.operation_id)).unwrap()
    assert isinstance(again, Waiting)
    assert (len(fixture.recording.commits), fixture.events, fixture.script.polls) == (commits, [], [])


async def test_a_handle_that_names_another_model_fails_the_run(lane_of: Any) -> None:
    """D-02, decision 11: an unusable handle is an error response, of a generation and of a poll."""
    fixture = await lane_of(deferred(""), deferred("d1"), deferred(""))
    result = await fixture.lane.prompt("go")
    assert (result.status, (await fixture.lane.find_entry()).message.stop_reason) == ("failed", "error")
    await fixture.lane.prompt("again")
    assert (await fixture.lane.resume()).status == "failed"
    await fixture.check()


async def test_resume_polls_once(lane_of: Any) -> None:
    """D-04, D-05, D-13: one request per permit; still pending suspends again; the final answer is the context's."""
    fixture = await lane_of(deferred("d1"), deferred("d1"), text("finally"), text("more"), stream_options=StreamOptions(deferred=True))
    asked: list[Any] = []
    fixture.harness.hooks.on("before_request", lambda event: asked.append((event.step, event.stream_options.deferred)))
    await fixture.lane.prompt("go")
    fixture.events.clear()
    assert isinstance(await fixture.lane.resume(), Waiting)
    assert fixture.trace == [
        "run_resume", "turn_start", "message_start", "message_end", "entry_added", "usage", "turn_end", "run_suspend",
    ]  # fmt: skip
    assert fixture.told("run_suspend")[0].poll == 1
    assert fixture.told("turn_start")[0].turn_id.endswith(":poll:1")
    assert len(fixture.script.polls) == 1
    assert (await fixture.lane.resume()).status == "completed"
    assert asked == [("assistant", True), ("deferred", False), ("deferred", False)]
    assert [poll.options.deferred for poll in fixture.script.polls] == [False, False]
    await fixture.lane.prompt("and")
    assert texts(fixture.script.requests[-1]) == ["user:go", "assistant:finally", "user:and"]
    await fixture.check()


async def test_a_poll_can_end_in_tool_calls(lane_of: Any) -> None:
    """D-07: the batch has the poll's turn id."""
    fixture = await lane_of(deferred("d1"), call("t"), text("done"), tools=[tool("t")])
    await fixture.lane.prompt("go")
    assert (await fixture.lane.resume()).status == "completed"
    started = fixture.told("tool_start")[0]
    assert started.turn_id.endswith(":poll:1")
    await fixture.check()


@pytest.mark.parametrize("reply", [error("busy", kind="overloaded"), overflow()])
async def test_a_failed_poll_is_final(lane_of: Any, reply: Any) -> None:
    """D-08, D-09: neither retried nor compacted."""
    fixture = await lane_of(deferred("d1"), reply)
    await fixture.lane.prompt("go")
    assert (await fixture.lane.resume()).status == "failed"
    assert "retry_scheduled" not in fixture.trace
    await fixture.check()


async def test_input_waits_for_the_deferred_answer(lane_of: Any) -> None:
    """D-10, D-15: queued while suspended, placed at the first boundary after the answer."""
    fixture = await lane_of(deferred("d1"), text("answer"), text("more"))
    await fixture.lane.prompt("go")
    await fixture.lane.steer("s1")
    await fixture.lane.resume()
    assert [line for line in await fixture.history() if not line.endswith(":")] == ["user:go", "assistant:answer", "user:s1", "assistant:more"]


async def test_an_abort_tells_the_provider(lane_of: Any) -> None:
    """D-11: best effort; the run is aborted either way."""
    fixture = await lane_of(deferred("d1"))
    await fixture.lane.prompt("go")
    ended = await fixture.lane.abort()
    assert ended.result.status == "aborted"
    assert [handle.id for handle in fixture.script.cancelled] == ["d1"]
    await fixture.check()


async def test_a_suspension_and_a_poll_survive_a_crash(lane_of: Any) -> None:
    """K-21, K-22: without a permit nothing happens; a lost poll is asked again under its number, with new ids."""
    fixture = await lane_of(deferred("d1"), text("lost", gate=asyncio.Event()), text("answer"))
    await fixture.lane.prompt("go")
    await fixture.reopen()
    assert fixture.open_operations[0].kind == "run"
    polling = asyncio.ensure_future(fixture.lane.resume())
    await until(lambda: fixture.script.polls)
    await fixture.reopen()
    await asyncio.gather(polling, return_exceptions=True)
    assert (await fixture.lane.inspect()).at == "deferred.effect_pending"
    watch = await fixture.lane.watch()
    assert watch.snapshot.operation.deferred.poll == 1
    assert (await fixture.lane.resume()).status == "completed"
    assert fixture.told("turn_start")[0].turn_id.endswith(":poll:1")
    assert fixture.told("turn_start")[0].recovery is True
    assert len(await fixture.storage.scan_usage(UsageScan())) == 2
    await fixture.check()
