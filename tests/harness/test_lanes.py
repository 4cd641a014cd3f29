"""Several lanes over one history, and what is asked of a lane's settings."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from harness.conftest import Fixture, Opener, tool, until
from harness.double import Scripted, call, text, texts
from laneway.errors import BranchExists, SessionError, SessionLocked
from laneway.harness import AgentHarness, UnknownTarget
from laneway.llm.base import StreamOptions
from laneway.messages import SystemMessage
from laneway.session import Session
from laneway.storage.base import CustomEntry
from laneway.storage.memory import MemoryStorage
from laneway.storage.sqlite import SqliteStorage
from laneway.testing import RecordingStorage


async def test_a_lane_is_created_once(lane_of: Opener) -> None:
    """R-05: two at once give the same object; tip, configuration and record in one commit; one event."""
    fixture: Fixture = await lane_of()
    first, second = await asyncio.gather(fixture.harness.lane("new"), fixture.harness.lane("new"))
    assert first is second
    assert fixture.writes == [["branch.tip", "lane.config", "lane.state"]]
    assert [(event.lane, event.at) for event in fixture.told("lane_created")] == [("new", None)]
    for name in ("", "a\0b"):
        with pytest.raises(ValueError, match="cannot be called"):
            await fixture.harness.lane(name)
    with pytest.raises(UnknownTarget):
        await fixture.harness.lane("lost", create_at="nowhere")


async def test_a_data_branch_becomes_a_lane_at_its_own_tip(lane_of: Opener) -> None:
    """04 section 3: the tip is kept, `create_at` is ignored; while it is a lane nobody else appends to it."""
    fixture: Fixture = await lane_of(text("ok"))
    session = fixture.harness.session
    branch = await session.create_branch("data")
    tip = await branch.append_message("from before")
    lane = await fixture.harness.lane("data", create_at=None)
    assert await lane.get_tip() == tip
    with pytest.raises(SessionError):
        await branch.append_message("behind its back")
    await lane.prompt("go")
    assert texts(fixture.script.requests[0]) == ["user:from before", "user:go"]


async def test_lanes_run_at_once_and_apart(lane_of: Opener) -> None:
    """M-01, M-05, M-06, B06: shared ancestry, own paths, own queues, own provider session."""
    gates = asyncio.Event()
    fixture: Fixture = await lane_of(text("root"), text("a", gate=gates), text("b", gate=gates))
    await fixture.lane.prompt("start")
    other = await fixture.harness.lane("review", create_at=await fixture.lane.get_tip())
    running = [asyncio.ensure_future(fixture.lane.prompt("left")), asyncio.ensure_future(other.prompt("right"))]
    await until(lambda: len(fixture.script.requests) == 3)
    infos = await fixture.harness.lanes()
    assert [(info.name, info.operation.status) for info in infos] == [("main", "running"), ("review", "running")]
    await fixture.lane.next_run("only main")
    gates.set()
    await asyncio.gather(*running)
    assert (await fixture.history())[:3] == ["user:start", "assistant:root", "user:left"]
    assert [e.message.role for e in await other.find_entries(order="oldest_first")] == ["user", "assistant", "user", "assistant"]
    assert {request.options.session_id.split(":")[1] for request in fixture.script.requests} == {"main", "review"}
    watch = await other.watch()
    assert watch.snapshot.queues == []


async def test_a_slow_provider_of_one_lane_does_not_hold_up_another(lane_of: Opener) -> None:
    """M-02: only commits stand in one line."""
    gate = asyncio.Event()
    fixture: Fixture = await lane_of(text("slow", gate=gate), text("quick"))
    other = await fixture.harness.lane("other")
    slow = asyncio.ensure_future(fixture.lane.prompt("go"))
    await until(lambda: fixture.script.requests)
    assert (await other.prompt("go")).status == "completed"
    gate.set()
    assert (await slow).status == "completed"


async def test_lane_settings_are_durable_and_harness_settings_are_not(lane_of: Opener) -> None:
    """R-07, R-08: the lane keeps its model, level and tools; policies come from the next `create`."""
    fixture: Fixture = await lane_of(tools=[tool("a"), tool("b")])
    await fixture.lane.set_model("test/other")
    await fixture.lane.set_thinking_level("high")
    await fixture.lane.set_active_tools(["b"])
    await fixture.harness.set_steering_mode("one-at-a-time")
    changes = [(event.property, event.lane) for event in fixture.told("config_update")]
    assert changes == [("model", "main"), ("thinking_level", "main"), ("active_tools", "main"), ("steering_mode", None)]
    with pytest.raises(ValueError, match="thinking level"):
        await fixture.lane.set_thinking_level("enormous")
    await fixture.reopen()
    assert (await fixture.lane.inspect()).configured_model == "test/other"
    assert await fixture.lane.get_thinking_level() == "high"
    assert await fixture.lane.get_active_tools() == ["b"]
    assert await fixture.harness.get_steering_mode() == "all"


async def test_a_change_of_model_holds_from_the_next_step(lane_of: Opener) -> None:
    """04 section 4: a step asks with what it captured."""
    async def change(args: Any) -> str:
        await fixture.lane.set_thinking_level("high")
        return "changed"

    fixture: Fixture = await lane_of(call("change"), text("ok"), tools=[tool("change", change)], stream_options=StreamOptions(temperature=0.3))
    await fixture.lane.prompt("go")
    assert [request.options.reasoning for request in fixture.script.requests] == [None, "high"]
    assert fixture.script.requests[1].options.temperature == 0.3


async def test_prompt_and_tools_come_first_in_every_request(lane_of: Opener) -> None:
    """The context grows at its tail only: a request is a prefix of the next one."""
    fixture: Fixture = await lane_of(call("t"), call("t"), text("a"), text("b"), tools=[tool("t")], system_prompt=lambda: "be kind")
    await fixture.lane.prompt("one")
    await fixture.lane.prompt("two")
    requests = [request.messages for request in fixture.script.requests]
    assert isinstance(requests[0][0], SystemMessage)
    assert (requests[0][0].content, [d.name for d in requests[0][0].tools_added or ()]) == ("be kind", ["t"])
    for earlier, later in itertools.pairwise(requests):
        assert later[: len(earlier)] == earlier


async def test_custom_entries_enter_the_context_through_a_projector(lane_of: Opener) -> None:
    """E-06, Q-10: a projecting write is answered like a message."""
    def project(entry: CustomEntry) -> Any:
        from laneway.messages import UserMessage

        return UserMessage(content=f"note: {entry.data}", timestamp=0)

    fixture: Fixture = await lane_of(text("a"), text("b"), entry_projectors={"note": project})
    await fixture.lane.append_custom_entry("note", "x")
    await fixture.lane.append_custom_entry("other", "y")
    await fixture.lane.prompt("go")
    assert texts(fixture.script.requests[0]) == ["user:note: x", "user:go"]


async def test_a_projector_that_raises_is_reported_and_left_out(lane_of: Opener) -> None:
    """Promise 4: a user's fault never stops the harness; threshold, request and compaction go on without the entry."""

    async def broken(entry: CustomEntry) -> Any:
        raise ValueError("cannot project")

    fixture: Fixture = await lane_of(text("a"), text("## Goal\nsummary"), entry_projectors={"note": broken})
    await fixture.lane.append_custom_entry("note", "x")
    assert (await fixture.lane.prompt("go")).status == "completed"
    assert texts(fixture.script.requests[0]) == ["user:go"]
    assert fixture.told("handler_error")[0].name == "entry projector note"
    assert (await fixture.lane.compact()).status == "completed"


