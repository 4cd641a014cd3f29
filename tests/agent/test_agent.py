"""Layer 2: `Agent` — state, listeners, queues, abort."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from helpers import Recorder, make_tool, texts, user
from laneway import (
    Agent,
    AgentBusy,
    ImageContent,
    LoopInputError,
    LoopLimits,
    StreamOptions,
    SystemMessage,
    TextContent,
    UserMessage,
    WouldDeadlock,
    current_tools,
)
from laneway.testing import Scripted, call, calls, error, provider_ready, text


def agent_of(script: Scripted, *tools: Any, **options: Any) -> Agent:
    return Agent(model=script.model, stream_fn=script.stream_fn, tools=tools, **options)


def talk(agent: Agent) -> list[str]:
    """The texts of the transcript, system messages left out."""
    return texts([m for m in agent.state.messages if m.role != "system"])


def test_defaults() -> None:
    """A-01."""
    agent = agent_of(Scripted([]))
    assert agent.state.thinking_level == "off"
    assert agent.state.messages == []
    assert not agent.state.is_streaming
    assert (agent.steering_mode, agent.follow_up_mode, agent.tool_execution) == ("one-at-a-time", "one-at-a-time", "parallel")
    assert agent.signal is None


def test_the_leading_system_message() -> None:
    """A-02: prompt and tools live in the transcript; the prompt reads by replay and cannot be assigned."""
    script = Scripted([])
    agent = agent_of(script, make_tool("a"), system_prompt="Be brief.")
    first = agent.state.messages[0]
    assert (first.role, first.content, first.timestamp) == ("system", "Be brief.", 0)
    assert [d.name for d in first.tools_added] == ["a"]
    agent.state.messages.append(SystemMessage(content="And kind."))
    assert agent.state.system_prompt == "Be brief.\n\nAnd kind."
    with pytest.raises(AttributeError, match="append a SystemMessage"):
        agent.state.system_prompt = "other"  # type: ignore[misc] - refused on purpose
    mine = SystemMessage(content="mine")
    assert agent_of(script, system_prompt="other", messages=[mine]).state.messages == [mine]


def test_setters_copy() -> None:
    """A-03."""
    agent = agent_of(Scripted([]))
    messages, tools = [user("x")], [make_tool()]
    agent.state.messages, agent.state.tools = messages, tools
    messages.clear()
    tools.clear()
    assert len(agent.state.messages) == 1
    assert len(agent.state.tools) == 1


def test_tool_names_are_distinct() -> None:
    """A clear error instead of a tool that can never be called."""
    with pytest.raises(ValueError, match="echo"):
        agent_of(Scripted([]), make_tool(), make_tool())


async def test_listeners_are_awaited_in_order_before_the_next_event() -> None:
    """A-04."""
    order: list[str] = []
    agent = agent_of(Scripted([text("ok")]))

    async def first(event: Any, signal: Any) -> None:
        order.append(f"1 {event.type}")
        await asyncio.sleep(0)
        order.append(f"1 done {event.type}")
        if event.type == "turn_start":
            unsubscribe()

    async def second(event: Any, signal: Any) -> None:
        order.append(f"2 {event.type}")
        assert signal is agent.signal

    agent.subscribe(first)
    unsubscribe = agent.subscribe(second)
    assert order == []
    await agent.prompt("go")
    assert order[:6] == ["1 agent_start", "1 done agent_start", "2 agent_start", "1 turn_start", "1 done turn_start", "1 message_start"]
    assert "2 message_start" not in order


async def test_state_is_updated_before_listeners() -> None:
    """A-05."""
    agent = agent_of(Scripted([error("boom")]))
    seen: list[Any] = []

    def listener(event: Any, _: Any) -> None:
        if event.type == "message_end":
            assert agent.state.messages[-1] is event.message
        if event.type == "turn_end":
            seen.append(agent.state.error_message)

    agent.subscribe(listener)
    await agent.prompt("go")
    assert len(seen) == 1
    assert "boom" in seen[0]


async def test_one_run_at_a_time() -> None:
    """A-07."""
    gate = asyncio.Event()
    agent = agent_of(Scripted([text("answer", delta_size=2, gate=gate)]))
    running = asyncio.create_task(agent.prompt("go"))
    await asyncio.sleep(0)
    before = list(agent.state.messages)
    with pytest.raises(AgentBusy, match=r"steer.*follow_up"):
        await agent.prompt("again")
    with pytest.raises(AgentBusy):
        await agent.continue_()
    with pytest.raises(AgentBusy):
        agent.reset()
    with pytest.raises(AgentBusy):
        agent.stream("again")
    assert agent.state.messages[: len(before)] == before
    gate.set()
    await running
    assert talk(agent) == ["go", "answer"]


async def test_what_a_prompt_may_be() -> None:
    """A-08."""
    script = Scripted([text("1"), text("2"), text("3")])
    agent = agent_of(script)
    image = ImageContent(data="aGk=", mime_type="image/png")
    await agent.prompt("look", images=[image])
    assert agent.state.messages[0].content == [TextContent(text="look"), image]
    one, two, three = user("one"), user("two"), user("three")
    await agent.prompt(one)
    await agent.prompt([two, three])
    assert [m for m in agent.state.messages if m in (one, two, three)] == [one, two, three]
    for nothing in ("", 42, ["text"]):
        with pytest.raises((LoopInputError, TypeError)):
            await agent.prompt(nothing)  # type: ignore[arg-type] - nonsense on purpose
    assert len(script.requests) == 3


async def test_abort() -> None:
    """A-09, B07, B33: idle is a no-op; a run ends valid; queues stay; the aborted partial is never sent."""
    gate = asyncio.Event()
    script = Scripted([text("long answer", delta_size=2, gate=gate), text("next")])
    agent = agent_of(script)
    agent.abort()
    recorder = Recorder()
    agent.subscribe(recorder)
    running = asyncio.create_task(agent.prompt("go"))
    while not recorder.of_type("message_update"):
        await asyncio.sleep(0)
    agent.steer("a")
    agent.follow_up("b")
    agent.abort("enough")
    async with asyncio.timeout(5):
        await running
    assert recorder.trace[-2:] == ["turn_end(0)", "agent_end(aborted)"]
    assert agent.state.error_message
    assert texts(agent.pending_messages().steering + agent.pending_messages().follow_up) == ["a", "b"]
    assert not agent.state.is_streaming
    await agent.prompt("next")
    assert all("long" not in t for t in texts(script.requests[1].messages))
    assert provider_ready(script.requests[1].messages) == []


async def test_pending_tool_calls_is_a_new_set_each_time() -> None:
    """A-10."""
    agent = agent_of(Scripted([calls(call("echo", call_id="1"), call("echo", call_id="2")), text("ok")]), make_tool())
    sets: list[Any] = []
    agent.subscribe(lambda event, _: sets.append(agent.state.pending_tool_calls) if event.type.startswith("tool_execution") else None)
    await agent.prompt("go")
    assert sets == [{"1"}, {"1", "2"}, {"2"}, set()]
    assert agent.state.pending_tool_calls == frozenset()


async def test_continue_answers_what_is_there() -> None:
    """A-12: no events for existing messages."""
    script = Scripted([text("answer")])
    agent = agent_of(script, messages=[user("question")])
    recorder = Recorder()
    agent.subscribe(recorder)
    await agent.continue_()
    assert [t for t in recorder.trace if t.startswith("MS")] == ["MS(a1)"]
    assert talk(agent) == ["question", "answer"]


async def test_continue_after_an_answer_delivers_what_is_queued_once() -> None:
    """02 rule 6: one batch of steering (not polled again in that run's first turn), else of follow-ups, else an error."""
    script = Scripted([text("1"), text("2"), text("3"), text("4")])
    agent = agent_of(script)
    await agent.prompt("go")
    with pytest.raises(LoopInputError, match="nothing is queued"):
        await agent.continue_()
    agent.steer("s1")
    agent.steer("s2")
    agent.follow_up("f1")
    await agent.continue_()
    assert talk(agent) == ["go", "1", "s1", "2", "s2", "3", "f1", "4"]
    assert not agent.has_queued_messages


@pytest.mark.parametrize("messages", [[], [SystemMessage(content="x")]])
async def test_continue_needs_a_conversation(messages: list[Any]) -> None:
    """A-14: queues untouched."""
    agent = agent_of(Scripted([]), messages=messages)
    agent.steer("kept")
    with pytest.raises(LoopInputError, match="no messages"):
        await agent.continue_()
    assert agent.has_queued_messages


async def test_reset_keeps_the_baseline() -> None:
    """A-15."""
    agent = agent_of(Scripted([error("boom")]), make_tool("a"), system_prompt="Be brief.")
    agent.state.messages.append(SystemMessage(content="And kind.", tools_removed=["a"]))
    await agent.prompt("go")
    agent.steer("x")
    agent.follow_up("y")
    agent.reset()
    assert [m.role for m in agent.state.messages] == ["system"]
    assert agent.state.system_prompt == "Be brief.\n\nAnd kind."
    assert agent.state.error_message is None
    assert not agent.has_queued_messages


async def test_queue_helpers() -> None:
    """A-16: peek shows what the next drain would take and takes nothing."""
    agent = agent_of(Scripted([]))
    assert agent.peek_queued_messages() == []
    agent.follow_up("f")
    assert texts(agent.peek_queued_messages()) == ["f"]
    agent.steer("s1")
    agent.steer("s2")
    assert texts(agent.peek_queued_messages()) == ["s1"]
    agent.steering_mode = "all"
    assert texts(agent.peek_queued_messages()) == ["s1", "s2"]
    assert texts(agent.clear_steering_queue()) == ["s1", "s2"]
    assert texts(agent.clear_follow_up_queue()) == ["f"]
    assert agent.clear_all_queues().steering == []
    assert not agent.has_queued_messages


async def test_queue_modes() -> None:
    """A-17, B05: one at a time is one per turn; "all" is live from the next drain on."""
    for mode, turns in (("one-at-a-time", 3), ("all", 2)):
        script = Scripted([calls(call("queue")), text("a"), text("b"), text("c")])

        def fill(*_: Any, mode: Any = mode) -> str:
            agent.steering_mode = mode
            agent.steer("s1")
            agent.steer("s2")
            return "queued"

        agent = agent_of(script, make_tool("queue", fill))
        await agent.prompt("go")
        assert len(script.requests) == turns
        assert [t for t in talk(agent) if t.startswith("s")] == ["s1", "s2"]


async def test_a_steered_message_is_recorded_once_however_long_the_run() -> None:
    """B03."""
    script = Scripted([calls(call("echo")), calls(call("echo")), calls(call("echo")), text("end")])
    agent = agent_of(script, make_tool())
    agent.subscribe(lambda event, _: agent.steer("S") if event.type == "turn_start" and len(script.requests) == 0 else None)
    await agent.prompt("go")
    assert talk(agent).count("S") == 1
    assert all(texts(r.messages).count("S") == 1 for r in script.requests)


async def test_each_run_forwards_the_options_of_now() -> None:
    """A-19."""
    script = Scripted([text("1"), text("2")])
    agent = agent_of(script, session_id="s1", stream_options=StreamOptions(max_retry_delay=7.0))
    await agent.prompt("go")
    agent.session_id, agent.thinking_budgets = "s2", {"high": 5}
    await agent.prompt("go")
    assert [r.options.session_id for r in script.requests] == ["s1", "s2"]
    assert [r.options.max_retry_delay for r in script.requests] == [7.0, 7.0]
    assert script.requests[1].options.thinking_budgets == {"high": 5}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("at", ["agent_start", "message_end", "tool_execution_start", "tool_execution_end", "turn_end", "agent_end"])
async def test_a_raising_listener_stops_the_run_and_the_others_see_all_of_it(at: str, kind: str) -> None:
    """B08, 02 rule 5: no further request or tool, one agent_end, the exception from prompt(), the agent usable afterwards."""
    script = Scripted([calls(call("echo", call_id="1"), call("echo", call_id="2")), text("one"), text("two")])
    agent = agent_of(script, make_tool())
    raised: list[str] = []

    def bad(event: Any, _: Any) -> None:
        if raised:
            raised.append(event.type)
        if event.type == at:
            raised.append(event.type)
            raise ValueError("listener broke")

    async def bad_async(event: Any, signal: Any) -> None:
        await asyncio.sleep(0)
        bad(event, signal)

    unsubscribe = agent.subscribe(bad if kind == "sync" else bad_async)
    recorder = Recorder()
    agent.subscribe(recorder)
    with pytest.raises(ValueError, match="listener broke"):
        await agent.prompt("go")
    assert recorder.end.reason == ("stop" if at == "agent_end" else "error")
    assert raised == [at], "it gets no more events of that run"
    requests = {"agent_start": 0, "message_end": 0, "agent_end": 2}.get(at, 1)  # the prompt's message_end comes before any request
    assert len(script.requests) == requests
    starts, ends = recorder.of_type("message_start"), recorder.of_type("message_end")
    assert len(starts) == len(ends)
    assert not agent.state.is_streaming
    unsubscribe()
    await agent.prompt("again")
    assert provider_ready(script.requests[-1].messages) == []


async def test_several_raising_listeners_are_a_group() -> None:
    """02 rule 5."""
    agent = agent_of(Scripted([text("ok")]))

    def bad(event: Any, _: Any) -> None:
        raise ValueError("x")

    agent.subscribe(bad)
    agent.subscribe(bad)
    with pytest.raises(ExceptionGroup) as caught:
        await agent.prompt("go")
    assert len(caught.value.exceptions) == 2


async def test_waiting_for_the_run_from_inside_it_is_refused() -> None:
    """B10, 02 rule 4: a tool and a listener get an error instead of a hang; from outside it waits for the last listener."""
    script = Scripted([calls(call("wait")), text("ok")])

    async def wait(*_: Any) -> str:
        await agent.wait_for_idle()
        return "never"

    agent = agent_of(script, make_tool("wait", wait))
    refused: list[str] = []

    async def listener(event: Any, _: Any) -> None:
        if event.type == "agent_end":
            with pytest.raises(AgentBusy):
                await agent.prompt("next")
            with pytest.raises(WouldDeadlock):
                await agent.wait_for_idle()
            await asyncio.sleep(0.02)
            refused.append("done")

    agent.subscribe(listener)
    async with asyncio.timeout(5):
        running = asyncio.create_task(agent.prompt("go"))
        await asyncio.sleep(0)
        await agent.wait_for_idle()
        assert refused == ["done"]
        await running
    result = next(m for m in agent.state.messages if m.role == "tool_result")
    assert result.is_error
    assert "inside the run" in texts([result])[0]


async def test_a_task_started_by_a_tool_may_wait_for_a_later_run() -> None:
    """The check is about the run under way, not about where a task came from."""
    later: list[asyncio.Task[None]] = []

    async def spawn(*_: Any) -> str:
        async def outlive() -> None:
            await asyncio.sleep(0.02)
            await agent.wait_for_idle()

        later.append(asyncio.create_task(outlive()))
        return "spawned"

    agent = agent_of(Scripted([calls(call("spawn")), text("ok"), text("more", delay=0.05)]), make_tool("spawn", spawn))
    await agent.prompt("go")
    await agent.prompt("more")
    await later[0]


async def test_cancelling_prompt_settles_first() -> None:
    """02 rule 10, promise 5."""
    agent = agent_of(Scripted([text("x", delay=5)]))
    recorder = Recorder()
    agent.subscribe(recorder)
    task = asyncio.create_task(agent.prompt("go"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorder.end.reason == "aborted"
    assert not agent.state.is_streaming


async def test_stream_gives_the_same_run_as_events() -> None:
    """An async iterator of the events; leaving it early aborts the run and the agent is usable again."""
    agent = agent_of(Scripted([text("hello", delta_size=1), text("hello", delta_size=1), text("end")]))
    recorder = Recorder()
    async for event in agent.stream("go"):
        recorder(event)
    assert recorder.end.reason == "stop"
    async with agent.stream("go") as events:
        async for event in events:
            if event.type == "message_update":
                break
    await agent.wait_for_idle()
    await agent.prompt("go")
    assert talk(agent)[-1] == "end"


async def test_steer_and_abort_from_another_thread() -> None:
    """02 rule 11."""
    started = threading.Event()

    async def hang(args: Any, signal: Any, update: Any) -> str:
        started.set()
        await signal.wait()
        return "stopped"

    agent = agent_of(Scripted([calls(call("hang"))]), make_tool("hang", hang))

    def other() -> None:
        started.wait(5)
        agent.steer("from a thread")
        agent.abort("from a thread")

    thread = threading.Thread(target=other)
    thread.start()
    async with asyncio.timeout(5):
        await agent.prompt("go")
    thread.join()
    assert texts(agent.pending_messages().steering) == ["from a thread"]
    assert agent.state.messages[-1].role == "tool_result"


async def test_an_interrupting_message_comes_with_what_was_steered_before_it() -> None:
    """One at a time or not: the next request has it, and nothing changes places."""

    async def slow(*_: Any) -> str:
        agent.steer("first")
        agent.steer("stop", interrupt=True)
        agent.steer("later")
        await asyncio.sleep(60)
        return "never"

    script = Scripted([call("slow"), text("ok"), text("done")])
    agent = agent_of(script, make_tool("slow", slow))
    async with asyncio.timeout(10):
        messages = await agent.prompt("go")
    said = [m.text if isinstance(m, UserMessage) else m.role for m in messages]
    assert said == ["go", "assistant", "tool_result", "first", "stop", "assistant", "later", "assistant"]


async def test_an_interrupting_steer_stops_the_batch() -> None:
    """01: finished calls keep their results, the message is delivered next."""
    running = asyncio.Event()

    async def hang(*_: Any) -> str:
        running.set()
        await asyncio.Event().wait()
        return "never"

    script = Scripted([calls(call("echo"), call("hang")), text("ok")])
    agent = agent_of(script, make_tool(), make_tool("hang", hang))
    task = asyncio.create_task(agent.prompt("go"))
    await running.wait()
    await asyncio.sleep(0)
    agent.steer("now", interrupt=True)
    async with asyncio.timeout(5):
        await task
    assert [m.is_error for m in agent.state.messages if m.role == "tool_result"] == [False, True]
    assert talk(agent)[-2:] == ["now", "ok"]


async def test_plain_steer_never_cuts_a_tool_short() -> None:
    """B02: it stays queued while the tool runs."""
    gate = asyncio.Event()
    running = asyncio.Event()

    async def slow(*_: Any) -> str:
        running.set()
        await gate.wait()
        return "slow result"

    script = Scripted([calls(call("slow")), text("ok")])
    agent = agent_of(script, make_tool("slow", slow))
    recorder = Recorder()
    agent.subscribe(recorder)
    task = asyncio.create_task(agent.prompt("go"))
    await running.wait()
    agent.steer("why so long")
    await asyncio.sleep(0.01)
    assert len(agent.pending_messages().steering) == 1
    gate.set()
    await task
    assert texts(script.requests[1].messages)[-2:] == ["slow result", "why so long"]
    assert not agent.has_queued_messages
    assert recorder.trace.count("MS(u2)") == 1


async def test_a_limit_ends_the_run() -> None:
    """Limits are the loop's."""
    agent = agent_of(Scripted([calls(call("echo")) for _ in range(9)]), make_tool(), limits=LoopLimits(max_turns=2))
    recorder = Recorder()
    agent.subscribe(recorder)
    await agent.prompt("go")
    assert (recorder.end.reason, recorder.end.limit) == ("limit", "max_turns")


async def test_a_limit_or_an_abort_that_leaves_a_message_waiting_is_why_the_run_ends() -> None:
    """B24: "stop" means that nothing was left to do."""
    script = Scripted([text("one"), text("two"), text("three")])
    agent = agent_of(script, limits=LoopLimits(max_turns=1))
    recorder = Recorder()
    agent.subscribe(recorder)
    agent.follow_up("and then?")
    await agent.prompt("go")
    assert (recorder.end.reason, recorder.end.limit) == ("limit", "max_turns")
    assert texts(agent.pending_messages().follow_up) == ["and then?"]
    agent.clear_all_queues()
    await agent.prompt("go")
    assert [(end.reason, end.limit) for end in recorder.of_type("agent_end")] == [("limit", "max_turns"), ("stop", None)]


async def test_an_abort_while_a_tool_runs_is_told_by_the_state() -> None:
    """Rule 9: also where the turn's response had settled well; another run clears it."""
    running = asyncio.Event()

    async def slow(*_: Any) -> str:
        running.set()
        await asyncio.sleep(60)
        return "never"

    agent = agent_of(Scripted([calls(call("slow")), text("ok")]), make_tool("slow", slow), tool_abort_grace=0.01)
    seen: list[str | None] = []
    agent.subscribe(lambda event, _: seen.append(agent.state.error_message) if event.type == "agent_end" else None)
    task = asyncio.create_task(agent.prompt("go"))
    await running.wait()
    agent.abort("enough")
    await task
    assert seen == ["aborted: enough"]
    assert agent.state.error_message == "aborted: enough"
    await agent.prompt("again")
    assert agent.state.error_message is None


def test_peeking_shows_all_that_an_interrupting_message_brings_along() -> None:
    """Rule 7: what the next drain takes, and nothing is taken."""
    agent = agent_of(Scripted([text("ok")]))
    agent.steer("one")
    agent.steer("two", interrupt=True)
    agent.steer("three")
    assert texts(agent.peek_queued_messages()) == ["one", "two"]
    assert texts(agent.pending_messages().steering) == ["one", "two", "three"]


def test_prompt_sync() -> None:
    """A script needs no event loop; twice works as well."""
    agent = agent_of(Scripted([text("one"), text("two")]))
    agent.prompt_sync("go")
    agent.prompt_sync("go")
    assert talk(agent) == ["go", "one", "go", "two"]


async def test_prompt_sync_inside_a_loop_is_refused() -> None:
    """It would block the loop it is called from."""
    with pytest.raises(WouldDeadlock, match="await"):
        agent_of(Scripted([])).prompt_sync("go")


async def test_changed_tools_are_declared_at_the_next_run() -> None:
    """The transcript always tells what the model may call."""
    agent = agent_of(Scripted([text("1"), text("2")]), make_tool("a"))
    await agent.prompt("go")
    agent.state.tools = [make_tool("b")]
    await agent.prompt("go")
    assert [d.name for d in current_tools(agent.state.messages)] == ["b"]


async def test_the_error_is_cleared_when_a_run_starts() -> None:
    """02 rule 9."""
    agent = agent_of(Scripted([error("boom"), text("fine")]))
    await agent.prompt("go")
    assert agent.state.error_message
    await agent.prompt("go")
    assert agent.state.error_message is None
    assert talk(agent) == ["go", "", "go", "fine"]
