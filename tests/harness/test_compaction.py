"""Compaction and navigation: as operations, and in the middle of a run."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from crash.invariants import check_transcript
from harness.conftest import Fixture, tool, until
from harness.double import call, calls, error, overflow, text, texts, truncated
from laneway.harness import (
    CompactionSettings,
    Decline,
    InvalidNavigation,
    LaneBusy,
    NothingToCompact,
    Prompt,
    Supply,
)
from laneway.harness._compaction import (
    Item,
    Work,
    choose_cut,
    context_tokens,
    cut_points,
    estimate_tokens,
    files_of,
    is_due,
    plan_requests,
    prepare,
    serialise,
    turn_start,
)
from laneway.messages import AssistantMessage, ImageContent, TextContent, ThinkingContent, ToolCall, ToolResultMessage, Usage, UserMessage
from laneway.storage.base import BranchSummaryEntry, CompactionEntry, UsageScan

SUMMARY = text("## Goal\nthe summary", usage=Usage(input=100, output=20, total_tokens=120))
SMALL = CompactionSettings(reserve_tokens=199_000, keep_recent_tokens=300)  # due above 1,000 tokens


def big(reply: Any, tokens: int) -> Any:
    """A reply that reports a context of this size."""
    return dataclasses.replace(reply, usage=Usage(input=tokens - 5, output=5, total_tokens=tokens))


async def compaction_of(fixture: Fixture) -> CompactionEntry:
    """The newest compaction of the lane."""
    entry = await fixture.lane.find_entry(type="compaction")
    assert isinstance(entry, CompactionEntry)
    return entry


# ---------------------------------------------------------------------------------------------------- pure


def test_estimates_are_four_characters_a_token() -> None:
    """C-07: text, thinking, calls with their arguments, images; rounded up."""
    call_ = ToolCall(id="1", name="read", arguments={"path": "a"})
    assert estimate_tokens(UserMessage(content="12345")) == 2
    assert estimate_tokens(UserMessage(content=[ImageContent(data="", mime_type="image/png")])) == 1200
    assert estimate_tokens(AssistantMessage(content=[ThinkingContent(thinking="1234"), TextContent(text="1234"), call_])) == 7


def test_a_context_is_its_last_usage_and_what_came_after() -> None:
    """C-07, regressions 21 and 22: failed responses do not count, usage of an older context is not believed."""
    used = AssistantMessage(content=[], usage=Usage(total_tokens=100))
    failed = AssistantMessage(content=[TextContent(text="1234")], stop_reason="error", usage=Usage(total_tokens=900))
    said = UserMessage(content="12345678")
    assert context_tokens([said, used, failed, said]) == 103
    assert context_tokens([said, said]) == 4
    assert context_tokens([said, used, said], trusted_from=2) == 4


def test_a_threshold_is_strict_and_a_reserve_larger_than_the_window_is_cut() -> None:
    """C-08: equal is not due; off and unknown windows never are."""
    settings = CompactionSettings(reserve_tokens=1_000)
    assert not is_due(9_000, settings, 10_000)
    assert is_due(9_001, settings, 10_000)
    assert not is_due(9_001, CompactionSettings(enabled=False, reserve_tokens=1_000), 10_000)
    assert not is_due(9_001, settings, 0)
    assert not is_due(6_000, CompactionSettings(), 8_192)


def _batch(number: int, size: int = 40) -> list[Any]:
    names = [f"{number}-{place}" for place in range(3)]
    response = AssistantMessage(content=[ToolCall(id=name, name="t") for name in names])
    return [response, *(ToolResultMessage(tool_call_id=name, tool_name="t", content=[TextContent(text="x" * size)]) for name in names)]


def test_no_budget_cuts_between_a_call_and_its_results() -> None:
    """B61, C-03: for every budget the kept part begins at a valid place, and nothing is lost."""
    messages = [UserMessage(content="go"), *(m for number in range(6) for m in _batch(number)), UserMessage(content="on"), *_batch(9)]
    items = [Item(message=message) for message in messages]
    points = cut_points(items)
    for budget in range(200):
        cut = choose_cut(items, budget, whole_if_small=False)
        assert cut == 0 or cut in points
        kept = [item.message for item in items[cut:]]
        asked: set[str] = set()
        for message in kept:
            if isinstance(message, AssistantMessage):
                asked |= {c.id for c in message.tool_calls}
            if isinstance(message, ToolResultMessage):
                assert message.tool_call_id in asked


def test_a_single_huge_turn_is_split_at_a_response() -> None:
    """B62, C-04: the cut falls on a response, and the beginning of the turn is named."""
    items = [Item(message=m) for m in [UserMessage(content="go"), *(m for number in range(50) for m in _batch(number))]]
    cut = choose_cut(items, 100, whole_if_small=False)
    assert isinstance(items[cut].message, AssistantMessage)
    assert turn_start(items, cut) == 0
    prepared = prepare("tip", items, keep_tokens=100, tokens_before=1, manual=False)
    assert prepared is not None
    assert (prepared.cut, prepared.turn_start) == (cut, 0)


def test_what_the_model_does_not_see_joins_the_kept_part() -> None:
    """C-03: entries without a message directly before the cut."""
    items = [Item(message=UserMessage(content="x" * 400)), Item(message=None), Item(message=UserMessage(content="x" * 400))]
    assert choose_cut(items, 50, whole_if_small=False) == 1


def test_a_small_history_goes_as_a_whole_only_if_a_person_asked() -> None:
    """C-02: the rule is structural for compact(), never for a threshold."""
    items = [Item(message=UserMessage(content="short"))]
    assert choose_cut(items, 1_000, whole_if_small=True) == 1
    assert choose_cut(items, 1_000, whole_if_small=False) == 0


def test_results_are_cut_short_and_thinking_is_left_out() -> None:
    """C-23: 2,000 characters each and a note; calls as name(arguments)."""
    pieces = serialise(
        [
            AssistantMessage(content=[ThinkingContent(thinking="secret"), ToolCall(id="1", name="read", arguments={"path": "a.py"})]),
            ToolResultMessage(tool_call_id="1", tool_name="read", content=[TextContent(text="y" * 10_000)]),
        ]
    )
    assert pieces[0] == '[Assistant called] read(path="a.py")'
    assert "secret" not in "".join(pieces)
    assert len(pieces[1]) < 2_200
    assert "8000 more characters omitted" in pieces[1]


def test_a_long_history_is_rolled_up_in_requests_that_fit() -> None:
    """B66: 600,000 tokens through a window of 100,000; each request after the first updates the one before."""
    work = Work(kind="compaction", messages=[UserMessage(content="z" * 24_000) for _ in range(100)])
    asks = plan_requests(work, context_window=100_000, output_tokens=8_000)
    assert len(asks) > 5
    assert all(len(ask.text) / 4 < 100_000 - 8_000 for ask in asks)
    assert [ask.rolling for ask in asks] == [False] + [True] * (len(asks) - 1)


def test_files_are_collected_from_calls_and_earlier_summaries() -> None:
    """C-05: modified wins over read; both sorted."""
    read = ToolCall(id="1", name="read", arguments={"path": "b"})
    write = ToolCall(id="2", name="write", arguments={"path": "a"})
    files = files_of([AssistantMessage(content=[read, write])], [{"read_files": ["a", "c"], "modified_files": ["d"]}])
    assert (files.read, files.modified) == (["b", "c"], ["a", "d"])


# ---------------------------------------------------------------------------------------------------- as an operation


async def test_a_manual_compaction(lane_of: Any) -> None:
    """C-01: preparation first, then deciding, ready, effect_pending, and the end; its request is in the ledger."""
    fixture = await lane_of(text("a"), SUMMARY, text("b"))
    await fixture.lane.prompt("one")
    fixture.recording.commits.clear()
    fixture.events.clear()
    result = await fixture.lane.compact("names only")
    assert (result.kind, result.status, result.tip_id) == ("compaction", "completed", await fixture.lane.get_tip())
    assert fixture.writes[0] == ["op.preparation", "op.meta", "op.state=summary.deciding", "lane.state"]
    assert fixture.leaves == ["summary.deciding", "summary.ready", "summary.effect_pending"]
    assert fixture.trace == ["compaction_start", "usage", "entry_added", "compaction_end"]
    entry = await compaction_of(fixture)
    assert entry.summary.endswith("the summary")
    assert (entry.retained_tail, entry.usage.total_tokens, entry.from_hook) == ([], 120, False)
    asked = fixture.script.requests[1]
    assert "Additional focus: names only" in texts(asked)[0]
    assert (asked.options.cache_retention, asked.options.deferred, asked.options.session_id.count(":")) == ("none", False, 2)
    await fixture.lane.prompt("two")
    assert texts(fixture.script.requests[-1])[0].startswith("user:The conversation so far")
    assert texts(fixture.script.requests[-1])[1:] == ["user:two"]
    await fixture.check()


async def test_there_must_be_something_to_compact(lane_of: Any) -> None:
    """C-02, regression 32: empty, or just compacted; nothing is written."""
    fixture = await lane_of(text("a"), SUMMARY)
    with pytest.raises(NothingToCompact):
        await fixture.lane.compact()
    assert fixture.recording.commits == []
    await fixture.lane.prompt("one")
    await fixture.lane.compact()
    with pytest.raises(NothingToCompact):
        await fixture.lane.compact()


async def test_a_second_compaction_brings_the_first_up_to_date(lane_of: Any) -> None:
    """C-05, regression 25: the previous summary and the retained messages go into the next request."""
    fixture = await lane_of(text("a" * 2_000), text("b"), SUMMARY, text("c"), SUMMARY, compaction=CompactionSettings(keep_recent_tokens=1))
    await fixture.lane.prompt("one")
    await fixture.lane.prompt("two")
    await fixture.lane.compact()
    assert [getattr(m, "text", "") for m in (await compaction_of(fixture)).retained_tail] == ["b"]
    await fixture.lane.prompt("three")
    await fixture.lane.compact()
    asked = texts(fixture.script.requests[-1])[0]
    assert "<previous-summary>" in asked
    assert "[Assistant] b" in asked
    assert "a" * 50 not in asked


async def test_a_handler_may_decline_or_supply(lane_of: Any) -> None:
    """C-16, H-11: no request; a row of its own only where usage is given; the first decisive answer wins."""
    fixture = await lane_of(text("a"))
    await fixture.lane.prompt("one")
    remove = fixture.harness.hooks.on("before_compaction", lambda event: Decline())
    assert (await fixture.lane.compact()).status == "declined"
    remove()

    def broken(event: Any) -> None:
        raise ValueError("broken")

    fixture.harness.hooks.on("before_compaction", broken)
    fixture.harness.hooks.on("before_compaction", lambda event: None)
    fixture.harness.hooks.on("before_compaction", lambda event: Supply("mine", {"d": 1}, Usage(input=1, total_tokens=1)))
    fixture.harness.hooks.on("before_compaction", lambda event: Decline())
    fixture.events.clear()
    assert (await fixture.lane.compact()).status == "completed"
    entry = await compaction_of(fixture)
    assert (entry.summary, entry.details, entry.from_hook) == ("mine", {"d": 1}, True)
    assert fixture.told("handler_error")[0].name == "before_compaction"
    assert [row.entry_id for row in await fixture.storage.scan_usage(UsageScan())][-1] is None
    assert len(fixture.script.requests) == 1
    await fixture.check()


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (text(""), "summary_empty"), (truncated("half"), "summary_truncated"), (call("t"), "summary_called_tools"),
        (error("bad request", kind="invalid_request"), "summarization_failed"),
    ],
)  # fmt: skip
async def test_a_bad_summary_stores_nothing_but_its_cost(lane_of: Any, reply: Any, code: str) -> None:
    """B68, C-19, regression 24: the reason is in the record and the event; the next compaction works."""
    fixture = await lane_of(text("a"), reply, SUMMARY)
    await fixture.lane.prompt("one")
    tip = await fixture.lane.get_tip()
    result = await fixture.lane.compact()
    assert (result.status, result.error.code, await fixture.lane.get_tip()) == ("failed", code, tip)
    assert fixture.told("compaction_end")[0].error == result.error
    assert len(await fixture.storage.scan_usage(UsageScan())) == 2
    assert (await fixture.lane.compact()).status == "completed"
    await fixture.check()


async def test_a_summary_is_retried(lane_of: Any) -> None:
    """C-18: the failed request's row stays; retry_end comes between the entry and the end."""
    fixture = await lane_of(text("a"), error("busy", kind="overloaded"), SUMMARY)
    await fixture.lane.prompt("one")
    fixture.events.clear()
    await fixture.lane.compact()
    assert fixture.trace == [
        "compaction_start", "usage", "retry_scheduled", "retry_start", "usage", "entry_added", "retry_end", "compaction_end",
    ]  # fmt: skip
    assert fixture.told("retry_end")[0].success is True
    await fixture.check()


