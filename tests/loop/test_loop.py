"""Layer 1: order of events, poll points, hooks and exits of the stateless loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from helpers import Recorder, context, make_tool, queue, run, texts, unsendable, user
from laneway import (
    AbortController,
    AgentContext,
    Continue,
    End,
    LoopConfig,
    LoopInputError,
    LoopLimits,
    RequestUpdate,
    SystemMessage,
    TurnUpdate,
    UserMessage,
    agent_loop,
    agent_loop_continue,
    current_tools,
    register_message,
    run_agent_loop,
    run_agent_loop_continue,
)
from laneway.testing import Scripted, call, calls, error, text, truncated


@register_message
class Note(Struct, kw_only=True, frozen=True, tag_field="role", tag="loop_test_note"):
    """A custom message for these tests."""

    body: str


async def test_a_minimal_prompt_gives_the_reference_trace() -> None:
    """L-01."""
    recorder, messages = await run(Scripted([text("hello", delta_size=2)]))
    assert recorder.trace == [
        "agent_start", "turn_start", "MS(u1)", "ME(u1)", "MS(a1)", "MU(a1)", "ME(a1)", "turn_end(0)", "agent_end(stop)",
    ]  # fmt: skip
    assert texts(messages) == ["go", "hello"]


async def test_several_prompts_are_one_turn() -> None:
    """L-02."""
    script = Scripted([text("ok")])
    recorder, messages = await run(script, user("one"), user("two"))
    assert recorder.trace[:6] == ["agent_start", "turn_start", "MS(u1)", "ME(u1)", "MS(u2)", "ME(u2)"]
    assert recorder.trace.count("turn_start") == 1
    assert texts(messages) == ["one", "two", "ok"]
    assert texts(script.requests[0].messages) == ["one", "two"]


async def test_no_entry_touches_the_callers_list() -> None:
    """L-03: run and continue work on a copy."""
    mine = context(user("before"))
    await run(Scripted([text("ok")]), base=mine)
    assert len(mine.messages) == 1
    script = Scripted([text("ok")])
    await run_agent_loop_continue(mine, LoopConfig(model=script.model), lambda _: None, stream_fn=script.stream_fn)
    assert len(mine.messages) == 1
    async with agent_loop([user("x")], mine, LoopConfig(model=script.model), stream_fn=Scripted([text("ok")]).stream_fn) as stream:
        await stream.result()
    assert len(mine.messages) == 1


@pytest.mark.parametrize("messages", [[], [SystemMessage(content="only me")]], ids=["empty", "system only"])
async def test_continue_needs_something_to_answer(messages: list[Any]) -> None:
    """L-05: raised by the call itself, before any event and before a stream exists."""
    recorder = Recorder()
    script = Scripted([text("never")])
    with pytest.raises(LoopInputError, match="no messages"):
        agent_loop_continue(AgentContext(messages=messages), LoopConfig(model=script.model), stream_fn=script.stream_fn)
    with pytest.raises(LoopInputError, match="no messages"):
        await run_agent_loop_continue(AgentContext(messages=messages), LoopConfig(model=script.model), recorder, stream_fn=script.stream_fn)
    assert recorder.events == []
    assert script.requests == []


async def test_continue_refuses_an_assistant_tail_and_takes_a_custom_one() -> None:
    """L-05."""
    script = Scripted([text("one"), text("two")])
    _, messages = await run(script)
    with pytest.raises(LoopInputError, match="assistant"):
        agent_loop_continue(AgentContext(messages=messages), LoopConfig(model=script.model), stream_fn=script.stream_fn)
    config = LoopConfig(model=script.model, convert_to_llm=lambda ms: [user(m.body) if isinstance(m, Note) else m for m in ms])
    new = await run_agent_loop_continue(
        AgentContext(messages=[*messages, Note(body="note")]), config, lambda _: None, stream_fn=script.stream_fn
    )
    assert texts(new) == ["two"]


async def test_steering_typed_while_waiting_joins_the_first_turn() -> None:
    """L-06."""
    script = Scripted([text("ok")])
    recorder, _ = await run(script, get_steering_messages=queue([user("wait")]))
    assert recorder.trace[:6] == ["agent_start", "turn_start", "MS(u1)", "ME(u1)", "MS(u2)", "ME(u2)"]
    assert recorder.trace.count("turn_start") == 1
    assert texts(script.requests[0].messages) == ["go", "wait"]


async def test_steering_waits_for_the_whole_batch() -> None:
    """L-07, B02: steering never cancels a batch."""
    script = Scripted([calls(call("one", call_id="1"), call("two", call_id="2")), text("ok")])
    typed: list[Any] = []
    one = make_tool("one", lambda *_: typed.append(user("steer")) or "done one")
    polls: list[int] = []

    def poll() -> list[Any]:
        polls.append(len(typed))
        taken, typed[:] = list(typed), []
        return taken

    recorder, _ = await run(script, tools=[one, make_tool("two")], get_steering_messages=poll)
    end = recorder.trace.index("turn_end(2)")
    assert recorder.trace[end + 1 : end + 4] == ["turn_start", "MS(u2)", "ME(u2)"]
    assert texts(script.requests[1].messages)[-1] == "steer"
    assert [m.role for m in script.requests[1].messages][-3:] == ["tool_result", "tool_result", "user"]
    assert polls == [0, 1, 0]


async def test_a_follow_up_is_part_of_the_same_run() -> None:
    """L-09: polled only when nothing else is left; its turn is a turn like any other."""
    order: list[str] = []
    script = Scripted([text("one"), text("two")])
    follow_ups = queue([user("more")])
    recorder, messages = await run(
        script,
        get_steering_messages=lambda: order.append("steering") or [],
        get_follow_up_messages=lambda: order.append("follow_up") or follow_ups(),
        prepare_next_turn=lambda *_: order.append("prepare"),
    )
    assert order == ["steering", "steering", "follow_up", "prepare", "steering", "follow_up"]
    assert texts(messages) == ["go", "one", "more", "two"]
    assert recorder.trace.count("turn_start") == 2
    assert recorder.end.reason == "stop"


async def test_steering_goes_before_follow_ups() -> None:
    """L-10, B05: a follow-up never leaks into a turn that steering or tools keep going."""
    script = Scripted([calls(call("echo")), text("one"), text("two"), text("three")])
    _, messages = await run(
        script, tools=[make_tool()], get_steering_messages=queue([], [], [], [user("steer")]), get_follow_up_messages=queue([user("later")])
    )
    assert texts(messages)[0] == "go"
    assert texts(messages)[3:] == ["one", "steer", "two", "later", "three"]
    assert "later" not in texts(script.requests[2].messages)


async def test_prepare_next_turn_runs_between_turns_only() -> None:
    """L-11."""
    seen: list[Any] = []
    script = Scripted([calls(call("echo")), calls(call("echo")), text("end")])
    _, messages = await run(script, tools=[make_tool()], prepare_next_turn=lambda turn, signal: seen.append(turn))
    assert [turn.message.tool_calls[0].name for turn in seen] == ["echo", "echo"]
    assert len(seen[0].tool_results) == 1
    assert [turn.new_messages for turn in seen] == [messages[:3], messages[:5]]
    assert len(messages) == 6


async def test_what_prepare_next_turn_changes_stays() -> None:
    """L-12: "off" means no reasoning, None means keep."""
    script = Scripted([calls(call("echo")), calls(call("echo")), text("end")])
    other = msgspec.structs.replace(script.model, id="m2")
    updates = [TurnUpdate(model=other, thinking_level="off"), None]
    await run(script, tools=[make_tool()], thinking_level="high", prepare_next_turn=lambda *_: updates.pop(0))
    assert [r.model.id for r in script.requests] == [script.model.id, "m2", "m2"]
    assert [r.options.reasoning for r in script.requests] == ["high", None, None]


async def test_prepare_next_turn_may_replace_the_context_and_add_messages() -> None:
    """L-13: the new context, then its messages, then what was queued."""
    script = Scripted([calls(call("echo")), text("end")])
    fresh = context(user("compacted"), tools=[make_tool()])
    recorder, messages = await run(
        script,
        tools=fresh.tools,
        prepare_next_turn=lambda *_: TurnUpdate(context=fresh, messages=[user("prepared")]),
        get_steering_messages=queue([], [user("steer")]),
    )
    assert texts(script.requests[1].messages) == ["", "compacted", "prepared", "steer"]
    assert texts(messages)[0] == "go"
    assert texts(messages)[3:] == ["prepared", "steer", "end"]
    assert len(fresh.messages) == 2, "the hook's own context is copied"


async def test_prepare_request_runs_before_every_request_and_polls_nothing() -> None:
    """L-14."""
    seen: list[Any] = []
    polls: list[str] = []
    script = Scripted([calls(call("echo")), text("end")])
    other = msgspec.structs.replace(script.model, id="m2")

    def prepare(request: Any, signal: Any) -> Any:
        seen.append((len(request.context.messages), request.model.id, request.thinking_level, signal.aborted, len(polls)))
        return RequestUpdate(model=other) if len(seen) == 1 else None

    await run(script, tools=[make_tool()], prepare_request=prepare, get_steering_messages=lambda: polls.append("p") or [])
    assert [s[1] for s in seen] == [script.model.id, "m2"]
    assert [r.model.id for r in script.requests] == ["m2", "m2"]
    assert seen[0] == (2, script.model.id, "off", False, 1)


@pytest.mark.parametrize("reply", [error("boom", status=500), error("boom")], ids=["500", "plain"])
async def test_an_error_ends_the_run_without_polls_or_tools(reply: Any) -> None:
    """L-17: the host decides about retries."""
    polls: list[str] = []
    decisions: list[Any] = []
    recorder, messages = await run(
        Scripted([reply]),
        get_steering_messages=lambda: polls.append("s") or [],
        get_follow_up_messages=lambda: polls.append("f") or [user("never")],
        finish_turn=lambda turn, _: decisions.append(turn) or Continue(),
    )
    assert polls == ["s"]
    assert len(decisions) == 1
    assert recorder.trace[-2:] == ["turn_end(0)", "agent_end(error)"]
    assert messages[-1].stop_reason == "error"
    assert "boom" in messages[-1].error_message


async def test_an_abort_mid_stream_ends_the_run_and_keeps_the_partial_text() -> None:
    """L-18."""
    controller = AbortController()
    gate = asyncio.Event()
    script = Scripted([text("a long answer", delta_size=3, gate=gate)])
    polls: list[str] = []

    async def emit(event: Any) -> None:
        recorder(event)
        if event.type == "message_update":
            controller.abort("enough")

    recorder = Recorder()
    config = LoopConfig(
        model=script.model,
        get_steering_messages=lambda: polls.append("s") or [],
        get_follow_up_messages=lambda: polls.append("f") or [user("never")],
    )
    async with asyncio.timeout(5):
        messages = await run_agent_loop([user("go")], context(), config, emit, signal=controller.signal, stream_fn=script.stream_fn)
    assert recorder.trace[-3:] == ["ME(a1)", "turn_end(0)", "agent_end(aborted)"]
    assert polls == ["s"]
    assert messages[-1].stop_reason == "aborted"
    assert messages[-1].text
    assert unsendable(messages) == []


async def test_a_stream_without_start_is_one_message() -> None:
    """L-19."""
    from laneway.events import StreamDone
    from laneway.messages import AssistantMessage, TextContent

    final = AssistantMessage(content=[TextContent(text="whole")], stop_reason="stop")

    class Lone:
        async def __aiter__(self) -> Any:
            yield StreamDone(message=final)

        async def result(self) -> Any:
            return final

    recorder = Recorder()
    messages = await run_agent_loop(
        [user("go")], context(), LoopConfig(model=Scripted([]).model), recorder, stream_fn=lambda *_: Lone()
    )
    assert recorder.trace[4:] == ["MS(a1)", "ME(a1)", "turn_end(0)", "agent_end(stop)"]
    assert texts(messages) == ["go", "whole"]


async def test_the_request_is_shaped_in_a_fixed_order_and_the_transcript_stays() -> None:
    """L-21."""
    order: list[str] = []
    script = Scripted([text("ok")])

    def transform(messages: list[Any]) -> list[Any]:
        order.append("transform")
        return messages[1:]

    def convert(messages: list[Any]) -> list[Any]:
        order.append("convert")
        return [m for m in messages if not isinstance(m, Note)]

    async def key(provider: str) -> str | None:
        order.append(f"key:{provider}")
        return None

    from laneway import StreamOptions

    def stream_fn(*args: Any) -> Any:
        order.append("stream")
        return script.stream_fn(*args)

    base = context(user("first"), Note(body="n"))
    recorder = Recorder()
    config = LoopConfig(
        model=script.model, transform_context=transform, convert_to_llm=convert, get_api_key=key, stream_options=StreamOptions(api_key="fallback")
    )
    await run_agent_loop([user("go")], base, config, recorder, stream_fn=stream_fn)
    assert order == ["transform", "convert", f"key:{script.model.provider}", "stream"]
    assert texts(script.requests[0].messages) == ["go"]
    assert script.requests[0].options.api_key == "fallback"
    assert len(base.messages) == 2


@pytest.mark.parametrize(
    "hook", ["convert_to_llm", "transform_context", "prepare_request", "get_api_key", "get_steering_messages", "get_follow_up_messages"]
)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_raising_hook_is_an_error_turn(hook: str, kind: str) -> None:
    """L-22: a consumer always sees a whole sequence and nothing escapes."""

    def fail(*_: Any) -> Any:
        raise ValueError(f"{hook} broke")

    async def fail_async(*_: Any) -> Any:
        raise ValueError(f"{hook} broke")

    finished: list[Any] = []
    script = Scripted([text("one"), text("two")])
    recorder, messages = await run(script, finish_turn=lambda turn, _: finished.append(turn), **{hook: fail if kind == "sync" else fail_async})
    assert recorder.trace[-4:] == ["MS(a2)", "ME(a2)", "turn_end(0)", "agent_end(error)"] if hook == "get_follow_up_messages" else True
    assert recorder.end.reason == "error"
    assert f"{hook} broke" in messages[-1].error_message
    assert len(script.requests) == (1 if hook == "get_follow_up_messages" else 0)
    assert recorder.trace.count("turn_start") == len(finished)


@pytest.mark.parametrize("hook", ["finish_turn", "prepare_next_turn"])
async def test_a_raising_turn_hook_ends_the_run_and_is_raised(hook: str) -> None:
    """It belongs to the user: raised once agent_end is out; what was drained from a queue is in the transcript."""

    def fail(*_: Any) -> Any:
        raise ValueError("mine")

    script = Scripted([calls(call("echo")), text("never")])
    recorder = Recorder()
    config = LoopConfig(model=script.model, get_steering_messages=queue([], [user("typed")]), **{hook: fail})
    base = context(tools=[make_tool()])
    with pytest.raises(ValueError, match="mine"):
        await run_agent_loop([user("go")], base, config, recorder, stream_fn=script.stream_fn)
    assert recorder.end.reason == "error"
    assert ("typed" in texts(recorder.end.messages)) == (hook == "prepare_next_turn")
    assert len(script.requests) == 1


async def test_the_event_stream_ends_after_agent_end() -> None:
    """L-23."""
    script = Scripted([text("ok")])
    recorder = Recorder()
    stream = agent_loop([user("go")], context(), LoopConfig(model=script.model), stream_fn=script.stream_fn)
    async for event in stream:
        recorder(event)
    assert recorder.end.messages == await stream.result()


async def test_leaving_the_event_stream_aborts_the_run() -> None:
    """Abandoning by break, aclose and garbage."""
    for how in ("break", "aclose", "drop"):
        stopped = asyncio.Event()

        async def wait(args: Any, signal: Any, update: Any, stopped: asyncio.Event = stopped) -> str:
            await signal.wait()
            stopped.set()
            return "stopped"

        script = Scripted([calls(call("wait")), text("never")])
        stream = agent_loop([user("go")], context(tools=[make_tool("wait", wait)]), LoopConfig(model=script.model), stream_fn=script.stream_fn)
        async for event in stream:
            if event.type == "tool_execution_start":
                break
        if how == "aclose":
            await stream.aclose()
        elif how == "drop":
            del stream
        async with asyncio.timeout(5):
            await stopped.wait()
        await asyncio.sleep(0.01)
        assert len(script.requests) == 1


async def test_a_turn_with_a_tool_gives_the_reference_trace() -> None:
    """L-26."""
    recorder, messages = await run(Scripted([calls(call("echo", call_id="1")), text("end")]), tools=[make_tool()])
    assert [t for t in recorder.trace if not t.startswith("MU")] == [
        "agent_start", "turn_start", "MS(u1)", "ME(u1)", "MS(a1)", "ME(a1)", "TS(1)", "TE(1)", "MS(r1)", "ME(r1)", "turn_end(1)",
        "turn_start", "MS(a2)", "ME(a2)", "turn_end(0)", "agent_end(stop)",
    ]  # fmt: skip
    assert [m.role for m in messages] == ["user", "assistant", "tool_result", "assistant"]


async def test_end_leaves_the_queues_alone() -> None:
    """Exit 3."""
    polls: list[str] = []
    recorder, _ = await run(
        Scripted([calls(call("echo"))]), tools=[make_tool()], finish_turn=lambda *_: End(), get_steering_messages=lambda: polls.append("s") or []
    )
    assert recorder.end.reason == "ended"
    assert polls == ["s"]


async def test_continue_adds_exactly_one_request_when_nothing_natural_happens() -> None:
    """D: and none when tool results, steering or a follow-up ask for one anyway."""
    asked = [Continue()]
    script = Scripted([text("one"), text("two")])
    await run(script, finish_turn=lambda *_: asked.pop() if asked else None)
    assert len(script.requests) == 2
    for extra in ({"get_steering_messages": queue([], [user("s")])}, {"get_follow_up_messages": queue([user("f")])}):
        asked = [Continue()]
        script = Scripted([text("one"), text("two"), text("three")])
        await run(script, finish_turn=lambda *_: asked.pop() if asked else None, **extra)
        assert len(script.requests) == 2
    asked = [Continue()]
    script = Scripted([calls(call("echo")), text("two"), text("three")])
    await run(script, tools=[make_tool()], finish_turn=lambda *_: asked.pop() if asked else None)
    assert len(script.requests) == 2


async def test_tools_are_declared_in_the_transcript() -> None:
    """A new tool is declared before the prompt, a removed one is withdrawn, an unchanged set says nothing."""
    one, two = make_tool("one"), make_tool("two")
    script = Scripted([text("a"), text("b"), text("c")])
    base = AgentContext(messages=[], tools=[one])
    recorder = Recorder()
    first = await run_agent_loop([user("go")], base, LoopConfig(model=script.model), recorder, stream_fn=script.stream_fn)
    assert [m.role for m in first] == ["system", "user", "assistant"]
    assert recorder.trace[2:4] == ["MS(s1)", "ME(s1)"]
    config = LoopConfig(model=script.model)
    second = await run_agent_loop([user("go")], AgentContext(messages=first, tools=[one]), config, Recorder(), stream_fn=script.stream_fn)
    assert [m.role for m in second] == ["user", "assistant"]
    third = await run_agent_loop(
        [SystemMessage(content="rule", tools_added=[one.declaration]), user("go")],
        AgentContext(messages=[*first, *second], tools=[two]),
        LoopConfig(model=script.model),
        Recorder(),
        stream_fn=script.stream_fn,
    )
    assert third[0].tools_removed == ["one"]
    assert [d.name for d in third[0].tools_added] == ["two"]
    assert [d.name for d in current_tools([*first, *second, *third])] == ["two"]


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (LoopLimits(max_turns=2), "max_turns"),
        (LoopLimits(max_tool_calls=2), "max_tool_calls"),
        (LoopLimits(max_output_tokens=1), "max_output_tokens"),
        (LoopLimits(deadline=0.0), "deadline"),
    ],
)
async def test_a_limit_ends_a_model_that_loops_for_ever(limits: LoopLimits, name: str) -> None:
    """The run ends between turns, names the limit, and the transcript can be sent again."""
    script = Scripted([calls(call("echo"), call("echo")) for _ in range(50)])
    recorder, messages = await run(script, tools=[make_tool()], limits=limits)
    assert recorder.end.reason == "limit"
    assert recorder.end.limit == name
    assert unsendable(messages) == []
    assert len(script.requests) <= 2


async def test_a_limit_reached_by_the_last_turn_is_not_exceeded() -> None:
    """B24: one turn was allowed and one was enough."""
    recorder, _ = await run(Scripted([text("done")]), limits=LoopLimits(max_turns=1))
    assert recorder.end.reason == "stop"


async def test_a_truncated_response_never_runs_its_calls() -> None:
    """Promise 2, B17: each call is answered in order, nothing runs, the model is asked again; the same cut again and again ends the run."""
    ran: list[Any] = []
    tool = make_tool("write", lambda args, *_: ran.append(args) or "written")
    script = Scripted([truncated(calls(call("write", call_id="1", path="f"), call("write", call_id="2", path="g"))), text("sorry")])
    recorder, messages = await run(script, tools=[tool])
    assert ran == []
    assert [t for t in recorder.trace if t[:2] in ("TS", "TE") or "(r" in t] == [
        "TS(1)", "TE(1)", "MS(r1)", "ME(r1)", "TS(2)", "TE(2)", "MS(r2)", "ME(r2)",
    ]  # fmt: skip
    assert all(m.is_error and "output limit" in texts([m])[0] for m in messages if m.role == "tool_result")
    script = Scripted([truncated(call("write", path="f")) for _ in range(50)])
    recorder, _ = await run(script, tools=[tool])
    assert (recorder.end.reason, recorder.end.limit) == ("limit", "repeated_truncation")
    assert ran == []
    assert len(script.requests) == 3


async def test_a_truncated_text_is_a_normal_end() -> None:
    """`length` without calls stops like any answer."""
    recorder, messages = await run(Scripted([truncated("half an ans")]))
    assert recorder.end.reason == "stop"
    assert messages[-1].stop_reason == "length"


async def test_no_request_is_made_on_an_aborted_signal() -> None:
    """The turn settles as an empty aborted message; nothing is polled."""
    controller = AbortController()
    controller.abort("too late")
    polls: list[str] = []
    script = Scripted([text("never")])
    recorder, messages = await run(script, signal=controller.signal, get_steering_messages=lambda: polls.append("s") or [])
    assert script.requests == []
    assert polls == []
    assert recorder.end.reason == "aborted"
    assert messages[-1].stop_reason == "aborted"
    assert messages[-1].content == []


async def test_an_abort_with_nothing_left_changes_nothing() -> None:
    """The answer was complete: the reason is stop."""
    controller = AbortController()
    recorder, _ = await run(Scripted([text("done")]), signal=controller.signal, finish_turn=lambda *_: controller.abort())
    assert recorder.end.reason == "stop"


@pytest.mark.parametrize(
    "at", ["agent_start", "message_start", "message_update", "message_end", "tool_execution_start", "tool_execution_end", "turn_end"]
)
async def test_cancelling_the_task_at_any_event_settles_the_run(at: str) -> None:
    """Promise 5: the transcript is valid, agent_end is out, then CancelledError."""
    script = Scripted([calls(call("slow", call_id="1"), call("slow", call_id="2")), text("end", delta_size=1)])

    async def slow(*_: Any) -> str:
        await asyncio.sleep(0.02)
        return "ok"

    recorder = Recorder()
    task: asyncio.Task[Any]

    async def emit(event: Any) -> None:
        recorder(event)
        if event.type == at and not task.cancelling():
            task.cancel()
            await asyncio.sleep(0)

    task = asyncio.create_task(
        run_agent_loop([user("go")], context(tools=[make_tool("slow", slow)]), LoopConfig(model=script.model), emit, stream_fn=script.stream_fn)
    )
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorder.end.reason == "aborted"
    answered = [m.tool_call_id for m in recorder.end.messages if m.role == "tool_result"]
    assert answered in ([], ["1", "2"])


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_cancelling_after_any_number_of_loop_steps_settles_the_run(steps: int) -> None:
    """Promise 1 and 5 at every await: each call of a finished response has one result."""
    script = Scripted([calls(call("slow", call_id="1"), call("slow", call_id="2")), text("end")])

    async def slow(*_: Any) -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "ok"

    recorder = Recorder()
    task = asyncio.create_task(
        run_agent_loop([user("go")], context(tools=[make_tool("slow", slow)]), LoopConfig(model=script.model), recorder, stream_fn=script.stream_fn)
    )
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    if recorder.events:
        messages = recorder.end.messages
        called = [c.id for m in messages if m.role == "assistant" and m.stop_reason not in ("error", "aborted") for c in m.tool_calls]
        assert [m.tool_call_id for m in messages if m.role == "tool_result"] == called
        assert unsendable(messages) == []


async def test_an_emit_that_raises_escapes_and_leaves_nothing_running() -> None:
    """The sink belongs to the caller: its exception is the caller's."""
    cancelled = asyncio.Event()

    async def hang(*_: Any) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    def emit(event: Any) -> None:
        if event.type == "tool_execution_end":
            raise RuntimeError("sink broke")

    script = Scripted([calls(call("hang"), call("quick"))])
    tools = [make_tool("hang", hang), make_tool("quick")]
    with pytest.raises(RuntimeError, match="sink broke"):
        await run_agent_loop([user("go")], context(tools=tools), LoopConfig(model=script.model), emit, stream_fn=script.stream_fn)
    assert cancelled.is_set()


