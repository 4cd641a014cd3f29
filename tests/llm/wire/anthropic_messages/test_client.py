"""The messages wire over a socket: keys, headers, faults, aborts."""

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
from laneway.llm.wire.anthropic_messages import stream
from laneway.messages import AssistantMessage, Message, SystemMessage, TextContent, ToolDeclaration, UserMessage
from llm.loopback import CLOSE, CUT, Answer, Loopback, error_reply
from llm.wire.anthropic_messages.protocol import HELLO, STOP, arguments, block, called, end, model, reason, reply, said, start, text, wire

KEY = "sk-ant-planted-0123456789"


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


# ---------------------------------------------------------------------------------------------------- the request


async def test_a_whole_response() -> None:
    """From the request to the last event."""
    async with Loopback([reply(*HELLO)]) as server:
        events = await collect(ask(server, SystemMessage(content="S"), UserMessage(content="hi"), api_key=KEY))
        (request,) = server.requests
    assert [event.type for event in events] == ["start", "text_start", "text_delta", "text_delta", "text_end", "done"]
    assert events[-1].message.text == "Hello"  # type: ignore[union-attr]  # done
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert (request.headers["x-api-key"], request.headers["anthropic-version"], "authorization" in request.headers) == (KEY, "2023-06-01", False)
    assert "anthropic-beta" not in request.headers
    assert request.headers["user-agent"].startswith("laneway")
    assert (request.json["stream"], request.json["system"][0]["text"]) == (True, "S")


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_base_url_may_have_the_version_or_not(suffix: str) -> None:
    """05 §4.0: without is the custom; with is what people paste."""
    async with Loopback([reply(*HELLO)]) as server:
        await ask(server, of=model(base_url=server.url.removesuffix("/v1") + suffix)).result()
        assert server.requests[0].path == "/v1/messages"


@pytest.mark.parametrize(
    ("key", "compat", "header"),
    [
        (KEY, {}, ("x-api-key", KEY)),
        ("sk-ant-oat01-x", {}, ("authorization", "Bearer sk-ant-oat01-x")),
        (KEY, {"auth": "bearer"}, ("authorization", f"Bearer {KEY}")),
    ],
)
async def test_the_key_goes_where_the_server_looks_for_it(key: str, compat: dict[str, Any], header: tuple[str, str]) -> None:
    """05 §4.1: subscription tokens are bearer tokens; nothing else changes with them."""
    async with Loopback([reply(*HELLO)]) as server:
        await ask(server, of=model(base_url=server.url, compat=compat), api_key=key).result()
        headers = server.requests[0].headers
    assert headers[header[0]] == header[1]
    assert len({"x-api-key", "authorization"} & headers.keys()) == 1


async def test_a_missing_key_is_an_error_that_says_so() -> None:
    """05 sc. 42; a header of one's own is a key too, and a local server needs none."""
    message = await final(ask("https://api.anthropic.com", of=model(provider="anthropic", base_url="https://api.anthropic.com")))
    assert message.error is not None
    assert (message.error.kind, "no API key for anthropic" in (message.error_message or "")) == ("configuration", True)
    async with Loopback([reply(*HELLO)]) as server:
        assert (await final(ask(server, headers={"Authorization": "Bearer mine"}))).text == "Hello"
        assert (await final(ask(server))).text == "Hello"
        assert [request.headers.get("authorization") for request in server.requests] == ["Bearer mine", None]


async def test_beta_features_are_announced_and_can_be_replaced() -> None:
    """05 §4.1: a header of the model's or the options' replaces the whole list; None means none."""
    of = {"reasoning": True, "compat": {"allowed_fallback_models": {"small": {}}}}
    async with Loopback([reply(*HELLO)]) as server:
        for headers in (None, {"anthropic-beta": "mine"}, {"Anthropic-Beta": None}):
            await ask(server, of=model(base_url=server.url, **of), reasoning="low", headers=headers).result()
        seen = [request.headers.get("anthropic-beta") for request in server.requests]
        assert server.requests[0].path == "/v1/messages?beta=true"
    assert seen == ["interleaved-thinking-2025-05-14,server-side-fallback-2026-07-01", "mine", None]


@pytest.mark.parametrize(("shape", "name"), [("affinity", "x-session-affinity"), ("openrouter", "x-session-id")])
async def test_a_session_stays_on_one_machine_where_that_is_possible(shape: str, name: str) -> None:
    """Only where the server knows the header, and not without caching."""
    compat = {"send_session_affinity_headers": True, "session_affinity_format": shape}
    async with Loopback([reply(*HELLO)]) as server:
        for options in ({"session_id": "s"}, {"session_id": "s", "cache_retention": "none"}, {}):
            await ask(server, of=model(base_url=server.url, compat=compat), **options).result()
        assert [request.headers.get(name) for request in server.requests] == ["s", None, None]


