"""What a served wire refuses: requests that the real provider would not take, and HTTP that is none."""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy
from typing import Any

import httpx2
import pytest

from laneway.testing import WireServer, serve_wire, text
from testing.sdks import SCHEMA, after_two_calls, hello

PATHS = {
    "openai_chat": "/chat/completions", "anthropic_messages": "/v1/messages", "openai_responses": "/responses", "azure": "/responses?api-version=v1",
    "google_generate": "/models/gemini-3-flash:streamGenerateContent?alt=sse", "mistral": "/v1/chat/completions",
    "google_vertex": "/v1beta1/publishers/google/models/m:streamGenerateContent?alt=sse", "bedrock_converse": "/model/a.b%3A0/converse-stream",
}  # fmt: skip
HEADERS = {"anthropic_messages": {"anthropic-version": "2023-06-01"}}
FUNCTION = {"type": "function", "function": {"name": "read", "parameters": SCHEMA}}


def good(wire: str, *, calls: bool = True) -> dict[str, Any]:
    """A request that is taken."""
    messages: Any = deepcopy(after_two_calls(wire) if calls else hello(wire))
    if wire.startswith("google"):
        for part in messages[1]["parts"] if calls else ():
            part["thoughtSignature"] = "c2ln"
        return {"contents": messages}
    if wire == "bedrock_converse":
        return {"messages": messages, "toolConfig": {"tools": [{"toolSpec": {"name": "read", "inputSchema": {"json": deepcopy(SCHEMA)}}}]}}
    if wire in ("openai_responses", "azure"):
        return {"model": "m", "stream": True, "input": messages, "store": False}
    more = {"max_tokens": 4000} if wire == "anthropic_messages" else {}
    return {"model": "m", "stream": True, "messages": messages, **more}


async def post(server: WireServer, body: Any, *, path: str | None = None, headers: dict[str, str] | None = None) -> httpx2.Response:
    """Send a request as it is."""
    given = HEADERS.get(server.wire, {}) if headers is None else headers
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(server.url + (path or PATHS[server.wire]), content=content, headers=given)


@pytest.mark.parametrize("wire", PATHS)
async def test_a_good_request_is_taken(wire: str):
    """The ground of all that is refused here."""
    async with serve_wire(wire, ["one", "two"]) as server:
        for calls in (False, True):
            assert (await post(server, good(wire, calls=calls))).status_code == 200, server.refused


def _path(body: Any, path: str) -> tuple[Any, Any]:
    """The container and the key that a path names."""
    *steps, last = [int(step) if step.lstrip("-").isdecimal() else step for step in path.split(".")]
    for step in steps:
        body = body[step]
    return body, last


