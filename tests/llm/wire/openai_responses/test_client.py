"""The Responses wire over a socket: keys, headers, faults, aborts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from laneway.abort import AbortController
from laneway.events import AssistantEvent
from laneway.llm import MemoryCredentialStore, Models
from laneway.llm._retry import is_retryable
from laneway.llm.base import AssistantStream, Model, ModelCost, StreamOptions, Transcript
from laneway.llm.wire.openai_responses import stream
from laneway.messages import AssistantMessage, Message, SystemMessage, ToolDeclaration, ToolResultMessage, UserMessage
from llm.loopback import CLOSE, CUT, Answer, Loopback, error_reply
from llm.wire.openai_responses.protocol import (
    HELLO,
    added,
    arguments,
    call,
    called,
    completed,
    created,
    done,
    incomplete,
    message,
    model,
    reasoning,
    reply,
    response,
    said,
    text,
    usage,
    wire,
)

KEY = "sk-planted-0123456789"


def ask(server: Loopback | str, *messages: Message, of: Model | None = None, **options: Any) -> AssistantStream:
    """Ask the server."""
    url = server if isinstance(server, str) else server.url
    transcript = Transcript(messages=list(messages) or [UserMessage(content="hi")])
    return stream(of or model(base_url=url), transcript, StreamOptions(**options))


async def final(answer: AssistantStream) -> AssistantMessage:
    """The final message, which must come in time."""
    async with asyncio.timeout(10):
        return await answer.result()


async def collect(answer: AssistantStream) -> list[AssistantEvent]:
    """All events, which must come in time."""
    async with asyncio.timeout(10):
        return [event async for event in answer]


# ---------------------------------------------------------------------------------------------------- the request


async def test_a_whole_response() -> None:
    """From the request to the last event."""
    async with Loopback([reply(*HELLO)]) as server:
        events = await collect(ask(server, SystemMessage(content="S"), UserMessage(content="hi"), api_key=KEY, session_id="s"))
        (request,) = server.requests
    assert [event.type for event in events] == ["start", "text_start", "text_delta", "text_delta", "text_end", "done"]
    assert events[-1].message.text == "Hello"  # type: ignore[union-attr]  # done
    assert (request.method, request.path, request.headers["authorization"]) == ("POST", "/v1/responses", f"Bearer {KEY}")
    assert (request.headers["session-id"], request.json["prompt_cache_key"], request.json["store"]) == ("s", "s", False)
    assert request.headers["user-agent"].startswith("laneway")


async def test_a_tool_loop_with_reasoning_goes_back_whole() -> None:
    """B40 over the wire: what came in the first answer is what the second request sends, byte for byte."""
    step = reasoning("I look.", item_id="rs_7")
    first = reply(created(), added(reasoning(encrypted=None)), done(step), *called('{"path":"ü"}', index=1), completed())
    async with Loopback([first, reply(*HELLO)]) as server:
        of = model(base_url=server.url, reasoning=True)
        asked = UserMessage(content="q")
        answer = await ask(server, asked, of=of, reasoning="high").result()
        outcome = ToolResultMessage(tool_call_id=answer.tool_calls[0].id, tool_name="read")
        assert (await ask(server, asked, answer, outcome, of=of, reasoning="high").result()).text == "Hello"
        one, two = (request.json for request in server.requests)
    assert (one["include"], answer.thinking_level) == (["reasoning.encrypted_content"], "high")
    assert two["input"][: len(one["input"])] == one["input"]
    assert two["input"][1] == step
    assert [item.get("id") for item in two["input"][1:]] == ["rs_7", "fc_1", None]


async def test_a_missing_key_is_an_error_that_says_so() -> None:
    """05 sc. 42; a header of one's own is a key too, and a local server needs none."""
    url = "https://api.openai.com/v1"
    found = await final(ask(url, of=model(provider="openai", base_url=url)))
    assert found.error is not None
    assert (found.error.kind, "no API key for openai" in (found.error_message or "")) == ("configuration", True)
    async with Loopback([reply(*HELLO)]) as server:
        assert (await final(ask(server, headers={"Authorization": "Bearer mine"}))).text == "Hello"
        assert (await final(ask(server))).text == "Hello"
        assert [request.headers.get("authorization") for request in server.requests] == ["Bearer mine", None]


