"""Mistral's wire over a socket: keys, headers, faults, aborts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from laneway.abort import AbortController
from laneway.events import AssistantEvent
from laneway.llm import MemoryCredentialStore, Models
from laneway.llm._retry import is_retryable
from laneway.llm.base import AssistantStream, Model, StreamOptions, Transcript
from laneway.llm.wire.mistral import stream
from laneway.messages import AssistantMessage, Message, SystemMessage, TextContent, ToolDeclaration, UserMessage
from llm.loopback import CLOSE, CUT, Answer, Loopback, error_reply, sse, sse_reply
from llm.wire.mistral.protocol import DONE, HELLO, call, calls, chunk, model, stop

KEY = "mistral-planted-0123456789"


def ask(server: Loopback | str, *messages: Message, of: Model | None = None, **options: Any) -> AssistantStream:
    """Ask the server."""
    url = server if isinstance(server, str) else server.url
    transcript = Transcript(messages=list(messages) or [UserMessage(content="hi")])
    return stream(of or model(base_url=url), transcript, StreamOptions(**options))


async def final(response: AssistantStream) -> AssistantMessage:
    """The final message, which must come in time."""
    async with asyncio.timeout(10):
        return await response.result()


async def collect(response: AssistantStream) -> list[AssistantEvent]:
    """All events, which must come in time."""
    async with asyncio.timeout(10):
        return [event async for event in response]


async def test_a_whole_response() -> None:
    """From the request to the last event; a session stays on one machine."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        events = await collect(ask(server, SystemMessage(content="S"), UserMessage(content="hi"), api_key=KEY, session_id="s"))
        await ask(server, session_id="s", cache_retention="none").result()
        request, second = server.requests
    assert [event.type for event in events] == ["start", "text_start", "text_delta", "text_delta", "text_end", "done"]
    assert events[-1].message.text == "Hello"  # type: ignore[union-attr]  # done
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert (request.headers["authorization"], request.headers["x-affinity"]) == (f"Bearer {KEY}", "s")
    assert request.headers["user-agent"].startswith("laneway/")
    assert request.json["messages"][0] == {"role": "system", "content": "S"}
    assert "x-affinity" not in second.headers


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_base_url_may_have_the_version_or_not(suffix: str) -> None:
    """05 §4.0: without is the custom; with is what people paste."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        await ask(server, of=model(base_url=server.url.removesuffix("/v1") + suffix)).result()
        assert server.requests[0].path == "/v1/chat/completions"


async def test_a_missing_key_is_an_error_that_says_so() -> None:
    """05 sc. 42; a header of one's own is a key too, and a local server needs none."""
    for of in (model(provider="mistral", base_url="https://example.com"), model(base_url="https://api.mistral.ai")):
        message = await final(ask("", of=of))
        assert message.error is not None
        assert (message.error.kind, "no API key" in (message.error_message or "")) == ("configuration", True)
    async with Loopback([sse_reply(*HELLO)]) as server:
        assert (await final(ask(server, headers={"Authorization": "Bearer mine"}))).text == "Hello"
        assert (await final(ask(server))).text == "Hello"
        assert [request.headers.get("authorization") for request in server.requests] == ["Bearer mine", None]


async def test_a_tool_name_that_had_to_change_comes_back_as_declared() -> None:
    """Also for a tool that has been removed since."""
    messages = [SystemMessage(tools_added=[ToolDeclaration(name="server.tool", description="", parameters={})]), UserMessage(content="q")]
    async with Loopback([sse_reply(*HELLO)]) as server:
        await ask(server, *messages).result()
        name = server.requests[0].json["tools"][0]["function"]["name"]
        server.answers = [sse_reply(calls(call(name)), stop(), DONE)]
        found = await ask(server, *messages, SystemMessage(tools_removed=["server.tool"])).result()
    assert name != "server.tool"
    assert found.tool_calls[0].name == "server.tool"


