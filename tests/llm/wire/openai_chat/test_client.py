"""The whole way over real sockets: options in, events out, every fault settled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from laneway.abort import AbortController
from laneway.events import AssistantEvent, StreamDone, StreamError
from laneway.llm._retry import is_retryable
from laneway.llm.base import AssistantStream, Model, ResponseInfo, StreamOptions, Transcript
from laneway.llm.wire.openai_chat import stream
from laneway.messages import AssistantMessage, Message, SystemMessage, ToolDeclaration, UserMessage
from llm.chat import chat_model, chunk, fragment, tools, usage
from llm.loopback import CLOSE, CUT, Answer, Loopback, error_reply, sse, sse_reply

KEY = "planted-secret-0123456789"
HELLO = (chunk("Hel"), chunk("lo"), chunk(finish="stop"), usage(prompt_tokens=10, completion_tokens=2), "[DONE]")


def ask(server: Loopback | str, *messages: Message, model: Model | None = None, **options: Any) -> AssistantStream:
    """Start a request."""
    url = server if isinstance(server, str) else server.url
    taken = list(messages or (UserMessage(content="hi"),))
    return stream(model or chat_model(base_url=url), Transcript(messages=taken), StreamOptions(**options))


async def collect(response: AssistantStream) -> list[AssistantEvent]:
    """All events; the order of events is checked on the way (05 §2.2)."""
    events: list[AssistantEvent] = []
    async with asyncio.timeout(20):
        async for event in response:
            events.append(event)
    assert isinstance(events[-1], (StreamDone, StreamError))
    assert sum(isinstance(event, (StreamDone, StreamError)) for event in events) == 1
    assert all(event.type != "start" for event in events[1:])
    assert events[0].type in ("start", "error")
    assert await response.result() is events[-1].message
    return events


async def final(response: AssistantStream) -> AssistantMessage:
    """The final message."""
    return (await collect(response))[-1].message  # type: ignore[union-attr]  # the last event has one


# ---------------------------------------------------------------------------------------------------- the good case


async def test_a_response_arrives() -> None:
    """The request on the wire, the events in order, the message with its usage."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        events = await collect(ask(server, api_key=KEY))
        request = server.requests[0]
    assert [event.type for event in events] == ["start", "text_start", "text_delta", "text_delta", "text_end", "done"]
    message = events[-1].message  # type: ignore[union-attr]  # done
    assert (message.text, message.usage.input, message.usage.output, message.stop_reason) == ("Hello", 10, 2, "stop")
    assert (request.method, request.path, request.headers["authorization"]) == ("POST", "/v1/chat/completions", f"Bearer {KEY}")
    assert request.headers["user-agent"].startswith("laneway")
    assert request.json["messages"] == [{"role": "user", "content": "hi"}]


async def test_nothing_is_sent_before_the_stream_is_read() -> None:
    """A stream that nobody reads costs nothing."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        response = ask(server)
        await asyncio.sleep(0.05)
        assert server.requests == []
        assert (await response.result()).text == "Hello"


async def test_the_transcript_is_taken_when_asked_not_when_read() -> None:
    """05 §11.27: changing the list afterwards does not change the request."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        messages: list[Message] = [UserMessage(content="hi")]
        response = stream(chat_model(base_url=server.url), Transcript(messages=messages), StreamOptions())
        messages.append(UserMessage(content="later"))
        await response.result()
        assert len(server.requests[0].json["messages"]) == 1


async def test_events_come_as_they_arrive() -> None:
    """The first delta is there before the second was sent, and the first byte is not held back."""
    gate = asyncio.Event()
    async with Loopback([sse_reply(chunk("one"), gate, chunk("two"), chunk(finish="stop"))]) as server, asyncio.timeout(10):
        async for event in ask(server):
            if event.type == "text_delta":
                gate.set()
    assert gate.is_set()


