"""Layer 2 under callers that misbehave: nothing accepted is lost, the transcript can go on, the agent is idle and usable."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import Recorder, make_tool, texts, unsendable, user
from laneway import (
    Agent,
    AgentBusy,
    AssistantMessage,
    LoopInputError,
    LoopLimits,
    StreamOptions,
    TextContent,
    ToolResult,
    ToolResultMessage,
    WouldDeadlock,
)
from laneway.testing import Scripted, call, calls, error, text, truncated

HANG = 20.0


def agent_of(script: Scripted, *tools: Any, **options: Any) -> Agent:
    return Agent(model=script.model, stream_fn=script.stream_fn, tools=tools, **options)


def assert_whole(agent: Agent) -> None:
    """Promise 1 over the whole transcript, V, and an idle agent."""
    messages = agent.state.messages
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.stop_reason in ("stop", "tool_use", "length"):
            after = []
            for later in messages[index + 1 :]:
                if isinstance(later, AssistantMessage):
                    break
                if isinstance(later, ToolResultMessage):
                    after.append(later.tool_call_id)
            assert after == [c.id for c in message.tool_calls]
    assert unsendable(messages) == []
    assert not agent.state.is_streaming
    assert agent.state.pending_tool_calls == frozenset()
    assert agent.state.streaming_message is None


# ---------------------------------------------------------------------------------------------------- what is accepted


@pytest.mark.parametrize("nothing", [[], "", "  \n"], ids=repr)
async def test_a_prompt_of_nothing_is_refused(nothing: Any) -> None:
    """A request without anything to answer would be refused by every provider; nothing was changed."""
    script = Scripted([text("hm")])
    agent = agent_of(script, system_prompt="Be brief.")
    with pytest.raises(LoopInputError, match="empty"):
        await agent.prompt(nothing)
    with pytest.raises(LoopInputError, match="empty"):
        agent.steer(nothing)
    with pytest.raises(LoopInputError, match="empty"):
        agent.follow_up(nothing)
    assert script.requests == []
    assert not agent.has_queued_messages
    assert not agent.state.is_streaming


async def test_several_messages_may_be_queued_at_once() -> None:
    """Promise 3: what `prompt` takes, `steer` and `follow_up` take too; none of a list is dropped."""
    script = Scripted([text("a"), text("b"), text("c")])
    agent = agent_of(script)
    agent.steer([user("s1"), user("s2")])
    agent.follow_up([user("f1"), user("f2")])
    assert texts(agent.pending_messages().steering) == ["s1", "s2"]
    assert texts(agent.pending_messages().follow_up) == ["f1", "f2"]
    agent.steering_mode = agent.follow_up_mode = "all"
    await agent.prompt("go")
    assert texts(agent.state.messages) == ["go", "s1", "s2", "a", "f1", "f2", "b"]


async def test_stream_without_an_event_loop_takes_nothing_from_the_queue() -> None:
    """Promise 3: the call fails, the message is still there."""
    agent = agent_of(Scripted([]), messages=[user("u"), AssistantMessage(content=[TextContent(text="a")])])
    agent.steer("later")

    def outside() -> None:
        with pytest.raises(RuntimeError):
            agent.stream()

    thread = threading.Thread(target=outside)
    thread.start()
    thread.join()
    assert texts(agent.pending_messages().steering) == ["later"]
    assert not agent.state.is_streaming


async def test_options_of_the_stream_stay_where_the_agent_has_none() -> None:
    """A-19: thinking budgets of the agent do not erase the session id of its stream options, nor the other way round."""
    script = Scripted([text("a"), text("b")])
    agent = agent_of(script, stream_options=StreamOptions(session_id="s", thinking_budgets={"low": 1}), thinking_budgets={"low": 2})
    await agent.prompt("go")
    assert script.requests[0].options.session_id == "s"
    assert script.requests[0].options.thinking_budgets == {"low": 2}
    agent.thinking_budgets, agent.session_id = None, "t"
    await agent.prompt("go")
    assert script.requests[1].options.session_id == "t"
    assert script.requests[1].options.thinking_budgets == {"low": 1}


# ---------------------------------------------------------------------------------------------------- steering that cannot wait


async def test_a_plain_steer_behind_an_interrupting_one_cuts_nothing_short() -> None:
    """02-agent: plain `steer` never cuts a tool short, also when it waits behind a message that did."""
    began = asyncio.Event()

    async def slow(args: Any, signal: Any, update: Any) -> str:
        began.set()
        await asyncio.sleep(30 if args.get("long") else 0.01)
        return "whole"

    script = Scripted([calls(call("slow", long=True)), calls(call("slow")), text("ok")])
    agent = agent_of(script, make_tool("slow", slow))
    async with asyncio.timeout(HANG):
        going = asyncio.ensure_future(agent.prompt("go"))
        await began.wait()
        agent.steer("urgent", interrupt=True)
        agent.steer("by the way")
        await going
    results = [m for m in agent.state.messages if isinstance(m, ToolResultMessage)]
    assert [r.is_error for r in results] == [True, False]
    assert [t for t in texts(agent.state.messages) if t in ("urgent", "by the way")] == ["urgent", "by the way"]
    assert_whole(agent)


async def test_an_interrupting_steer_that_was_taken_back_stops_no_later_batch() -> None:
    """Cleared or delivered, its urgency goes with it."""
    script = Scripted([calls(call("echo")), text("ok"), calls(call("echo")), text("ok")])
    agent = agent_of(script, make_tool())
    agent.steer("x", interrupt=True)
    agent.clear_steering_queue()
    await agent.prompt("go")
    agent.steer("y", interrupt=True)  # delivered with the prompt: there is no batch to stop
    await agent.prompt("again")
    assert [m.is_error for m in agent.state.messages if isinstance(m, ToolResultMessage)] == [False, False]
    assert_whole(agent)


@pytest.mark.parametrize(
    "moment", ["message_update", "tool_execution_start", "before", "tool_execution_update", "tool_execution_end", "turn_end", "turn_start"]
)
async def test_an_interrupting_steer_at_any_moment(moment: str) -> None:
    """02-agent: delivered once at the next boundary; every call has its result; the run ends well."""
    script = Scripted([calls(call("work", call_id="1"), call("work", call_id="2"), text="so"), text("ok"), text("ok")])
    done = False

    def once(_: Any = None) -> None:
        nonlocal done
        if not done:
            done = True
            agent.steer("now", interrupt=True)

    def work(args: Any, signal: Any, update: Any) -> str:
        update(ToolResult(content=[]))
        return "w"

    agent = agent_of(script, make_tool("work", work), before_tool_call=(lambda *_: once()) if moment == "before" else None)
    agent.subscribe(lambda event, _: once() if event.type == moment else None)
    async with asyncio.timeout(HANG):
        await agent.prompt("go")
    assert texts(agent.state.messages).count("now") == 1
    assert not agent.has_queued_messages
    assert_whole(agent)


# ---------------------------------------------------------------------------------------------------- listeners


async def test_a_listener_may_return_anything() -> None:
    """A lambda returns what its expression is worth; only what can be awaited is."""
    seen: list[str] = []
    agent = agent_of(Scripted([text("a")]))
    agent.subscribe(lambda event, _: seen.append(event.type) or len(seen))  # type: ignore[arg-type,return-value]
    await agent.prompt("go")
    assert seen[-1] == "agent_end"


async def test_what_a_turn_hook_and_a_listener_raise_is_raised_together() -> None:
    """Promise 4: neither hides the other."""

    def fails(*_: Any) -> None:
        raise KeyError("hook")

    def listener(event: Any, _: Any) -> None:
        if event.type == "turn_end":
            raise ValueError("listener")

    agent = agent_of(Scripted([text("a")]), finish_turn=fails)
    agent.subscribe(listener)
    recorder = Recorder()
    agent.subscribe(recorder)
    with pytest.raises(ExceptionGroup) as caught:
        await agent.prompt("go")
    assert {type(e) for e in caught.value.exceptions} == {KeyError, ValueError}
    assert recorder.end.reason == "error"
    assert_whole(agent)


async def test_listeners_come_and_go_while_events_are_delivered() -> None:
    """A-04: who unsubscribes, or is unsubscribed by another, gets nothing more; who subscribes gets the next event."""
    agent = agent_of(Scripted([text("a")]))
    seen: dict[str, list[str]] = {"first": [], "second": [], "third": []}

    def third(event: Any, _: Any) -> None:
        seen["third"].append(event.type)

    def first(event: Any, _: Any) -> None:
        seen["first"].append(event.type)
        if event.type == "turn_start":
            drop_second()
            drop_first()
            agent.subscribe(third)

    drop_first = agent.subscribe(first)
    drop_second = agent.subscribe(lambda event, _: seen["second"].append(event.type))
    await agent.prompt("go")
    assert seen["first"] == ["agent_start", "turn_start"]
    assert seen["second"] == ["agent_start"]
    assert seen["third"][0] == "message_start"
    drop_first()


# ---------------------------------------------------------------------------------------------------- torn runs and lost loops


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("steps", range(0, 60, 1))
async def test_a_shutdown_that_cancels_every_task_leaves_an_agent_that_can_go_on(steps: int, slow: bool) -> None:
    """Promises 1, 3 and 5: a careless shutdown cancels the run's own tasks too, at any step, the very first included."""
    script = Scripted([calls(call("echo", call_id="1"), call("echo", call_id="2")), text("ok"), text("ok"), text("ok")])
    agent = agent_of(script, make_tool(), messages=[user("u"), AssistantMessage(content=[TextContent(text="a")])])
    agent.steer("kept")
    agent.follow_up("kept too")
    me = asyncio.current_task()

    async def listen(*_: Any) -> None:
        await asyncio.sleep(0)

    if slow:
        agent.subscribe(listen)
    async with asyncio.timeout(HANG):
        going = asyncio.ensure_future(agent.continue_())
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks():
            if task is not me:
                task.cancel()
        await asyncio.wait([going])
        await agent.wait_for_idle()
    assert not agent.state.is_streaming
    left = agent.pending_messages()
    there = texts(agent.state.messages) + texts(left.steering) + texts(left.follow_up)
    assert (there.count("kept"), there.count("kept too")) == (1, 1)
    assert_whole(agent)
    script.add(text("back"), text("back"), text("back"))
    async with asyncio.timeout(HANG):
        await agent.prompt("still there?")
    assert_whole(agent)


