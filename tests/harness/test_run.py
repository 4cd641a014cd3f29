"""A run from acceptance to its record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.conftest import tool, until
from harness.double import call, calls, deferred, error, overflow, text, texts, truncated
from laneway.harness import (
    CompactionSettings,
    FollowUp,
    Inject,
    InvalidMessage,
    LaneBusy,
    Ok,
    OperationMismatch,
    Prompt,
    ReplaceArgs,
    RetryPolicy,
    Settled,
    Skill,
    Template,
    UnknownSkill,
    UnknownTemplate,
    Waiting,
)
from laneway.loop import LoopLimits
from laneway.messages import AssistantMessage, ImageContent, TextContent, ToolResult, Usage, UserMessage
from laneway.storage.base import UsageScan
from laneway.testing import thinking


async def test_acceptance_writes_the_prompt_and_the_operation_in_one_commit(lane_of: Any) -> None:
    """P-01: prompt, tip, meta, state, lane record; its events; no drive and no hook."""
    fixture = await lane_of()
    admission = (await fixture.lane.accept(Prompt("hi"))).unwrap()
    assert fixture.writes == [["+user", "branch.tip", "op.meta", "op.state=starting", "lane.state"]]
    assert fixture.trace == ["run_start", "message_start", "message_end", "entry_added"]
    assert admission.kind == "run"
    assert (await fixture.lane.inspect()).current.status == "open"
    assert fixture.script.requests == []


async def test_a_busy_lane_refuses_a_second_operation(lane_of: Any) -> None:
    """P-02, P-07: nothing is written, and a given operation id is used as it is."""
    fixture = await lane_of(text("answer"))
    first = (await fixture.lane.accept(Prompt("one"), operation_id="op-x")).unwrap()
    assert first.operation_id == "op-x"
    before = len(fixture.recording.commits)
    refusal = (await fixture.lane.accept(Prompt("two"), operation_id="op-y")).error
    assert isinstance(refusal, LaneBusy)
    assert (refusal.operation_id, refusal.kind) == ("op-x", "run")
    assert len(fixture.recording.commits) == before
    assert isinstance((await fixture.lane.drive("op-x")).unwrap(), Settled)
    await fixture.lane.accept(Prompt("three"))
    with pytest.raises(LaneBusy):
        await fixture.lane.prompt("four")


async def test_an_empty_prompt_is_refused_and_writes_nothing(lane_of: Any) -> None:
    """P-03: text, list and blank; an image alone is a prompt."""
    fixture = await lane_of()
    for empty in ("", "   ", []):
        refusal = (await fixture.lane.accept(Prompt(empty))).error
        assert isinstance(refusal, InvalidMessage)
        assert refusal.reason == "empty"
    assert fixture.recording.commits == []
    assert isinstance(await fixture.lane.accept(Prompt("", [ImageContent(data="aa", mime_type="image/png")])), Ok)


async def test_a_message_that_streams_is_refused_before_the_lane_is_looked_at(lane_of: Any) -> None:
    """P-05: also on a busy lane the message's error wins."""
    fixture = await lane_of()
    pending = AssistantMessage(content=[], stop_reason="pending")
    for _ in range(2):
        assert (await fixture.lane.accept(Prompt(pending))).error.reason == "pending_assistant"
        await fixture.lane.accept(Prompt("go"))


async def test_skills_and_templates_come_from_the_resources(lane_of: Any) -> None:
    """P-06: unknown names are named; a template that renders to nothing is an empty prompt."""
    resources = {"skills": {"review": "Look closely."}, "templates": {"none": "$1", "fix": "Fix $1 in $2"}}
    fixture = await lane_of(text("ok"), text("ok"), resources=resources)
    assert isinstance((await fixture.lane.accept(Skill("nope"))).error, UnknownSkill)
    assert isinstance((await fixture.lane.accept(Template("nope"))).error, UnknownTemplate)
    assert isinstance((await fixture.lane.accept(Template("none"))).error, InvalidMessage)
    await fixture.lane.skill("review", "this file")
    await fixture.lane.prompt_from_template("fix", ["don't", "a.py"])
    said = texts(fixture.script.requests[-1])
    assert said[0] == 'user:<skill name="review">\nLook closely.\n</skill>\n\nthis file'
    assert said[-1] == "user:Fix don't in a.py"


