"""Layer 1 under users' code that misbehaves: whatever a tool, a hook or a stream does, the run settles and every call has one result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from helpers import Recorder, context, make_tool, run, texts, user
from laneway import (
    AbortController,
    AbortSignal,
    AgentTool,
    End,
    LoopConfig,
    PatchResult,
    TextContent,
    ToolResult,
    agent_loop,
    run_agent_loop,
)
from laneway.events import StreamDone
from laneway.llm.base import StreamOptions, Transcript
from laneway.testing import Scripted, call, calls, text

HANG = 10.0


def results_of(messages: list[Any]) -> list[Any]:
    return [m for m in messages if m.role == "tool_result"]


class _Mute(Exception):
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class _Outside(BaseException):
    """What test frameworks and other event loops raise: not an Exception."""


# ---------------------------------------------------------------------------------------------------- tools


@pytest.mark.parametrize(
    "error", [_Mute(), _Outside("away"), GeneratorExit(), SystemExit(2), BaseExceptionGroup("g", [_Outside("x")])], ids=lambda e: type(e).__name__
)
async def test_whatever_a_tool_raises_is_an_error_result(error: BaseException) -> None:
    """Promise 1 and 4, B13: also what is no Exception, and what cannot say what it is; the neighbour's result is kept."""

    async def raises(*_: Any) -> str:
        await asyncio.sleep(0)
        raise error

    script = Scripted([calls(call("bad", call_id="1"), call("echo", call_id="2")), text("ok")])
    async with asyncio.timeout(HANG):
        recorder, messages = await run(script, tools=[make_tool("bad", raises), make_tool()])
    bad, good = results_of(messages)
    assert bad.is_error
    assert type(error).__name__ in bad.text
    assert not good.is_error
    assert recorder.end.reason == "stop"