async def test_a_connection_is_kept_for_the_next_request() -> None:
    """Also where [DONE] ends the response before the body does."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        for _ in range(3):
            await ask(server).result()
        assert server.connections == 1


async def test_a_server_that_never_closes_after_done_does_not_hold_the_response() -> None:
    """[DONE] is the end; what comes after it is waited for only briefly."""
    async with Loopback([sse_reply(*HELLO, 60.0)]) as server, asyncio.timeout(10):
        assert (await ask(server).result()).stop_reason == "stop"


async def test_a_wrong_content_type_is_no_obstacle() -> None:
    """05 sc. 148: application/json around server-sent events."""
    async with Loopback([Answer(steps=[sse(*HELLO)], content_type="application/json")]) as server:
        assert (await final(ask(server))).text == "Hello"


async def test_a_server_that_does_not_stream_is_understood() -> None:
    """One JSON object instead of a stream."""
    body = {"id": "x", "model": "m", "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
    async with Loopback([Answer(steps=[json.dumps(body, indent=1).encode()], content_type="application/json")]) as server:
        assert (await final(ask(server))).text == "hi"


async def test_a_tool_name_that_had_to_change_comes_back_as_declared() -> None:
    """The model calls the wire's name, the loop sees the tool's own."""
    tool = ToolDeclaration(name="server.tool", description="", parameters={})
    async with Loopback([sse_reply(chunk("x", finish="stop"))]) as server:
        await ask(server, SystemMessage(tools_added=[tool]), UserMessage(content="q")).result()
        name = server.requests[0].json["tools"][0]["function"]["name"]
        server.answers = [sse_reply(tools(fragment("{}", index=0, call_id="A", name=name), finish="tool_calls"))]
        found = await ask(server, SystemMessage(tools_added=[tool]), UserMessage(content="q")).result()
    assert name != "server.tool"
    assert found.tool_calls[0].name == "server.tool"


# ---------------------------------------------------------------------------------------------------- callbacks


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_the_payload_can_be_seen_changed_and_replaced(asynchronous: bool) -> None:
    """05 sc. 37: in place or by return value; sync or async; the next request of the conversation is not spoiled."""

    def edit(payload: dict[str, Any], model: Model) -> dict[str, Any] | None:
        payload["messages"][0]["content"] = "edited"
        return None

    def replace(payload: dict[str, Any], model: Model) -> dict[str, Any] | None:
        return {**payload, "extra": model.id}

    async def replace_later(payload: dict[str, Any], model: Model) -> dict[str, Any] | None:
        return replace(payload, model)

    async with Loopback([sse_reply(*HELLO)]) as server:
        await ask(server, on_payload=edit).result()
        await ask(server, on_payload=replace_later if asynchronous else replace).result()
        first, second = (request.json for request in server.requests)
    assert first["messages"][0]["content"] == "edited"
    assert (second["messages"][0]["content"], second["extra"]) == ("hi", "m")


async def test_the_response_is_reported_before_it_starts() -> None:
    """05 §4.0: status and headers, once, for the good answer."""
    seen: list[ResponseInfo] = []
    async with Loopback([Answer(steps=[sse(*HELLO)], headers={"X-Request-Id": "r1"})]) as server:
        await ask(server, on_response=lambda info, model: seen.append(info)).result()
    assert [(info.status, info.headers["x-request-id"]) for info in seen] == [(200, "r1")]


@pytest.mark.parametrize(("hook", "requests"), [("on_payload", 0), ("on_response", 1)])
async def test_a_callback_that_raises_ends_the_response(hook: str, requests: int) -> None:
    """05 sc. 37: an error event, and no request for a bad payload hook."""

    def bad(*_: object) -> None:
        raise ValueError("my mistake")

    async with Loopback([sse_reply(*HELLO)]) as server:
        message = await final(ask(server, **{hook: bad}))
        assert len(server.requests) == requests
    assert (message.stop_reason, "my mistake" in (message.error_message or "")) == ("error", True)


# ---------------------------------------------------------------------------------------------------- keys


async def test_a_local_server_needs_no_key() -> None:
    """05 sc. 105 [fix]: no Authorization header at all."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        assert (await final(ask(server))).text == "Hello"
        assert "authorization" not in server.requests[0].headers


async def test_a_hosted_server_without_a_key_is_an_error_that_says_so() -> None:
    """05 sc. 42: an event, not an exception, and no request."""
    message = await final(ask("https://api.openai.com/v1", model=chat_model(provider="openai", base_url="https://api.openai.com/v1")))
    assert message.error is not None
    assert (message.error.kind, "no API key for openai" in (message.error_message or "")) == ("configuration", True)