async def test_the_happy_path_from_prompt_to_record(lane_of: Any) -> None:
    """P-08: the reference trace, the reference leaves, nothing left behind."""
    fixture = await lane_of(text("hello there"))
    result = await fixture.lane.prompt("hi")
    assert fixture.trace == [
        "run_start", "message_start", "message_end", "entry_added", "turn_start", "message_start", "message_end", "entry_added", "usage",
        "turn_end", "run_end",
    ]  # fmt: skip
    assert fixture.leaves == ["starting", "assistant.effect_pending", "checkpoint"]
    assert (result.kind, result.status, result.error, result.from_tip_id) == ("run", "completed", None, None)
    assert result.tip_id == await fixture.lane.get_tip()
    assert await fixture.lane.get_result(result.operation_id) == result
    assert await fixture.history() == ["user:hi", "assistant:hello there"]
    await fixture.check()


async def test_a_tool_turn_is_three_commits(lane_of: Any) -> None:
    """P-10: request, settlement with the intent of the cleared call, placement; then the next turn under a new id."""
    fixture = await lane_of(call("t", n=1), text("done"), tools=[tool("t")])
    await fixture.lane.prompt("go")
    turn = fixture.trace[fixture.trace.index("turn_start") :]
    assert turn == [
        "turn_start", "message_start", "message_end", "entry_added", "usage", "tool_start", "tool_end", "message_start", "message_end",
        "entry_added", "turn_end", "turn_start", "message_start", "message_end", "entry_added", "usage", "turn_end", "run_end",
    ]  # fmt: skip
    first, second = [event.turn_id for event in fixture.told("turn_start")]
    assert first != second
    assert len(fixture.writes) == 7  # acceptance, three for the turn, two for the answer, the end
    assert [result.content[0].text for result in fixture.told("turn_end")[0].tool_results] == ["t:1"]
    await fixture.check()


async def test_settings_are_those_of_the_acceptance(lane_of: Any) -> None:
    """P-12: modes changed in the middle of a run hold from the next run on."""
    async def change(args: Any) -> str:
        await fixture.harness.set_steering_mode("all")
        await fixture.lane.steer("s1")
        await fixture.lane.steer("s2")
        return "changed"

    fixture = await lane_of(call("t"), text("a"), text("b"), tools=[tool("t", change)], steering_mode="one-at-a-time")
    await fixture.lane.prompt("go")
    assert [len([t for t in texts(r) if t in ("user:s1", "user:s2")]) for r in fixture.script.requests] == [0, 1, 2]


async def test_an_unknown_model_fails_the_run_without_a_turn(lane_of: Any) -> None:
    """P-13: no entry, no usage, the queue as it was."""
    fixture = await lane_of()
    await fixture.lane.set_model("other/model")
    assert await fixture.lane.get_model() is None
    await fixture.lane.accept(Prompt("go"))
    fixture.events.clear()
    queued = await fixture.lane.follow_up("later")
    result = await fixture.lane.resume()
    assert result.status == "failed"
    assert (result.error.code, result.error.details) == ("model_unavailable", {"provider": "other", "model_id": "model"})
    assert fixture.trace == ["queue_update", "run_end"]
    assert await fixture.storage.scan_usage(UsageScan()) == []
    assert await fixture.lane.cancel_queued(queued) == "cancelled"


async def test_a_missing_active_tool_fails_the_run_without_a_turn(lane_of: Any) -> None:
    """P-14: the missing names are in the details."""
    fixture = await lane_of(tools=[tool("a")], active_tools=["a", "b"])
    result = await fixture.lane.prompt("go")
    assert (result.error.code, result.error.details) == ("configured_tools_unavailable", {"tools": ["b"]})