async def test_a_tool_name_that_had_to_change_comes_back_as_declared() -> None:
    """Also for a tool that has been removed since: the model may still call it."""
    messages = [SystemMessage(tools_added=[ToolDeclaration(name="server.tool", description="", parameters={})]), UserMessage(content="q")]
    async with Loopback([reply(*HELLO)]) as server:
        await ask(server, *messages).result()
        name = server.requests[0].json["tools"][0]["name"]
        server.answers = [reply(created(), *called(name=name), completed())]
        found = await ask(server, *messages, SystemMessage(tools_removed=["server.tool"])).result()
    assert name != "server.tool"
    assert found.tool_calls[0].name == "server.tool"


async def test_the_service_tier_that_was_asked_for_is_priced() -> None:
    """05 sc. 27: where the response names none."""
    async with Loopback([reply(*HELLO)]) as server:
        of = model(base_url=server.url, cost=ModelCost(input=1, output=2, cache_read=0.5))
        found = await ask(server, of=of, sampling_params={"service_tier": "flex"}).result()
    assert found.usage.cost.total == pytest.approx(50e-6)


async def test_the_payload_can_be_replaced() -> None:
    """05 sc. 37."""
    async with Loopback([reply(*HELLO)]) as server:
        await ask(server, on_payload=lambda payload, of: {**payload, "user": of.id}).result()
        assert server.requests[0].json["user"] == "m"


async def test_the_registry_finds_the_wire(clean_env: pytest.MonkeyPatch) -> None:
    """A model of the vendor over its own door: key and URL from the environment."""
    async with Loopback([reply(*HELLO)]) as server:
        clean_env.setenv("OPENAI_BASE_URL", server.url)
        clean_env.setenv("OPENAI_API_KEY", KEY)
        models = Models(credentials=MemoryCredentialStore())
        found = await models.stream(models.model("openai/gpt-5.4:high"), Transcript(messages=[UserMessage(content="hi")])).result()
        (request,) = server.requests
    assert (found.text, found.response_model, request.headers["authorization"]) == ("Hello", "m", f"Bearer {KEY}")
    assert (request.path, request.json["reasoning"]) == ("/v1/responses", {"effort": "high", "summary": "auto"})


# ---------------------------------------------------------------------------------------------------- retries and faults