async def test_the_registry_finds_the_wire(clean_env: pytest.MonkeyPatch) -> None:
    """A model of the vendor: key and URL from the environment, the level from its spec."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        clean_env.setenv("MISTRAL_BASE_URL", server.url.removesuffix("/v1"))
        clean_env.setenv("MISTRAL_API_KEY", KEY)
        models = Models(credentials=MemoryCredentialStore())
        transcript = Transcript(messages=[UserMessage(content="hi")])
        found = await models.stream(models.model("mistral/mistral-small-latest:high"), transcript).result()
        await models.stream(models.model("mistral/magistral-medium-latest:high"), transcript).result()
        one, two = server.requests
    assert (found.text, found.response_model, found.thinking_level) == ("Hello", "m", "high")
    assert (one.headers["authorization"], one.json["reasoning_effort"], two.json["prompt_mode"]) == (f"Bearer {KEY}", "high", "reasoning")


async def test_a_request_is_repeated_only_before_its_first_byte() -> None:
    """05 sc. 83: a 429 is; a stream that was cut is not."""
    async with Loopback([error_reply(429, {"message": "Rate limit"}, headers={"retry-after-ms": "10"}), sse_reply(*HELLO)]) as server:
        assert (await final(ask(server, max_retries=1))).text == "Hello"
        assert len(server.requests) == 2
    async with Loopback([sse_reply(*HELLO[:2], CUT)]) as server:
        assert (await final(ask(server, max_retries=2))).stop_reason == "error"
        assert len(server.requests) == 1


def problem(kind: str, message: str = "Sorry.", code: str | None = None) -> dict[str, Any]:
    """An error in the API's shape."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


TOO_LONG = "Prompt contains 300000 tokens, too large for model with 262144 maximum context length"
FAULTS: list[tuple[str, Answer, str, bool]] = [
    ("401", error_reply(401, {"message": "Unauthorized"}), "auth", False),
    ("400 prompt", error_reply(400, problem("invalid_request_error", TOO_LONG)), "overflow", False),
    ("400 order", error_reply(400, problem("invalid_request_error", "Unexpected role", "3230")), "invalid_request", False),
    ("422", error_reply(422, {"detail": [{"type": "missing", "msg": "Field required"}]}), "invalid_request", False),
    ("404", error_reply(404, problem("invalid_model", "Invalid model")), "not_found", False),
    ("429", error_reply(429, problem("rate_limited", "Rate limit exceeded", "1300")), "rate_limit", True),
    ("429 capacity", error_reply(429, problem("service_tier_capacity_exceeded", "Service tier capacity exceeded")), "overloaded", True),
    ("500", error_reply(500, problem("internal_server_error")), "server", True),
    ("502 HTML", error_reply(502, "<html><title>Bad Gateway</title></html>", content_type="text/html"), "server", True),
    ("200 HTML", Answer(steps=[b"<!doctype html><title>Sign in</title>"], content_type="text/html"), "protocol", True),
    ("empty", Answer(steps=[]), "incomplete", True),
    ("cut in the stream", sse_reply(*HELLO[:2], CUT), "network", True),
    ("closed in the stream", sse_reply(*HELLO[:2], CLOSE), "network", True),
    ("clean end without a reason", sse_reply(*HELLO[:2]), "incomplete", True),
    ("clean end after a call", sse_reply(chunk("Hel"), calls(call())), "incomplete", True),
    ("error in the stream", sse_reply(*HELLO[:2], problem("internal_server_error")), "server", True),
    ("not JSON", sse_reply(*HELLO[:2], b"oops"), "protocol", True),
    ("error as a reason", sse_reply(*HELLO[:2], stop("error"), DONE), "server", True),
    ("unknown reason", sse_reply(*HELLO[:2], stop("whatever"), DONE), "unknown", False),
    ("silence", sse_reply(*HELLO[:2], 60.0), "timeout", True),
]


