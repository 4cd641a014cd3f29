"""What the next process does with what it finds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.conftest import Fixture, tool, until
from harness.double import call, calls, error, text, texts
from laneway.errors import HarnessFault
from laneway.harness import Prompt, RetryPolicy, Waiting
from laneway.messages import AssistantMessage, TextContent, ToolResult, Usage
from laneway.storage.base import SetValue, UsageScan
from laneway.tools.base import current_host


async def killed_in(fixture: Fixture, running: asyncio.Event, prompt: str = "go", **changes: Any) -> None:
    """Start a prompt, end the process when `running` is set, start the next."""
    prompting = asyncio.ensure_future(fixture.lane.prompt(prompt))
    await running.wait()
    await fixture.reopen(**changes)
    await asyncio.gather(prompting, return_exceptions=True)


async def test_opening_runs_and_tells_nothing(lane_of: Any) -> None:
    """K-02: what is open is reported; only a drive goes on with it."""
    fixture = await lane_of(text("ok"))
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    await fixture.reopen()
    (found,) = fixture.open_operations
    assert (found.lane, found.operation_id, found.kind, found.aborting) == ("main", admission.operation_id, "run", False)
    assert (fixture.events, fixture.recording.commits) == ([], [])
    asked: list[Any] = []
    fixture.harness.hooks.on("before_run", lambda event: asked.append([m.content for m in event.prompt]))
    assert (await fixture.lane.resume()).status == "completed"
    assert asked == [["go"]]


async def test_a_step_keeps_what_it_captured(lane_of: Any) -> None:
    """K-05: the next process has other defaults; the step asks with its own."""
    from laneway.llm.base import StreamOptions

    fixture = await lane_of(text("ok"), stream_options=StreamOptions(temperature=0.1), thinking_level="off")
    reached = asyncio.Event()

    async def stop_here(event: Any) -> None:
        reached.set()
        await event.signal.wait()

    fixture.harness.hooks.on("before_request", stop_here)
    await killed_in(fixture, reached, stream_options=StreamOptions(temperature=0.9))
    assert (await fixture.lane.inspect()).at == "assistant.ready"
    asked: list[Any] = []
    fixture.harness.hooks.on("before_request", lambda event: asked.append((event.step, event.attempt)))
    await fixture.lane.resume()
    assert fixture.script.requests[0].options.temperature == 0.1
    assert asked == [("assistant", 1)]


async def test_a_request_under_way_is_never_sent_again(lane_of: Any) -> None:
    """K-06, B74: the response is settled as interrupted under its reserved ids; the retry is a new attempt."""
    fixture = await lane_of(text("never seen", gate=asyncio.Event()), text("second"))
    asked = asyncio.Event()
    fixture.harness.events.on("message_start", lambda event: asked.set() if event.message.role == "assistant" else None)
    await killed_in(fixture, asked)
    assert (await fixture.lane.inspect()).at == "assistant.effect_pending"
    assert (await fixture.lane.resume()).status == "completed"
    assert fixture.trace == [
        "message_start(rec)", "message_end(rec)", "entry_added(rec)", "usage", "retry_scheduled(rec)", "retry_start", "message_start",
        "message_end", "entry_added", "usage", "retry_end", "turn_end", "run_end",
    ]  # fmt: skip
    lost = fixture.events[1].message
    assert (lost.content, lost.api, lost.stop_reason, lost.usage) == ([], "unknown", "error", Usage())
    assert texts(fixture.script.requests[1]) == ["user:go"]
    await fixture.check()


async def test_committed_frames_become_the_partial(lane_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """K-07: text and calls of the frames are kept, nothing in them is executed, after_response is not asked."""
    monkeypatch.setattr("laneway.harness._frames.FLUSH_AFTER", 0.0)
    ran: list[int] = []
    fixture = await lane_of(
        calls(call("t", n=1), call("t", n=2), call("t", n=3), text="I will call", gate=asyncio.Event()), text("second"),
        tools=[tool("t", lambda args: ran.append(1) or "ok")],
    )  # fmt: skip
    prompting = asyncio.ensure_future(fixture.lane.prompt("go"))
    await until(lambda: [w for commit in fixture.recording.commits for w in commit if getattr(w, "namespace", "") == "pending.assistant_frames"])
    await fixture.reopen()
    await asyncio.gather(prompting, return_exceptions=True)
    asked: list[Any] = []
    fixture.harness.hooks.on("after_response", lambda event: asked.append(event.message.text))
    await fixture.lane.resume()
    lost = fixture.told("message_end")[0].message
    assert lost.text == "I will call"
    assert [(c.name, c.arguments) for c in lost.tool_calls] == [("t", {"n": 1}), ("t", {})]  # the second had just begun
    assert ran == []
    assert asked == ["second"]
    assert await fixture.storage.read_list("pending.assistant_frames", "x") == []
    await fixture.check()


async def test_no_attempt_left_after_a_crash_fails_the_run(lane_of: Any) -> None:
    """K-06: with retries switched off an interrupted response is the end."""
    fixture = await lane_of(text("never", gate=asyncio.Event()), retry=RetryPolicy(enabled=False))
    asked = asyncio.Event()
    fixture.harness.events.on("message_start", lambda event: asked.set() if event.message.role == "assistant" else None)
    await killed_in(fixture, asked)
    result = await fixture.lane.resume()
    assert (result.status, result.error.code) == ("failed", "assistant_error")
    await fixture.check()


async def test_a_retry_wait_is_kept(lane_of: Any) -> None:
    """K-10, B76: the stored time holds; what is past is due at once; the attempt counts on."""
    now = [1_000]
    fixture = await lane_of(error("busy", kind="overloaded"), text("ok"), retry=RetryPolicy(base_delay=5.0), clock=lambda: now[0])
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    await fixture.lane.drive(admission.operation_id)
    await fixture.reopen()
    waiting = (await fixture.lane.drive(admission.operation_id)).unwrap()
    assert isinstance(waiting, Waiting)
    assert waiting.not_before == 6_000
    now[0] = 7_000
    await fixture.lane.drive(admission.operation_id)
    assert fixture.told("retry_end")[0].attempt == 2


async def test_planned_calls_run_as_if_nothing_had_happened(lane_of: Any) -> None:
    """K-11: no recovery mark, each once."""
    ran: list[int] = []
    fixture = await lane_of(calls(call("t", n=1), call("t", n=2)), text("ok"), tools=[tool("t", lambda args: ran.append(args["n"]) or "ok")])
    reached = asyncio.Event()

    async def stop_here(event: Any) -> None:
        reached.set()
        await event.signal.wait()

    fixture.harness.hooks.on("before_tool", stop_here)
    await killed_in(fixture, reached)
    await fixture.lane.resume()
    assert ran == [1, 2]
    assert not any(event.recovery for event in fixture.events)


async def test_a_call_under_way_is_not_run_again(lane_of: Any) -> None:
    """K-13: an error result says that it may have done its work; the turn goes on."""
    started, ran = asyncio.Event(), list[int]()

    async def slow(args: Any) -> str:
        ran.append(1)
        started.set()
        await asyncio.sleep(60)
        return "late"

    fixture = await lane_of(call("slow"), text("ok"), tools=[tool("slow", slow)])
    await killed_in(fixture, started)
    await fixture.lane.resume()
    assert ran == [1]
    assert fixture.trace[:6] == [
        "turn_start(rec)", "tool_end(rec)", "message_start(rec)", "message_end(rec)", "entry_added(rec)", "turn_end(rec)",
    ]  # fmt: skip
    assert "tool_start" not in fixture.trace[:6]
    ended = fixture.told("tool_end")[0]
    assert ended.is_error is True
    assert "Interrupted" in ended.result.content[0].text
    await fixture.check()


async def test_a_checkpoint_is_kept_in_the_interrupted_result(lane_of: Any) -> None:
    """K-14, P-29: content, details and usage of the last checkpoint, and the marker."""
    started = asyncio.Event()
    cost = Usage(input=2, total_tokens=2)

    async def slow(args: Any) -> str:
        host = current_host()
        assert host is not None
        for percent in (10, 50):
            await host.update(ToolResult(content=[TextContent(text=f"{percent}%")], details={"p": percent}, usage=cost), True)
        started.set()
        await asyncio.sleep(60)
        return "late"

    fixture = await lane_of(call("slow"), text("ok"), tools=[tool("slow", slow)])
    await killed_in(fixture, started)
    await fixture.lane.resume()
    result = fixture.told("turn_end")[0].tool_results[0]
    assert result.content[0].text == "50%"
    assert "Interrupted" in result.content[1].text
    assert result.details == {"p": 50}
    assert [row.usage.total_tokens for row in await fixture.storage.scan_usage(UsageScan())] == [15, 2, 15]
    await fixture.check()


@pytest.mark.parametrize("changed", [False, True])
async def test_a_safe_call_is_run_again_unless_the_tool_changed_its_mind(lane_of: Any, changed: bool) -> None:
    """K-15, K-16: stored arguments, same key, no hook; a tool that is not safe any more reports the interruption."""
    started = asyncio.Event()
    keys: list[str] = []
    seen: list[Any] = []

    async def work(args: Any) -> str:
        host = current_host()
        assert host is not None
        keys.append(host.idempotency_key)
        seen.append((args, await host.get_memo("step")))
        await host.set_memo("step", len(keys))
        if len(keys) == 1:
            started.set()
            await asyncio.sleep(60)
        return "done"

    fixture = await lane_of(call("work", n=3), text("ok"), tools=[tool("work", work, replay="safe")])
    asked: list[Any] = []
    fixture.harness.hooks.on("before_tool", lambda event: asked.append(event))
    await killed_in(fixture, started, tools=[tool("work", work, replay="never" if changed else "safe")])
    fixture.harness.hooks.on("before_tool", lambda event: asked.append(event))
    await fixture.lane.resume()
    assert len(asked) == 1
    if changed:
        assert seen == [({"n": 3}, None)]
    else:
        assert seen == [({"n": 3}, None), ({"n": 3}, 1)]
        assert keys[0] == keys[1]
        assert fixture.trace[:3] == ["turn_start(rec)", "tool_start(rec)", "tool_end(rec)"]
    await fixture.check()


async def test_a_tool_that_is_gone_becomes_a_readable_error(lane_of: Any) -> None:
    """Code changed between crash and resume: the planned call of a renamed tool settles as an error."""
    reached = asyncio.Event()

    async def stop_here(event: Any) -> None:
        reached.set()
        await event.signal.wait()

    fixture = await lane_of(call("old"), text("ok"), tools=[tool("old")])
    fixture.harness.hooks.on("before_tool", stop_here)
    await killed_in(fixture, reached, tools=[tool("new")])
    assert (await fixture.lane.resume()).status == "completed"
    assert "unavailable" in (await fixture.history())[2]


async def test_a_staged_result_is_placed_without_its_tool(lane_of: Any) -> None:
    """K-17: placement looks up neither the tool nor its context."""
    fast_done, running = asyncio.Event(), list[int]()

    async def slow(args: Any) -> str:
        running.append(1)
        await asyncio.sleep(60)
        return "late"

    async def context() -> Any:
        raise RuntimeError("no context here")

    fixture = await lane_of(calls(call("slow"), call("fast")), text("ok"), tools=[tool("slow", slow), tool("fast")])
    fixture.harness.events.on("tool_end", lambda event: fast_done.set())
    await killed_in(fixture, fast_done, tools=[], tool_context=context)
    await fixture.lane.resume()
    assert (await fixture.history())[3] == "tool_result:fast:"
    assert len(running) == 1
    await fixture.check()


async def test_a_finished_operation_is_known_by_its_record(lane_of: Any) -> None:
    """K-27: idle after reopening, nothing told again, the record is there."""
    fixture = await lane_of(text("ok"))
    result = await fixture.lane.prompt("go")
    await fixture.reopen()
    assert fixture.open_operations == []
    assert (await fixture.lane.drive(result.operation_id)).unwrap().record == result
    assert fixture.events == []
    assert (await fixture.lane.inspect()).last_operation_id == result.operation_id


async def test_the_queue_is_there_again(lane_of: Any) -> None:
    """K-30: also in a snapshot; nothing is told of it."""
    fixture = await lane_of(text("ok"))
    await fixture.lane.follow_up("f1")
    await fixture.reopen()
    watch = await fixture.lane.watch()
    assert [(item.kind, item.message.content) for item in watch.snapshot.queues] == [("follow_up", "f1")]
    assert fixture.events == []


async def test_an_abort_survives_a_crash(lane_of: Any) -> None:
    """K-28: a durable cancellation is carried out by the next drive, without any hook."""
    fixture = await lane_of()
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    await fixture.lane.steer("s1")
    await fixture.lane.request_abort(admission.operation_id)
    await fixture.reopen()
    assert fixture.open_operations[0].aborting is True
    asked: list[Any] = []
    for name in ("before_drive", "before_run"):
        fixture.harness.hooks.on(name, lambda event: asked.append(event))
    result = await fixture.lane.resume()
    assert (result.status, [m.content for m in result.drained.steer]) == ("aborted", ["s1"])
    assert asked == []


async def test_each_drive_of_a_running_operation_asks_before_drive_once(lane_of: Any) -> None:
    """K-35: also for a recovery pass; one that raises ends the pass, not the harness."""
    fixture = await lane_of(text("ok"))
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    await fixture.reopen()
    asked: list[Any] = []

    def handler(event: Any) -> None:
        asked.append(event.operation)
        if len(asked) == 1:
            raise ValueError("not ready")

    fixture.harness.hooks.on("before_drive", handler)
    with pytest.raises(ValueError, match="not ready"):
        await fixture.lane.drive(admission.operation_id)
    assert fixture.told("handler_error")[0].name == "before_drive"
    assert (await fixture.lane.inspect()).current.status == "open"
    assert (await fixture.lane.resume()).status == "completed"
    assert asked == ["run", "run"]


@pytest.mark.parametrize(
    ("namespace", "change", "named"),
    [
        ("op.meta", {"operation_id": "other"}, "op.meta"),
        ("op.meta", {"lane": "other"}, "op.meta"),
        ("op.state", {"at": "navigation.ready_to_commit", "target_id": None}, "op.state"),
        ("op.state", {"at": "nonsense"}, "op.state"),
        ("op.state", {"unknown": 1}, "op.state"),
        ("lane.config", {"model": 5}, "lane.config"),
        ("lane.state", {"inbox": "x"}, "lane.state"),
    ],
)
async def test_a_corrupt_value_is_named_and_nothing_is_written(lane_of: Any, namespace: str, change: dict[str, Any], named: str) -> None:
    """K-33: refused at the opening."""
    fixture = await lane_of()
    admission = (await fixture.lane.accept(Prompt("go"))).unwrap()
    await fixture.harness.close()
    fixture.storage = fixture.storage.reopen()
    key = admission.operation_id if namespace.startswith("op.") else "main"
    stored = (await fixture.storage.get_value(namespace, key)).value
    await fixture.storage.commit([SetValue(namespace, key, {**stored, **change})])
    fixture.recording.storage = fixture.storage
    fixture.recording.commits.clear()
    with pytest.raises(HarnessFault) as fault:
        await fixture.open()
    assert named in str(fault.value.__cause__)
    assert fixture.recording.commits == []


@pytest.mark.parametrize("missing", ["branch.tip", "lane.config", "lane.state"])
async def test_a_partial_lane_is_refused_by_the_name_of_what_is_missing(lane_of: Any, missing: str) -> None:
    """K-34: every part must be there, except for a branch that is data only."""
    from laneway.storage.base import DeleteValue

    fixture = await lane_of()
    await fixture.harness.close()
    fixture.storage = fixture.storage.reopen()
    await fixture.storage.commit([DeleteValue(missing, "main"), SetValue("branch.tip", "data", None)])
    fixture.recording.storage = fixture.storage
    with pytest.raises(HarnessFault) as fault:
        await fixture.open()
    assert f"{missing}/main is missing" in str(fault.value.__cause__)


async def test_an_aborted_final_answer_is_not_followed_by_its_tools_again(lane_of: Any) -> None:
    """B78: finished tools stay finished, however often one goes on."""
    ran: list[int] = []
    gate = asyncio.Event()
    fixture = await lane_of(
        call("t"), text("half", gate=gate), text("one"), text("two"), tools=[tool("t", lambda args: ran.append(1) or "ok")]
    )
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await until(lambda: len(fixture.script.requests) >= 2)
    await fixture.lane.abort()
    await running
    await fixture.lane.prompt("continue")
    await fixture.reopen()
    await fixture.lane.prompt("continue")
    assert ran == [1]
    responses = [e for e in await fixture.lane.find_entries() if isinstance(e.message, AssistantMessage)]
    assert len(responses) == 4
    await fixture.check()