async def test_headers_of_model_and_options_are_laid_over_each_other() -> None:
    """05 sc. 133: without regard to case; None removes; the request's own win."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        model = chat_model(base_url=server.url, headers={"X-A": "model", "x-b": "model"})
        await ask(server, model=model, api_key=KEY, headers={"x-a": "mine", "Authorization": None}).result()
        headers = server.requests[0].headers
    assert (headers["x-a"], headers["x-b"], "authorization" in headers) == ("mine", "model", False)


async def test_a_key_that_cannot_be_sent_is_named_without_being_shown() -> None:
    """A pasted line break, say; blanks around a key are nothing."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        message = await final(ask(server, api_key=f"{KEY}\nx"))
        assert "authorization" in (message.error_message or "")
        assert KEY not in (message.error_message or "")
        await ask(server, api_key=f" {KEY}\n").result()
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_planted_key_is_nowhere_in_what_is_kept() -> None:
    """Decision 14: message, events and reprs, although the server echoes the key in its error and in its stream error."""
    echo = {"error": {"message": f"the key {KEY} is wrong", "type": "invalid_request_error"}}
    async with Loopback([error_reply(401, echo), sse_reply(chunk("x"), echo), error_reply(500, f"<html>{KEY}</html>")]) as server:
        for _ in range(3):
            events = await collect(ask(server, api_key=KEY))
            assert KEY not in repr(events)


# ---------------------------------------------------------------------------------------------------- faults


FAULTS: list[tuple[str, Answer, str, bool]] = [
    ("401", error_reply(401, {"error": {"message": "no", "code": "invalid_api_key"}}), "auth", False),
    ("404", error_reply(404, {"error": {"message": "no such model"}}), "not_found", False),
    ("429", error_reply(429, {"error": {"message": "slow"}}, headers={"retry-after": "7"}), "rate_limit", True),
    ("429 for ever", error_reply(429, {"error": {"message": "slow"}}, headers={"retry-after": "198300"}), "rate_limit", False),
    ("429 quota", error_reply(429, {"error": {"message": "no money", "code": "insufficient_quota"}}), "quota", False),
    ("400 overflow", error_reply(400, {"error": {"message": "maximum context length is 5 tokens"}}), "overflow", False),
    ("500", error_reply(500, {"error": "boom"}), "server", True),
    ("502 HTML", error_reply(502, "<html><title>Bad Gateway</title></html>", content_type="text/html"), "server", True),
    ("200 HTML", Answer(steps=[b"<!doctype html><title>Sign in</title>"], content_type="text/html"), "protocol", True),
    ("200 JSON error", Answer(steps=[b'{"error": {"message": "busy", "code": 503}}'], content_type="application/json"), "overloaded", True),
    ("empty", Answer(steps=[]), "incomplete", True),
    ("cut at once", Answer(steps=[CUT], raw=True), "network", True),
    ("cut in the stream", sse_reply(chunk("Hel"), CUT), "network", True),
    ("closed in the stream", sse_reply(chunk("Hel"), CLOSE), "network", True),
    ("clean end, no reason", sse_reply(chunk("Hel")), "incomplete", True),
    ("error in the stream", sse_reply(chunk("Hel"), {"error": {"message": "x", "type": "overloaded_error"}}), "overloaded", True),
    ("bad request in the stream", sse_reply({"error": {"message": "x", "type": "invalid_request_error"}}), "invalid_request", False),
    ("half a character", Answer(steps=["data: 😀".encode()[:-2]]), "protocol", True),
    ("not JSON", sse_reply(chunk("Hel"), "oops"), "protocol", True),
    ("filtered", sse_reply(chunk("Hel"), chunk(finish="content_filter")), "content_filter", False),
    ("unknown reason", sse_reply(chunk("Hel"), chunk(finish="whatever")), "unknown", False),
    ("silence", sse_reply(chunk("Hel"), 60.0), "timeout", True),
]


