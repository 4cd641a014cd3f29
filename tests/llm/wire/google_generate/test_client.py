"""The Gemini wire over a socket: keys, URLs, faults, aborts."""

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
from laneway.llm.wire.google_generate import stream
from laneway.messages import AssistantMessage, Message, SystemMessage, TextContent, ToolDeclaration, UserMessage
from llm.loopback import CLOSE, CUT, Answer, Loopback, error_reply, sse, sse_reply
from llm.wire.google_generate.protocol import HELLO, call, chunk, model, stop

KEY = "AIzaPlanted-0123456789"


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
    """From the request to the last event."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        events = await collect(ask(server, SystemMessage(content="S"), UserMessage(content="hi"), api_key=KEY))
        (request,) = server.requests
    assert [event.type for event in events] == ["start", "text_start", "text_delta", "text_delta", "text_end", "done"]
    assert events[-1].message.text == "Hello"  # type: ignore[union-attr]  # done
    assert (request.method, request.path) == ("POST", "/v1/models/gemini-3-flash:streamGenerateContent?alt=sse")
    assert (request.headers["x-goog-api-key"], "authorization" in request.headers) == (KEY, False)
    assert request.headers["user-agent"].startswith("laneway/")
    assert request.json["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]


@pytest.mark.parametrize(
    ("model_id", "path"), [("m/x?y", "m/x%3Fy"), ("tunedModels/mine", "tunedModels/mine"), ("a b", "models/a%20b"), ("x@001", "models/x@001")]
)
async def test_an_id_cannot_leave_its_place_in_the_url(model_id: str, path: str) -> None:
    """An id may be a path of the API's own; nothing in it becomes a query."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        await ask(server, of=model(model_id, base_url=server.url)).result()
        assert server.requests[0].path == f"/v1/{path}:streamGenerateContent?alt=sse"


async def test_a_missing_key_is_an_error_that_says_so() -> None:
    """05 sc. 42; a header of one's own is a key too, and a local server needs none."""
    host = "https://generativelanguage.googleapis.com/v1beta"
    for of in (model(provider="google", base_url="https://example.com"), model(base_url=host)):
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
        name = server.requests[0].json["tools"][0]["functionDeclarations"][0]["name"]
        server.answers = [sse_reply(chunk(call(name)), stop())]
        found = await ask(server, *messages, SystemMessage(tools_removed=["server.tool"])).result()
    assert name != "server.tool"
    assert found.tool_calls[0].name == "server.tool"


async def test_the_registry_finds_the_wire(clean_env: pytest.MonkeyPatch) -> None:
    """A model of the vendor: key and URL from the environment, the level from its spec."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        clean_env.setenv("GEMINI_BASE_URL", server.url)
        clean_env.setenv("GEMINI_API_KEY", KEY)
        models = Models(credentials=MemoryCredentialStore())
        found = await models.stream(models.model("google/gemini-2.5-pro:low"), Transcript(messages=[UserMessage(content="hi")])).result()
        (request,) = server.requests
    assert (found.text, found.response_model, found.thinking_level) == ("Hello", "gemini-3-flash", "low")
    assert request.headers["x-goog-api-key"] == KEY
    assert request.json["generationConfig"]["thinkingConfig"] == {"includeThoughts": True, "thinkingBudget": 2048}


# ---------------------------------------------------------------------------------------------------- retries and faults


def problem(code: int, status: str, message: str = "Sorry.", **more: Any) -> dict[str, Any]:
    """An error in the API's shape."""
    return {"error": {"code": code, "message": message, "status": status, **more}}


