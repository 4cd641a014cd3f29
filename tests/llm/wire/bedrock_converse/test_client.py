"""The Converse wire over a socket: faults, aborts, secrets."""

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
from laneway.llm.wire import load_wire
from laneway.llm.wire.bedrock_converse import stream
from laneway.messages import AssistantMessage, Message, SystemMessage, TextContent, ToolDeclaration, UserMessage
from llm.loopback import CLOSE, CUT, Answer, Loopback, error_reply
from llm.wire.bedrock_converse.protocol import FRAMES, HELLO, START, call, called, end, exception, model, reply, stop, text, usage

KEY = "bedrock-api-key-planted-0123456789"


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
    """From the request to the last event; Amazon's id of the request is kept."""
    async with Loopback([reply(*HELLO)]) as server:
        events = await collect(ask(server, SystemMessage(content="S"), UserMessage(content="hi"), api_key=KEY))
        (request,) = server.requests
    assert [event.type for event in events] == ["start", "text_start", "text_delta", "text_delta", "text_end", "done"]
    message = events[-1].message  # type: ignore[union-attr]  # done
    assert (message.text, message.response_id, message.usage.total_tokens) == ("Hello", "req-1", 15)
    assert (request.method, request.path) == ("POST", "/v1/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream")
    assert (request.headers["authorization"], request.headers["accept"]) == (f"Bearer {KEY}", FRAMES)
    assert request.headers["user-agent"].startswith("laneway/")
    assert request.json["system"][0] == {"text": "S"}


def test_the_wire_is_one_of_laneway_s() -> None:
    """`Model.api` is its name."""
    assert load_wire("bedrock_converse") is stream


async def test_a_server_of_ones_own() -> None:
    """`custom` at a URL of one's own, with the wire's name: no key, or the one given as a bearer token."""
    async with Loopback([reply(*HELLO)]) as server:
        models = Models(builtin=True, credentials=MemoryCredentialStore())
        models.add(Model(id="m", provider="custom", api="bedrock_converse", base_url=server.url))
        transcript = Transcript(messages=[UserMessage(content="hi")])
        assert (await final(models.stream(models.model("custom/m"), transcript))).text == "Hello"
        await final(models.stream(models.model("custom/m"), transcript, StreamOptions(api_key=KEY)))
        assert [request.headers.get("authorization") for request in server.requests] == [None, f"Bearer {KEY}"]


async def test_a_tool_name_that_had_to_change_comes_back_as_declared() -> None:
    """Also for a tool that has been removed since."""
    messages = [SystemMessage(tools_added=[ToolDeclaration(name="server.tool", description="", parameters={})]), UserMessage(content="q")]
    async with Loopback([reply(*HELLO)]) as server:
        await ask(server, *messages).result()
        name = server.requests[0].json["toolConfig"]["tools"][0]["toolSpec"]["name"]
        server.answers = [reply(START, *called(name, "{}"), stop("tool_use"), usage())]
        found = await ask(server, *messages, SystemMessage(tools_removed=["server.tool"])).result()
    assert name != "server.tool"
    assert found.tool_calls[0].name == "server.tool"


async def test_a_request_is_repeated_only_before_its_first_byte() -> None:
    """05 sc. 83: a 429 is; a stream that was cut is not."""
    throttled = error_reply(429, {"message": "Slow"}, headers={"x-amzn-errortype": "ThrottlingException", "retry-after-ms": "10"})
    async with Loopback([throttled, reply(*HELLO)]) as server:
        assert (await final(ask(server, max_retries=1))).text == "Hello"
        assert len(server.requests) == 2
    async with Loopback([reply(*HELLO[:2], CUT)]) as server:
        assert (await final(ask(server, max_retries=2))).stop_reason == "error"
        assert len(server.requests) == 1


def refused(status: int, kind: str, message: str = "Sorry.") -> Answer:
    """An answer that is no success, as the service makes it."""
    return error_reply(status, {"message": message}, headers={"x-amzn-errortype": f"{kind}:http://internal.amazon.com/coral/"})