async def test_a_failed_attempt_is_retried_and_kept(lane_of: Any) -> None:
    """P-15, U-02: one turn_start, two responses in a chain, a ledger row each."""
    fixture = await lane_of(error("busy", kind="overloaded"), text("ok"))
    await fixture.lane.prompt("go")
    turn = fixture.trace[fixture.trace.index("turn_start") :]
    assert turn == [
        "turn_start", "message_start", "message_end", "entry_added", "usage", "retry_scheduled", "retry_start", "message_start", "message_end",
        "entry_added", "usage", "retry_end", "turn_end", "run_end",
    ]  # fmt: skip
    ended = fixture.told("retry_end")[0]
    assert (ended.success, ended.attempt) == (True, 2)
    entries = [e for e in await fixture.lane.find_entries(order="oldest_first") if isinstance(e.message, AssistantMessage)]
    assert entries[1].parent_id == entries[0].id
    assert len(await fixture.storage.scan_usage(UsageScan())) == 2
    assert texts(fixture.script.requests[1]) == ["user:go"]


async def test_retries_are_waited_for_only_by_who_wants_to(lane_of: Any) -> None:
    """P-17: a waiting outcome writes nothing and leaves no drive; when it is due, the next drive goes on at once."""
    now = [1_000_000]
    fixture = await lane_of(error("busy", kind="overloaded"), text("ok"), retry=RetryPolicy(base_delay=100.0), clock=lambda: now[0])
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    outcome = (await fixture.lane.drive(admission.operation_id)).unwrap()
    assert isinstance(outcome, Waiting)
    assert (outcome.reason, outcome.not_before) == ("retry", now[0] + 100_000 - 40_000)  # capped by the policy's 60 s
    assert (await fixture.lane.inspect()).current.status == "open"
    commits = len(fixture.recording.commits)
    assert isinstance((await fixture.lane.drive(admission.operation_id)).unwrap(), Waiting)
    assert len(fixture.recording.commits) == commits
    now[0] = outcome.not_before
    assert isinstance((await fixture.lane.drive(admission.operation_id)).unwrap(), Settled)


async def test_a_clock_that_goes_back_does_not_make_a_retry_wait_longer(lane_of: Any) -> None:
    """A wait is at most what was scheduled, however far back the clock went."""
    now = [10_000_000]
    fixture = await lane_of(error("busy", kind="overloaded"), text("ok"), retry=RetryPolicy(base_delay=0.02), clock=lambda: now[0])
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    await fixture.lane.drive(admission.operation_id)
    now[0] = 0
    async with asyncio.timeout(5):
        assert isinstance((await fixture.lane.drive(admission.operation_id, wait_for_retry=True)).unwrap(), Settled)


async def test_a_tool_use_stop_without_calls_is_a_failed_run(lane_of: Any) -> None:
    """P-20: the response is stored as an error."""
    fixture = await lane_of(text("hm", stop="tool_use"))
    result = await fixture.lane.prompt("go")
    assert (result.status, result.error.code) == ("failed", "assistant_error")
    assert (await fixture.lane.find_entry()).message.stop_reason == "error"
    await fixture.check()


async def test_calls_are_run_whatever_the_stop_reason_says(lane_of: Any) -> None:
    """P-21: a normal stop with a call in it."""
    fixture = await lane_of(calls(call("t"), stop="stop"), text("done"), tools=[tool("t")])
    await fixture.lane.prompt("go")
    assert await fixture.history() == ["user:go", "assistant:t", "tool_result:t:", "assistant:done"]


async def test_only_unanimous_results_end_a_run(lane_of: Any) -> None:
    """P-22: two that agree end it; one that does not asks the model again."""
    fixture = await lane_of(
        calls(call("stop"), call("stop")), calls(call("stop"), call("go")), text("more"),
        tools=[tool("stop", lambda _: ToolResult(terminate=True)), tool("go")],
    )  # fmt: skip
    first = await fixture.lane.prompt("one")
    entry = await fixture.lane.find_entry()
    assert first.tip_id == entry.id
    assert entry.terminate is True
    await fixture.lane.prompt("two")
    assert len(fixture.script.requests) == 3