async def test_a_call_whose_task_is_cancelled_before_it_began_has_a_result() -> None:
    """Promise 1: one tool cancels the tasks of the others (a careless clean-up) before they took their first step."""

    async def careless(*_: Any) -> str:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task() and "RunningCall" in repr(task.get_coro()):
                task.cancel()
        return "clean"

    def later(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:  # where a task cannot begin at once
        return asyncio.Task(work, loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(later)
    script = Scripted([calls(call("careless", call_id="1"), call("echo", call_id="2")), text("ok")])
    async with asyncio.timeout(HANG):
        _, messages = await run(script, tools=[make_tool("careless", careless), make_tool()])
    first, second = results_of(messages)
    assert (first.is_error, second.is_error) == (False, True)
    assert "cancelled" in second.text


class _Opaque(BaseModel):
    """Arguments that have no JSON form."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    n: int
    handle: Any = None


async def test_arguments_without_a_json_form_do_not_tear_the_batch() -> None:
    """Promise 1: the after hook's arguments cannot be made; that call's result is an error, the other call is kept."""

    class Opaque(_Opaque):
        def model_post_init(self, _: Any) -> None:
            self.handle = object()

    async def execute(call_id: str, args: Any, signal: Any, update: Any) -> ToolResult:
        return ToolResult(content=[TextContent(text="done")])

    opaque = AgentTool(name="opaque", description="d", parameters=Opaque, execute=execute)
    script = Scripted([calls(call("opaque", n=1, call_id="1"), call("echo", call_id="2")), text("ok")])
    async with asyncio.timeout(HANG):
        recorder, messages = await run(script, tools=[opaque, make_tool()], after_tool_call=lambda *_: None)
    assert [r.is_error for r in results_of(messages)] == [True, False]
    assert recorder.end.reason == "stop"


# ---------------------------------------------------------------------------------------------------- hooks that answer nonsense


@pytest.mark.parametrize("answer", ["no", {"is_error": True}, PatchResult, PatchResult(content="text"), PatchResult(content=["text"])], ids=repr)  # type: ignore[arg-type]
async def test_an_after_hook_that_answers_nonsense_makes_the_result_an_error(answer: Any) -> None:
    """Promise 1: 01-loop, an exception in `after_tool_call` makes that result an error; so does an answer that is none."""
    async with asyncio.timeout(HANG):
        recorder, messages = await run(Scripted([calls(call("echo")), text("ok")]), tools=[make_tool()], after_tool_call=lambda *_: answer)
    (result,) = results_of(messages)
    assert result.is_error
    assert "check after" in result.text
    assert recorder.end.reason == "stop"


async def test_a_turn_hook_that_answers_nonsense_is_told_so_after_agent_end() -> None:
    """01-loop: as if it had raised; `End` the class is not `End()`, and ignoring it would go on for a night."""
    for hook in ("finish_turn", "prepare_next_turn"):
        recorder = Recorder()
        script = Scripted([calls(call("echo")), text("ok")])
        config = LoopConfig(model=script.model, **{hook: lambda *_: End})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=hook):
            await run_agent_loop([user("go")], context(tools=[make_tool()]), config, recorder, stream_fn=script.stream_fn)
        assert recorder.end.reason == "error"
        assert len(script.requests) == 1


async def test_a_prepare_request_that_answers_nonsense_is_an_error_turn() -> None:
    """L-22."""
    script = Scripted([text("ok")])
    recorder, messages = await run(script, prepare_request=lambda *_: "m2")
    assert recorder.end.reason == "error"
    assert "prepare_request" in messages[-1].error_message
    assert script.requests == []


async def test_polls_may_say_nothing_in_any_way() -> None:
    """A sync poll that returns None or a tuple is as good as one that returns a list."""
    once = iter([(user("more"),)])
    _, messages = await run(
        Scripted([text("a"), text("b")]), get_steering_messages=lambda: None, get_follow_up_messages=lambda: next(once, None)  # type: ignore[arg-type,return-value]
    )
    assert texts(messages) == ["go", "a", "more", "b"]


# ---------------------------------------------------------------------------------------------------- cancellations that are nobody's


async def _cancelled(*_: Any) -> Any:
    """Await something that was cancelled by its own owner."""
    task = asyncio.ensure_future(asyncio.sleep(10))
    task.cancel()
    await task


@pytest.mark.parametrize(
    "hook", ["prepare_request", "transform_context", "convert_to_llm", "get_api_key", "get_steering_messages", "get_follow_up_messages"]
)
async def test_a_hook_whose_own_work_was_cancelled_is_an_error_turn(hook: str) -> None:
    """Promise 5 is for the caller's task; L-22 is for a hook's fault. A sub-task that somebody cancelled is the latter."""
    async with asyncio.timeout(HANG):
        recorder, messages = await run(Scripted([text("a"), text("b")]), **{hook: _cancelled})
    assert recorder.end.reason == "error"
    assert "cancelled" in messages[-1].error_message


@pytest.mark.parametrize("hook", ["finish_turn", "prepare_next_turn"])
async def test_a_turn_hook_whose_own_work_was_cancelled_ends_the_run(hook: str) -> None:
    """01-loop: raised to the caller once agent_end is out, as an error and not as a cancellation of the caller."""
    recorder = Recorder()
    script = Scripted([calls(call("echo")), text("ok")])
    with pytest.raises(RuntimeError, match="cancelled"):
        await run_agent_loop(
            [user("go")], context(tools=[make_tool()]), LoopConfig(model=script.model, **{hook: _cancelled}), recorder, stream_fn=script.stream_fn
        )
    assert recorder.end.reason == "error"


@pytest.mark.parametrize("hook", ["before_tool_call", "after_tool_call"])
async def test_a_tool_hook_whose_own_work_was_cancelled_is_an_error_result(hook: str) -> None:
    """B26: the gate fails closed; the run goes on."""
    async with asyncio.timeout(HANG):
        recorder, messages = await run(Scripted([calls(call("echo")), text("ok")]), tools=[make_tool()], **{hook: _cancelled})
    (result,) = results_of(messages)
    assert result.is_error
    assert "check" in result.text
    assert recorder.end.reason == "stop"


@pytest.mark.parametrize("where", ["opening", "streaming"])
async def test_a_provider_whose_own_work_was_cancelled_is_a_settled_message(where: str) -> None:
    """Promise 4: a client that cancels its own request (a pool that closes) does not cancel the caller."""

    async def opening(*_: Any) -> Any:
        await _cancelled()

    async def streaming(*_: Any) -> AsyncIterator[Any]:
        await _cancelled()
        yield

    recorder = Recorder()
    stream_fn: Any = opening if where == "opening" else streaming
    async with asyncio.timeout(HANG):
        messages = await run_agent_loop([user("go")], context(), LoopConfig(model=Scripted([]).model), recorder, stream_fn=stream_fn)
    assert recorder.end.reason == "error"
    assert "cancelled" in messages[-1].error_message


async def test_an_abort_of_something_else_does_not_make_the_run_aborted() -> None:
    """A hook that watches a signal of its own raises `Aborted`: that is its fault, not an abort of this run."""
    other = AbortController()
    other.abort("another run")

    def watches(*_: Any) -> Any:
        other.signal.raise_if_aborted()

    recorder, messages = await run(Scripted([text("a")]), transform_context=watches)
    assert (recorder.end.reason, messages[-1].stop_reason) == ("error", "error")
    for hook in ("finish_turn", "prepare_next_turn"):
        script = Scripted([calls(call("echo")), text("ok")])
        recorder = Recorder()
        with pytest.raises(Exception, match="another run"):
            await run_agent_loop(
                [user("go")], context(tools=[make_tool()]), LoopConfig(model=script.model, **{hook: watches}), recorder, stream_fn=script.stream_fn
            )
        assert recorder.end.reason == "error"


# ---------------------------------------------------------------------------------------------------- aborts and interruptions


async def test_an_interruption_does_not_wait_for_an_approval() -> None:
    """01-loop, steering that cannot wait: the person who should approve a call writes something else instead."""
    interrupt = AbortController()
    asked: list[str] = []

    async def approve(event: Any, _: Any) -> None:
        asked.append(event.tool_call.id)
        asyncio.get_running_loop().call_soon(interrupt.abort)
        await asyncio.Event().wait()

    script = Scripted([calls(call("echo", call_id="1"), call("echo", call_id="2")), text("ok")])
    async with asyncio.timeout(HANG):
        recorder, messages = await run(script, tools=[make_tool()], before_tool_call=approve, batch_interrupt=lambda: interrupt.signal)
    assert asked == ["1"]
    assert [r.is_error for r in results_of(messages)] == [True, True]
    assert all("nterrupted by a new message" in r.text for r in results_of(messages))
    assert recorder.end.reason == "stop"


async def test_a_late_interruption_of_the_last_batch_spares_the_next() -> None:
    """An interruption that arrives when its batch is over stops nothing, even where no step of the event loop lies between two batches."""
    controllers: list[AbortController] = []

    def interrupts() -> AbortSignal:
        controllers.append(AbortController())
        return controllers[-1].signal

    script = Scripted([calls(call("echo", call_id="1")), calls(call("slow", call_id="2")), text("ok")])

    class Instant:
        """A stream that never waits."""

        def __init__(self, message: Any) -> None:
            self.message = message

        async def __aiter__(self) -> AsyncIterator[Any]:
            yield StreamDone(message=self.message)

    left = iter([await _final_of(script) for _ in range(3)])

    def emit(event: Any) -> None:
        if event.type == "turn_end" and len(controllers) == 1:
            controllers[0].abort("too late")

    async def slow(*_: Any) -> str:
        await asyncio.sleep(0.01)
        return "whole"

    messages = await run_agent_loop(
        [user("go")], context(tools=[make_tool(), make_tool("slow", slow)]), LoopConfig(model=script.model, batch_interrupt=interrupts), emit,
        stream_fn=lambda *_: Instant(next(left)),  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    assert [r.is_error for r in results_of(messages)] == [False, False]


async def _final_of(script: Scripted) -> Any:
    """The next response of a script, whole."""
    stream: Any = script.stream_fn(script.model, Transcript(messages=[]), StreamOptions())
    return await stream.result()


@pytest.mark.parametrize("first", ["abort", "hook"])
async def test_a_finish_turn_that_hangs_does_not_hold_an_aborted_run(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """01-loop: after an abort its answer is ignored; so is that there is none. Whether the abort or the hook comes first."""
    monkeypatch.setattr("laneway.loop.HOOK_GRACE", 0.02)
    controller = AbortController()

    async def hangs(*_: Any) -> None:
        asyncio.get_running_loop().call_soon(controller.abort)
        await asyncio.Event().wait()

    def work(*_: Any) -> str:
        if first == "abort":
            controller.abort()
        return "done"

    script = Scripted([calls(call("work")), text("ok")])
    async with asyncio.timeout(HANG):
        recorder, messages = await run(script, tools=[make_tool("work", work)], finish_turn=hangs, signal=controller.signal)
    assert recorder.end.reason == "aborted"
    assert texts(results_of(messages)) == ["done"]


async def test_a_timeout_does_not_cut_the_check_after_the_call() -> None:
    """The timeout is the tool's: a slow after hook (one that redacts, say) still decides what the model reads."""

    async def redact(*_: Any) -> PatchResult:
        await asyncio.sleep(0.15)
        return PatchResult(content=[TextContent(text="[redacted]")])

    tool = make_tool("quick", lambda *_: "secret", timeout=0.05)
    _, messages = await run(Scripted([calls(call("quick")), text("ok")]), tools=[tool], after_tool_call=redact)
    assert texts(results_of(messages)) == ["[redacted]"]


@pytest.mark.parametrize("where", ["stream", "aclose"])
async def test_a_stream_that_swallows_one_cancellation_is_cut_off_all_the_same(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """B12: a retry wrapper that catches everything once, a clean-up that hangs; idle within a bounded time, and the task is not left cancelled."""
    monkeypatch.setattr("laneway._effects.respond.STREAM_ABORT_GRACE", 0.05)
    controller = AbortController()
    reached = asyncio.Event()

    class Stubborn:
        async def __aiter__(self) -> AsyncIterator[Any]:
            reached.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if where == "aclose":
                    raise
            await asyncio.Event().wait()
            yield

        async def aclose(self) -> None:
            if where == "aclose":
                await asyncio.Event().wait()

    recorder = Recorder()
    cancelling: list[int] = []

    def emit(event: Any) -> None:
        recorder(event)
        cancelling.append(asyncio.current_task().cancelling())  # type: ignore[union-attr]

    going = asyncio.ensure_future(
        run_agent_loop(
            [user("go")], context(), LoopConfig(model=Scripted([]).model), emit, signal=controller.signal, stream_fn=lambda *_: Stubborn()  # type: ignore[arg-type,return-value]
        )
    )
    async with asyncio.timeout(HANG):
        await reached.wait()
        controller.abort("enough")
        messages = await going
    assert recorder.end.reason == "aborted"
    assert messages[-1].stop_reason == "aborted"
    assert set(cancelling) == {0}


async def test_a_stream_that_ends_well_after_the_cut_leaves_the_task_uncancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that answers the cut with its last word: the run's task is not left in the state of being cancelled."""
    monkeypatch.setattr("laneway._effects.respond.STREAM_ABORT_GRACE", 0.05)
    script = Scripted([text("late")])
    final = await _final_of(script)
    controller = AbortController()

    async def polite(*_: Any) -> AsyncIterator[Any]:
        try:
            asyncio.get_running_loop().call_soon(controller.abort)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield StreamDone(message=final)

    cancelling: list[int] = []
    config = LoopConfig(model=script.model)
    async with asyncio.timeout(HANG):
        await run_agent_loop(
            [user("go")], context(), config, lambda _: cancelling.append(asyncio.current_task().cancelling()),  # type: ignore[union-attr]
            signal=controller.signal, stream_fn=polite,  # type: ignore[arg-type]
        )  # fmt: skip
    assert set(cancelling) == {0}


async def test_a_torn_run_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emit that raises after an abort: nothing ticks on for ever."""
    monkeypatch.setattr("laneway._effects.respond.STREAM_ABORT_GRACE", 0.01)
    controller = AbortController()

    async def emit(event: Any) -> None:
        if event.type == "message_end" and event.message.role == "assistant":
            controller.abort()
            await asyncio.sleep(0.05)
            raise ValueError("sink is full")

    script = Scripted([text("a")])
    with pytest.raises(ValueError, match="sink"):
        await run_agent_loop(
            [user("go")], context(), LoopConfig(model=script.model), emit, signal=controller.signal, stream_fn=script.stream_fn
        )
    ticking = [h for h in asyncio.get_running_loop()._scheduled if not h.cancelled() and "StreamGuard" in repr(h)]  # type: ignore[attr-defined]
    assert ticking == []


def test_an_abort_from_another_thread_is_never_missed() -> None:
    """Whoever subscribes while another thread aborts is told exactly once."""
    import sys

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    missed = twice = 0
    try:
        for _ in range(300):
            controller, told, go = AbortController(), [0] * 50, threading.Barrier(2)

            def other(controller: AbortController = controller, go: threading.Barrier = go) -> None:
                go.wait()
                controller.abort()

            thread = threading.Thread(target=other)
            thread.start()
            go.wait()
            for index in range(50):
                controller.signal.on_abort(lambda index=index, told=told: told.__setitem__(index, told[index] + 1))
            thread.join()
            missed += told.count(0)
            twice += sum(n > 1 for n in told)
    finally:
        sys.setswitchinterval(interval)
    assert (missed, twice) == (0, 0)


def test_a_signal_outlives_an_event_loop_that_was_closed_on_it() -> None:
    """A loop that was closed without ending its tasks does not keep an abort from the others."""
    controller, told = AbortController(), []
    loop = asyncio.new_event_loop()
    task = loop.create_task(controller.signal.wait())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    controller.signal.on_abort(lambda: told.append("told"))
    controller.abort()
    assert told == ["told"]
    task._log_destroy_pending = False  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------- event streams


async def test_two_consumers_of_one_stream_both_end() -> None:
    """Each event goes to one of them, and neither waits for ever."""
    gate = asyncio.Event()
    script = Scripted([text("one two three four", delta_size=1, gate=gate)])
    stream = agent_loop([user("go")], context(), LoopConfig(model=script.model), stream_fn=script.stream_fn)
    seen: list[Any] = []

    async def consume() -> None:
        async for event in stream:
            seen.append(event)

    async with asyncio.timeout(HANG):
        consumers = [asyncio.ensure_future(consume()) for _ in range(3)]
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(*consumers)
    assert sum(event.type == "agent_end" for event in seen) == 1
    assert sum(event.type == "turn_end" for event in seen) == 1


async def test_a_consumer_that_gives_up_waiting_loses_nothing() -> None:
    """`anext` under a timeout, then again: no event is skipped."""
    gate = asyncio.Event()
    script = Scripted([text("slow", gate=gate)])
    stream = agent_loop([user("go")], context(), LoopConfig(model=script.model), stream_fn=script.stream_fn)
    seen: list[str] = []
    async with asyncio.timeout(HANG):
        while True:
            try:
                async with asyncio.timeout(0.02):
                    seen.append((await stream.__anext__()).type)
            except TimeoutError:
                gate.set()
            except StopAsyncIteration:
                break
    assert seen[0] == "agent_start"
    assert seen[-1] == "agent_end"
    assert len([t for t in seen if t == "message_start"]) == 2


async def test_what_is_left_can_be_read_after_a_break() -> None:
    """Leaving aborts; a second iteration gives the rest, `agent_end` included."""
    script = Scripted([text("x", gate=asyncio.Event())])
    stream = agent_loop([user("go")], context(), LoopConfig(model=script.model), stream_fn=script.stream_fn)
    seen: list[Any] = []
    async with asyncio.timeout(HANG):
        async for event in stream:
            seen.append(event)
            if event.type == "message_start" and event.message.role == "assistant":
                break
        async for event in stream:
            seen.append(event)
    assert (seen[-1].type, seen[-1].reason) == ("agent_end", "aborted")