def problem(text: str = "no", **fields: Any) -> dict[str, Any]:
    """An error in the protocol's shape."""
    return {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": None, **fields}}


async def test_a_request_is_repeated_only_before_its_first_byte() -> None:
    """05 §6.1: a 503 is; a stream that was cut is not."""
    async with Loopback([error_reply(503, headers={"retry-after-ms": "1"}), reply(*HELLO)]) as server:
        assert (await final(ask(server, max_retries=1))).text == "Hello"
    async with Loopback([reply(*HELLO[:3], CUT)]) as server:
        assert (await final(ask(server, max_retries=2))).stop_reason == "error"
        assert len(server.requests) == 1


ID_TOO_LONG = "Invalid 'input[2].id': string too long. Expected a string with maximum length 64, but got a string with length 80 instead."
FAULTS: list[tuple[str, Answer, str, bool]] = [
    ("401", error_reply(401, problem(code="invalid_api_key")), "auth", False),
    ("400 overflow", error_reply(400, problem("Your input exceeds the context window of this model.")), "overflow", False),
    ("400 code", error_reply(400, problem(code="context_length_exceeded")), "overflow", False),
    ("400 id", error_reply(400, problem(ID_TOO_LONG, code="string_above_max_length")), "invalid_request", False),
    ("400", error_reply(400, problem()), "invalid_request", False),
    ("404", error_reply(404, problem(code="model_not_found")), "not_found", False),
    ("429", error_reply(429, problem("slow", type="requests", code="rate_limit_exceeded"), headers={"retry-after": "7"}), "rate_limit", True),
    ("429 quota", error_reply(429, problem("no money", type="insufficient_quota", code="insufficient_quota")), "quota", False),
    ("500", error_reply(500, problem(type="server_error")), "server", True),
    ("503", error_reply(503, problem("busy", type="server_error", code="slow_down")), "overloaded", True),
    ("502 HTML", error_reply(502, "<html><title>Bad Gateway</title></html>", content_type="text/html"), "server", True),
    ("200 HTML", Answer(steps=[b"<!doctype html><title>Sign in</title>"], content_type="text/html"), "protocol", True),
    ("empty", Answer(steps=[]), "incomplete", True),
    ("cut in the stream", reply(*HELLO[:3], CUT), "network", True),
    ("closed in the stream", reply(*HELLO[:3], CLOSE), "network", True),
    ("clean end", reply(*HELLO[:3]), "incomplete", True),
    ("clean end after a call", reply(created(), *called()), "incomplete", True),
    ("a call without its end", reply(created(), added(call()), arguments("{}"), completed()), "incomplete", True),
    ("error in the stream", reply(*HELLO[:3], {"type": "error", "code": "server_error", "message": "x"}), "server", True),
    ("error at once", reply({"type": "error", "code": "rate_limit_exceeded", "message": "x"}), "rate_limit", True),
    ("failed", reply(*HELLO[:3], completed("failed", error={"code": "server_error", "message": "x"})), "server", True),
    ("failed for good", reply(*HELLO[:3], completed("failed", error={"code": "invalid_prompt", "message": "x"})), "invalid_request", False),
    ("filtered", reply(*HELLO[:3], incomplete("content_filter")), "content_filter", False),
    ("not JSON", reply(*HELLO[:3], b"data: oops\n\n"), "protocol", True),
    ("silence", reply(*HELLO[:3], 60.0), "timeout", True),
]


@pytest.mark.parametrize(("answer", "kind", "retryable"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
async def test_every_fault_settles_in_a_sentence(answer: Answer, kind: str, retryable: bool) -> None:
    """B47, B48, B53, B54 and more: one error event with its kind; what had arrived is kept; nothing is raised."""
    async with Loopback([answer]) as server:
        found = await final(ask(server, idle_timeout=0.2))
    assert found.error is not None
    assert (found.stop_reason, found.error.kind, is_retryable(found)) == ("error", kind, retryable)
    assert (found.error_message or "").strip()
    if answer.status == 200 and len(answer.steps) > 3:
        assert found.text == "Hel" or found.tool_calls


async def test_every_cut_of_a_stream_settles() -> None:
    """A stream cut at every byte: always a settled message, never a wrong success."""
    whole = wire(created(), added(message()), text("Hel"), done(message("Hel")), *called('{"a":"😀"}', index=1), completed())
    complete = len(whole) - 2
    cuts = [*range(0, complete - 60, 17), *range(complete - 60, len(whole))]
    async with Loopback([Answer(steps=[whole[:cut]] if cut else []) for cut in cuts]) as server:
        for cut in cuts:
            found = await ask(server).result()
            assert found.stop_reason == ("tool_use" if cut >= complete else "error"), cut


async def test_a_stream_in_single_bytes_is_the_same_response() -> None:
    """Slow and in the smallest pieces, with CRLF."""
    whole = wire(*said("Hello ü")).replace(b"\n", b"\r\n")
    async with Loopback([Answer(steps=[whole[i : i + 1] for i in range(len(whole))])]) as server:
        assert (await final(ask(server))).text == "Hello ü"


async def test_a_huge_event_arrives_over_the_wire() -> None:
    """05 sc. 148: 5 MiB in one event; and the answer may be one JSON object, or have another content type."""
    async with Loopback([reply(*said("x" * (5 << 20)))]) as server:
        assert len((await final(ask(server))).text) == 5 << 20
    whole = {**response("completed", [message("hi")]), "usage": usage()}
    other = Answer(steps=[json.dumps(whole, indent=1).encode()], content_type="application/json")
    async with Loopback([other, Answer(steps=[wire(*HELLO)], content_type="application/json")]) as server:
        assert (await final(ask(server))).text == "hi"
        assert (await final(ask(server))).text == "Hello"


async def test_a_planted_key_is_nowhere_in_what_is_kept() -> None:
    """Decision 14: message, events and reprs, although the server echoes the key in its error and in its stream."""
    echo = problem(f"the key {KEY} is wrong")
    odd = reply(*HELLO[:3], completed("failed", error={"code": "x", "message": f"not for {KEY}"}))
    async with Loopback([error_reply(401, echo), reply(*HELLO[:3], echo), odd, error_reply(500, f"<html>{KEY}</html>")]) as server:
        for _ in range(4):
            assert KEY not in repr(await collect(ask(server, api_key=KEY)))


@pytest.mark.parametrize(
    ("of", "part"), [(model(base_url=""), "base URL"), (model(compat={"no_such": 1}), "no_such"), (model(base_url="ftp://x"), "ftp://x")]
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
        answer = ask(server, signal=controller.signal)
        async for event in answer:
            if event.type == "text_delta":
                controller.abort("enough")
        found = await answer.result()
        await server.disconnected.wait()
    assert (found.stop_reason, found.text) == ("aborted", "Hel")


async def test_a_connection_is_kept_for_the_next_request() -> None:
    """The terminal event ends the response; the connection is used again."""
    async with Loopback([reply(*HELLO)]) as server:
        for _ in range(3):
            await ask(server).result()
        assert server.connections == 1
