"""The scripts that are crashed at every commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from crash.enumeration import Script, drive_to_end
from crash.invariants import path
from crash.world import Reply, World, results_in, said_by_user
from laneway.harness import (
    AgentHarness,
    AgentLane,
    CompactionSettings,
    FollowUp,
    Inject,
    PatchResult,
    ReplaceArgs,
    RequestPatch,
    Suspend,
)
from laneway.messages import AssistantMessage, Message, UserMessage
from laneway.storage.base import CompactionEntry, MessageEntry
from laneway.tools.base import current_host, text_result


def _texts(messages: list[Message]) -> str:
    return "\n".join(said_by_user(messages))


async def _user_messages(world: World) -> list[str]:
    return [e.message.content for e in await path(world.storage) if isinstance(e, MessageEntry) and isinstance(e.message, UserMessage)]


async def _answers(world: World) -> list[str]:
    return [
        e.message.text
        for e in await path(world.storage)
        if isinstance(e, MessageEntry) and isinstance(e.message, AssistantMessage) and e.message.stop_reason == "stop"
    ]


async def _prompt_once(world: World, lane: AgentLane, text: str) -> None:
    """What a person does after a crash: go on with what is open; type again what was never accepted."""
    await drive_to_end(lane)
    if text not in await _user_messages(world):
        await lane.prompt(text)


# ---------------------------------------------------------------------------------------------------- two turns with tools


def _tools_world() -> World:
    def brain(messages: list[Message]) -> Reply:
        results = results_in(messages)
        if not results:
            return Reply(calls=[("write", {"n": 1})])
        if len(results) == 1:
            return Reply(text="more", calls=[("read", {"n": 2}), ("write", {"n": 3}), ("read", {"n": 4})])
        return Reply(text="done")

    return World(brain)


def _tools_options(world: World) -> dict[str, Any]:
    return {"tools": [world.tool("write"), world.tool("read", replay="safe")]}


async def _tools_play(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    await lane.prompt("go")


async def _tools_finish(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    await _prompt_once(world, lane, "go")


async def _tools_check(world: World) -> None:
    assert await _user_messages(world) == ["go"]
    assert (await _answers(world))[-1] == "done"
    writes = {e.id for e in await path(world.storage) if isinstance(e, MessageEntry) and getattr(e.message, "tool_name", "") == "write"}
    for key, times in world.executed.items():
        assert times == 1 or key not in writes, "a tool that must not be replayed ran twice"


TOOLS = Script("two turns with tools", _tools_world, _tools_play, _tools_finish, _tools_check, _tools_options)


# ---------------------------------------------------------------------------------------------------- queues


def _queue_world() -> World:
    def brain(messages: list[Message]) -> Reply:
        if not results_in(messages):
            return Reply(calls=[("work", {"n": 1}), ("work", {"n": 2})])
        return Reply(text=f"seen {len(said_by_user(messages))}")

    return World(brain)


def _queue_options(world: World) -> dict[str, Any]:
    return {"tools": [world.tool("work")], "steering_mode": "one-at-a-time", "follow_up_mode": "one-at-a-time"}


QUEUED = ("steer", "s1"), ("follow_up", "f1"), ("next_run", "n1"), ("steer", "s2"), ("follow_up", "f2")


async def _queue_all(world: World, lane: AgentLane) -> None:
    """Queue each message unless it is queued, or in the history, already."""
    watch = await lane.watch()
    known = {item.message.content for item in watch.snapshot.queues if isinstance(item.message, UserMessage)}
    watch.unsubscribe()
    known |= set(await _user_messages(world))
    for kind, text in QUEUED:
        if text not in known:
            await getattr(lane, kind)(text)


async def _queue_play(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    await _queue_all(world, lane)
    await lane.append_custom_entry("note", {"x": 1})
    await lane.prompt("go")
    await lane.prompt("again")


async def _queue_finish(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    await drive_to_end(lane)
    if "again" not in await _user_messages(world):
        if "go" not in await _user_messages(world):
            await _queue_all(world, lane)
            await _prompt_once(world, lane, "go")
        await _prompt_once(world, lane, "again")


async def _queue_check(world: World) -> None:
    said = await _user_messages(world)
    assert sorted(said) == sorted(["go", "again", *(text for _, text in QUEUED)]), said
    assert said.index("s1") < said.index("s2")
    assert said.index("f1") < said.index("f2")


QUEUES = Script("every queue, one at a time", _queue_world, _queue_play, _queue_finish, _queue_check, _queue_options)


# ---------------------------------------------------------------------------------------------------- retries


def _retry_world() -> World:
    def brain(messages: list[Message]) -> Reply:
        if len(world.requests) % 3 != 0:
            return Reply(text="par" * 10_000, error="overloaded")
        return Reply(text="fine" * 10_000)

    world = World(brain)
    return world


async def _retry_check(world: World) -> None:
    assert await _user_messages(world) == ["go"]


RETRIES = Script("two failures, then an answer", _retry_world, _tools_play, _tools_finish, _retry_check, lambda world: {})


# ---------------------------------------------------------------------------------------------------- abort


def _abort_world() -> World:
    def brain(messages: list[Message]) -> Reply:
        if not results_in(messages):
            return Reply(calls=[("slow", {"n": 1}), ("slow", {"n": 2})])
        return Reply(text="after")

    return World(brain)


async def _sleepy(world: World, call_id: str, args: Any, signal: Any, update: Any) -> Any:
    world.running.set()
    if world.hurry:
        return text_result("quick")
    await signal.wait()
    return text_result("stopped early")


def _abort_options(world: World) -> dict[str, Any]:
    return {"tools": [world.tool("slow", act=_sleepy)], "tool_execution": "sequential"}


async def _abort_play(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    accepted = (await lane.accept(_prompt("go"))).unwrap()
    driving = asyncio.ensure_future(lane.drive(accepted.operation_id))
    try:
        await lane.steer("s1")
        await lane.next_run("n1")
        running = asyncio.ensure_future(world.running.wait())
        await asyncio.wait((running, driving), return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        await lane.abort()
    finally:
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)


async def _abort_finish(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    if (await lane.inspect()).current is not None:
        await lane.abort()


def _prompt(text: str) -> Any:
    from laneway.harness import Prompt

    return Prompt(text)


async def _abort_check(world: World) -> None:
    assert all(times == 1 for times in world.executed.values())
    said = await _user_messages(world)
    records = await world.storage.scan_values("op.result")
    drained = [message["content"] for record in records for message in record.value.get("drained", {}).get("steer", ())]
    queued = [stored.value["message"]["content"] for stored in await world.storage.scan_values("pending.entry")]
    steered = [text for text in (*said, *drained, *queued) if text == "s1"]
    assert len(steered) <= 1, "a steering message was doubled"
    assert steered or not world.executed, "a steering message was lost"


ABORT = Script("an abort in the middle of a batch", _abort_world, _abort_play, _abort_finish, _abort_check, _abort_options)


# ---------------------------------------------------------------------------------------------------- approval


def _approval_world() -> World:
    return _tools_world()


def _approval_options(world: World) -> dict[str, Any]:
    return {"tools": [world.tool("write"), world.tool("read", replay="safe")]}


def _gate(harness: AgentHarness) -> None:
    harness.hooks.on("before_tool", lambda event: Suspend("sure?", {"tool": event.tool_name}) if event.tool_name == "write" else None)


async def _approval_play(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    _gate(harness)
    await lane.prompt("go")
    await drive_to_end(lane)


async def _approval_finish(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    _gate(harness)
    await _prompt_once(world, lane, "go")
    await drive_to_end(lane)


APPROVAL = Script("calls that wait for approval", _approval_world, _approval_play, _approval_finish, _tools_check, _approval_options)


# ---------------------------------------------------------------------------------------------------- compaction inside a run


def _compaction_world() -> World:
    def brain(messages: list[Message]) -> Reply:
        text = _texts(messages)
        if "<conversation>" in text:
            return Reply(text="## Goal\nthe summary")
        done = len(results_in(messages))
        if "<summary>" in text:
            return Reply(text="done")
        return Reply(text="x" * 4000, calls=[("work", {"n": done})], tokens=0)

    return World(brain)


def _compaction_options(world: World) -> dict[str, Any]:
    return {"tools": [world.tool("work")], "compaction": CompactionSettings(reserve_tokens=197_500, keep_recent_tokens=500)}


async def _long_work(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    await lane.prompt("go")


async def _compaction_check(world: World) -> None:
    entries = await path(world.storage)
    assert any(isinstance(entry, CompactionEntry) for entry in entries)
    assert (await _answers(world))[-1] == "done"


COMPACTION = Script("a threshold compaction inside a run", _compaction_world, _long_work, _tools_finish, _compaction_check, _compaction_options)


# ---------------------------------------------------------------------------------------------------- structural operations


def _structural_world() -> World:
    def brain(messages: list[Message]) -> Reply:
        if "<conversation>" in _texts(messages):
            return Reply(text="## Goal\nthe summary")
        return Reply(text=f"answer {len(said_by_user(messages))}")

    return World(brain)


async def _structural_play(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    await _prompt_once(world, lane, "one")
    await _prompt_once(world, lane, "two")
    await lane.compact("be brief")
    await _prompt_once(world, lane, "three")
    first = (await path(world.storage))[0]
    await lane.navigate(first.id, summarize=True, label="back")


async def _structural_finish(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    await drive_to_end(lane)


async def _structural_check(world: World) -> None:
    return


STRUCTURAL = Script(
    "compaction and navigation as operations", _structural_world, _structural_play, _structural_finish, _structural_check, lambda world: {}
)

# ---------------------------------------------------------------------------------------------------- every hook has a say


def _hooked(harness: AgentHarness) -> None:
    hooks = harness.hooks
    hooks.on("before_run", lambda event: Inject(messages=[UserMessage(content="injected")]))
    hooks.on("before_request", lambda event: RequestPatch(temperature=0.5))
    hooks.on("before_tool", lambda event: ReplaceArgs({**event.args, "n": event.args["n"] + 10}))
    hooks.on("after_tool", lambda event: PatchResult(details={"seen": True}))
    hooks.on("after_response", lambda event: None)
    hooks.on("before_run_end", lambda event: None if any(_is(m, "one more") for m in event.messages) else FollowUp("one more"))


def _is(message: Any, content: str) -> bool:
    return isinstance(message, UserMessage) and message.content == content


async def _hooked_play(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    _hooked(harness)
    await lane.prompt("go")


async def _hooked_finish(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    _hooked(harness)
    await _prompt_once(world, lane, "go")


async def _hooked_check(world: World) -> None:
    assert await _user_messages(world) == ["go", "injected", "one more"]


HOOKED = Script("a run in which every hook has a say", _tools_world, _hooked_play, _hooked_finish, _hooked_check, _tools_options)


# ---------------------------------------------------------------------------------------------------- checkpoints and memos


async def _careful(world: World, call_id: str, args: Any, signal: Any, update: Any) -> Any:
    """A tool that may run again, because it remembers what it did."""
    host: Any = current_host()
    for step in ("one", "two"):
        if await host.get_memo(step) is None:
            await host.set_memo(step, "done")
        await host.update(text_result(step), True)
    return text_result("both")


def _careful_world() -> World:
    def brain(messages: list[Message]) -> Reply:
        return Reply(text="done") if results_in(messages) else Reply(calls=[("careful", {"n": 1}), ("careful", {"n": 2})])

    return World(brain)


async def _careful_check(world: World) -> None:
    results = [e.message.content[0].text for e in await path(world.storage) if getattr(getattr(e, "message", None), "role", "") == "tool_result"]
    assert results == ["both", "both"]


CAREFUL = Script(
    "tools with checkpoints and memos", _careful_world, _tools_play, _tools_finish, _careful_check,
    lambda world: {"tools": [world.tool("careful", replay="safe", act=_careful)]},
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------- overflow


def _overflow_world() -> World:
    def brain(messages: list[Message]) -> Reply:
        text = _texts(messages)
        if "<conversation>" in text:
            return Reply(text="## Goal\nthe summary")
        if "<summary>" in text:
            return Reply(text="done")
        if len(said_by_user(messages)) == 1:
            return Reply(text="y" * 4000)
        return Reply(error="prompt is too long: 9 tokens > 1 maximum", kind="overflow")

    return World(brain)


async def _overflow_play(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    await _prompt_once(world, lane, "one")
    await _prompt_once(world, lane, "go")


async def _overflow_check(world: World) -> None:
    entries = await path(world.storage)
    assert sum(isinstance(entry, CompactionEntry) for entry in entries) == 1
    assert (await _answers(world))[-1] == "done"


OVERFLOW = Script(
    "an overflow answered by a compaction", _overflow_world, _overflow_play, _overflow_play, _overflow_check,
    lambda world: {"compaction": CompactionSettings(keep_recent_tokens=100)},
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------- an interrupting message


async def _interrupt_play(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    accepted = (await lane.accept(_prompt("go"))).unwrap()
    driving = asyncio.ensure_future(lane.drive(accepted.operation_id))
    running = asyncio.ensure_future(world.running.wait())
    try:
        await asyncio.wait((running, driving), return_when=asyncio.FIRST_COMPLETED)
        await lane.steer("stop that", interrupt=True)
        await driving
    finally:
        for task in (driving, running):
            task.cancel()
        await asyncio.gather(driving, running, return_exceptions=True)


async def _interrupt_finish(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    world.hurry = True
    await drive_to_end(lane)


async def _interrupt_check(world: World) -> None:
    assert all(times == 1 for times in world.executed.values())
    assert (await _user_messages(world)).count("stop that") <= 1


INTERRUPT = Script(
    "a message that stops the batch", _abort_world, _interrupt_play, _interrupt_finish, _interrupt_check, _abort_options
)


# ---------------------------------------------------------------------------------------------------- deferred responses


def _deferred_world() -> World:
    def brain(messages: list[Message]) -> Reply:
        if not messages:  # a poll
            return Reply(text="finally") if len(world.polls) % 2 == 0 else Reply(handle="d1")
        return Reply(handle="d1")

    world = World(brain)
    return world


async def _deferred_finish(world: World, harness: AgentHarness, lane: AgentLane) -> None:
    while (await lane.inspect()).current is not None:
        await lane.resume()
    if "go" not in await _user_messages(world):
        await lane.prompt("go")
        await _deferred_finish(world, harness, lane)


async def _deferred_check(world: World) -> None:
    assert await _answers(world) == ["finally"]
    assert await _user_messages(world) == ["go"]


DEFERRED = Script("a deferred response", _deferred_world, _deferred_finish, _deferred_finish, _deferred_check, lambda world: {})

SCRIPTS = (TOOLS, QUEUES, RETRIES, ABORT, APPROVAL, COMPACTION, STRUCTURAL, HOOKED, CAREFUL, OVERFLOW, INTERRUPT, DEFERRED)


# ---------------------------------------------------------------------------------------------------- with somebody who listens


def _listened(script: Script) -> Script:
    """The same script while somebody listens: commits that are one where nobody has a say are several then."""

    def heard(part: Callable[[World, AgentHarness, AgentLane], Awaitable[None]]) -> Callable[[World, AgentHarness, AgentLane], Awaitable[None]]:
        async def run(world: World, harness: AgentHarness, lane: AgentLane) -> None:
            harness.events.on("*", lambda event: None)
            await part(world, harness, lane)

        return run

    return replace(script, name=f"{script.name}, heard", play=heard(script.play), finish=heard(script.finish))


HEARD = tuple(_listened(script) for script in (TOOLS, QUEUES, RETRIES, ABORT, COMPACTION, INTERRUPT, CAREFUL))
