"""Layer 1: one tool batch — order, phases, hooks, failures, abort and interruption."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from helpers import Recorder, context, make_tool, queue, run, texts, unsendable, user
from laneway import (
    AbortController,
    Block,
    LoopConfig,
    PatchResult,
    ReplaceArgs,
    TextContent,
    ToolError,
    ToolResult,
    Usage,
    run_agent_loop,
)
from laneway.testing import Scripted, call, calls, text

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def trace_of_tools(recorder: Recorder) -> list[str]:
    return [t for t in recorder.trace if t[:2] in ("TS", "TU", "TE") or t[3:4] == "r" or t.startswith("turn_end")]


def one_result(messages: list[Any]) -> Any:
    results = [m for m in messages if m.role == "tool_result"]
    assert len(results) == 1
    return results[0]


async def call_once(tool: Any, arguments: dict[str, Any] | None = None, **hooks: Any) -> tuple[Any, Recorder]:
    """Run one call of a tool and return its result message."""
    recorder, messages = await run(Scripted([calls(call(tool.name, arguments or {}, call_id="1")), text("ok")]), tools=[tool], **hooks)
    assert unsendable(messages) == []
    return one_result(messages), recorder


@pytest.mark.parametrize("how", ["configured", "declared"])
async def test_sequential_calls_finish_one_by_one(how: str) -> None:
    """T-01: result message included, before the next starts."""

    def work(args: Any, signal: Any, update: Any) -> str:
        update(ToolResult(content=[TextContent(text="half")]))
        return "done"

    tools = [make_tool("a", work), make_tool("b", work, execution_mode="sequential" if how == "declared" else None)]
    options = {"tool_execution": "sequential"} if how == "configured" else {}
    recorder, _ = await run(Scripted([calls(call("a", call_id="1"), call("b", call_id="2")), text("ok")]), tools=tools, **options)
    assert trace_of_tools(recorder) == [
        "TS(1)", "TU(1)", "TE(1)", "MS(r1)", "ME(r1)", "TS(2)", "TU(2)", "TE(2)", "MS(r2)", "ME(r2)", "turn_end(2)", "turn_end(0)",
    ]  # fmt: skip


async def test_parallel_calls_end_as_they_finish_and_are_recorded_in_order() -> None:
    """T-02."""
    fast = asyncio.Event()

    async def slow(*_: Any) -> str:
        await fast.wait()
        return "slow"

    tools = [make_tool("slow", slow), make_tool("fast", lambda *_: fast.set() or "fast")]
    recorder, messages = await run(Scripted([calls(call("slow", call_id="1"), call("fast", call_id="2")), text("ok")]), tools=tools)
    assert trace_of_tools(recorder) == [
        "TS(1)", "TS(2)", "TE(2)", "TE(1)", "MS(r1)", "ME(r1)", "MS(r2)", "ME(r2)", "turn_end(2)", "turn_end(0)",
    ]  # fmt: skip
    assert texts([m for m in messages if m.role == "tool_result"]) == ["slow", "fast"]


async def test_an_unknown_tool_is_an_error_the_model_can_act_on() -> None:
    """T-05, B22: the names that exist are told, the valid call still runs."""
    recorder, messages = await run(Scripted([calls(call("$NOPE", call_id="1"), call("echo", call_id="2")), text("ok")]), tools=[make_tool()])
    results = [m for m in messages if m.role == "tool_result"]
    assert results[0].is_error
    assert texts(results)[0].startswith("Tool $NOPE not found")
    assert "echo" in texts(results)[0]
    assert not results[1].is_error
    assert trace_of_tools(recorder)[:2] == ["TS(1)", "TE(1)"]


async def test_bad_arguments_reach_neither_hook_nor_tool() -> None:
    """T-06."""
    touched: list[str] = []
    tool = make_tool("count", lambda *_: touched.append("ran") or "x", parameters=NUMBER)
    result, _ = await call_once(tool, {"m": 1}, before_tool_call=lambda *_: touched.append("asked"))
    assert touched == []
    assert result.is_error
    assert "n" in texts([result])[0]


async def test_arguments_are_coerced_on_a_clone() -> None:
    """T-07, T-21: the tool and the hook get the number, transcript and events keep the model's text."""
    got: list[Any] = []
    tool = make_tool("count", lambda args, *_: got.append(args["n"]) or "x", parameters=NUMBER)
    asked: list[Any] = []
    _, recorder = await call_once(tool, {"n": "3"}, before_tool_call=lambda event, _: asked.append((event.args["n"], event.tool_call.arguments["n"])))
    assert got == [3]
    assert asked == [(3, "3")]
    assert recorder.of_type("tool_execution_start")[0].args == {"n": "3"}


