"""Values that cannot be: found when they are used, named, and nothing is written over them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.conftest import Fixture, Opener, tool, until
from harness.double import call, calls, text
from laneway.errors import HarnessFault
from laneway.harness import CompactionSettings, Prompt, Suspend
from laneway.storage.base import AppendList, DeleteList, DeleteValue, SetValue, Write


async def tampered(fixture: Fixture, *writes: Write) -> None:
    """End the process, change the store behind its back, start the next."""
    await fixture.harness.close()
    fixture.storage = fixture.storage.reopen()
    await fixture.storage.commit(writes)
    fixture.recording.storage = fixture.storage
    await fixture.open()


async def refused(fixture: Fixture, working: Any, *named: str) -> None:
    """The harness stops, says what is wrong, and has written nothing since the process began."""
    before = len(fixture.recording.commits)
    async with asyncio.timeout(10):
        with pytest.raises(HarnessFault) as fault:
            await working
    assert all(name in f"{fault.value} {fault.value.__cause__}" for name in named), repr(fault.value.__cause__)
    assert len(fixture.recording.commits) == before


GARBAGE: list[Any] = [5, {"nonsense": 1}, {"message": {"role": "user"}}, None]


@pytest.mark.parametrize("value", GARBAGE)
async def test_a_queued_payload_that_cannot_be_read(lane_of: Opener, value: Any) -> None:
    """K-33, M-08: the run that would place it stops before it writes."""
    fixture = await lane_of(text("ok"))
    entry_id = await fixture.lane.next_run("words")
    await tampered(fixture, SetValue("pending.entry", entry_id, value))
    await refused(fixture, fixture.lane.prompt("go"), "pending.entry", entry_id)


async def test_a_queued_payload_that_is_missing(lane_of: Opener) -> None:
    """04 §12: detected when it is used; the lane and the item are named."""
    fixture = await lane_of(text("ok"))
    entry_id = await fixture.lane.next_run("words")
    await tampered(fixture, DeleteValue("pending.entry", entry_id))
    await refused(fixture, fixture.lane.prompt("go"), "main", entry_id, "missing")


async def test_arguments_of_an_approved_call_that_are_missing(lane_of: Opener) -> None:
    """The call is not run with others."""
    ran: list[int] = []
    fixture = await lane_of(call("t", call_id="c1"), text("ok"), tools=[tool("t", lambda args: ran.append(1) or "ok")])
    fixture.harness.hooks.on("before_tool", lambda event: Suspend("sure?"))
    await fixture.lane.prompt("go")
    await fixture.lane.approve("c1")
    (stored,) = await fixture.storage.scan_values("op.tool_args")
    await tampered(fixture, DeleteValue("op.tool_args", stored.key))
    await refused(fixture, fixture.lane.resume(), "c1", "missing")
    assert ran == []


@pytest.mark.parametrize("value", [5, {"kind": "nonsense"}, None])
async def test_the_inputs_of_a_summary_that_cannot_be_read(lane_of: Opener, value: Any) -> None:
    """Nobody is asked for a summary of something else."""
    fixture = await lane_of(text("one"), compaction=CompactionSettings(keep_recent_tokens=1))
    await fixture.lane.prompt("go")
    fixture.harness.hooks.on("before_compaction", lambda event: asyncio.Event().wait())
    compacting = asyncio.ensure_future(fixture.lane.compact())
    await until(lambda: fixture.leaves[-1:] == ["summary.deciding"])
    (stored,) = await fixture.storage.scan_values("op.preparation")
    await tampered(fixture, SetValue("op.preparation", stored.key, value))
    await asyncio.gather(compacting, return_exceptions=True)
    fixture.harness.hooks.on("before_compaction", lambda event: None)
    await refused(fixture, fixture.lane.resume(), "op.preparation", stored.key)
    assert len(fixture.script.requests) == 1


async def test_frames_that_cannot_be_read(lane_of: Opener) -> None:
    """The partial response is not settled as something that nobody said."""
    fixture = await lane_of(text("half", gate=asyncio.Event()))
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await until(lambda: fixture.script.requests)
    await fixture.harness.close()
    await asyncio.gather(running, return_exceptions=True)
    fixture.storage = fixture.storage.reopen()
    (state,) = await fixture.storage.scan_values("op.state")
    key = f"{state.key}:{state.value['response_entry_id']}"
    await fixture.storage.commit([DeleteList("pending.assistant_frames", key), AppendList("pending.assistant_frames", key, {"no": "frame"})])
    fixture.recording.storage = fixture.storage
    await fixture.open()
    await refused(fixture, fixture.lane.resume(), "pending.assistant_frames", key)


async def test_a_checkpoint_that_cannot_be_read(lane_of: Opener) -> None:
    """What a tool had said is not made up."""
    started = asyncio.Event()

    async def slow(args: Any) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    fixture = await lane_of(call("t"), text("ok"), tools=[tool("t", slow)])
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    await started.wait()
    (state,) = await fixture.storage.scan_values("op.state")
    key = f"{state.key}:{state.value['batch']['calls'][0]['result_entry_id']}"
    await tampered(fixture, SetValue("pending.tool_output", key, {"content": 5}))
    await asyncio.gather(running, return_exceptions=True)
    await refused(fixture, fixture.lane.resume(), "pending.tool_output", key)


async def test_a_batch_whose_response_is_another_entry(lane_of: Opener) -> None:
    """A leaf that points at a user's message is named, not followed."""
    fixture = await lane_of(calls(call("t"), call("t")), text("ok"), tools=[tool("t")])
    fixture.harness.hooks.on("before_tool", lambda event: Suspend("sure?"))
    await fixture.lane.prompt("go")
    entries = await fixture.lane.find_entries(order="oldest_first")
    (state,) = await fixture.storage.scan_values("op.state")
    changed = {**state.value, "batch": {**state.value["batch"], "assistant_entry_id": entries[0].id}}
    await tampered(fixture, SetValue("op.state", state.key, changed))
    await refused(fixture, fixture.lane.resume(), entries[0].id)


async def test_a_record_that_cannot_be_read_is_named(lane_of: Opener) -> None:
    """Reading an old result is no reason to stop; it says which record is damaged."""
    fixture = await lane_of(text("ok"), text("on"))
    ended = await fixture.lane.prompt("go")
    await tampered(fixture, SetValue("op.result", ended.operation_id, {"kind": 5}))
    with pytest.raises(Exception, match=r"op\.result/") as caught:
        await fixture.lane.get_result(ended.operation_id)
    assert ended.operation_id in str(caught.value)
    assert (await fixture.lane.accept(Prompt("on"))).ok