async def test_a_provider_that_raises_is_a_settled_message() -> None:
    """Promise 4, B11: stream_fn raising, the stream raising mid-way, the stream ending without a last word."""
    from laneway.events import StreamStart, TextDelta
    from laneway.llm._writer import StreamWriter

    model = Scripted([]).model

    def raises(*_: Any) -> Any:
        raise ConnectionError("refused")

    def broken(after: BaseException | None) -> Any:
        class Stream:
            async def __aiter__(self) -> Any:
                writer = StreamWriter(model)
                writer.start()
                writer.text(writer.open_text(), "Hel")
                for event in writer.take():
                    yield event
                if after is not None:
                    raise after

            async def result(self) -> Any:
                raise AssertionError

        return lambda *_: Stream()

    for stream_fn, partial, words in (
        (raises, "", "refused"),
        (broken(RuntimeError("cut")), "Hel", "cut"),
        (broken(None), "Hel", "without a terminal event"),
    ):
        recorder = Recorder()
        messages = await run_agent_loop([user("go")], context(), LoopConfig(model=model), recorder, stream_fn=stream_fn)
        assert recorder.end.reason == "error"
        assert messages[-1].text == partial
        assert words in messages[-1].error_message
    assert StreamStart
    assert TextDelta


async def test_a_stream_that_ignores_the_abort_is_cut_off() -> None:
    """B12: idle within a bounded time even if the provider's stream never looks at the signal."""
    controller = AbortController()

    class Deaf:
        async def __aiter__(self) -> Any:
            await asyncio.Event().wait()
            yield None

        async def result(self) -> Any:
            raise AssertionError

    script = Scripted([])
    asyncio.get_running_loop().call_later(0.02, controller.abort)
    async with asyncio.timeout(5):
        messages = await run_agent_loop(
            [user("go")], context(), LoopConfig(model=script.model), lambda _: None, signal=controller.signal, stream_fn=lambda *_: Deaf()
        )
    assert messages[-1].stop_reason == "aborted"