async def test_prepare_arguments_maps_legacy_shapes() -> None:
    """T-08."""
    got: list[Any] = []
    tool = make_tool("count", lambda args, *_: got.append(args) or "x", parameters=NUMBER, prepare_arguments=lambda args: {"n": args["number"]})
    result, recorder = await call_once(tool, {"number": 4})
    assert got == [{"n": 4}]
    assert recorder.of_type("tool_execution_start")[0].args == {"number": 4}
    assert not result.is_error

    def broken(_: Any) -> Any:
        raise ValueError("no such shape")

    result, _ = await call_once(make_tool("count", parameters=NUMBER, prepare_arguments=broken), {"n": 4})
    assert result.is_error
    assert "no such shape" in texts([result])[0]


@pytest.mark.parametrize(("block", "words"), [(Block("not allowed here"), "not allowed here"), (Block(), "blocked")])
async def test_a_blocked_call_is_an_error(block: Block, words: str) -> None:
    """T-09: with the reason or a default; the after hook is not asked."""
    ran: list[str] = []
    after: list[Any] = []
    result, _ = await call_once(
        make_tool("echo", lambda *_: ran.append("ran") or "x"), before_tool_call=lambda *_: block, after_tool_call=lambda *a: after.append(a)
    )
    assert result.is_error
    assert words in texts([result])[0]
    assert ran == after == []


async def test_a_block_may_terminate() -> None:
    """T-09: its terminate counts as the tool's."""
    script = Scripted([calls(call("echo"))])
    recorder, _ = await run(script, tools=[make_tool()], before_tool_call=lambda *_: Block("stop", terminate=True))
    assert recorder.end.reason == "terminated"


async def test_replaced_arguments_are_validated_again() -> None:
    """The hook's replacement is coerced and checked like the model's own."""
    got: list[Any] = []
    tool = make_tool("count", lambda args, *_: got.append(args["n"]) or "x", parameters=NUMBER)
    await call_once(tool, {"n": 1}, before_tool_call=lambda *_: ReplaceArgs({"n": "7"}))
    assert got == [7]
    result, _ = await call_once(tool, {"n": 1}, before_tool_call=lambda *_: ReplaceArgs({}))
    assert result.is_error
    assert got == [7]


async def test_a_gate_that_fails_means_no() -> None:
    """T-11, B26: raising, answering nonsense, or still pending at the abort: the tool does not run, others are judged on their own."""
    count: list[str] = []
    tool = make_tool("echo", lambda *_: count.append("ran") or "x")

    def raises(*_: Any) -> Any:
        raise ValueError("no")

    result, _ = await call_once(tool, before_tool_call=raises)
    assert "no" in texts([result])[0]
    result, _ = await call_once(tool, before_tool_call=lambda *_: "yes")
    assert result.is_error
    assert count == []

    controller = AbortController()

    async def pending(*_: Any) -> None:
        asyncio.get_running_loop().call_later(0.01, controller.abort)
        await asyncio.Event().wait()

    async with asyncio.timeout(5):
        recorder, messages = await run(
            Scripted([calls(call("echo", call_id="1"), call("echo", call_id="2"))]), tools=[tool], before_tool_call=pending, signal=controller.signal
        )
    assert count == []
    assert [m.is_error for m in messages if m.role == "tool_result"] == [True, True]
    assert recorder.end.reason == "aborted"

    verdicts = [Block("first"), None]
    _, messages = await run(
        Scripted([calls(call("echo"), call("echo")), text("ok")]), tools=[tool], before_tool_call=lambda *_: verdicts.pop(0)
    )
    assert count == ["ran"]
    assert [m.is_error for m in messages if m.role == "tool_result"] == [True, False]