@pytest.mark.parametrize(("answer", "kind", "retryable"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
async def test_every_fault_settles_in_a_sentence(answer: Answer, kind: str, retryable: bool) -> None:
    """B11, B12, B47, B48 and more: one error event with its kind; what had arrived is kept; nothing is raised."""
    async with Loopback([answer]) as server:
        message = await final(ask(server, idle_timeout=0.2))
    assert message.error is not None
    assert (message.stop_reason, message.error.kind, is_retryable(message)) == ("error", kind, retryable)
    assert (message.error_message or "").strip()
    if answer.steps and b"Hel" in (answer.steps[0] if isinstance(answer.steps[0], bytes) else b""):
        assert message.text == "Hel"


async def test_every_cut_of_a_stream_settles() -> None:
    """A stream cut at every byte: always a settled message, never a wrong success."""
    whole = sse(chunk("Hel"), tools(fragment('{"a":"😀"}', index=0, call_id="A", name="f")), chunk(finish="tool_calls"), "[DONE]")
    end = whole.index(b'"tool_calls"}')
    async with Loopback([]) as server:
        server.answers = [Answer(steps=[whole[:n]]) for n in range(0, len(whole), 7)]
        for n in range(0, len(whole), 7):
            message = await ask(server).result()
            assert message.stop_reason == ("error" if n <= end else message.stop_reason)
            assert message.stop_reason in ("error", "tool_use")


async def test_a_stream_in_single_bytes_is_the_same_response() -> None:
    """Slow and in the smallest pieces."""
    whole = sse(*HELLO)
    async with Loopback([Answer(steps=[whole[i : i + 1] for i in range(len(whole))])]) as server:
        assert (await final(ask(server))).text == "Hello"


async def test_a_retried_request_leaves_nothing_of_the_failed_one() -> None:
    """B49: accumulators are per attempt."""
    first = sse_reply(chunk("Hello wor"), tools(fragment('{"c":"pri', index=0, call_id="A", name="f")), CUT)
    call = fragment('{"c":"print(1)"}', index=0, call_id="B", name="f")
    second = sse_reply(chunk("Hello world"), tools(call), chunk(finish="tool_calls"))
    async with Loopback([first, second]) as server:
        assert (await final(ask(server))).stop_reason == "error"
        message = await final(ask(server))
    assert (message.text, [c.arguments for c in message.tool_calls]) == ("Hello world", [{"c": "print(1)"}])


async def test_transport_retries_happen_before_the_first_byte_only() -> None:
    """05 §6.1: a 503 is asked for again, a cut stream is not."""
    async with Loopback([error_reply(503, headers={"retry-after-ms": "1"}), sse_reply(*HELLO)]) as server:
        assert (await final(ask(server, max_retries=2))).text == "Hello"
    async with Loopback([sse_reply(chunk("Hel"), CUT)]) as server:
        assert (await final(ask(server, max_retries=2))).stop_reason == "error"
        assert len(server.requests) == 1


async def test_usage_survives_a_failure() -> None:
    """05 §2.4: what was counted before the end is kept."""
    async with Loopback([sse_reply(usage(prompt_tokens=7, completion_tokens=0), chunk("Hel"), CUT)]) as server:
        assert (await final(ask(server))).usage.input == 7


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (chat_model(base_url=""), "base URL"),
        (chat_model(compat={"no_such": 1}), "no_such"),
        (chat_model(base_url="ftp://x/v1"), "request to ftp://x/v1"),
    ],
)
async def test_a_model_that_cannot_be_used_is_an_error_event(model: Model, part: str) -> None:
    """05 sc. 33: set-up failures too are the stream's last event, alone."""
    events = await collect(ask("", model=model))
    assert len(events) == 1
    message = events[0].message  # type: ignore[union-attr]  # error
    assert (message.content, part in (message.error_message or "")) == ([], True)
    assert not is_retryable(message)


# ---------------------------------------------------------------------------------------------------- abort, close, cancel


async def test_an_abort_before_the_request_sends_nothing() -> None:
    """05 sc. 40: a lone aborted event, zero requests."""
    controller = AbortController()
    controller.abort("no")
    async with Loopback([sse_reply(*HELLO)]) as server:
        events = await collect(ask(server, signal=controller.signal))
        assert server.requests == []
    assert [event.type for event in events] == ["error"]
    assert events[0].message.stop_reason == "aborted"  # type: ignore[union-attr]  # error