WAIT = {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.01s"}]}


async def test_a_request_is_repeated_only_before_its_first_byte() -> None:
    """05 sc. 83: a 429 with the wait in its body is; a stream that was cut is not."""
    async with Loopback([error_reply(429, problem(429, "RESOURCE_EXHAUSTED", **WAIT)), sse_reply(*HELLO)]) as server:
        assert (await final(ask(server, max_retries=1))).text == "Hello"
        assert len(server.requests) == 2
    async with Loopback([sse_reply(*HELLO[:1], CUT)]) as server:
        assert (await final(ask(server, max_retries=2))).stop_reason == "error"
        assert len(server.requests) == 1


WRONG_KEY = {"details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]}
TOO_LONG = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
FAULTS: list[tuple[str, Answer, str, bool]] = [
    ("400 key", error_reply(400, problem(400, "INVALID_ARGUMENT", "API key not valid.", **WRONG_KEY)), "auth", False),
    ("400", error_reply(400, problem(400, "INVALID_ARGUMENT")), "invalid_request", False),
    ("401", error_reply(401, problem(401, "UNAUTHENTICATED")), "auth", False),
    ("403", error_reply(403, problem(403, "PERMISSION_DENIED")), "auth", False),
    ("404", error_reply(404, problem(404, "NOT_FOUND")), "not_found", False),
    ("400 prompt", error_reply(400, problem(400, "INVALID_ARGUMENT", TOO_LONG)), "overflow", False),
    ("429", error_reply(429, problem(429, "RESOURCE_EXHAUSTED")), "rate_limit", True),
    ("500", error_reply(500, problem(500, "INTERNAL")), "server", True),
    ("503 list", error_reply(503, [problem(503, "UNAVAILABLE")]), "overloaded", True),
    ("504", error_reply(504, problem(504, "DEADLINE_EXCEEDED")), "timeout", True),
    ("502 HTML", error_reply(502, "<html><title>Bad Gateway</title></html>", content_type="text/html"), "server", True),
    ("200 HTML", Answer(steps=[b"<!doctype html><title>Sign in</title>"], content_type="text/html"), "protocol", True),
    ("200 JSON error", Answer(steps=[json.dumps(problem(503, "UNAVAILABLE")).encode()], content_type="application/json"), "overloaded", True),
    ("empty", Answer(steps=[]), "incomplete", True),
    ("cut in the stream", sse_reply(*HELLO[:1], CUT), "network", True),
    ("closed in the stream", sse_reply(*HELLO[:1], CLOSE), "network", True),
    ("clean end without a reason", sse_reply(*HELLO[:1]), "incomplete", True),
    ("clean end after a call", sse_reply(chunk("Hel"), chunk(call("f"))), "incomplete", True),
    ("overloaded in the stream", sse_reply(*HELLO[:1], problem(503, "UNAVAILABLE")), "overloaded", True),
    ("bad request in the stream", sse_reply(*HELLO[:1], problem(400, "INVALID_ARGUMENT")), "invalid_request", False),
    ("not JSON", sse_reply(*HELLO[:1], b"oops"), "protocol", True),
    ("safety", sse_reply(*HELLO[:1], stop("SAFETY")), "content_filter", False),
    ("malformed call", sse_reply(*HELLO[:1], stop("MALFORMED_FUNCTION_CALL")), "server", True),
    ("unknown reason", sse_reply(*HELLO[:1], stop("WHATEVER")), "unknown", False),
    ("silence", sse_reply(*HELLO[:1], 60.0), "timeout", True),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "kind", "retryable"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
async def test_every_fault_settles_in_a_sentence(answer: Answer, kind: str, retryable: bool) -> None:
    """B47, B48, 05 sc. 118: one error event with its kind; what had arrived is kept, its usage too; nothing is raised."""
    async with Loopback([answer]) as server:
        message = await final(ask(server, idle_timeout=0.2))
    assert message.error is not None
    assert (message.stop_reason, message.error.kind, is_retryable(message)) == ("error", kind, retryable)
    assert (message.error_message or "").strip()
    if answer.status == 200 and b"Hel" in b"".join(step for step in answer.steps if isinstance(step, bytes)):
        assert (message.text, message.usage.input) == ("Hel", 10)


async def test_every_cut_of_a_stream_settles() -> None:
    """A stream cut at every byte: always a settled message, never a wrong success."""
    parts = [sse(chunk("Hel")), sse(chunk(call("f", {"a": "😀"}))), sse({"candidates": [{"finishReason": "STOP", "index": 0}]})]
    whole = b"".join(parts)
    complete = len(whole) - 2
    cuts = [*range(0, complete - 60, 11), *range(complete - 60, len(whole) + 1)]
    async with Loopback([Answer(steps=[whole[:cut]] if cut else []) for cut in cuts]) as server:
        for cut in cuts:
            message = await ask(server).result()
            assert message.stop_reason == ("tool_use" if cut >= complete else "error"), cut


async def test_a_stream_in_single_bytes_is_the_same_response() -> None:
    """Slow and in the smallest pieces, with CRLF."""
    whole = sse(chunk("Hello ü"), stop()).replace(b"\n", b"\r\n")
    async with Loopback([Answer(steps=[whole[i : i + 1] for i in range(len(whole))])]) as server:
        assert (await final(ask(server))).text == "Hello ü"


async def test_a_huge_event_and_one_that_is_the_whole_answer() -> None:
    """05 sc. 148: 5 MiB in one event; the answer may be one JSON object, or have another content type."""
    async with Loopback([sse_reply(chunk("x" * (5 << 20)), stop())]) as server:
        assert len((await final(ask(server))).text) == 5 << 20
    other = Answer(steps=[json.dumps(chunk("hi", finish="STOP"), indent=1).encode()], content_type="application/json")
    async with Loopback([other, Answer(steps=[sse(*HELLO)], content_type="application/json")]) as server:
        assert (await final(ask(server))).text == "hi"
        assert (await final(ask(server))).text == "Hello"


async def test_a_planted_key_is_nowhere_in_what_is_kept() -> None:
    """Decision 14: message, events and reprs, although the server echoes the key in its error and in its stream."""
    echo = problem(400, "INVALID_ARGUMENT", f"API key not valid: {KEY}")
    odd = stop("SAFETY")
    odd["candidates"][0]["finishMessage"] = f"not for {KEY}"
    blocked = {"promptFeedback": {"blockReason": "OTHER", "blockReasonMessage": KEY}}
    answers = [error_reply(400, echo), sse_reply(*HELLO[:1], echo), sse_reply(odd), sse_reply(blocked), error_reply(500, f"<html>{KEY}</html>")]
    async with Loopback(answers) as server:
        for _ in answers:
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
    """05 sc. 41: start, deltas, error(aborted) at once; the socket is closed; the usage is the last one reported."""
    controller = AbortController()
    more = {"promptTokenCount": 10, "candidatesTokenCount": 9, "totalTokenCount": 19}
    async with Loopback([sse_reply(chunk("Hel"), chunk("lo", usage=more), 60.0)]) as server, asyncio.timeout(10):
        response = ask(server, signal=controller.signal)
        async for event in response:
            if event.type == "text_delta" and event.delta == "lo":
                controller.abort("enough")
        message = await response.result()
        await server.disconnected.wait()
    assert (message.stop_reason, message.content, message.usage.output) == ("aborted", [TextContent(text="Hello")], 9)


async def test_a_connection_is_kept_for_the_next_request() -> None:
    """A response read to its end leaves its connection."""
    async with Loopback([sse_reply(*HELLO)]) as server:
        for _ in range(3):
            await ask(server).result()
        assert server.connections == 1
