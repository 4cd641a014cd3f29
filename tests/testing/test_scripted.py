"""The scripted model behaves like the stream of a real one."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from laneway.abort import AbortController
from laneway.llm.base import Model, ModelCost, ResponseInfo, StreamOptions, Transcript
from laneway.messages import AssistantMessage, ErrorInfo, SystemMessage, TextContent, ThinkingContent, ToolCall, ToolDeclaration, Usage, UserMessage
from laneway.testing import Reply, Request, Scripted, call, calls, deferred, error, overflow, text, thinking, truncated

GO = UserMessage(content="go")


async def ask(script: Scripted, *messages: Any, **options: Any) -> tuple[list[str], AssistantMessage]:
    """Ask once; return the events in shorthand and the message."""
    stream = script.stream_fn(script.model, Transcript(messages=list(messages) or [GO]), StreamOptions(**options))
    events = [event.type + (f"({event.delta})" if hasattr(event, "delta") else "") async for event in stream]
    return events, await stream.result()


async def answer(script: Scripted, *messages: Any, **options: Any) -> AssistantMessage:
    """Ask once and return the message."""
    return (await ask(script, *messages, **options))[1]


# ---------------------------------------------------------------------------------------------------- what streams


async def test_thinking_text_and_calls_stream_block_by_block():
    """05/139: start, the blocks in order, done; each block starts, grows and ends."""
    script = Scripted([thinking("hm") + text("Let me look.") + calls(call("read", path="a"), call("ls"))])
    events, message = await ask(script)
    assert events == [
        "start",
        "thinking_start", "thinking_delta(hm)", "thinking_end",
        "text_start", "text_delta(Let me look.)", "text_end",
        "toolcall_start", 'toolcall_delta({"path":"a"})', "toolcall_end",
        "toolcall_start", "toolcall_delta({})", "toolcall_end",
        "done",
    ]  # fmt: skip
    assert message.stop_reason == "tool_use"
    assert (message.api, message.provider, message.model) == ("scripted", "scripted", "scripted")
    assert message.content == [
        ThinkingContent(thinking="hm", signature="scripted"),
        TextContent(text="Let me look."),
        ToolCall(id="call_1", name="read", arguments={"path": "a"}),
        ToolCall(id="call_2", name="ls", arguments={}),
    ]


async def test_delta_size_cuts_text_and_arguments():
    """So many characters per delta; the parts make the whole."""
    script = Scripted([text("abcde", delta_size=2), calls(call("w", t="xy"), delta_size=4)])
    assert (await ask(script))[0] == ["start", "text_start", "text_delta(ab)", "text_delta(cd)", "text_delta(e)", "text_end", "done"]
    events, message = await ask(script)
    assert events[2:-2] == ['toolcall_delta({"t")', 'toolcall_delta(:"xy)', 'toolcall_delta("})']
    assert message.tool_calls[0].arguments == {"t": "xy"}


async def test_the_partial_grows_with_the_stream():
    """Like a provider's: a copy of the live message keeps the state of its moment."""
    script = Scripted([text("abcd", delta_size=2)])
    stream = script.stream_fn(script.model, Transcript(messages=[GO]), StreamOptions())
    seen = [copy.copy(event.partial).text async for event in stream if event.type == "text_delta"]
    assert seen == ["ab", "abcd"]


async def test_calls_take_text_ids_and_any_arguments():
    """By name, as a dict, both, with an id, or as raw text that is no JSON."""
    script = Scripted(
        [
            calls(call("a", {"x": 1}, y=2), call("b", call_id="mine"), call("c", {"call_id": "as an argument"}), text="First."),
            call("d", '{"path": "a'),
        ]
    )
    message = await answer(script)
    assert message.text == "First."
    assert [(c.id, c.arguments) for c in message.tool_calls] == [
        ("call_1", {"x": 1, "y": 2}),
        ("mine", {}),
        ("call_2", {"call_id": "as an argument"}),
    ]
    broken = (await answer(script)).tool_calls[0]
    assert (broken.id, broken.arguments) == ("call_3", {})
    assert broken.arguments_error is not None
    assert '{"path": "a' in broken.arguments_error
    with pytest.raises(TypeError, match="not both"):
        call("a", "{}", x=1)
    with pytest.raises(TypeError, match=r"join replies with \+"):
        calls(text("a"))  # pyright: ignore[reportArgumentType] - the mistake