async def test_places_of_calls_count_all_blocks(lane_of: Any) -> None:
    """P-23, P-24: arguments are stored under the block's index; result ids have the response's time and sort after it."""
    fixture = await lane_of(thinking("hm") + calls(call("t", n=1), call("t", n=2), text="thus"), text("done"), tools=[tool("t")])
    fixture.harness.hooks.on("before_tool", lambda event: ReplaceArgs({"n": 7}))  # those that are as the model gave them are not stored again
    await fixture.lane.prompt("go")
    stored = [w.key for commit in fixture.recording.commits for w in commit if getattr(w, "namespace", "") == "op.tool_args" and hasattr(w, "value")]
    assert [key.rpartition(":")[2] for key in stored] == ["2", "3"]
    entries = await fixture.lane.find_entries(order="oldest_first")
    response, first, second = entries[1:4]
    ids = fixture.harness.session.ids
    assert ids.timestamp_of(first.id) == ids.timestamp_of(response.id)
    assert response.id < first.id < second.id


async def test_an_unknown_tool_is_an_error_that_the_model_can_read(lane_of: Any) -> None:
    """P-27, B22: the other calls of the batch run, and the available names are listed."""
    fixture = await lane_of(calls(call("x"), call("t")), text("done"), tools=[tool("t")])
    await fixture.lane.prompt("go")
    unknown, known = [event for event in fixture.told("entry_added") if event.entry.message.role == "tool_result"]
    assert unknown.entry.message.is_error is True
    assert 'Tool "x" is unavailable' in unknown.entry.message.content[0].text
    assert "t" in unknown.entry.message.content[0].text
    assert known.entry.message.is_error is False


async def test_a_sequential_tool_makes_the_batch_sequential(lane_of: Any) -> None:
    """Decision 8: as in the loop, one such tool is enough."""
    running: list[int] = []

    async def work(args: Any) -> str:
        running.append(1)
        await asyncio.sleep(0)
        most.append(len(running))
        running.pop()
        return "ok"

    most: list[int] = []
    tools = [tool("a", work), tool("b", work, execution_mode="sequential")]
    fixture = await lane_of(calls(call("a"), call("b"), call("a")), text("done"), tools=tools)
    await fixture.lane.prompt("go")
    assert max(most) == 1
    assert [e.type for e in fixture.events if e.type.startswith("tool")] == ["tool_start", "tool_end"] * 3


async def test_parallel_results_are_placed_in_source_order(lane_of: Any) -> None:
    """Ends come as the tools finish, entries as they were called."""
    first_may_end = asyncio.Event()

    async def slow(args: Any) -> str:
        await first_may_end.wait()
        return "slow"

    async def fast(args: Any) -> str:
        first_may_end.set()
        return "fast"

    fixture = await lane_of(calls(call("slow"), call("fast")), text("done"), tools=[tool("slow", slow), tool("fast", fast)])
    await fixture.lane.prompt("go")
    assert [event.tool_name for event in fixture.told("tool_start")] == ["slow", "fast"]
    assert [event.tool_name for event in fixture.told("tool_end")] == ["fast", "slow"]
    assert (await fixture.history())[2:4] == ["tool_result:slow", "tool_result:fast"]
    await fixture.check()


async def test_a_truncated_response_runs_none_of_its_calls(lane_of: Any) -> None:
    """B17: each call gets an error that names the output limit, and the model goes on."""
    ran: list[int] = []
    fixture = await lane_of(truncated(calls(call("t"), call("t"))), text("again"), tools=[tool("t", lambda args: ran.append(1) or "ok")])
    await fixture.lane.prompt("go")
    assert ran == []
    results = [e.entry.message for e in fixture.told("entry_added") if e.entry.message.role == "tool_result"]
    assert len(results) == 2
    assert all(r.is_error and "output limit" in r.content[0].text for r in results)


async def test_the_same_truncated_call_again_and_again_ends_the_run(lane_of: Any) -> None:
    """B17: after three identical ones, with the reason named as a limit; a different one begins the count anew."""
    same = [truncated(calls(call("t", n=1))) for _ in range(2)]
    fixture = await lane_of(*same, truncated(calls(call("t", n=2))), *same, truncated(calls(call("t", n=1))), text("never"), tools=[tool("t")])
    result = await fixture.lane.prompt("go")
    assert (result.status, result.limit) == ("completed", "repeated_truncation")
    assert len(fixture.script.requests) == 6
    await fixture.check()