async def test_a_failing_tool_is_data_and_the_after_hook_sees_it() -> None:
    """T-12, B13: an exception without text still says something; siblings go on."""
    asked: list[Any] = []

    def silent(*_: Any) -> str:
        raise ValueError

    async def b(*_: Any) -> str:
        await asyncio.sleep(0.01)
        return "B"

    tools = [make_tool("t1", silent), make_tool("t2", b)]
    _, messages = await run(
        Scripted([calls(call("t1", call_id="1"), call("t2", call_id="2")), text("ok")]),
        tools=tools,
        after_tool_call=lambda event, _: asked.append((event.tool_call.id, event.is_error)),
    )
    results = [m for m in messages if m.role == "tool_result"]
    assert [(m.tool_call_id, m.tool_name, m.is_error) for m in results] == [("1", "t1", True), ("2", "t2", False)]
    assert texts(results) == ["ValueError", "B"]
    assert sorted(asked) == [("1", True), ("2", False)]


async def test_a_tool_error_speaks_to_the_model_in_its_own_words() -> None:
    """ToolError has no type prefix and may carry details; any other exception names its type."""

    def polite(*_: Any) -> str:
        raise ToolError("the file is locked; try again later", details={"owner": "ada"})

    def rude(*_: Any) -> str:
        raise KeyError("x")

    result, _ = await call_once(make_tool("a", polite))
    assert texts([result]) == ["the file is locked; try again later"]
    assert result.details == {"owner": "ada"}
    result, _ = await call_once(make_tool("a", rude))
    assert texts([result]) == ["KeyError: 'x'"]


async def test_after_hooks_patch_field_by_field() -> None:
    """T-13, T-24: None fields never erase; a hook that raises makes the result an error."""
    full = ToolResult(content=[TextContent(text="body")], details={"k": 1}, usage=Usage(output=5))
    result, _ = await call_once(make_tool("a", lambda *_: full), after_tool_call=lambda *_: PatchResult(is_error=True))
    assert (texts([result]), result.details, result.usage, result.is_error) == (["body"], {"k": 1}, Usage(output=5), True)
    result, _ = await call_once(make_tool("a", lambda *_: full), after_tool_call=lambda *_: PatchResult(usage=Usage(output=9), details=[2]))
    assert (result.details, result.usage, result.is_error) == ([2], Usage(output=9), False)

    def broken(*_: Any) -> Any:
        raise RuntimeError("audit down")

    result, _ = await call_once(make_tool("a", lambda *_: full), after_tool_call=broken)
    assert result.is_error
    assert "audit down" in texts([result])[0]


def ending(terminate: bool) -> Any:
    return lambda *_: ToolResult(content=[TextContent(text="x")], terminate=terminate)


async def test_terminate_needs_unanimity() -> None:
    """T-15, B24."""
    yes, no = make_tool("yes", ending(True)), make_tool("no", ending(False))

    def boom(*_: Any) -> str:
        raise ValueError("boom")

    async def requests(names: list[str], **hooks: Any) -> tuple[int, str]:
        script = Scripted([calls(*(call(n) for n in names)), text("ok"), text("again")])
        recorder, _ = await run(script, tools=[yes, no, make_tool("boom", boom)], **hooks)
        return len(script.requests), recorder.end.reason

    assert await requests(["yes", "yes"]) == (1, "terminated")
    assert await requests(["yes", "no"]) == (2, "stop")
    assert await requests(["yes", "yes"], get_steering_messages=queue([], [user("more")])) == (2, "stop")
    assert await requests(["yes", "yes"], get_follow_up_messages=queue([user("more")])) == (2, "stop")
    cleared = [PatchResult(terminate=False)]
    assert await requests(["yes", "yes"], after_tool_call=lambda *_: cleared.pop() if cleared else None) == (2, "stop")
    assert await requests(["yes", "boom"]) == (2, "stop")


async def test_late_updates_are_dropped_and_early_ones_delivered_first() -> None:
    """T-18, T-19."""
    late: list[Any] = []

    def work(args: Any, signal: Any, update: Any) -> str:
        late.append(update)
        update(ToolResult(content=[TextContent(text="1")]))
        update(ToolResult(content=[TextContent(text="2")]))
        return "done"

    delivered: list[str] = []
    recorder = Recorder()

    async def emit(event: Any) -> None:
        recorder(event)
        if event.type == "tool_execution_update":
            await asyncio.sleep(0.01)
            delivered.append(event.partial_result.content[0].text)
        if event.type == "tool_execution_end":
            assert delivered == ["1", "2"]
            late[0](ToolResult(content=[TextContent(text="late")]))

    script = Scripted([calls(call("a", call_id="1")), text("ok")])
    await run_agent_loop([user("go")], context(tools=[make_tool("a", work)]), LoopConfig(model=script.model), emit, stream_fn=script.stream_fn)
    assert len(recorder.of_type("tool_execution_update")) == 2