async def test_the_same_reply_used_twice_has_distinct_ids():
    """`[call("a")] * 2` is two different calls."""
    script = Scripted([call("a")] * 2)
    first, second = await answer(script), await answer(script)
    assert first.tool_calls[0].id != second.tool_calls[0].id


async def test_a_truncated_reply_ends_in_length_with_calls_that_look_complete():
    """B17: only the stop reason tells that they are not."""
    script = Scripted([truncated(calls(call("read"), call("write", path="f"))), truncated(call("a")), truncated("half a sen", delta_size=4)])
    message = await answer(script)
    assert (message.stop_reason, [c.name for c in message.tool_calls]) == ("length", ["read", "write"])
    assert (await answer(script)).stop_reason == "length"
    events, message = await ask(script)
    assert (message.stop_reason, message.text, events.count("text_delta(half)")) == ("length", "half a sen", 1)


async def test_a_string_is_a_text_and_a_call_is_a_reply():
    """Short scripts read like the conversation."""
    script = Scripted(["hello", call("read"), call("read") + "x", "never"])
    assert (await answer(script)).text == "hello"
    assert (await answer(script)).stop_reason == "tool_use"
    assert [block.type for block in (await answer(script)).content] == ["tool_call", "text"]
    assert script.remaining == 1


# ---------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("reply", "info"),
    [
        (error("slow down", 429, retry_after=1.5), ErrorInfo(kind="rate_limit", status=429, retry_after_ms=1500)),
        (error("no key", 401), ErrorInfo(kind="auth", status=401)),
        (error("not yours", 403), ErrorInfo(kind="auth", status=403)),
        (error("what?", 400), ErrorInfo(kind="invalid_request", status=400)),
        (error("gone", 404), ErrorInfo(kind="not_found", status=404)),
        (error("oops", 500), ErrorInfo(kind="server", status=500)),
        (error("busy", 529), ErrorInfo(kind="overloaded", status=529)),
        (error("boom"), ErrorInfo(kind="unknown")),
        (error("line cut", kind="network"), ErrorInfo(kind="network")),
        (overflow(), ErrorInfo(kind="overflow", status=400)),
    ],
)
async def test_an_error_fails_before_anything_arrived(reply: Any, info: ErrorInfo):
    """2.2: a lone error event; the class of the error follows from the status, as it would on a wire."""
    events, message = await ask(Scripted([reply]))
    assert events == ["error"]
    assert (message.stop_reason, message.content, message.error) == ("error", [], info)
    assert message.error_message == reply.failure_text


async def test_an_error_after_text_keeps_the_text_and_leaves_its_block_open():
    """B11, 2.2: what had arrived stays, the open block gets no end, the usage counts."""
    script = Scripted([text("Hel") + error("connection lost", kind="network"), calls(call("a"), call("b", x=1)) + error("lost")])
    events, message = await ask(script)
    assert events == ["start", "text_start", "text_delta(Hel)", "error"]
    assert (message.text, message.error_message, message.stop_reason) == ("Hel", "connection lost", "error")
    assert message.usage.input > 0
    events, message = await ask(script)
    assert events.count("toolcall_end") == 1
    assert [c.name for c in message.tool_calls] == ["a", "b"]


async def test_an_empty_script_says_so():
    """05/139: an error message, not an exception and not a hang; it is not worth a retry."""
    script = Scripted([text("one")])
    await answer(script)
    message = await answer(script)
    assert message.stop_reason == "error"
    assert message.error_message == "the script has no reply for request 2: all 1 of its replies were taken; add one"
    assert message.error == ErrorInfo(kind="configuration")
    script.add(text("two"))
    assert (await answer(script)).text == "two"


async def test_a_reply_that_is_none_is_refused_at_once():
    """The mistake is where the script is written."""
    with pytest.raises(TypeError, match="a scripted reply is"):
        Scripted([None])  # pyright: ignore[reportArgumentType] - the mistake
    with pytest.raises(ValueError, match="at least 1"):
        text("x", delta_size=0)


async def test_an_exception_as_a_reply_is_raised_by_the_stream():
    """For code that must survive what no provider should do; still an error event."""
    events, message = await ask(Scripted([RuntimeError("bug in a wire")]))
    assert events == ["error"]
    assert message.error_message == "RuntimeError: bug in a wire"


# ---------------------------------------------------------------------------------------------------- functions and ready messages