def changed(body: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The body with other values at some places; `...` takes a place away."""
    for path, value in changes.items():
        container, key = _path(body, path)
        if value is ...:
            del container[key]
        else:
            container[key] = value
    return body


CHAT = "openai_chat"
CLAUDE = "anthropic_messages"
GOOGLE = "google_generate"
CONVERSE = "bedrock_converse"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"model": ""}, "model: a non-empty string"),
    (CHAT, {"stream": False}, "only streams"),
    (CHAT, {"messages": []}, "messages: at least one item"),
    (CHAT, {"messages": "hi"}, "messages: a list of objects"),
    (CHAT, {"messages.0.role": "person"}, "'person' is not one of"),
    (CHAT, {"messages.0.content": None}, "messages.0.content: a string or a list"),
    (CHAT, {"messages.1.tool_calls": []}, "tool_calls: at least one"),
    (CHAT, {"messages.1.tool_calls.0.id": "x" * 41}, "at most 40 characters"),
    (CHAT, {"messages.1.tool_calls.0.id": "abcdefgh2"}, "is there twice"),
    (CHAT, {"messages.1.tool_calls.0.function.arguments": "{"}, "a string of JSON"),
    (CHAT, {"messages.1.tool_calls.0.function": "read"}, "function.name: a non-empty string"),
    (CHAT, {"messages.2.tool_call_id": "other"}, "'other' is none"),
    (CHAT, {"messages.2": {"role": "user", "content": "x"}}, "missing before messages.2: abcdefgh1, abcdefgh2"),
    (CHAT, {"messages.3": ...}, "missing before the end: abcdefgh2"),
    (CHAT, {"tools": []}, "tools: at least one"),
    (CHAT, {"tools": [{"function": {"name": "re ad"}}]}, "does not match the pattern"),
    (CHAT, {"tools": [FUNCTION, FUNCTION]}, "is there twice"),
    (CHAT, {"tool_choice": "auto"}, "only allowed when `tools`"),
    (CLAUDE, {"max_tokens": ...}, "max_tokens: a whole number"),
    (CLAUDE, {"messages.0.role": "assistant"}, "the first message must use the user role"),
    (CLAUDE, {"messages.0.content": " "}, "non-whitespace"),
    (CLAUDE, {"messages.0.content": []}, "content: at least one"),
    (CLAUDE, {"messages.0.role": "system"}, "a system message must follow a user message"),
    (CLAUDE, {"messages.0.role": "tool"}, "'tool' is not one of"),
    (CLAUDE, {"messages.1.content.0.id": "a|b"}, "does not match the pattern"),
    (CLAUDE, {"messages.1.content.0.id": "abcdefgh2"}, "must be unique"),
    (CLAUDE, {"messages.1.content.0.input": "{}"}, "input: an object"),
    (CLAUDE, {"messages.1.content.0": {"type": "thinking", "thinking": "hm"}}, "signature: field required"),
    (CLAUDE, {"messages.2.content.1.tool_use_id": "other"}, "unexpected `tool_use_id` other"),
    (CLAUDE, {"messages.2.content.0": {"type": "text", "text": "x"}}, "must come first"),
    (CLAUDE, {"messages.2": ...}, "without `tool_result` blocks immediately after: abcdefgh1, abcdefgh2"),
    (CLAUDE, {"messages.2.content.1": ...}, "immediately after: abcdefgh2"),
    (CLAUDE, {"messages.1.role": "user"}, "may only stand in assistant messages"),
    (CLAUDE, {"thinking": {"type": "enabled", "budget_tokens": 100}}, "at least 1024"),
    (CLAUDE, {"thinking": {"type": "enabled", "budget_tokens": 4000}}, "greater than thinking.budget_tokens"),
    (CLAUDE, {"thinking": {"type": "enabled", "budget_tokens": 2000}, "temperature": 0.5}, "only be set to 1"),
    (CLAUDE, {"system": [{"type": "text", "text": "x", "cache_control": {}}] * 5}, "a maximum of 4 blocks"),
    ("openai_responses", {"input": []}, "input: at least one"),
    ("openai_responses", {"input.0.role": "tool"}, "'tool' is not one of"),
    ("openai_responses", {"input.0.content": None}, "content: a string or a list"),
    ("openai_responses", {"input.1.call_id": "x" * 65}, "at most 64 characters"),
    ("openai_responses", {"input.1.call_id": "abcdefgh2"}, "is there twice"),
    ("openai_responses", {"input.1.id": "call_1"}, "must begin with 'fc'"),
    ("openai_responses", {"input.1.arguments": {}}, "the arguments must be a string"),
    ("openai_responses", {"input.4": ...}, "no tool output found for function call abcdefgh2"),
    ("openai_responses", {"input.4.call_id": "abcdefgh1"}, "a second output"),
    ("openai_responses", {"input.4.call_id": "other"}, "no tool call found"),
    ("openai_responses", {"input.4.output": None}, "output: a string or a list"),
    ("openai_responses", {"input.0": {"type": "reasoning", "id": "rs_1", "summary": []}}, "not kept when `store` is false"),
    ("openai_responses", {"input.4": {"type": "reasoning", "id": "rs_1", "encrypted_content": "E"}}, "required following item"),
    ("azure", {"input.1": ...}, "no tool call found for the function_call_output with call_id abcdefgh1"),
    (GOOGLE, {"contents.0.role": "assistant"}, "valid role: user, model"),
    (GOOGLE, {"contents.0.parts": []}, "parts: at least one"),
    (GOOGLE, {"contents.0.parts.0.text": ...}, "exactly one field with data"),
    (GOOGLE, {"contents.2.parts.1": ...}, "function response parts (1) must equal"),
    (GOOGLE, {"contents.2": ...}, "read, read have no response"),
    (GOOGLE, {"contents.2.parts.0.functionResponse.name": "write"}, "'write' was not called"),
    (GOOGLE, {"contents.2.parts.0.functionResponse.response": "ok"}, "an object is required"),
    (GOOGLE, {"contents.0": ...}, "a function call turn must come"),
    (GOOGLE, {"contents.1.parts.0.thoughtSignature": ...}, "missing a thought_signature"),
    (GOOGLE, {"tools": [{"functionDeclarations": [{"name": "1st"}]}]}, "'1st' is no valid function name"),
    ("google_vertex", {"contents.2.parts.1": ...}, "must equal the number of function call parts"),
    ("mistral", {"messages.0.role": "developer"}, "'developer' is not one of"),
    ("mistral", {"messages.1.tool_calls.0.id": "call_1"}, "with a length of 9"),
    ("mistral", {"messages.1.tool_calls": None}, "either content or tool_calls"),
    ("mistral", {"messages.2.tool_call_id": "other"}, "unexpected tool call id other"),
    ("mistral", {"messages.3": ...}, "not the same number of function calls and responses: abcdefgh2 have none"),
    ("mistral", {"messages.3": {"role": "user", "content": "x"}}, "abcdefgh2 have none before messages.3"),
    ("mistral", {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "not 'assistant'"),
    (CONVERSE, {"messages.0.role": "assistant"}, "must start with a user message"),
    (CONVERSE, {"messages.1.role": "user"}, "must alternate"),
    (CONVERSE, {"messages.0.role": "system"}, "'system' is not one of"),
    (CONVERSE, {"messages.0.content.0.text": " "}, "is blank"),
    (CONVERSE, {"toolConfig": ...}, "the toolConfig field must be defined"),
    (CONVERSE, {"messages.1.content.0.toolUse.toolUseId": "a|b"}, "does not match the pattern"),
    (CONVERSE, {"messages.1.content.0.toolUse.toolUseId": "abcdefgh2"}, "duplicate ids"),
    (CONVERSE, {"messages.1.content.0.toolUse.input": "{}"}, "input: an object"),
    (CONVERSE, {"messages.2.content.1": ...}, "for the following ids: abcdefgh2"),
    (CONVERSE, {"messages.2": ...}, "for the following ids: abcdefgh1, abcdefgh2"),
    (CONVERSE, {"messages.1.content.1": {"text": "x"}}, "exceed the toolUse blocks"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "changes", "says"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
async def test_what_the_provider_would_not_take_is_refused(wire: str, changes: dict[str, Any], says: str):
    """With a client error in the provider's form, which says where; no reply is taken, and the test can see it."""
    async with serve_wire(wire, [text("never said")]) as server:
        answer = await post(server, changed(good(wire), changes))
        assert 400 <= answer.status_code < 500
        assert says in answer.text.encode().decode("unicode_escape")
        assert [says in sentence for sentence in server.refused] == [True]
        assert (server.remaining, server.requests[0].outcome) == (1, "refused")


async def test_a_user_message_after_a_result_is_refused_by_mistral():
    """Its templates have no place for one; something must be said in between."""
    body = good("mistral")
    body["messages"].append({"role": "user", "content": "and?"})
    async with serve_wire("mistral", ["one"]) as server:
        assert "unexpected role 'user' after role 'tool'" in (await post(server, body)).text


@pytest.mark.parametrize("wire", PATHS)
async def test_another_path_is_not_found(wire: str):
    """The base URL is wrong then; the sentence says where the protocol lives."""
    async with serve_wire(wire, ["one"]) as server:
        answer = await post(server, good(wire), path="/nowhere")
        async with httpx2.AsyncClient(trust_env=False) as client:
            got = await client.get(server.url + PATHS[wire])
    assert answer.status_code == 404
    assert "there is nothing at" in answer.text
    assert "check the" in answer.text
    assert got.status_code == 405


async def test_what_a_wire_wants_beside_the_body():
    """A version in a header or in the query, a form of the stream."""
    async with serve_wire("anthropic_messages", ["one"]) as server:
        assert "anthropic-version: header is required" in (await post(server, good("anthropic_messages"), headers={})).text
    async with serve_wire("azure", ["one"]) as server:
        assert (await post(server, good("azure"), path="/responses")).status_code == 404
    async with serve_wire("google_generate", ["one"]) as server:
        assert "send ?alt=sse" in (await post(server, good("google_generate"), path="/models/m:streamGenerateContent")).text


@pytest.mark.parametrize("wire", PATHS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"hi"', b"\xff", b'{"messages": 1, "contents": {}, "input": 7}', b"[" * 20_000])
async def test_any_body_gets_an_answer(wire: str, body: bytes):
    """A client error, never a broken connection."""
    async with serve_wire(wire, ["one"]) as server:
        assert 400 <= (await post(server, body)).status_code < 500


@pytest.mark.parametrize("wire", PATHS)
async def test_odd_values_anywhere_get_an_answer(wire: str):
    """Something of the wrong type at every place of a good request: taken or refused, nothing else."""
    spots = list(_spots(good(wire)))
    assert len(spots) > 8
    async with serve_wire(wire, ["said"] * len(spots) * 4) as server, httpx2.AsyncClient(trust_env=False) as client:
        for spot in spots:
            for odd in (None, 7, "x", [{}]):
                body = changed(good(wire), {spot: odd})
                answer = await client.post(server.url + PATHS[wire], json=body, headers=HEADERS.get(wire))
                assert answer.status_code == 200 or 400 <= answer.status_code < 500, (spot, odd, answer.text)


def _spots(value: Any, path: str = "") -> Any:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        here = f"{path}.{key}" if path else str(key)
        yield here
        yield from _spots(inner, here)


# ---------------------------------------------------------------------------------------------------- HTTP


async def _raw(server: WireServer, sent: bytes, *, half_close: bool = False) -> bytes:
    """Everything that the server says to some bytes."""
    port = int(server.url.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        if half_close:
            writer.write_eof()
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


BODY = json.dumps(good("openai_chat", calls=False)).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


async def test_several_requests_share_a_connection():
    """One after the other, as clients with a pool do."""
    one = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    last = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
    async with serve_wire("openai_chat", ["one", "two", "three"]) as server:
        said = await _raw(server, one + one + last)
    assert said.count(b"HTTP/1.1 200 OK") == 3
    assert said.count(b"[DONE]") == 3
    assert said.index(b"one") < said.index(b"two") < said.index(b"three")


async def test_a_body_may_come_in_chunks_and_after_a_question():
    """`Transfer-Encoding: chunked` with trailers, and `Expect: 100-continue`."""
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(BODY[at : at + 7]), BODY[at : at + 7]) for at in range(0, len(BODY), 7))
    head = HEAD + b"connection: close\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serve_wire("openai_chat", ["one"]) as server:
        said = await _raw(server, head + chunks + b"0\r\ntrailer: x\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (HEAD + b"content-length: many\r\n\r\n", b"400"),
        (HEAD + b"content-length: -1\r\n\r\n", b"413"),
        (HEAD + b"content-length: 999999999999\r\n\r\n", b"413"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n-5\r\n", b"413"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffff\r\n", b"413"),
        (b"x" * 70_000, b"431"),
        (HEAD + b"connection: close\r\n\r\n", b"400"),
    ],
)
async def test_what_is_no_http_gets_an_answer_and_a_closed_connection(sent: bytes, status: bytes):
    """A client under test may send anything."""
    async with serve_wire("openai_chat", ["one"]) as server:
        assert (await _raw(server, sent)).split(b" ")[1] == status


async def test_a_client_that_leaves_early_leaves_nothing_behind():
    """In the middle of a request, or before one: the server goes on, and ends when it should."""
    async with asyncio.timeout(20):
        async with serve_wire("openai_chat", ["one"]) as server:
            assert await _raw(server, HEAD + b"content-length: 10\r\n\r\nhalf", half_close=True) == b""
            assert await _raw(server, b"", half_close=True) == b""
            assert (await post(server, good("openai_chat"))).status_code == 200
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))
        assert await reader.read() == b""
        writer.close()


async def test_a_client_that_reads_slowly_is_waited_for():
    """A response that is larger than all buffers arrives whole."""
    long = "x" * 8_000_000
    async with asyncio.timeout(60):
        async with serve_wire("openai_chat", [text(long, delta_size=1_000_000)]) as server:
            port = int(server.url.split(":")[2].split("/")[0])
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY)
            await server.arrived()
            await asyncio.sleep(0.05)
            assert server.requests[0].outcome is None
            assert (await reader.read()).count(b"x") >= 8_000_000
            writer.close()
            await server.idle()
            assert server.requests[0].outcome == "answered"