async def test_repeated_call_ids_are_made_distinct() -> None:
    """A provider that repeats ids: each call gets its own result."""
    recorder, messages = await run(Scripted([calls(call("echo", call_id="x", n=1), call("echo", call_id="x", n=2)), text("ok")]), tools=[make_tool()])
    ids = [c.id for c in messages[1].tool_calls]
    assert len(set(ids)) == 2
    assert [m.tool_call_id for m in messages if m.role == "tool_result"] == ids
    assert unsendable(messages) == []
    assert recorder.end.reason == "stop"


async def test_the_partial_is_in_the_running_context_while_it_streams() -> None:
    """Hooks and listeners see the live context, the streaming partial included; the final message replaces it."""
    lengths: list[int] = []
    live: list[Any] = []

    def prepare(request: Any, _: Any) -> None:
        live.append(request.context)

    def emit(event: Any) -> None:
        if event.type == "message_update":
            lengths.append(len(live[0].messages))
            assert live[0].messages[-1] is event.message

    script = Scripted([text("abc", delta_size=1)])
    config = LoopConfig(model=script.model, prepare_request=prepare)
    messages = await run_agent_loop([user("go")], context(), config, emit, stream_fn=script.stream_fn)
    assert set(lengths) == {2}
    assert live[0].messages[-1] is messages[-1]


async def test_user_messages_keep_their_identity() -> None:
    """What goes in comes out: the loop rewrites nothing."""
    prompt = UserMessage(content="go")
    _, messages = await run(Scripted([text("ok")]), prompt)
    assert messages[0] is prompt