@pytest.mark.parametrize("after", ["headers", "delta"])
async def test_an_abort_in_the_stream_keeps_what_had_arrived(after: str) -> None:
    """05 sc. 41, B12: start, deltas, error(aborted) at once; the socket is closed."""
    controller = AbortController()
    answer = sse_reply(chunk("Hel"), 60.0) if after == "delta" else sse_reply(60.0)
    async with Loopback([answer]) as server, asyncio.timeout(10):
        response = ask(server, signal=controller.signal)
        async for event in response:
            if event.type == ("text_delta" if after == "delta" else "start"):
                controller.abort("enough")
        message = await response.result()
        await server.disconnected.wait()
    assert (message.stop_reason, message.text) == ("aborted", "Hel" if after == "delta" else "")


async def test_an_abort_between_buffered_events_takes_effect_at_once() -> None:
    """What is already in the buffer is not played to its end."""
    controller = AbortController()
    async with Loopback([Answer(steps=[sse(*[chunk("x") for _ in range(100)], chunk(finish="stop"))])]) as server:
        deltas = 0
        response = ask(server, signal=controller.signal)
        async for event in response:
            deltas += event.type == "text_delta"
            controller.abort()
        assert (await response.result()).stop_reason == "aborted"
    assert deltas <= 1


async def test_leaving_the_stream_closes_the_connection() -> None:
    """05 sc. 36, decision 10."""
    async with Loopback([sse_reply(chunk("Hel"), 60.0)]) as server, asyncio.timeout(10):
        async with ask(server) as response:
            async for event in response:
                if event.type == "text_delta":
                    break
        await server.disconnected.wait()
        message = await response.result()
    assert (message.stop_reason, message.text) == ("aborted", "Hel")


async def test_closing_from_another_task_wakes_the_reader() -> None:
    """The reader gets the aborted message as the last event."""
    async with Loopback([sse_reply(chunk("Hel"), 60.0)]) as server, asyncio.timeout(10):
        response = ask(server)
        reader = asyncio.ensure_future(response.result())
        await server.arrived()
        await asyncio.sleep(0.05)
        await response.aclose()
        message = await reader
        await server.disconnected.wait()
    assert (message.stop_reason, message.text) == ("aborted", "Hel")


async def test_cancelling_the_reader_is_a_cancellation() -> None:
    """05 sc. 147: CancelledError goes on, the server sees the disconnect, no done; the message is settled as aborted."""
    async with Loopback([sse_reply(chunk("Hel"), 60.0)]) as server, asyncio.timeout(10):
        response = ask(server)
        reader = asyncio.ensure_future(collect(response))
        await server.arrived()
        await asyncio.sleep(0.05)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await server.disconnected.wait()
        message = await response.result()
    assert (message.stop_reason, message.text) == ("aborted", "Hel")


async def test_cancelling_at_every_moment_leaves_nothing_behind() -> None:
    """A task cancelled after any number of steps of the loop: always CancelledError or a finished response, and no open stream."""
    async with Loopback([sse_reply(*HELLO)]) as server, asyncio.timeout(60):
        for steps in range(0, 60, 3):
            response = ask(server)
            task = asyncio.ensure_future(response.result())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(outcome, (asyncio.CancelledError, AssistantMessage))
            await response.aclose()


async def test_a_huge_event_arrives_over_the_wire() -> None:
    """05 sc. 148: 5 MiB in one event, cut by the network as it likes."""
    async with Loopback([sse_reply(chunk("x" * (5 << 20)), chunk(finish="stop"))]) as server:
        assert len((await final(ask(server))).text) == 5 << 20


async def test_the_first_event_comes_with_the_first_byte() -> None:
    """Nothing waits for more than one event: the delta is there while the server is silent."""
    async with Loopback([sse_reply(chunk("first"), 60.0)]) as server, asyncio.timeout(10), ask(server) as response:
        seen = [event.type async for event in until_delta(response)]
    assert seen == ["start", "text_start", "text_delta"]


async def until_delta(response: AssistantStream) -> AsyncGenerator[AssistantEvent]:
    """The events up to the first delta."""
    async for event in response:
        yield event
        if event.type == "text_delta":
            return