async def test_injected_messages_follow_the_prompt(lane_of: Any) -> None:
    """P-30, H-04: handlers see what those before them injected; the last injected message is what is answered."""
    fixture = await lane_of(text("ok"))
    seen: list[list[str]] = []

    def inject(name: str) -> Any:
        def handler(event: Any) -> Inject:
            seen.append([m.content for m in event.prompt])
            return Inject(messages=[UserMessage(content=name)])

        return handler

    fixture.harness.hooks.on("before_run", inject("a"))
    fixture.harness.hooks.on("before_run", inject("b"))
    await fixture.lane.prompt("go")
    assert seen == [["go"], ["go", "a"]]
    assert fixture.writes[1] == ["+user", "+user", "branch.tip", "op.state=checkpoint"]
    assert texts(fixture.script.requests[0]) == ["user:go", "user:a", "user:b"]


async def test_a_suspended_response_is_a_waiting_outcome_of_prompt(lane_of: Any) -> None:
    """P-33: retries are waited for, deferred responses are not."""
    fixture = await lane_of(error("busy", kind="overloaded"), text("ok"), deferred("d1"))
    assert (await fixture.lane.prompt("one")).status == "completed"
    waiting = await fixture.lane.prompt("two")
    assert isinstance(waiting, Waiting)
    assert (waiting.reason, waiting.deferred.id) == ("deferred", "d1")


async def test_a_handler_can_go_on_at_the_end_of_a_run(lane_of: Any) -> None:
    """P-34, H-12: the last defined follow-up wins; the run ends when nobody wants more."""
    fixture = await lane_of(text("a"), text("b"))
    answers = iter(["go on", None])
    fixture.harness.hooks.on("before_run_end", lambda event: FollowUp("not this"), id="first")
    fixture.harness.hooks.on("before_run_end", lambda event: FollowUp(text) if (text := next(answers)) else None)
    unsubscribe = fixture.harness.hooks.on("before_run_end", lambda event: None, id="first")
    await fixture.lane.prompt("hi")
    unsubscribe()
    assert await fixture.history() == ["user:hi", "assistant:a", "user:go on", "assistant:b"]


async def test_usage_of_responses_and_tools_is_in_the_ledger(lane_of: Any) -> None:
    """U-01, U-03: a response's row has its reserved id and its entry; a tool's row comes with its result."""
    cost = Usage(input=7, total_tokens=7)
    fixture = await lane_of(call("t"), text("done"), tools=[tool("t", lambda _: ToolResult(content=[TextContent(text="x")], usage=cost))])
    await fixture.lane.prompt("go")
    rows = await fixture.storage.scan_usage(UsageScan())
    assert [row.usage.total_tokens for row in rows] == [15, 7, 15]
    entries = await fixture.lane.find_entries(order="oldest_first")
    assert [row.entry_id for row in rows] == [entry.id for entry in entries[1:]]
    assert fixture.told("usage")[-1].totals == await fixture.storage.get_stats()


async def test_usage_can_be_recorded_at_any_time(lane_of: Any) -> None:
    """U-05: an adjustment, idle or busy."""
    fixture = await lane_of()
    await fixture.lane.record_usage(Usage(input=3, total_tokens=3), details={"why": "test"})
    await fixture.lane.accept(Prompt("go"))
    await fixture.lane.record_usage(Usage(input=4, total_tokens=4))
    rows = await fixture.storage.scan_usage(UsageScan())
    assert [(row.adjustment, row.usage.input, row.details) for row in rows] == [(True, 3, {"why": "test"}), (True, 4, None)]