async def test_a_stream_whose_task_never_began_leaves_the_agent_idle() -> None:
    """The loop ends right after `stream()`: the agent is not busy for ever."""
    agent = agent_of(Scripted([text("a"), text("b")]))
    stream = agent.stream("go")
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
    async with asyncio.timeout(HANG):
        with pytest.raises(asyncio.CancelledError):
            await stream.result()
        await agent.wait_for_idle()
        await agent.prompt("again")
    assert_whole(agent)


def test_an_agent_outlives_its_event_loops() -> None:
    """02-agent 11: one loop after the other, also after one that was closed on a run under way."""
    script = Scripted([text("never", gate=asyncio.Event()), text("b")])
    agent = agent_of(script)
    loop = asyncio.new_event_loop()
    task = loop.create_task(agent.prompt("go"))
    for _ in range(30):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    assert not task.done()
    agent.abort()
    agent.steer("from outside", interrupt=True)
    asyncio.run(asyncio.wait_for(agent.prompt("again"), HANG))
    assert texts(agent.state.messages)[-1] == "b"
    assert not agent.state.is_streaming
    del task
    gc.collect()
    assert_whole(agent)


def test_prompt_sync_in_many_threads_is_one_run_at_a_time() -> None:
    """A-07: one thread runs, the others are told; then the agent is free again."""
    inside, release = threading.Event(), threading.Event()

    def block(*_: Any) -> str:
        inside.set()
        release.wait(HANG)
        return "x"

    script = Scripted([calls(call("block")), text("ok"), text("later")])
    agent = agent_of(script, make_tool("block", block))
    refused: list[BaseException] = []
    first = threading.Thread(target=agent.prompt_sync, args=("go",))
    first.start()
    assert inside.wait(HANG)

    def other() -> None:
        try:
            agent.prompt_sync("me too")
        except AgentBusy as busy:
            refused.append(busy)

    others = [threading.Thread(target=other) for _ in range(4)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join(HANG)
    release.set()
    first.join(HANG)
    assert len(refused) == 4
    agent.prompt_sync("again")
    assert_whole(agent)


async def test_a_dropped_stream_aborts_its_run_and_frees_the_agent() -> None:
    """Garbage is an abandoned stream."""
    agent = agent_of(Scripted([text("x", gate=asyncio.Event()), text("b")]))
    stream = agent.stream("go")
    await asyncio.sleep(0.01)
    del stream
    gc.collect()
    async with asyncio.timeout(HANG):
        await agent.wait_for_idle()
        await agent.prompt("again")
    assert_whole(agent)


# ---------------------------------------------------------------------------------------------------- any script, any moment

ACTIONS = st.sampled_from(["steer", "interrupt", "follow_up", "abort", "clear", "cancel", "raise"])
QUEUES = st.sampled_from(["one-at-a-time", "all"])
KINDS = st.sampled_from(["ok", "sleep", "fail", "update", "terminate", "sequential", "unknown", "stubborn", "exit"])
REPLIES = st.one_of(st.lists(KINDS, min_size=1, max_size=4), st.sampled_from(["text", "error", "truncated"]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    replies=st.lists(REPLIES, min_size=1, max_size=5),
    actions=st.lists(st.tuples(st.integers(0, 60), ACTIONS), max_size=5),
    modes=st.tuples(QUEUES, QUEUES, st.sampled_from(["parallel", "sequential"])),
    limit=st.one_of(st.none(), st.integers(1, 3)),
    slow=st.booleans(),
)
def test_any_script_at_any_moment(replies: list[Any], actions: list[Any], modes: Any, limit: int | None, slow: bool) -> None:
    """Promises 1, 3 and 5: one result per call in the order of the calls, every accepted message once, one `agent_end`, an idle agent."""
    asyncio.run(asyncio.wait_for(_play(replies, actions, modes, limit, slow), HANG))


async def _play(replies: list[Any], actions: list[Any], modes: Any, limit: int | None, slow: bool) -> None:
    script = Scripted([_reply(r) for r in replies])
    script.add(*[text("end")] * 12)
    agent = agent_of(
        script, *_tools(), steering_mode=modes[0], follow_up_mode=modes[1], tool_execution=modes[2], tool_abort_grace=0.001,
        limits=None if limit is None else LoopLimits(max_turns=limit),
    )  # fmt: skip
    recorder, sent, taken = Recorder(), [], []
    raise_now = False

    async def listen(event: Any, _: Any) -> None:
        nonlocal raise_now
        if raise_now:
            raise_now = False
            raise ValueError("listener")
        if slow:
            await asyncio.sleep(0)

    agent.subscribe(recorder)
    agent.subscribe(listen)
    going = asyncio.ensure_future(agent.prompt("go"))
    at = 0
    for number, (step, action) in enumerate(sorted(actions)):
        for _ in range(step - at):
            await asyncio.sleep(0)
        at = step
        name = f"m{number}"
        match action:
            case "steer" | "interrupt":
                agent.steer(name, interrupt=action == "interrupt")
                sent.append(name)
            case "follow_up":
                agent.follow_up(name)
                sent.append(name)
            case "abort":
                agent.abort()
            case "clear":
                cleared = agent.clear_all_queues()
                taken += texts(cleared.steering) + texts(cleared.follow_up)
            case "cancel":
                going.cancel()
            case _:
                raise_now = True
    await asyncio.wait([going])
    torn = sum(action == "cancel" for _, action in actions) > 1  # a second cancellation does not wait for the end of the sequence
    if torn:
        await agent.wait_for_idle()
    assert not agent.state.is_streaming
    ends = [e for e in recorder.events if e.type == "agent_end"]
    if recorder.events and not torn:
        assert len(ends) == 1
        assert recorder.events[-1] is ends[0]
        _check_events(recorder.events)
    left = agent.pending_messages()
    where = texts(agent.state.messages) + texts(left.steering) + texts(left.follow_up) + taken
    assert [name for name in sent if where.count(name) != 1] == []
    assert_whole(agent)


def _check_events(events: list[Any]) -> None:
    """Every call that started ended, once; every message that started ended; no update outside of its call."""
    open_calls: set[str] = set()
    ended: set[str] = set()
    for event in events:
        match event.type:
            case "tool_execution_start":
                assert event.tool_call_id not in open_calls | ended
                open_calls.add(event.tool_call_id)
            case "tool_execution_update":
                assert event.tool_call_id in open_calls
            case "tool_execution_end":
                open_calls.remove(event.tool_call_id)
                ended.add(event.tool_call_id)
            case "turn_end" | "agent_end":
                assert not open_calls
            case _:
                pass
    assert sum(e.type == "turn_start" for e in events) - sum(e.type == "turn_end" for e in events) == 0


def _reply(kind: Any) -> Any:
    if kind == "text":
        return text("several words of text", delta_size=4)
    if kind == "error":
        return error("overloaded", status=529)
    if kind == "truncated":
        return truncated(calls(call("ok"), call("sleep")))
    return calls(*[call(name) for name in kind], text="so")


def _tools() -> list[Any]:
    async def sleep(*_: Any) -> str:
        await asyncio.sleep(0.001)
        return "slept"

    async def fail(*_: Any) -> str:
        raise ValueError("broken")

    async def update(args: Any, signal: Any, report: Any) -> str:
        for _ in range(3):
            report(ToolResult(content=[TextContent(text="part")]))
            await asyncio.sleep(0)
        report(ToolResult(content=[]))
        return "updated"

    async def stubborn(*_: Any) -> str:
        try:
            await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "late"

    async def leave(*_: Any) -> str:
        raise SystemExit(3)

    return [
        make_tool("ok", lambda *_: "ok"), make_tool("sleep", sleep), make_tool("fail", fail), make_tool("update", update),
        make_tool("terminate", lambda *_: ToolResult(content=[], terminate=True)), make_tool("sequential", sleep, execution_mode="sequential"),
        make_tool("stubborn", stubborn), make_tool("exit", leave),
    ]  # fmt: skip


async def test_a_listener_that_waits_for_its_own_stream_is_told() -> None:
    """No hang: from inside the run `result()` raises, and `aclose()` aborts without waiting."""
    agent = agent_of(Scripted([text("one"), text("two")]))
    raised: list[BaseException] = []

    async def listener(event: Any, signal: Any) -> None:
        if event.type == "turn_start":
            try:
                await stream.result()
            except WouldDeadlock as error:
                raised.append(error)
            await stream.aclose()

    agent.subscribe(listener)
    stream = agent.stream("go")
    async with asyncio.timeout(HANG):
        messages = await stream.result()
    assert len(raised) == 1
    assert isinstance(messages[-1], AssistantMessage)
    assert messages[-1].stop_reason == "aborted"
    assert_whole(agent)