async def test_names_and_labels(lane_of: Opener) -> None:
    """R-01, R-02: set, told, removed; a label needs no entry."""
    fixture: Fixture = await lane_of()
    await fixture.harness.set_name("x")
    await fixture.harness.set_label("nowhere", "y")
    assert (await fixture.harness.get_name(), await fixture.harness.get_label("nowhere")) == ("x", "y")
    await fixture.harness.set_name(None)
    await fixture.harness.set_label("nowhere", None)
    assert (await fixture.harness.get_name(), await fixture.harness.get_label("nowhere")) == (None, None)
    assert [(event.value, event.text) for event in fixture.told("value_update")] == [
        ("session_name", "x"), ("entry_label", "y"), ("session_name", None), ("entry_label", None),
    ]  # fmt: skip


async def test_records_are_known_from_every_lane(lane_of: Opener) -> None:
    """R-10, R-11: None for what is open or unknown; an empty lane has no entries."""
    fixture: Fixture = await lane_of(text("ok"))
    other = await fixture.harness.lane("other")
    result = await fixture.lane.prompt("go")
    assert await other.get_result(result.operation_id) == result
    assert await other.get_result("unknown") is None
    assert await other.find_entries() == []
    assert await other.find_entry() is None
    assert (await fixture.lane.find_entry(limit=5)).id == result.tip_id


async def test_two_harnesses_on_one_session_do_not_share_a_lane(lane_of: Any) -> None:
    """A second harness is refused before it writes anything; another lane it may have; a lane that was let go can be taken."""
    store = MemoryStorage()
    recording = RecordingStorage(store)
    session = Session.over(recording)
    script = Scripted([text("a"), text("b"), text("c")])
    options: dict[str, Any] = {"session": session, "model": script.model, "stream_fn": script.stream_fn}
    first, _ = await AgentHarness.create(**options)
    second, _ = await AgentHarness.create(**options)
    lane = await first.lane("main")
    await lane.next_run("kept")
    before = len(recording.commits)
    with pytest.raises(BranchExists, match="live owner"):
        await second.lane("main")
    with pytest.raises(BranchExists, match="live owner"):
        await AgentHarness.create(**options)
    assert len(recording.commits) == before
    other = await second.lane("other")
    ended = await asyncio.gather(lane.prompt("one"), other.prompt("two"))
    assert [result.status for result in ended] == ["completed", "completed"]
    assert [m.content for m in script.requests[0].messages if m.role == "user"] == ["kept", "one"]
    with pytest.raises(UnknownTarget):
        await second.lane("third", create_at="nowhere")
    assert (await (await first.lane("third")).prompt("three")).status == "completed"
    await first.close()
    await second.close()


async def test_two_harnesses_on_one_file_are_refused_by_the_store(tmp_path: Path) -> None:
    """B80: the second opening fails with the owner's name, in this process or another."""
    storage = await SqliteStorage.open(tmp_path / "s.sqlite")
    script = Scripted([text("a")])
    harness, _ = await AgentHarness.create(session=Session.over(storage), model=script.model, stream_fn=script.stream_fn)
    with pytest.raises(SessionLocked):
        await SqliteStorage.open(tmp_path / "s.sqlite")
    assert (await (await harness.lane("main")).prompt("go")).status == "completed"
    await harness.close()