async def test_an_aborted_compaction_keeps_what_it_cost(lane_of: Any) -> None:
    """C-22: usage is committed, no entry, compaction_end(aborted)."""
    gate = asyncio.Event()
    fixture = await lane_of(text("a"), text("summary", gate=gate))
    await fixture.lane.prompt("one")
    running = asyncio.ensure_future(fixture.lane.compact())
    await until(lambda: len(fixture.script.requests) >= 2)
    await fixture.lane.abort()
    assert (await running).status == "aborted"
    assert [e.status for e in fixture.told("compaction_end")] == ["aborted"]
    assert len(await fixture.storage.scan_usage(UsageScan())) == 2
    await fixture.check()


async def test_a_compaction_is_followed_by_what_is_queued(lane_of: Any) -> None:
    """C-21, B70: queued input starts a run; a second compaction at once is refused as busy."""
    gate = asyncio.Event()
    fixture = await lane_of(text("a"), text("## Goal\ns", gate=gate), text("b"))
    await fixture.lane.prompt("one")
    running = asyncio.ensure_future(fixture.lane.compact())
    await until(lambda: len(fixture.script.requests) >= 2)
    with pytest.raises(LaneBusy):
        await fixture.lane.compact()
    await fixture.lane.next_run("n1")
    gate.set()
    assert (await running).kind == "compaction"
    assert (await fixture.history())[-2:] == ["user:n1", "assistant:b"]
    await fixture.check()