BROKEN = bytearray(text("lo"))
BROKEN[-6] ^= 1
FAULTS: list[tuple[str, Answer, str, bool]] = [
    ("403", refused(403, "AccessDeniedException"), "auth", False),
    ("403 token", refused(403, "UnrecognizedClientException", "The security token included in the request is invalid."), "auth", False),
    ("403 expired", refused(403, "ExpiredTokenException"), "auth", False),
    ("403 signature", refused(403, "InvalidSignatureException", "Signature expired"), "auth", False),
    ("400 prompt", refused(400, "ValidationException", "Input is too long for requested model."), "overflow", False),
    ("400 prompt Claude", refused(400, "ValidationException", "prompt is too long: 210000 tokens > 200000 maximum"), "overflow", False),
    ("400", refused(400, "ValidationException", "A conversation must start with a user message."), "invalid_request", False),
    ("400 quota", refused(400, "ServiceQuotaExceededException"), "quota", False),
    ("404", refused(404, "ResourceNotFoundException"), "not_found", False),
    ("408", refused(408, "ModelTimeoutException"), "timeout", True),
    ("424", refused(424, "ModelErrorException"), "server", True),
    ("429", refused(429, "ThrottlingException", "Too many tokens, please wait before trying again."), "rate_limit", True),
    ("429 model", refused(429, "ModelNotReadyException"), "overloaded", True),
    ("500", refused(500, "InternalServerException"), "server", True),
    ("503", refused(503, "ServiceUnavailableException"), "overloaded", True),
    ("code in the body", error_reply(400, {"__type": "com.amazon#ThrottlingException", "message": "x"}), "rate_limit", True),
    ("502 HTML", error_reply(502, "<html><title>Bad Gateway</title></html>", content_type="text/html"), "server", True),
    ("200 HTML", Answer(steps=[b"<!doctype html><title>Sign in</title>"], content_type="text/html"), "protocol", True),
    ("200 error", Answer(steps=[b'{"message":"no","__type":"ThrottlingException"}'], content_type="application/json"), "rate_limit", True),
    ("200 with SSE", Answer(steps=[b"data: {}\n\n"]), "protocol", True),
    ("empty", Answer(steps=[]), "incomplete", True),
    ("cut in the stream", reply(*HELLO[:2], CUT), "network", True),
    ("closed in the stream", reply(*HELLO[:2], CLOSE), "network", True),
    ("clean end without a reason", reply(*HELLO[:2], end()), "incomplete", True),
    ("clean end after a call", reply(START, text("Hel"), call(index=1)), "incomplete", True),
    ("clean end in a frame", reply(*HELLO[:2], HELLO[2][:-1]), "incomplete", True),
    ("exception", reply(*HELLO[:2], exception("internalServerException")), "server", True),
    ("exception, then silence", reply(*HELLO[:2], exception("throttlingException"), 60.0), "rate_limit", True),
    ("bad checksum", reply(*HELLO[:2], bytes(BROKEN)), "protocol", True),
    ("bad checksum, then silence", reply(*HELLO[:2], bytes(BROKEN), 60.0), "protocol", True),
    ("silence", reply(*HELLO[:2], 60.0), "timeout", True),
    ("silence in a frame", reply(*HELLO[:2], HELLO[2][:20], 60.0), "timeout", True),
    ("guardrail", reply(*HELLO[:2], stop("guardrail_intervened"), usage()), "content_filter", False),
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
    before = b"".join([START, text("Hel"), end(), *called("f", '{"a":"😀"}', index=1), stop("tool_use")])
    whole = before + usage()
    cuts = [*range(0, len(before) - 60, 7), *range(len(before) - 60, len(whole) + 1)]
    async with Loopback([Answer(steps=[whole[:cut]] if cut else [], content_type=FRAMES) for cut in cuts]) as server:
        for cut in cuts:
            message = await ask(server).result()
            assert message.stop_reason == ("tool_use" if cut in (len(before), len(whole)) else "error"), cut


async def test_a_stream_in_single_bytes_is_the_same_response() -> None:
    """Slow and in the smallest pieces."""
    whole = b"".join([START, text("Hello ü"), end(), stop(), usage()])
    async with Loopback([reply(*[whole[i : i + 1] for i in range(len(whole))])]) as server:
        assert (await final(ask(server))).text == "Hello ü"


async def test_a_huge_event_and_an_answer_in_one_piece() -> None:
    """05 sc. 148: 5 MiB in one frame; the answer may be one JSON object."""
    async with Loopback([reply(START, text("x" * (5 << 20)), end(), stop(), usage())]) as server:
        assert len((await final(ask(server))).text) == 5 << 20
    body = {"output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}}, "stopReason": "end_turn", "usage": {"inputTokens": 1}}
    async with Loopback([Answer(steps=[json.dumps(body, indent=1).encode()], content_type="application/json")]) as server:
        assert (await final(ask(server))).text == "hi"


async def test_a_planted_key_is_nowhere_in_what_is_kept() -> None:
    """Decision 14: message, events and reprs, although the server echoes the key in its error and in its stream."""
    echo = f"the key {KEY} is wrong"
    answers = [refused(403, "UnrecognizedClientException", echo), reply(*HELLO[:2], exception("validationException", echo)), error_reply(500, echo)]
    secret, token = "planted/secret+0123456789", "planted-token-0123456789"
    env = {"AWS_ACCESS_KEY_ID": "AKIDPLANTED", "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": token}
    async with Loopback(answers) as server:
        for _ in answers:
            assert KEY not in repr(await collect(ask(server, api_key=KEY)))
        server.answers = [refused(403, "InvalidSignatureException", f"x-amz-security-token:{token}")]
        seen = repr(await collect(ask(server, env=env)))
    assert "InvalidSignature".lower() in seen.lower()
    assert secret not in seen
    assert token not in seen


@pytest.mark.parametrize("of", [model(compat={"no_such": 1}), model(base_url="http://127.0.0.1:1", compat={"thinking": "hard"})])
async def test_a_model_that_cannot_be_used_is_an_error_event(of: Model) -> None:
    """05 sc. 33: set-up failures too are the stream's last event, alone."""
    events = await collect(ask("", of=of))
    assert len(events) == 1
    assert "BedrockCompat" in (events[0].message.error_message or "")  # type: ignore[union-attr]  # error


async def test_an_abort_in_the_stream_keeps_what_had_arrived() -> None:
    """05 sc. 41: start, deltas, error(aborted) at once; the socket is closed."""
    controller = AbortController()
    async with Loopback([reply(*HELLO[:2], 60.0)]) as server, asyncio.timeout(10):
        response = ask(server, signal=controller.signal)
        async for event in response:
            if event.type == "text_delta":
                controller.abort("enough")
        message = await response.result()
        await server.disconnected.wait()
    assert (message.stop_reason, message.content) == ("aborted", [TextContent(text="Hel")])


async def test_leaving_the_stream_closes_the_connection() -> None:
    """05 sc. 36: nobody reads, nobody pays."""
    async with Loopback([reply(*HELLO[:2], 60.0)]) as server, asyncio.timeout(10):
        async with ask(server) as response:
            async for event in response:
                if event.type == "text_delta":
                    break
        await server.disconnected.wait()


async def test_a_connection_is_kept_for_the_next_request() -> None:
    """The usage ends the response; the connection is used again."""
    async with Loopback([reply(*HELLO)]) as server:
        for _ in range(3):
            await ask(server).result()
        assert server.connections == 1
