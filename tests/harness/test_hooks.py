"""Hooks: order, chains, and what happens when one fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.conftest import tool
from harness.double import call, calls, text, texts
from laneway.harness import Block, ContextPatch, PatchResult, PayloadPatch, ReplaceArgs, RequestPatch, ResponsePatch
from laneway.llm.base import StreamOptions
from laneway.messages import TextContent, ToolResult, UserMessage


async def test_the_list_of_handlers_is_fixed_while_a_hook_runs(lane_of: Any) -> None:
    """H-01: changes made by a handler hold from the next time on."""
    fixture = await lane_of(text("a"), text("b"))
    ran: list[str] = []
    hooks = fixture.harness.hooks

    def first(event: Any) -> None:
        ran.append("A")
        hooks.on("before_run", lambda event: ran.append("B"), id="B")
        remove()

    hooks.on("before_run", first)
    remove = hooks.on("before_run", lambda event: ran.append("C"))
    await fixture.lane.prompt("one")
    assert ran == ["A", "C"]
    await fixture.lane.prompt("two")
    assert ran == ["A", "C", "A", "B"]
    with pytest.raises(ValueError, match="before_nothing"):
        hooks.on("before_nothing", first)


async def test_a_failing_handler_is_reported_and_skipped(lane_of: Any) -> None:
    """H-02: the others still count."""
    fixture = await lane_of(text("ok"))

    def broken(event: Any) -> None:
        raise ValueError("broken")

    hooks = fixture.harness.hooks
    hooks.on("transform_context", lambda event: ContextPatch(messages=[*event.messages, UserMessage(content="x")]))
    hooks.on("transform_context", broken)
    hooks.on("transform_context", lambda event: "nonsense")
    hooks.on("transform_context", lambda event: ContextPatch(system_prompt="other"))
    await fixture.lane.prompt("go")
    reports = fixture.told("handler_error")
    assert [(report.kind, report.name, report.lane) for report in reports] == [("hook", "transform_context", "main")] * 2
    assert texts(fixture.script.requests[0]) == ["user:go", "user:x"]
    assert fixture.script.requests[0].messages[0].content == "other"
    assert await fixture.history() == ["user:go", "assistant:ok"]


async def test_arguments_go_through_the_handlers_in_a_chain(lane_of: Any) -> None:
    """H-05: each sees the previous arguments, the first block ends it; replaced arguments are validated."""
    seen: list[Any] = []
    fixture = await lane_of(calls(call("t", n=1), call("t", n=9)), text("ok"), tools=[tool("t")])

    def handler(event: Any) -> Any:
        seen.append(event.args)
        return Block("too much") if event.args["n"] > 9 else None

    hooks = fixture.harness.hooks
    hooks.on("before_tool", lambda event: ReplaceArgs({"n": event.args["n"] + 1}))
    hooks.on("before_tool", handler)
    hooks.on("before_tool", lambda event: seen.append("third"))
    await fixture.lane.prompt("go")
    assert seen == [{"n": 2}, "third", {"n": 10}]
    assert (await fixture.history())[2:4] == ["tool_result:t:2", "tool_result:too much"]
    assert [event.args for event in fixture.told("tool_start")] == [{"n": 1}, {"n": 9}]


async def test_replaced_arguments_are_validated_again(lane_of: Any) -> None:
    """H-05: a hook cannot smuggle in what the schema forbids."""
    ran: list[Any] = []
    fixture = await lane_of(call("t", n=1), text("ok"), tools=[tool("t", lambda args: ran.append(args) or "ok")])
    fixture.harness.hooks.on("before_tool", lambda event: ReplaceArgs({"n": {"no": "number"}}))
    await fixture.lane.prompt("go")
    assert ran == []
    assert fixture.told("tool_end")[0].is_error is True


@pytest.mark.parametrize("kind", ["raises", "garbage", "hangs"])
async def test_a_gate_that_fails_does_not_open(lane_of: Any, kind: str) -> None:
    """B26: the tool does not run; other calls of the batch are judged on their own."""
    ran: list[int] = []
    fixture = await lane_of(calls(call("t", n=1), call("t", n=2)), text("ok"), tools=[tool("t", lambda args: ran.append(args["n"]) or "ok")])
    asked = asyncio.Event()

    async def handler(event: Any) -> Any:
        if event.args["n"] == 2:
            return None
        if kind == "raises":
            raise ValueError("no")
        if kind == "garbage":
            return "maybe"
        asked.set()
        await asyncio.Event().wait()
        return None

    fixture.harness.hooks.on("before_tool", handler)
    running = asyncio.ensure_future(fixture.lane.prompt("go"))
    if kind == "hangs":
        await asked.wait()
        async with asyncio.timeout(5):
            await fixture.lane.abort()
        await running
        assert ran == []
    else:
        await running
        assert ran == [2]
        assert "check before it failed" in (await fixture.history())[2]
    await fixture.check()


async def test_request_payload_and_response_go_through_the_handlers(lane_of: Any) -> None:
    """H-07, H-08: options are patched and deleted; the response that is left is what is stored and told."""
    fixture = await lane_of(text("draft"), stream_options=StreamOptions(temperature=0.5, max_tokens=77))
    hooks = fixture.harness.hooks
    hooks.on("before_request", lambda event: RequestPatch(temperature=None, metadata={"a": 1}))
    hooks.on("before_request", lambda event: RequestPatch(max_tokens=event.stream_options.max_tokens + 1))
    hooks.on("before_payload", lambda event: PayloadPatch({**event.payload, "extra": 1}))

    def correct(event: Any) -> Any:
        import msgspec

        return ResponsePatch(msgspec.structs.replace(event.message, content=[TextContent(text=event.message.text + "!")]))

    hooks.on("after_response", correct)
    hooks.on("after_response", correct)
    await fixture.lane.prompt("go")
    options = fixture.script.requests[0].options
    assert (options.temperature, options.max_tokens, options.metadata) == (None, 78, {"a": 1})
    assert await options.on_payload({"model": "x"}, fixture.script.model) == {"model": "x", "extra": 1}
    assert await fixture.history() == ["user:go", "assistant:draft!!"]
    assert fixture.told("message_end")[-1].message.text == "draft!!"
    with pytest.raises(TypeError):
        RequestPatch(signal=None)


async def test_results_are_patched_field_by_field(lane_of: Any) -> None:
    """H-10, B24: undefined fields stay, later handlers see earlier patches; a cleared hint asks the model again."""
    returned = ToolResult(content=[TextContent(text="x")], details=1, terminate=True)
    fixture = await lane_of(call("t"), text("ok"), tools=[tool("t", lambda args: returned)])
    seen: list[Any] = []
    hooks = fixture.harness.hooks
    hooks.on("after_tool", lambda event: PatchResult(is_error=True))
    patch = PatchResult(content=[TextContent(text="y")], terminate=False)
    hooks.on("after_tool", lambda event: seen.append((event.is_error, event.details)) or patch)
    await fixture.lane.prompt("go")
    assert seen == [(True, 1)]
    result = fixture.told("turn_end")[0].tool_results[0]
    assert (result.is_error, result.content[0].text, result.details) == (True, "y", 1)
    assert len(fixture.script.requests) == 2


async def test_details_that_are_no_json_are_an_error_not_a_fault(lane_of: Any) -> None:
    """B95, promise 4: a tool's odd result never stops the harness; something enormous is not stored."""
    fixture = await lane_of(
        calls(call("odd"), call("huge")), text("ok"),
        tools=[tool("odd", lambda args: ToolResult(details=object())), tool("huge", lambda args: ToolResult(details=["z" * 5_000_000]))],
    )  # fmt: skip
    assert (await fixture.lane.prompt("go")).status == "completed"
    odd, huge = fixture.told("turn_end")[0].tool_results
    assert odd.is_error is True
    assert "omitted" in huge.details
    await fixture.check()