async def test_a_reply_may_be_a_function_of_the_request():
    """Sync or async; it sees messages, tools, model and options; what it raises is an error event."""

    async def later(request: Request) -> Any:
        await asyncio.sleep(0)
        return calls(call("a"), text=str(len(request.tools)))

    def fails(_: Request) -> Any:
        raise KeyError("nothing")

    script = Scripted([lambda request: text(request.messages[-1].content.upper()), later, fails, lambda _: None])
    declared = SystemMessage(tools_added=[ToolDeclaration(name="a", description="", parameters={})])
    assert (await answer(script)).text == "GO"
    assert (await answer(script, declared, GO)).text == "1"
    message = await answer(script)
    assert (message.stop_reason, message.error_message) == ("error", "KeyError: 'nothing'")
    assert "a scripted reply is" in str((await answer(script)).error_message)


async def test_a_ready_message_streams_and_ends_as_itself():
    """Signatures, ids, usage, timestamps and stop reasons are kept; empty model names become the request's."""
    ready = AssistantMessage(
        content=[
            ThinkingContent(thinking="", signature="s", redacted=True),
            TextContent(text="a", signature="t"),
            ToolCall(id="x|y", name="f", arguments={}, arguments_error="broken", signature="u"),
        ],
        usage=Usage(input=5, output=7, total_tokens=12),
        stop_reason="length",
        response_id="r1",
        raw_stop_reason="max",
        timestamp=42,
    )
    events, message = await ask(Scripted([ready]))
    assert events[0] == "start"
    assert events[-1] == "done"
    assert "toolcall_end" in events
    assert message == AssistantMessage(**{**_fields(ready), "api": "scripted", "provider": "scripted", "model": "scripted"})
    named = AssistantMessage(content=[TextContent(text="a")], api="x", provider="y", model="z")
    assert (await answer(Scripted([named]))).model == "z"


def _fields(message: AssistantMessage) -> dict[str, Any]:
    return {name: getattr(message, name) for name in AssistantMessage.__struct_fields__}


async def test_a_ready_message_may_have_failed():
    """05/142: blocks, then error; without blocks a lone error; a pending one is a mistake."""
    failed = AssistantMessage(content=[TextContent(text="Hel")], stop_reason="error", error_message="lost", error=ErrorInfo(kind="network"))
    events, message = await ask(Scripted([failed]))
    assert events == ["start", "text_start", "text_delta(Hel)", "error"]
    assert (message.error, message.error_message, message.text) == (ErrorInfo(kind="network"), "lost", "Hel")
    events, message = await ask(Scripted([AssistantMessage(content=[], stop_reason="aborted", error_message="stopped")]))
    assert (events, message.stop_reason) == (["error"], "aborted")
    assert "pending" in str((await answer(Scripted([AssistantMessage(content=[], stop_reason="pending")]))).error_message)


# ---------------------------------------------------------------------------------------------------- time, gates and aborts


async def test_a_gate_holds_the_stream_when_half_of_it_is_out():
    """A test can act in the middle of a response, whatever its size in deltas."""
    for reply, out in ((text, "text_delta(hel)"), (lambda t, **o: text(t, delta_size=1, **o), "text_delta(l)")):
        gate = asyncio.Event()
        script = Scripted([reply("hellos", gate=gate)])
        seen: list[str] = []

        async def watch(script: Scripted = script, seen: list[str] = seen) -> None:
            async for event in script.stream_fn(script.model, Transcript(messages=[GO]), StreamOptions()):
                seen.append(event.type + (f"({event.delta})" if hasattr(event, "delta") else ""))

        task = asyncio.create_task(watch())
        for _ in range(20):
            await asyncio.sleep(0)
        assert seen[-1] == out
        assert "text_end" not in seen
        gate.set()
        async with asyncio.timeout(5):
            await task
        assert seen[-1] == "done"


async def test_a_gate_works_without_any_text_and_inside_arguments():
    """An empty answer waits after its start; a single call waits inside of its arguments."""
    gate = asyncio.Event()
    gate.set()
    assert (await answer(Scripted([text("", gate=gate)]))).stop_reason == "stop"
    assert (await answer(Scripted([deferred("d", gate=gate)]))).stop_reason == "deferred"
    controller = AbortController()
    script = Scripted([calls(call("write", content="0123456789"), gate=asyncio.Event())])
    task = asyncio.create_task(answer(script, signal=controller.signal))
    for _ in range(10):
        await asyncio.sleep(0)
    controller.abort()
    async with asyncio.timeout(5):
        message = await task
    assert message.stop_reason == "aborted"
    assert message.tool_calls[0].arguments != {"content": "0123456789"}


