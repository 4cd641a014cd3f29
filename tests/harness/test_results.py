"""A call has one result, and a result has a size."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from harness.conftest import Opener, tool
from harness.double import Scripted, call, calls, text
from laneway.errors import DuplicateToolResult
from laneway.harness import AgentHarness, Err, Prompt, Suspend
from laneway.messages import AssistantMessage, TextContent, ToolCall, ToolResult, ToolResultMessage, UserMessage
from laneway.session import Session
from laneway.storage.base import InsertEntry, MessageEntry, SetValue
from laneway.storage.memory import MemoryStorage
from laneway.storage.sqlite import SqliteStorage
from laneway.tools.base import current_host


def result(call_id: str, said: str = "again") -> ToolResultMessage:
    """A result that comes from outside."""
    return ToolResultMessage(tool_call_id=call_id, tool_name="t", content=[TextContent(text=said)], is_error=False)


# ---------------------------------------------------------------------------------------------------- one


async def test_a_second_result_is_refused_at_every_door(lane_of: Opener) -> None:
    """B32: the session stays one that every provider accepts; nothing is written, nothing breaks."""
    fixture = await lane_of(call("t", call_id="k"), text("ok"), text("on"), tools=[tool("t")])
    await fixture.lane.prompt("go")
    fixture.recording.commits.clear()
    lane = fixture.lane
    for attempt in (
        lane.append_message(result("k")), lane.prompt([result("k")]), lane.steer(result("k")), lane.follow_up(result("k")),
        lane.next_run(result("k")),
    ):  # fmt: skip
        with pytest.raises(DuplicateToolResult, match=r"k cannot be answered again, it has its result already \(entry "):
            await attempt
    refused = await lane.accept(Prompt([UserMessage(content="x"), result("k")]))
    assert isinstance(refused, Err)
    assert isinstance(refused.error, DuplicateToolResult)
    assert fixture.recording.commits == []
    assert (await lane.prompt("on")).status == "completed"
    await fixture.check()


async def test_a_result_that_will_come_is_not_to_be_anticipated(lane_of: Opener) -> None:
    """B32: the call runs, in this process or a later one; its own result follows."""
    started, gate = asyncio.Event(), asyncio.Event()

    async def slow(args: Any) -> str:
        started.set()
        await gate.wait()
        return "mine"

    fixture = await lane_of(call("t", call_id="k"), text("ok"), tools=[tool("t", slow)])
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await started.wait()
    with pytest.raises(DuplicateToolResult, match="its result will follow"):
        await fixture.lane.append_message(result("k"))
    gate.set()
    await running
    assert (await fixture.history())[2] == "tool_result:mine"


async def test_one_answer_from_outside_is_taken_and_only_one(lane_of: Opener) -> None:
    """B32: a host may answer a call that nobody here ran; queued twice, or twice in one input, it is refused."""
    fixture = await lane_of(text("ok"))
    asked = AssistantMessage(
        content=[ToolCall(id="a", name="t", arguments={}), ToolCall(id="b", name="t", arguments={})], api="x", provider="p", model="m",
        stop_reason="tool_use",
    )  # fmt: skip
    await fixture.lane.append_message(asked)
    with pytest.raises(DuplicateToolResult, match="the same input"):
        await fixture.lane.prompt([result("a"), result("a")])
    await fixture.lane.next_run(result("a", "first"))
    with pytest.raises(DuplicateToolResult, match="is queued"):
        await fixture.lane.next_run(result("a", "second"))
    assert (await fixture.lane.prompt([result("b", "other")])).status == "completed"
    assert (await fixture.history())[1:] == ["tool_result:first", "tool_result:other", "assistant:ok"]
    with pytest.raises(DuplicateToolResult):
        await fixture.lane.append_message(result("a"))


async def test_what_older_programs_stored_twice_is_sent_once(lane_of: Opener) -> None:
    """B32: the request holds the first result alone."""
    store = MemoryStorage()
    asked = AssistantMessage(content=[ToolCall(id="k", name="t", arguments={})], api="x", provider="p", model="m", stop_reason="tool_use")
    messages = [UserMessage(content="go"), asked, result("k", "A"), result("k", "interrupted")]
    entries = [MessageEntry(id=f"e{i}", parent_id=f"e{i - 1}" if i else None, message=message) for i, message in enumerate(messages)]
    await store.commit([*(InsertEntry(entry) for entry in entries), SetValue("branch.tip", "main", "e3")])
    script = Scripted([text("ok")])
    harness, _ = await AgentHarness.create(session=Session.over(store), model=script.model, stream_fn=script.stream_fn)
    assert (await (await harness.lane("main")).prompt("on")).status == "completed"
    sent = [message for message in script.requests[0].messages if isinstance(message, ToolResultMessage)]
    assert ["".join(getattr(block, "text", "") for block in message.content) for message in sent] == ["A"]
    await harness.close()


# ---------------------------------------------------------------------------------------------------- of a size


@pytest.mark.parametrize("details", ["z" * 50_000_000, {"log": "z" * 50_000_000}, ["z" * 1000] * 50_000])
async def test_details_of_any_shape_have_a_limit(tmp_path: Path, details: Any) -> None:
    """B95: text of 1 KB and details of 50 MB: a small file, and a session that opens at once."""
    given = ToolResult(content=[TextContent(text="x" * 1024)], details=details)
    path = tmp_path / "s.sqlite"
    script = Scripted([call("t"), text("ok"), text("again")])
    for prompt in ("go", "on"):
        began = time.monotonic()
        session = Session.over(await SqliteStorage.open(path))
        harness, _ = await AgentHarness.create(session=session, model=script.model, stream_fn=script.stream_fn, tools=[tool("t", lambda args: given)])
        lane = await harness.lane("main")
        assert time.monotonic() - began < 5
        assert (await lane.prompt(prompt)).status == "completed"
        await harness.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1_000_000


async def test_a_checkpoint_has_the_same_limit_and_a_memo_says_so(lane_of: Opener) -> None:
    """B95: what is shown becomes a note of its size; what the tool will rely on is refused, never changed."""
    refused: list[str] = []

    async def work(args: Any) -> str:
        host = current_host()
        assert host is not None
        await host.update(ToolResult(details="z" * 5_000_000), True)
        stored.append(await fixture.storage.scan_values("pending.tool_output"))
        with pytest.raises(Exception, match="at most 1048576") as caught:
            await host.set_memo("big", "z" * 5_000_000)
        refused.append(str(caught.value))
        assert await host.get_memo("big") is None
        return "ok"

    stored: list[Any] = []
    fixture = await lane_of(call("t"), text("ok"), tools=[tool("t", work)])
    await fixture.lane.prompt("go")
    assert (await fixture.history())[2] == "tool_result:ok"
    assert "omitted" in repr(stored[0][0].value)
    assert len(refused) == 1


async def test_arguments_are_never_cut(lane_of: Opener) -> None:
    """B95: a call that waits for approval runs with what the model wrote, or the person, whatever its size."""
    got: list[Any] = []
    long = "z" * 3_000_000
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    fixture = await lane_of(
        calls(call("w", {"text": long}), call("w", {"text": "short"})), text("ok"),
        tools=[tool("w", lambda args: got.append(args["text"]) or "ok", parameters=schema)],
    )  # fmt: skip
    fixture.harness.hooks.on("before_tool", lambda event: Suspend("sure?", {"shown": "y" * 3_000_000}))
    waiting = await fixture.lane.prompt("go")
    assert "omitted" in waiting.calls[0].payload
    await fixture.lane.approve(waiting.calls[0].tool_call_id)
    await fixture.lane.approve(waiting.calls[1].tool_call_id, {"text": long + "!"})
    await fixture.lane.resume()
    assert sorted(len(each) for each in got) == [3_000_000, 3_000_001]