async def test_a_handler_may_use_the_lane(lane_of: Any) -> None:
    """H-15, H-16: hooks run off the line; every event says which lane and operation it is about."""
    fixture = await lane_of(call("t"), text("ok"), tools=[tool("t")])
    seen: list[tuple[str, str]] = []

    async def steer(event: Any) -> None:
        seen.append((event.lane, event.operation_id))
        await fixture.lane.steer("from a hook")

    fixture.harness.hooks.on("before_tool", steer)
    async with asyncio.timeout(5):
        result = await fixture.lane.prompt("go")
    assert seen == [("main", result.operation_id)]
    assert texts(fixture.script.requests[1])[-1] == "user:from a hook"


async def test_a_handler_sees_the_signal_of_an_abort_and_of_a_close(lane_of: Any) -> None:
    """H-14: and one that ignores it is cut off after a grace."""
    for way in ("abort", "close"):
        fixture = await lane_of(text("ok"))
        asked, saw = asyncio.Event(), list[str]()

        async def handler(event: Any, asked: asyncio.Event = asked, saw: list[str] = saw) -> None:
            asked.set()
            await event.signal.wait()
            saw.append("signal")
            await asyncio.Event().wait()

        fixture.harness.hooks.on("before_run", handler)
        running = asyncio.ensure_future(fixture.lane.prompt("go"))
        await asked.wait()
        async with asyncio.timeout(5):
            await (fixture.lane.abort() if way == "abort" else fixture.harness.close())
        await asyncio.gather(running, return_exceptions=True)
        assert saw == ["signal"]