@pytest.mark.parametrize(
    ("reply", "arrived"), [(text("a long text", gate=asyncio.Event()), "a lon"), (text("x", delay=3600), ""), (text("abcdef", delta_size=1), "a")]
)
async def test_an_abort_ends_the_stream_at_once(reply: Reply, arrived: str):
    """05/41: while it waits at a gate, before it began, and between two deltas; what had arrived stays."""
    controller = AbortController()
    script = Scripted([reply])
    stream = script.stream_fn(script.model, Transcript(messages=[GO]), StreamOptions(signal=controller.signal))
    asyncio.get_running_loop().call_later(0.01, controller.abort, "enough")
    async with asyncio.timeout(5):
        async for event in stream:
            if event.type == "text_delta" and reply.delta_size == 1:
                controller.abort("enough")
        message = await stream.result()
    assert (message.stop_reason, message.error_message) == ("aborted", "aborted: enough")
    assert message.text == arrived


async def test_a_signal_that_is_already_aborted_takes_nothing():
    """05/40: a lone aborted error; no request is recorded and no reply is lost."""
    controller = AbortController()
    controller.abort()
    script = Scripted([text("later")])
    events, message = await ask(script, signal=controller.signal)
    assert (events, message.stop_reason, message.content) == (["error"], "aborted", [])
    assert (script.requests, script.remaining) == ([], 1)


async def test_leaving_the_stream_ends_it():
    """`aclose()` gives an aborted message with what had arrived; a cancelled consumer gets CancelledError."""
    script = Scripted([text("abc", delta_size=1), text("x", gate=asyncio.Event())])
    stream = script.stream_fn(script.model, Transcript(messages=[GO]), StreamOptions())
    async for event in stream:
        if event.type == "text_delta":
            break
    await stream.aclose()
    assert ((await stream.result()).stop_reason, (await stream.result()).text) == ("aborted", "a")
    task = asyncio.create_task(answer(script))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_other_tasks_run_while_it_streams():
    """Each delta gives the event loop a turn, as bytes from a socket would."""
    script = Scripted([text("x" * 40, delta_size=1)])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    await answer(script)
    task.cancel()
    assert turns >= 40


# ---------------------------------------------------------------------------------------------------- what is recorded


async def test_requests_are_recorded_as_they_were():
    """In the order of the calls; a list that grows later does not change them."""
    script = Scripted([text("a"), text("b")])
    messages: list[Any] = [SystemMessage(content="S", tools_added=[ToolDeclaration(name="t", description="d", parameters={})]), GO]
    other = Model(id="m2", provider="p2", api="a2")
    await script.stream_fn(script.model, Transcript(messages=messages), StreamOptions(reasoning="high")).result()
    messages.append(UserMessage(content="more"))
    message = await script.stream_fn(other, Transcript(messages=messages), StreamOptions()).result()
    first, second = script.requests
    assert ([m.role for m in first.messages], [t.name for t in first.tools], first.options.reasoning) == (["system", "user"], ["t"], "high")
    assert (len(second.messages), second.model) == (3, other)
    assert (message.provider, message.api, message.model) == ("p2", "a2", "m2")
    assert script.remaining == 0
    assert "2 messages" in repr(first)


async def test_requests_are_recorded_when_they_are_made():
    """Before anything is read from the stream: the order is that of the calls."""
    script = Scripted([text("a"), text("b")])
    first = script.stream_fn(script.model, Transcript(messages=[GO]), StreamOptions())
    second = script.stream_fn(script.model, Transcript(messages=[GO]), StreamOptions())
    assert (await second.result()).text == "b"
    assert (await first.result()).text == "a"


async def test_usage_is_given_or_estimated():
    """A token per four characters of request and answer, never zero; prices are the model's."""
    given = Usage(input=1, output=2, total_tokens=3)
    priced = Model(id="m", provider="p", api="a", cost=ModelCost(input=1.0, output=10.0))
    script = Scripted([text("x", usage=given), text("12345678"), text("12345678"), error("boom")], model=priced)
    assert (await answer(script)).usage == given
    usage = (await answer(script, SystemMessage(content="x" * 100), UserMessage(content="y" * 300))).usage
    assert (usage.input, usage.output, usage.total_tokens) == (100, 2, 102)
    assert usage.cost.total == pytest.approx(0.00012)
    assert (await answer(script, UserMessage(content="z"))).usage.input == 1
    assert (await answer(script)).usage == Usage()