async def test_a_compaction_interrupted_by_a_crash(lane_of: Any) -> None:
    """K-23, K-24: the stored preparation is used, the hook is asked again; a lost attempt is made again."""
    gate = asyncio.Event()
    fixture = await lane_of(text("a"), text("lost", gate=gate), SUMMARY)
    await fixture.lane.prompt("one")
    running = asyncio.ensure_future(fixture.lane.compact())
    await until(lambda: len(fixture.script.requests) >= 2)
    await fixture.reopen(compaction=CompactionSettings(keep_recent_tokens=5))
    await asyncio.gather(running, return_exceptions=True)
    assert (await fixture.lane.inspect()).at == "summary.effect_pending"
    assert (await fixture.lane.resume()).status == "completed"
    assert fixture.trace[0] == "retry_scheduled(rec)"
    assert (await compaction_of(fixture)).retained_tail == []
    await fixture.check()


# ---------------------------------------------------------------------------------------------------- inside a run


async def test_a_threshold_compacts_between_turns(lane_of: Any) -> None:
    """C-09, B67: before the request that would be too large; the run goes on, steering is delivered once."""
    fixture = await lane_of(
        big(calls(call("t"), text="x" * 4_000), 1_200), SUMMARY, text("done"), tools=[tool("t")], compaction=SMALL,
    )  # fmt: skip
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    fixture.events.clear()
    await fixture.lane.drive(admission.operation_id)
    trace = fixture.trace[fixture.trace.index("compaction_start") :]
    assert trace == [
        "compaction_start", "usage", "entry_added", "compaction_end", "turn_start", "message_start", "message_end", "entry_added", "usage",
        "turn_end", "run_end",
    ]  # fmt: skip
    assert fixture.told("compaction_start")[0].reason == "threshold"
    assert texts(fixture.script.requests[-1])[0].startswith("user:The conversation so far")
    assert ["op.preparation", "op.state=summary.deciding"] in fixture.writes
    await fixture.check()