async def test_a_tool_name_that_had_to_change_comes_back_as_declared() -> None:
    """Also for a tool that has been removed since: the model may still call it."""
    messages = [SystemMessage(tools_added=[ToolDeclaration(name="server.tool", description="", parameters={})]), UserMessage(content="q")]
    async with Loopback([reply(*HELLO)]) as server:
        await ask(server, *messages).result()
        name = server.requests[0].json["tools"][0]["name"]
        server.answers = [reply(start(), *called(name), reason("tool_use"), STOP)]
        found = await ask(server, *messages, SystemMessage(tools_removed=["server.tool"])).result()
    assert name != "server.tool"
    assert found.tool_calls[0].name == "server.tool"


async def test_the_level_that_was_asked_for_is_kept_with_the_answer() -> None:
    """Clamped to what the model knows."""
    async with Loopback([reply(*HELLO)]) as server:
        found = await ask(server, of=model(base_url=server.url, reasoning=True, thinking_levels={"low": None}), reasoning="low").result()
    assert found.thinking_level == "medium"


async def test_the_payload_can_be_replaced() -> None:
    """05 sc. 37."""
    async with Loopback([reply(*HELLO)]) as server:
        await ask(server, on_payload=lambda payload, of: {**payload, "service_tier": of.id}).result()
        assert server.requests[0].json["service_tier"] == "m"


async def test_the_registry_finds_the_wire(clean_env: pytest.MonkeyPatch) -> None:
    """A model of the vendor over its own door: key from the environment, bearer for a token, URL from the environment."""
    async with Loopback([reply(*HELLO)]) as server:
        clean_env.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
        clean_env.setenv("ANTHROPIC_API_KEY", KEY)
        models = Models(credentials=MemoryCredentialStore())
        transcript = Transcript(messages=[UserMessage(content="hi")])
        first = await models.stream(models.model("anthropic/claude-opus-4-6:max"), transcript).result()
        clean_env.setenv("ANTHROPIC_AUTH_TOKEN", "token-0123456789")
        second = await models.stream(models.model("anthropic/claude-haiku-4-5"), transcript).result()
        one, two = server.requests
    assert (first.text, second.text, first.response_model) == ("Hello", "Hello", "m")
    assert (one.headers["x-api-key"], one.json["output_config"], one.json["thinking"]["type"]) == (KEY, {"effort": "max"}, "adaptive")
    assert (two.headers["authorization"], "x-api-key" in two.headers, two.json["thinking"]) == (
        "Bearer token-0123456789",
        False,
        {"type": "disabled"},
    )


# ---------------------------------------------------------------------------------------------------- retries and faults


def overloaded(kind: str = "overloaded_error") -> dict[str, Any]:
    """An error in the protocol's shape."""
    return {"type": "error", "error": {"type": kind, "message": "Overloaded"}, "request_id": "r"}


async def test_a_request_is_repeated_only_before_its_first_byte() -> None:
    """05 sc. 83: a 429 with a short wait is; a stream that was cut is not."""
    async with Loopback([error_reply(429, overloaded("rate_limit_error"), headers={"retry-after-ms": "10"}), reply(*HELLO)]) as server:
        assert (await final(ask(server, max_retries=1))).text == "Hello"
        assert len(server.requests) == 2
    async with Loopback([reply(*HELLO[:3], CUT)]) as server:
        assert (await final(ask(server, max_retries=2))).stop_reason == "error"
        assert len(server.requests) == 1


async def test_a_wait_that_nobody_will_wait_fails_at_once() -> None:
    """05 sc. 84: the text says how long, and what the limit is."""
    async with Loopback([error_reply(429, overloaded("rate_limit_error"), headers={"retry-after": "120"})]) as server:
        message = await final(ask(server, max_retries=3))
        assert len(server.requests) == 1
    assert all(part in (message.error_message or "") for part in ("retry delay", "120 s", "60 s"))


@pytest.mark.parametrize(("status", "told", "requests"), [(500, "false", 1), (400, "true", 2)])
async def test_the_server_may_say_whether_a_retry_helps(status: int, told: str, requests: int) -> None:
    """05 sc. 85."""
    answer = error_reply(status, overloaded("api_error"), headers={"x-should-retry": told, "retry-after-ms": "1"})
    async with Loopback([answer, reply(*HELLO)]) as server:
        await final(ask(server, max_retries=1))
        assert len(server.requests) == requests