async def test_the_estimate_grows_with_the_conversation():
    """Each request counts all of its messages, though only the new ones are looked at."""
    script = Scripted([text("a" * 40)] * 3)
    messages: list[Any] = [UserMessage(content="x" * 40)]
    seen: list[int] = []
    for _ in range(3):
        message = await script.stream_fn(script.model, Transcript(messages=list(messages)), StreamOptions()).result()
        messages += [message, UserMessage(content="y" * 40)]
        seen.append(message.usage.input)
    assert seen == [10, 30, 50]


async def test_payload_and_response_callbacks_are_called():
    """As a wire calls them: the body may be replaced, the status is that of the error; what they raise is an error event."""
    seen: list[Any] = []

    async def on_payload(body: dict[str, Any], model: Model) -> dict[str, Any]:
        seen.append((sorted(body), model.id))
        return {**body, "extra": True}

    async def on_response(info: ResponseInfo, _: Model) -> None:
        seen.append(info.status)

    def broken(*_: Any) -> None:
        raise ValueError("hook")

    script = Scripted([text("a"), error("busy", 503), text("b")])
    await answer(script, on_payload=on_payload, on_response=on_response)
    await answer(script, on_response=on_response)
    assert seen == [(["messages", "model", "tools"], "scripted"), 200, 503]
    assert script.requests[0].payload is not None
    assert script.requests[0].payload["extra"] is True
    assert script.requests[1].payload is None
    message = await answer(script, on_payload=broken)
    assert (message.stop_reason, message.error_message) == ("error", "ValueError: hook")


# ---------------------------------------------------------------------------------------------------- deferred responses


async def test_a_deferred_reply_is_followed_by_its_polls():
    """05/142: promised, still pending, final; polls are kept apart from requests."""
    script = Scripted([deferred("job"), deferred("job"), text("ready")])
    message = await answer(script, deferred=True)
    handle = message.deferred
    assert message.stop_reason == "deferred"
    assert handle is not None
    assert (handle.id, handle.provider, handle.model_id, handle.api) == ("job", "scripted", "scripted", "scripted")
    pending = await script.stream_fn.fetch_deferred(handle, StreamOptions(deferred=False)).result()
    assert (pending.stop_reason, pending.deferred) == ("deferred", handle)
    final = await script.stream_fn.fetch_deferred(handle).result()
    assert (final.stop_reason, final.text, final.deferred) == ("stop", "ready", None)
    assert (len(script.requests), [poll.handle for poll in script.polls]) == (1, [handle, handle])
    assert script.polls[0].options.deferred is False


async def test_a_cancelled_response_cannot_be_polled():
    """05/142: the handle is recorded, and no reply is taken."""
    script = Scripted([deferred("job"), text("never")])
    handle = (await answer(script)).deferred
    assert handle is not None
    await script.stream_fn.cancel_deferred(handle)
    assert script.cancelled == [handle]
    message = await script.stream_fn.fetch_deferred(handle).result()
    assert message.error_message == "the deferred response job was cancelled"
    assert script.remaining == 1


# ---------------------------------------------------------------------------------------------------- through Models


async def test_models_has_the_scripted_model_and_no_other():
    """The registry finds it, streams it without a key, and knows any id of its provider."""
    script = Scripted([text("a"), text("b")])
    assert script.models.list() == [script.model]
    assert script.models.get("scripted", "scripted") == script.model
    assert (await script.models.stream(script.model, Transcript(messages=[GO]), StreamOptions()).result()).text == "a"
    other = script.models.model("scripted/m2")
    message = await script.models.stream(other, Transcript(messages=[GO]), StreamOptions()).result()
    assert (message.model, script.requests[1].model.id) == ("m2", "m2")
    assert script.models is script.models


async def test_models_polls_and_cancels():
    """As the harness does it."""
    script = Scripted([deferred("job"), text("ready"), deferred("other")])
    handle = (await script.models.stream(script.model, Transcript(messages=[GO]), StreamOptions()).result()).deferred
    assert handle is not None
    assert (await script.models.fetch_deferred(handle, StreamOptions()).result()).text == "ready"
    await script.models.cancel_deferred(handle)
    assert script.cancelled == [handle]