async def test_updates_may_come_from_a_thread() -> None:
    """A tool that works in a thread reports from there."""

    async def work(args: Any, signal: Any, update: Any) -> str:
        await asyncio.to_thread(update, ToolResult(content=[TextContent(text="from a thread")]))
        await asyncio.sleep(0.01)
        return "done"

    _, recorder = await call_once(make_tool("a", work))
    assert len(recorder.of_type("tool_execution_update")) == 1


@pytest.mark.parametrize("value", [None, ToolResult(), ToolResult(content=None)], ids=["None", "empty", "content None"])  # type: ignore[arg-type] - nonsense on purpose
async def test_missing_content_is_an_empty_list(value: Any) -> None:
    """T-20, B43: the transcript has [], the provider gets a placeholder."""
    script = Scripted([calls(call("a")), text("ok")])
    _, messages = await run(script, tools=[make_tool("a", lambda *_: value)])
    assert one_result(messages).content == []
    assert texts(script.requests[1].messages)[-1] == "(no output)"


async def test_nonsense_from_a_tool_is_an_error_result() -> None:
    """A number where a ToolResult belongs, or a block that is none."""
    from laneway import AgentTool

    async def returns(value: Any) -> Any:
        async def execute(*_: Any) -> Any:
            return value

        result, _ = await call_once(AgentTool(name="a", description="", parameters={"type": "object"}, execute=execute))
        return result

    assert (await returns(42)).is_error
    assert (await returns(ToolResult(content=["text"]))).is_error  # type: ignore[list-item] - nonsense on purpose


async def test_results_pair_by_id() -> None:
    """T-25: the same tool twice."""
    script = Scripted([calls(call("echo", call_id="x", n=1), call("echo", call_id="y", n=2)), text("ok")])
    _, messages = await run(script, tools=[make_tool()])
    assert [(m.tool_call_id, texts([m])[0]) for m in messages if m.role == "tool_result"] == [("x", "echo:{'n': 1}"), ("y", "echo:{'n': 2}")]


async def test_an_abort_reaches_running_tools_and_keeps_what_they_return() -> None:
    """T-26: a tool that ends by itself within the grace keeps its result; calls that had not begun are answered."""
    controller = AbortController()
    hooks: list[str] = []

    async def finishing(args: Any, signal: Any, update: Any) -> str:
        controller.abort("stop")
        assert signal.aborted
        await asyncio.sleep(0.02)
        return "finished anyway"

    tools = [make_tool("first", finishing, execution_mode="sequential"), make_tool("second")]
    recorder, messages = await run(
        Scripted([calls(call("first", call_id="1"), call("second", call_id="2"))]),
        tools=tools,
        signal=controller.signal,
        before_tool_call=lambda event, _: hooks.append(event.tool_call.id),
        get_follow_up_messages=queue([user("never")]),
    )
    results = [m for m in messages if m.role == "tool_result"]
    assert texts(results)[0] == "finished anyway"
    assert not results[0].is_error
    assert "not executed" in texts(results)[1]
    assert hooks == ["1"]
    assert trace_of_tools(recorder)[-5:] == ["TS(2)", "TE(2)", "MS(r2)", "ME(r2)", "turn_end(2)"]
    assert recorder.end.reason == "aborted"
    assert unsendable(messages) == []


async def test_an_abort_cancels_a_tool_that_does_not_look() -> None:
    """B15: its finally has run when the loop returns, there are no further ticks, one result."""
    controller = AbortController()
    log: list[str] = []

    async def ticking(*_: Any) -> str:
        try:
            while True:
                log.append("tick")
                await asyncio.sleep(0.005)
        finally:
            await asyncio.sleep(0.01)
            log.append("finally")

    asyncio.get_running_loop().call_later(0.03, controller.abort)
    async with asyncio.timeout(5):
        recorder, messages = await run(
            Scripted([calls(call("tick"))]), tools=[make_tool("tick", ticking)], signal=controller.signal, tool_abort_grace=0.01
        )
    assert log[-1] == "finally"
    ticks = len(log)
    await asyncio.sleep(0.03)
    assert len(log) == ticks
    assert one_result(messages).is_error
    assert recorder.end.reason == "aborted"