FAULTS: list[tuple[str, Answer, str, bool]] = [
    ("401", error_reply(401, overloaded("authentication_error")), "auth", False),
    (
        "400 prompt",
        error_reply(400, {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 5"}}),
        "overflow",
        False,
    ),
    ("400", error_reply(400, overloaded("invalid_request_error")), "invalid_request", False),
    ("413", error_reply(413, overloaded("request_too_large")), "overflow", False),
    ("402", error_reply(402, overloaded("billing_error")), "quota", False),
    ("404", error_reply(404, overloaded("not_found_error")), "not_found", False),
    ("429", error_reply(429, overloaded("rate_limit_error")), "rate_limit", True),
    ("500", error_reply(500, overloaded("api_error")), "server", True),
    ("529", error_reply(529, overloaded()), "overloaded", True),
    ("502 HTML", error_reply(502, "<html><title>Bad Gateway</title></html>", content_type="text/html"), "server", True),
    ("200 HTML", Answer(steps=[b"<!doctype html><title>Sign in</title>"], content_type="text/html"), "protocol", True),
    ("200 JSON error", Answer(steps=[json.dumps(overloaded()).encode()], content_type="application/json"), "overloaded", True),
    ("empty", Answer(steps=[]), "incomplete", True),
    ("cut in the stream", reply(*HELLO[:3], CUT), "network", True),
    ("closed in the stream", reply(*HELLO[:3], CLOSE), "network", True),
    ("clean end, no message_stop", reply(*HELLO[:3]), "incomplete", True),
    ("clean end after a call", reply(start(), *called(), reason("tool_use")), "incomplete", True),
    ("overloaded in the stream", reply(*HELLO[:3], overloaded()), "overloaded", True),
    ("overloaded at once", reply(overloaded()), "overloaded", True),
    ("bad request in the stream", reply(*HELLO[:3], overloaded("invalid_request_error")), "invalid_request", False),
    ("not JSON", reply(*HELLO[:3], b"data: oops\n\n"), "protocol", True),
    ("refused", reply(*HELLO[:3], reason("refusal"), STOP), "content_filter", False),
    ("unknown reason", reply(*HELLO[:3], reason("whatever"), STOP), "unknown", False),
    ("silence", reply(*HELLO[:3], 60.0), "timeout", True),
]


@pytest.mark.parametrize(("answer", "kind", "retryable"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
async def test_every_fault_settles_in_a_sentence(answer: Answer, kind: str, retryable: bool) -> None:
    """B47, B48, B53 and more: one error event with its kind; what had arrived is kept; nothing is raised."""
    async with Loopback([answer]) as server:
        message = await final(ask(server, idle_timeout=0.2))
    assert message.error is not None
    assert (message.stop_reason, message.error.kind, is_retryable(message)) == ("error", kind, retryable)
    assert (message.error_message or "").strip()
    if answer.status == 200 and len(answer.steps) > 3:
        assert message.text == "Hel" or message.tool_calls
        assert message.usage.input == 10


async def test_every_cut_of_a_stream_settles() -> None:
    """A stream cut at every byte: always a settled message, never a wrong success."""
    whole = wire(start(), block(0, "text"), text("Hel"), end(), block(1, "tool_use"), arguments('{"a":"😀"}', 1), end(1), reason("tool_use"), STOP)
    complete = whole.index(b'"message_stop"}') + len(b'"message_stop"}')
    cuts = [*range(0, complete - 40, 13), *range(complete - 40, len(whole))]
    async with Loopback([Answer(steps=[whole[:cut]] if cut else []) for cut in cuts]) as server:
        for cut in cuts:
            message = await ask(server).result()
            assert message.stop_reason == ("tool_use" if cut >= complete else "error"), cut


async def test_a_stream_in_single_bytes_is_the_same_response() -> None:
    """Slow and in the smallest pieces, with CRLF."""
    whole = wire(*said("Hello ü")).replace(b"\n", b"\r\n")
    async with Loopback([Answer(steps=[whole[i : i + 1] for i in range(len(whole))])]) as server:
        assert (await final(ask(server))).text == "Hello ü"


async def test_a_huge_event_arrives_over_the_wire() -> None:
    """05 sc. 148: 5 MiB in one event; and the answer may be one JSON object, or have another content type."""
    async with Loopback([reply(*said("x" * (5 << 20)))]) as server:
        assert len((await final(ask(server))).text) == 5 << 20
    body = {"type": "message", "id": "x", "model": "m", "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": {}}
    other = Answer(steps=[json.dumps(body, indent=1).encode()], content_type="application/json")
    async with Loopback([other, Answer(steps=[wire(*HELLO)], content_type="application/json")]) as server:
        assert (await final(ask(server))).text == "hi"
        assert (await final(ask(server))).text == "Hello"


async def test_a_planted_key_is_nowhere_in_what_is_kept() -> None:
    """Decision 14: message, events and reprs, although the server echoes the key in its error and in its stream."""
    echo = {"type": "error", "error": {"type": "authentication_error", "message": f"the key {KEY} is wrong"}}
    odd = reply(*HELLO[:3], reason("refusal", details={"explanation": f"not for {KEY}"}), STOP)
    async with Loopback([error_reply(401, echo), reply(*HELLO[:3], echo), odd, error_reply(500, f"<html>{KEY}</html>")]) as server:
        for _ in range(4):
            assert KEY not in repr(await collect(ask(server, api_key=KEY)))


@pytest.mark.parametrize(
    ("of", "part"), [(model(base_url=""), "base URL"), (model(compat={"no_such": 1}), "no_such"), (model(base_url="ftp://x"), "ftp://x/v1")]
)
async def test_a_model_that_cannot_be_used_is_an_error_event(of: Model, part: str) -> None:
    """05 sc. 33: set-up failures too are the stream's last event, alone."""
    events = await collect(ask("", of=of))
    assert len(events) == 1
    assert part in (events[0].message.error_message or "")  # type: ignore[union-attr]  # error


async def test_an_abort_in_the_stream_keeps_what_had_arrived() -> None:
    """05 sc. 41: start, deltas, error(aborted) at once; the socket is closed."""
    controller = AbortController()
    async with Loopback([reply(*HELLO[:3], 60.0)]) as server, asyncio.timeout(10):
        response = ask(server, signal=controller.signal)
        async for event in response:
            if event.type == "text_delta":
                controller.abort("enough")
        message = await response.result()
        await server.disconnected.wait()
    assert (message.stop_reason, message.content, message.usage.input) == ("aborted", [TextContent(text="Hel")], 10)


async def test_a_connection_is_kept_for_the_next_request() -> None:
    """message_stop ends the response; the connection is used again."""
    async with Loopback([reply(*HELLO)]) as server:
        for _ in range(3):
            await ask(server).result()
        assert server.connections == 1


# ---------------------------------------------------------------------------------------------------- strict tools


STRICT = {"supports_strict_tools": True}


def tool_set(name: str) -> SystemMessage:
    """A tool that wants to be followed to the letter."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return SystemMessage(tools_added=[ToolDeclaration(name=name, description="", parameters=schema, strict=True)])


def refusal(text: str) -> Answer:
    """The provider cannot compile the schemas."""
    return error_reply(400, {"type": "error", "error": {"type": "invalid_request_error", "message": text}})


@pytest.mark.parametrize(
    "told",
    [
        "Too many strict tools (48). The maximum number of strict tools supported is 20.",
        "The compiled grammar is too large, which would cause performance issues. Simplify your tool schemas or reduce the number of strict tools.",
        "Schema is too complex for compilation. Try reducing the number of tools or simplifying tool schemas.",
        "Schemas contains too many optional parameters (25), which exceeds the limit: 24",
    ],
)
async def test_schemas_that_are_too_much_are_sent_again_without_the_demand(told: str) -> None:
    """05 §9.5: once, with a note; later requests with these tools do not ask for it again, others do."""
    name = told.split()[-1].strip(".")  # one of its own for each case: what was refused is remembered
    async with Loopback([refusal(told), reply(*HELLO)]) as server:
        of = model(base_url=server.url, compat=STRICT)
        events = await collect(ask(server, tool_set(name), UserMessage(content="hi"), of=of))
        message = events[-1].message  # type: ignore[union-attr]  # the last event has one
        await final(ask(server, tool_set(name), UserMessage(content="hi"), UserMessage(content="more"), of=of))
        await final(ask(server, tool_set(name + "_other"), UserMessage(content="hi"), of=of))
    assert [event.type for event in events][:1] == ["start"]
    assert (message.text, message.stop_reason) == ("Hello", "stop")
    assert message.diagnostics is not None
    assert "schemas" in message.diagnostics[0]
    assert [request.json["tools"][0].get("strict", False) for request in server.requests] == [True, False, False, True]


@pytest.mark.parametrize(
    ("answers", "count"),
    [
        ([refusal("messages: roles must alternate")], 1),
        ([refusal("Too many strict tools (48)."), refusal("Too many strict tools (48).")], 2),
        ([error_reply(500, {"error": {"message": "Too many strict tools (48)."}})], 1),
    ],
    ids=["another reason", "refused again", "not a refusal"],
)
async def test_other_refusals_are_errors(answers: list[Answer], count: int) -> None:
    """Nothing is sent a third time, and nothing for another reason."""
    async with Loopback(answers) as server:
        of = model(base_url=server.url, compat=STRICT)
        message = await final(ask(server, tool_set(f"other{count}{len(answers)}"), UserMessage(content="hi"), of=of))
        assert len(server.requests) == count
    assert message.stop_reason == "error"