@pytest.mark.parametrize(("answer", "kind", "retryable"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
async def test_every_fault_settles_in_a_sentence(answer: Answer, kind: str, retryable: bool) -> None:
    """B47, B48, §11.16: one error event with its kind; what had arrived is kept; nothing is raised."""
    async with Loopback([answer]) as server:
        message = await final(ask(server, idle_timeout=0.2))
    assert message.error is not None
    assert (message.stop_reason, message.error.kind, is_retryable(message)) == ("error", kind, retryable)
    assert (message.error_message or "").strip()
    if answer.status == 200 and len(answer.steps) > 1:
        assert message.text == "Hel"


async def test_every_cut_of_a_stream_settles() -> None:
    """A stream cut at every byte: always a settled message, never a wrong success."""
    reason = sse(chunk(finish="tool_calls"))
    before = sse(chunk("Hel"), calls(call("f", '{"a":"😀"}')))
    whole = before + reason + sse(DONE)
    complete = len(before + reason) - 2
    cuts = [*range(0, complete - 60, 11), *range(complete - 60, len(whole) + 1)]
    async with Loopback([Answer(steps=[whole[:cut]] if cut else []) for cut in cuts]) as server:
        for cut in cuts:
            message = await ask(server).result()
            stopped = message.stop_reason == "tool_use"
            assert stopped == (cut >= complete) or whole[:cut].endswith((b"[", b"[D", b"[DO", b"[DON", b"[DONE")), cut
            assert stopped or message.stop_reason == "error"


async def test_a_stream_in_single_bytes_is_the_same_response() -> None:
    """Slow and in the smallest pieces, with CRLF."""
    whole = sse(chunk("Hello ü"), stop(), DONE).replace(b"\n", b"\r\n")
    async with Loopback([Answer(steps=[whole[i : i + 1] for i in range(len(whole))])]) as server:
        assert (await final(ask(server))).text == "Hello ü"


async def test_a_huge_event_and_one_that_is_the_whole_answer() -> None:
    """05 sc. 148: 5 MiB in one event; the answer may be one JSON object, or have another content type."""
    async with Loopback([sse_reply(chunk("x" * (5 << 20)), stop(), DONE)]) as server:
        assert len((await final(ask(server))).text) == 5 << 20
    body = {"id": "1", "model": "m", "choices": [{"message": {"role": "assistant", "content": "hi", "tool_calls": None}, "finish_reason": "stop"}]}
    other = Answer(steps=[json.dumps(body, indent=1).encode()], content_type="application/json")
    async with Loopback([other, Answer(steps=[sse(*HELLO)], content_type="application/json")]) as server:
        assert (await final(ask(server))).text == "hi"
        assert (await final(ask(server))).text == "Hello"


async def test_a_planted_key_is_nowhere_in_what_is_kept() -> None:
    """Decision 14: message, events and reprs, although the server echoes the key in its error and in its stream."""
    echo = problem("unauthorized", f"the key {KEY} is wrong")
    answers = [error_reply(401, echo), sse_reply(*HELLO[:2], echo), error_reply(500, f"<html>{KEY}</html>")]
    async with Loopback(answers) as server:
        for _ in answers:
            assert KEY not in repr(await collect(ask(server, api_key=KEY)))


@pytest.mark.parametrize(("of", "part"), [(model(base_url=""), "base URL"), (model(compat={"no_such": 1}), "no_such")])
async def test_a_model_that_cannot_be_used_is_an_error_event(of: Model, part: str) -> None:
    """05 sc. 33: set-up failures too are the stream's last event, alone."""
    events = await collect(ask("", of=of))
    assert len(events) == 1
    assert part in (events[0].message.error_message or "")  # type: ignore[union-attr]  # error


async def test_an_abort_in_the_stream_keeps_what_had_arrived() -> None:
    """05 sc. 41: start, deltas, error(aborted) at once; the socket is closed."""
    controller = AbortController()
    async with Loopback([sse_reply(*HELLO[:2], 60.0)]) as server, asyncio.timeout(10):
        response = ask(server, signal=controller.signal)
        async for event in response:
            if event.type == "text_delta":
                controller.abort("enough")
        message = await response.result()
        await server.disconnected.wait()
    assert (message.stop_reason, message.content) == ("aborted", [TextContent(text="Hel")])


async def test_a_connection_is_kept_for_the_next_request() -> None:
    """[DONE] ends the response; the connection is used again."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        for _ in range(3):
            await ask(server).result()
        assert server.connections == 1