async def test_a_compaction_in_a_run_is_not_repeated_for_the_same_step(lane_of: Any) -> None:
    """C-10, B64: one that did not help is not tried again for the same trigger."""
    fixture = await lane_of(
        big(calls(call("t"), text="x" * 4_000), 1_200), text("s" * 8_000), text("done"), tools=[tool("t")], compaction=SMALL,
    )  # fmt: skip
    assert (await fixture.lane.prompt("go")).status == "completed"
    assert len(fixture.script.requests) == 3


async def test_an_overflow_is_answered_by_one_compaction(lane_of: Any) -> None:
    """C-12, C-14, regression 28: compact and ask again; a second overflow is the end."""
    fixture = await lane_of(text("x" * 9_000), overflow(), SUMMARY, overflow(), compaction=CompactionSettings(keep_recent_tokens=100))
    await fixture.lane.prompt("one")
    fixture.events.clear()
    result = await fixture.lane.prompt("two")
    assert (result.status, result.error.code) == ("failed", "assistant_error")
    assert [e.reason for e in fixture.told("compaction_start")] == ["overflow"]
    first, second = fixture.told("turn_start")
    assert first.turn_id != second.turn_id
    assert texts(fixture.script.requests[-1])[-1] == "user:two"
    await fixture.check()


async def test_new_input_allows_another_recovery(lane_of: Any) -> None:
    """C-14: a message placed in between resets the flag."""
    fixture = await lane_of(
        text("x" * 9_000), overflow(), SUMMARY, text("y" * 9_000), overflow(), SUMMARY, text("the turn so far"), text("fine"),
        compaction=CompactionSettings(keep_recent_tokens=100),
    )  # fmt: skip
    await fixture.lane.prompt("one")

    async def more(event: Any) -> None:
        if len(fixture.script.requests) == 4:
            await fixture.lane.steer("three")

    fixture.harness.events.on("turn_end", more)
    assert (await fixture.lane.prompt("two")).status == "completed"
    assert [e.reason for e in fixture.told("compaction_start")] == ["overflow", "overflow"]