async def test_a_tool_that_swallows_its_cancellation_and_returns_is_kept() -> None:
    """A result that a tool still returns after the cancellation is kept."""
    controller = AbortController()

    async def stubborn(*_: Any) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved what I had"
        return "never"

    asyncio.get_running_loop().call_later(0.01, controller.abort)
    async with asyncio.timeout(5):
        _, messages = await run(Scripted([calls(call("a"))]), tools=[make_tool("a", stubborn)], signal=controller.signal, tool_abort_grace=0.0)
    assert texts([one_result(messages)]) == ["saved what I had"]


async def test_a_tool_that_ignores_its_cancellation_is_abandoned(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """After a while it gets an error result and a warning; the run ends."""
    monkeypatch.setattr("laneway._effects.call_tools.ABANDON_AFTER", 0.05)
    controller = AbortController()
    release = asyncio.Event()

    async def deaf(*_: Any) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    asyncio.get_running_loop().call_later(0.01, controller.abort)
    with caplog.at_level(logging.WARNING, "laneway"):
        async with asyncio.timeout(5):
            _, messages = await run(Scripted([calls(call("deaf"))]), tools=[make_tool("deaf", deaf)], signal=controller.signal, tool_abort_grace=0.0)
    assert "abandoned" in texts([one_result(messages)])[0]
    assert "deaf" in caplog.text
    release.set()
    await asyncio.sleep(0.01)


async def test_a_tools_own_cancelled_error_is_an_error_result() -> None:
    """B16: nobody cancelled the run, so it goes on, and the sibling's result is kept."""

    async def own(*_: Any) -> str:
        raise asyncio.CancelledError

    recorder, messages = await run(
        Scripted([calls(call("own"), call("echo")), text("ok")]), tools=[make_tool("own", own), make_tool()]
    )
    assert [m.is_error for m in messages if m.role == "tool_result"] == [True, False]
    assert recorder.end.reason == "stop"


async def test_a_timeout_stops_one_call() -> None:
    """The tool's own timeout: an error that says so; the run goes on."""

    async def hang(*_: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    async with asyncio.timeout(5):
        result, _ = await call_once(make_tool("hang", hang, timeout=0.02))
    assert result.is_error
    assert "timeout of 0.02 s" in texts([result])[0]


async def test_an_interruption_stops_the_batch_and_not_the_run() -> None:
    """An interrupting steer: finished calls keep their results, the others say why; the message is next."""
    interrupt = AbortController()
    typed: list[Any] = []

    async def hang(*_: Any) -> str:
        typed.append(user("look here"))
        interrupt.abort()
        await asyncio.Event().wait()
        return "never"

    def poll() -> list[Any]:
        taken, typed[:] = list(typed), []
        return taken

    script = Scripted([calls(call("echo", call_id="1"), call("hang", call_id="2")), text("ok")])
    async with asyncio.timeout(5):
        recorder, messages = await run(
            script, tools=[make_tool(), make_tool("hang", hang)], batch_interrupt=lambda: interrupt.signal, get_steering_messages=poll
        )
    results = [m for m in messages if m.role == "tool_result"]
    assert [m.is_error for m in results] == [False, True]
    assert "new message" in texts(results)[1]
    assert texts(script.requests[1].messages)[-1] == "look here"
    assert recorder.end.reason == "stop"


async def test_two_hundred_parallel_calls_are_ordered() -> None:
    """Many at once: one result each, in order."""

    async def nap(args: Any, *_: Any) -> str:
        await asyncio.sleep(0.001 * (args["n"] % 7))
        return str(args["n"])

    script = Scripted([calls(*(call("nap", n=n) for n in range(200))), text("ok")])
    _, messages = await run(script, tools=[make_tool("nap", nap, parameters=NUMBER)])
    assert texts([m for m in messages if m.role == "tool_result"]) == [str(n) for n in range(200)]


async def test_a_tool_thread_cannot_hold_the_run() -> None:
    """B15: the thread's late return is discarded; there is one result."""
    controller = AbortController()
    release = threading.Event()

    async def threaded(*_: Any) -> str:
        await asyncio.to_thread(release.wait, 5)
        return "late"

    asyncio.get_running_loop().call_later(0.02, controller.abort)
    async with asyncio.timeout(5):
        _, messages = await run(Scripted([calls(call("t"))]), tools=[make_tool("t", threaded)], signal=controller.signal, tool_abort_grace=0.01)
    release.set()
    assert one_result(messages).is_error