@pytest.mark.parametrize(
    ("limits", "named", "requests"),
    [
        (LoopLimits(max_turns=2), "max_turns", 2),
        (LoopLimits(max_tool_calls=1), "max_tool_calls", 1),
        (LoopLimits(max_output_tokens=9), "max_output_tokens", 2),
        (LoopLimits(deadline=0.0), "deadline", 0),
    ],
)
async def test_a_limit_ends_a_run_between_turns(lane_of: Any, limits: LoopLimits, named: str, requests: int) -> None:
    """Decision 15: completed, with the limit named; no call is left without a result, and queued input stays."""
    fixture = await lane_of(*[call("t") for _ in range(5)], tools=[tool("t")], limits=limits)
    result = await fixture.lane.prompt("go")
    assert (result.status, result.limit) == ("completed", named)
    assert len(fixture.script.requests) == requests
    await fixture.check()


async def test_limits_count_across_a_restart(lane_of: Any) -> None:
    """Decision 15: the counters are part of the state."""
    async def crash(args: Any) -> str:
        raise asyncio.CancelledError

    fixture = await lane_of(call("t"), call("t"), call("t"), tools=[tool("t")], limits=LoopLimits(max_turns=2))
    fixture.harness.hooks.on("before_request", lambda event: None)
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    driving = asyncio.ensure_future(fixture.lane.drive(admission.operation_id))
    await until(lambda: len(fixture.script.requests) >= 1)
    await fixture.reopen()
    await asyncio.gather(driving, return_exceptions=True)
    result = await fixture.lane.resume()
    assert result.limit in ("max_turns", None)
    assert len(fixture.script.requests) <= 3


async def test_a_drive_of_something_else_is_refused(lane_of: Any) -> None:
    """X-10: unknown ids are a mismatch; a finished one gives its record, whatever is open."""
    fixture = await lane_of(text("a"))
    first = await fixture.lane.prompt("one")
    second = (await fixture.lane.accept(Prompt("two"))).unwrap()
    mismatch = (await fixture.lane.drive("unknown")).error
    assert isinstance(mismatch, OperationMismatch)
    assert (mismatch.expected, mismatch.current, mismatch.last) == ("unknown", second.operation_id, first.operation_id)
    assert (await fixture.lane.drive(first.operation_id)).unwrap() == Settled(record=first)
    assert (await fixture.lane.inspect()).current.id == second.operation_id


async def test_an_overflow_with_compaction_off_names_the_way_out(lane_of: Any) -> None:
    """C-15, B65: no compaction, one request, and the error says compact(); a manual one then helps."""
    fixture = await lane_of(text("a"), overflow(), text("## Goal\nsummary"), text("b"), compaction=CompactionSettings(enabled=False))
    await fixture.lane.prompt("one")
    failed = await fixture.lane.prompt("two")
    assert failed.status == "failed"
    assert "compact()" in failed.error.message
    assert len(fixture.script.requests) == 2
    assert (await fixture.lane.compact()).status == "completed"
    assert (await fixture.lane.prompt("three")).status == "completed"


@pytest.mark.parametrize("listened", [False, True])
async def test_a_turn_is_two_commits_where_nobody_has_a_say(lane_of: Any, listened: bool) -> None:
    """The result carries the intent to ask again, the last response the end; who listens may say something at a boundary of its own."""
    fixture = await lane_of(call("t", n=1), call("t", n=2), text("done"), tools=[tool("t")])
    if not listened:
        fixture.unlisten()
    assert (await fixture.lane.prompt("go")).status == "completed"
    boundaries = [commit for commit in fixture.writes if "op.state=checkpoint" in commit]
    assert len(fixture.writes) == (10 if listened else 7)
    assert len(boundaries) == (3 if listened else 0)
    assert await fixture.history() == ["user:go", "assistant:t", "tool_result:t:1", "assistant:t", "tool_result:t:2", "assistant:done"]
    await fixture.check()


async def test_a_listener_steers_before_the_model_is_asked_again(lane_of: Any) -> None:
    """What a listener says at the end of a turn is in the next request."""
    fixture = await lane_of(call("t", n=1), text("done"), tools=[tool("t")])

    async def steer(event: Any) -> None:
        if event.tool_results:
            await fixture.lane.steer("look out")

    fixture.harness.events.on("turn_end", steer)
    await fixture.lane.prompt("go")
    assert "user:look out" in texts(fixture.script.requests[-1])