async def test_a_declined_threshold_goes_on_a_declined_overflow_does_not(lane_of: Any) -> None:
    """C-11, C-17: the run's own record says compaction_declined."""
    fixture = await lane_of(
        big(calls(call("t"), text="x" * 4_000), 1_200), text("done"), overflow(), tools=[tool("t")], compaction=SMALL,
    )  # fmt: skip
    fixture.harness.hooks.on("before_compaction", lambda event: Decline())
    assert (await fixture.lane.prompt("go")).status == "completed"
    assert [e.status for e in fixture.told("compaction_end")] == ["declined"]
    failed = await fixture.lane.prompt("again")
    assert failed.error.code == "compaction_declined"
    await fixture.check()


async def test_a_failed_compaction_fails_the_run(lane_of: Any) -> None:
    """C-19: one batch of events; the queue is kept."""
    fixture = await lane_of(
        big(calls(call("t"), text="x" * 4_000), 1_200), error("no", kind="invalid_request"), tools=[tool("t")], compaction=SMALL,
    )  # fmt: skip
    await fixture.lane.accept(Prompt("go"))
    await fixture.lane.next_run("n1")
    result = await fixture.lane.resume()
    assert (result.status, result.error.code) == ("failed", "summarization_failed")
    assert fixture.trace[-2:] == ["compaction_end", "run_end"]
    watch = await fixture.lane.watch()
    assert [item.kind for item in watch.snapshot.queues] == ["next_run"]
    await fixture.check()


async def test_a_split_turn_is_summarised_in_two_requests(lane_of: Any) -> None:
    """C-04: history and the turn's beginning, one after the other, joined under a separator; both cost."""
    fixture = await lane_of(
        text("old answer"), big(calls(call("t"), text="x" * 4_000), 1_100), SUMMARY, text("## Original Request\ngo"), text("done"),
        tools=[tool("t", lambda args: "r" * 4_000)], compaction=SMALL,
    )  # fmt: skip
    await fixture.lane.prompt("before")
    await fixture.lane.prompt("go")
    summary = (await compaction_of(fixture)).summary
    assert "the summary" in summary
    assert "The beginning of the current turn" in summary
    assert "[User] before" in texts(fixture.script.requests[2])[0]
    assert "[User] go" in texts(fixture.script.requests[3])[0]
    assert len(await fixture.storage.scan_usage(UsageScan())) == 5
    await check_transcript(fixture.storage)


# ---------------------------------------------------------------------------------------------------- navigation


async def test_a_plain_move(lane_of: Any) -> None:
    """N-01: tip, label, cleanup, record; no entry."""
    fixture = await lane_of(text("a"), text("b"))
    first = await fixture.lane.prompt("one")
    second = await fixture.lane.prompt("two")
    fixture.recording.commits.clear()
    fixture.events.clear()
    result = await fixture.lane.navigate(first.tip_id, label="x")
    assert (result.kind, result.from_tip_id, result.tip_id) == ("navigation", second.tip_id, first.tip_id)
    assert fixture.writes[1] == ["branch.tip", "entry.label", "-op.meta", "-op.state", "op.result", "lane.state"]
    assert fixture.trace == ["navigation_start", "navigation_end"]
    assert await fixture.harness.get_label(first.tip_id) == "x"
    assert await fixture.history() == ["user:one", "assistant:a"]
    await fixture.check()


async def test_moving_before_the_first_entry(lane_of: Any) -> None:
    """N-02: allowed without label or summary."""
    fixture = await lane_of(text("a"), text("b"))
    await fixture.lane.prompt("one")
    for options in ({"label": "x"}, {"summarize": True}):
        with pytest.raises(InvalidNavigation):
            await fixture.lane.navigate(None, **options)
    with pytest.raises(InvalidNavigation):
        await fixture.lane.navigate("nowhere")
    assert (await fixture.lane.navigate(None)).tip_id is None
    await fixture.lane.prompt("fresh")
    assert texts(fixture.script.requests[-1]) == ["user:fresh"]


async def test_a_move_with_a_summary(lane_of: Any) -> None:
    """N-04, N-10: what lies after the common ancestor, without results; the summary is a child of the target."""
    fixture = await lane_of(text("a"), call("read", path="f.py"), text("b"), SUMMARY, text("c"), tools=[tool("read")])
    first = await fixture.lane.prompt("one")
    second = await fixture.lane.prompt("two")
    fixture.recording.commits.clear()
    result = await fixture.lane.navigate(first.tip_id, summarize=True, label="x", instructions="only files")
    entry = await fixture.lane.find_entry()
    assert isinstance(entry, BranchSummaryEntry)
    assert (entry.parent_id, entry.from_id, result.tip_id) == (first.tip_id, second.tip_id, entry.id)
    assert entry.details == {"read_files": ["f.py"], "modified_files": []}
    assert "f.py" in entry.summary
    assert fixture.writes[-1] == [
        "branch.tip", "+branch_summary", "branch.tip", "entry.label", "-op.meta", "-op.state", "-op.preparation", "op.result", "lane.state",
    ]  # fmt: skip
    asked = fixture.script.requests[-1]
    assert "[User] two" in texts(asked)[0]
    assert "[User] one" not in texts(asked)[0]
    assert "Result of" not in texts(asked)[0]
    assert (asked.options.max_tokens, asked.options.reasoning) == (2_048, None)
    await fixture.lane.prompt("three")
    assert "Another branch" in texts(fixture.script.requests[-1])[2]
    await fixture.check()


async def test_an_empty_branch_needs_no_request(lane_of: Any) -> None:
    """N-05: a fixed text is stored, and the tip moves to it."""
    fixture = await lane_of(text("a"))
    result = await fixture.lane.prompt("one")
    await fixture.lane.navigate(result.tip_id, summarize=True)
    assert len(fixture.script.requests) == 1
    entry = await fixture.lane.find_entry()
    assert isinstance(entry, BranchSummaryEntry)
    assert "nothing to summarise" in entry.summary


async def test_handlers_decline_or_supply_a_branch_summary(lane_of: Any) -> None:
    """N-07, N-08: declined and failed moves leave the tip and set no label."""
    fixture = await lane_of(text("a"), text("b"), error("no", kind="auth"))
    first = await fixture.lane.prompt("one")
    tip = (await fixture.lane.prompt("two")).tip_id
    assert (await fixture.lane.navigate(first.tip_id, summarize=True, label="x")).status == "failed"
    remove = fixture.harness.hooks.on("before_navigation", lambda event: Decline())
    assert (await fixture.lane.navigate(first.tip_id, summarize=True, label="x")).status == "declined"
    remove()
    assert await fixture.lane.get_tip() == tip
    assert await fixture.harness.get_label(first.tip_id) is None
    fixture.harness.hooks.on("before_navigation", lambda event: Supply("mine"))
    await fixture.lane.navigate(first.tip_id, summarize=True, label="x")
    entry = await fixture.lane.find_entry()
    assert isinstance(entry, BranchSummaryEntry)
    assert (entry.summary, entry.from_hook) == ("mine", True)
    await fixture.check()


async def test_a_tool_cannot_move_the_tip_under_its_own_result(lane_of: Any) -> None:
    """B93, B10: a navigation or a compaction from inside a run is refused, and the tool reads why."""
    async def move(args: Any) -> str:
        await fixture.lane.navigate(None)
        return "moved"

    fixture = await lane_of(call("move"), text("ok"), tools=[tool("move", move)])
    await fixture.lane.prompt("go")
    assert "busy" in (await fixture.history())[2]
    await fixture.check()
