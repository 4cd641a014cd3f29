"""How each wire says the same conversation: the bytes that its server sends, and where its requests keep what matters.

`DIALECTS` has one entry per wire. `answers` are whole responses as they come over the socket: one with reasoning, a text and two calls at once,
one that only calls, one that only says something; `cut` is the beginning of a response with a call in it, `nameless` has two calls without ids.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from struct import pack
from typing import Any
from zlib import crc32

import pytest

from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.messages import Message
from llm import chat
from llm.loopback import sse
from llm.wire.anthropic_messages import protocol as anthropic
from llm.wire.google_generate import protocol as google
from llm.wire.mistral import protocol as mistral
from llm.wire.openai_responses import protocol as responses


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One wire. `marks` are texts that its own model must get back, and no other model may see."""

    model: Model
    first: bytes
    call: bytes
    answer: bytes
    cut: bytes
    nameless: bytes
    marks: tuple[str, ...]
    ids: str  # a regular expression for the ids of calls in its requests
    content_type: str = "text/event-stream"
    in_place: dict[str, Any] = field(default_factory=dict[str, Any])  # quirks with which system messages and tools stay in their place


SECRET = "a thought of its own"
SIGNATURE = base64.b64encode(b"a signature that belongs to one model").decode()
SEALED = base64.b64encode(b"reasoning that nobody may read").decode()
LONG_ID = "chatcmpl-tool-" + "0123456789abcdef" * 2
READ, LOOK = '{"path": "notes.txt"}', '{"path": "photo.png"}'


def _model(api: str, model_id: str, provider: str, base_url: str, **fields: Any) -> Model:
    limits: dict[str, Any] = {"context_window": 1_000_000, "max_tokens": 8000}
    return Model(id=model_id, provider=provider, api=api, base_url=base_url, reasoning=True, input=("text", "image"), **limits, **fields)


# ---------------------------------------------------------------------------------------------------- chat completions


def _chat() -> Dialect:
    def detail(**fields: Any) -> dict[str, Any]:
        return chat.chunk(reasoning_details=[fields])

    thinking = [
        detail(type="reasoning.text", text=SECRET, signature=SIGNATURE, format="x", index=0),
        detail(type="reasoning.encrypted", data=SEALED, format="x", index=1),
    ]
    calls = [
        chat.tools(chat.fragment("", index=0, call_id=LONG_ID + "1", name="read"), chat.fragment("", index=1, call_id=LONG_ID + "2", name="look")),
        chat.tools(chat.fragment(READ[:9], index=0), chat.fragment(LOOK, index=1)),
        chat.tools(chat.fragment(READ[9:], index=0)),
    ]
    one = chat.tools(chat.fragment(READ, index=0, call_id="call_1", name="read"))
    end = [chat.chunk(finish="tool_calls"), "[DONE]"]
    return Dialect(
        model=_model("openai_chat", "maker/m", "openrouter", "https://openrouter.ai/api/v1"),
        first=sse(*thinking, chat.chunk("I look."), *calls, *end),
        call=sse(one, *end),
        answer=sse(chat.chunk(reasoning_content="hm"), chat.chunk("Done."), chat.chunk(finish="stop"), "[DONE]"),
        cut=sse(chat.chunk("I wr"), chat.tools(chat.fragment('{"path": "no', index=0, call_id="call_9", name="write"))),
        nameless=sse(chat.tools(chat.fragment(READ, index=0, name="read"), chat.fragment(READ, index=1, name="read")), *end),
        marks=(SECRET, SIGNATURE, SEALED),
        ids=r"[A-Za-z0-9_-]{1,40}",
        in_place={"supports_mid_convo_system_messages": True, "supports_mid_convo_tool_additions": True},
    )


# ---------------------------------------------------------------------------------------------------- Anthropic


def _anthropic() -> Dialect:
    thinking = [
        anthropic.block(0, "thinking"), anthropic.thought(SECRET), anthropic.signature(SIGNATURE), anthropic.end(),
        anthropic.block(1, "redacted_thinking", data=SEALED), anthropic.end(1),
        anthropic.block(2, "text"), anthropic.text("I look.", 2), anthropic.end(2),
    ]  # fmt: skip
    calls = [*anthropic.called("read", READ, "toolu_01A09q90qw90lq917835lq9", 3), *anthropic.called("look", LOOK, "toolu_01B", 4)]
    end = [anthropic.reason("tool_use"), anthropic.STOP]
    return Dialect(
        model=_model("anthropic_messages", "claude-m", "anthropic", "https://api.anthropic.com"),
        first=anthropic.wire(anthropic.start(), *thinking, *calls, *end),
        call=anthropic.wire(anthropic.start(), *anthropic.called("read", READ, "toolu_01B"), *end),
        answer=anthropic.wire(*anthropic.said("Done.")),
        cut=anthropic.wire(
            anthropic.start(), anthropic.block(0, "text"), anthropic.text("I wr"), anthropic.end(),
            anthropic.block(1, "tool_use", id="toolu_9", name="write"), anthropic.arguments('{"path": "no', 1),
        ),
        nameless=anthropic.wire(anthropic.start(), *anthropic.called("read", READ, ""), *anthropic.called("read", READ, "", 1), *end),
        marks=(SECRET, SIGNATURE, SEALED),
        ids=r"[A-Za-z0-9_-]{1,64}",
        in_place={"supports_mid_convo_system_messages": True, "supports_mid_convo_tool_changes": True},
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- Responses, Azure


def _responses(api: str, model_id: str, base_url: str) -> Dialect:
    thinking = [
        responses.added(responses.reasoning(encrypted=None)),
        responses.thought(SECRET),
        responses.done(responses.reasoning(SECRET, encrypted=SIGNATURE)),
        responses.added(responses.reasoning(item_id="rs_2", encrypted=None), 1),
        responses.done(responses.reasoning(item_id="rs_2", encrypted=SEALED), 1),
        responses.added(responses.message(item_id="msg_7"), 2),
        responses.text("I look.", 2),
        responses.done(responses.message("I look.", "msg_7"), 2),
    ]
    calls = [
        *responses.called(READ, 3, call_id="call_abc", item_id="fc_1"),
        *responses.called(LOOK, 4, call_id="call_abd", item_id="fc_2", name="look"),
    ]
    partial = responses.call(call_id="call_9", item_id="fc_9", name="write")
    return Dialect(
        model=_model(api, model_id, "azure" if api == "azure" else "openai", base_url),
        first=responses.wire(responses.created(), *thinking, *calls, responses.completed()),
        call=responses.wire(responses.created(), *responses.called(READ, call_id="call_abc", item_id="fc_3"), responses.completed()),
        answer=responses.wire(*responses.said("Done.")),
        cut=responses.wire(responses.created(), responses.added(partial), responses.arguments('{"path": "no')),
        nameless=responses.wire(*responses.called(READ, call_id=""), *responses.called(READ, 1, call_id=""), responses.completed()),
        marks=(SECRET, SIGNATURE, SEALED, "rs_1", "rs_2", "msg_7", "fc_1"),
        ids=r"[A-Za-z0-9_-]{1,64}",
        in_place={"supports_mid_convo_system_messages": True, "supports_additional_tools": True},
    )


# ---------------------------------------------------------------------------------------------------- Gemini


def _google(api: str, provider: str, base_url: str) -> Dialect:
    calls = [google.call("read", json.loads(READ), call_id="fn-1", signature=SIGNATURE), google.call("look", json.loads(LOOK))]
    return Dialect(
        model=_model(api, "gemini-3-flash", provider, base_url),
        first=sse(
            google.chunk(google.thought(SECRET)), google.chunk(google.text("I look.", thoughtSignature=SEALED)), google.chunk(*calls), google.stop()
        ),
        call=sse(google.chunk(google.call("read", json.loads(READ), call_id="fn-1")), google.stop()),
        answer=sse(google.chunk("Done."), google.stop()),
        cut=sse(google.chunk("I wr"), google.chunk(google.call("write", {"path": "no"}, call_id="fn-9"))),
        nameless=sse(google.chunk(google.call("read"), google.call("read")), google.stop()),
        marks=(SECRET, SIGNATURE, SEALED),
        ids=r"[A-Za-z0-9_-]{1,64}",
    )


# ---------------------------------------------------------------------------------------------------- Mistral


def _mistral() -> Dialect:
    calls = mistral.calls(mistral.call("read", READ, call_id="D681PevKs"), mistral.call("look", LOOK, call_id="abc123XYZ", index=1))
    thinking = mistral.chunk([mistral.thought(SECRET, signature=SIGNATURE)])
    return Dialect(
        model=_model("mistral", "magistral-medium-latest", "mistral", "https://api.mistral.ai"),
        first=sse(thinking, mistral.chunk([mistral.text("I look.")]), calls, mistral.stop("tool_calls"), "[DONE]"),
        call=sse(mistral.calls(mistral.call("read", READ, call_id="abc123XYZ")), mistral.stop("tool_calls"), "[DONE]"),
        answer=sse(mistral.chunk("Done."), mistral.stop(), "[DONE]"),
        cut=sse(mistral.chunk("I wr"), mistral.calls(mistral.call("write", '{"path": "no', call_id="cutcutcut"))),
        nameless=sse(
            mistral.calls(mistral.call("read", READ, call_id="null"), mistral.call("read", READ, call_id=None, index=1)), mistral.stop("tool_calls")
        ),
        marks=(SECRET, SIGNATURE),
        ids=r"[A-Za-z0-9]{9}",
    )


# ---------------------------------------------------------------------------------------------------- Bedrock


def frame(name: str, payload: dict[str, Any]) -> bytes:
    """One binary event: lengths and their checksum, a header that names the event, the payload, a checksum of everything."""
    headers = b"".join(_header(key, value) for key, value in ((":event-type", name), (":message-type", "event")))
    data = json.dumps(payload).encode()
    prelude = pack(">II", 16 + len(headers) + len(data), len(headers))
    begun = prelude + pack(">I", crc32(prelude)) + headers + data
    return begun + pack(">I", crc32(begun))


def _header(name: str, value: str) -> bytes:
    return bytes([len(name)]) + name.encode() + b"\x07" + pack(">H", len(value)) + value.encode()


def _bedrock() -> Dialect:
    def delta(index: int, **fields: Any) -> bytes:
        return frame("contentBlockDelta", {"contentBlockIndex": index, "delta": fields})

    def stop(index: int) -> bytes:
        return frame("contentBlockStop", {"contentBlockIndex": index})

    def call(index: int, name: str, arguments: str, call_id: str) -> bytes:
        start = {"contentBlockIndex": index, "start": {"toolUse": {"toolUseId": call_id, "name": name}}}
        return frame("contentBlockStart", start) + delta(index, toolUse={"input": arguments})

    def end(reason: str) -> bytes:
        usage = {"usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}, "metrics": {"latencyMs": 1}}
        return frame("messageStop", {"stopReason": reason}) + frame("metadata", usage)

    begin = frame("messageStart", {"role": "assistant"})
    thinking = [
        delta(0, reasoningContent={"text": SECRET}), delta(0, reasoningContent={"signature": SIGNATURE}), stop(0),
        delta(1, reasoningContent={"redactedContent": SEALED}), stop(1), delta(2, text="I look."), stop(2),
    ]  # fmt: skip
    calls = [call(3, "read", READ, "tooluse_kZJMlvQmRJ6eAyJE5GIl7Q"), stop(3), call(4, "look", LOOK, "tooluse_2"), stop(4)]
    return Dialect(
        model=_model("bedrock_converse", "anthropic.claude-sonnet-4-5-v1:0", "bedrock", "https://bedrock-runtime.eu-west-1.amazonaws.com"),
        first=b"".join([begin, *thinking, *calls, end("tool_use")]),
        call=begin + call(0, "read", READ, "tooluse_2") + stop(0) + end("tool_use"),
        answer=begin + delta(0, text="Done.") + stop(0) + end("end_turn"),
        cut=begin + delta(0, text="I wr") + stop(0) + call(1, "write", '{"path": "no', "tooluse_9"),
        nameless=begin + call(0, "read", READ, "") + stop(0) + call(1, "read", READ, "") + stop(1) + end("tool_use"),
        marks=(SECRET, SIGNATURE, SEALED),
        ids=r"[A-Za-z0-9_-]{1,64}",
        content_type="application/vnd.amazon.eventstream",
    )


DIALECTS: dict[str, Dialect] = {
    "anthropic_messages": _anthropic(),
    "azure": _responses("azure", "gpt-5", "https://r.openai.azure.com"),
    "bedrock_converse": _bedrock(),
    "google_generate": _google("google_generate", "google", "https://generativelanguage.googleapis.com/v1beta"),
    "google_vertex": _google("google_vertex", "vertex", "https://aiplatform.googleapis.com"),
    "mistral": _mistral(),
    "openai_chat": _chat(),
    "openai_responses": _responses("openai_responses", "gpt-5.1", "https://api.openai.com/v1"),
}


# ---------------------------------------------------------------------------------------------------- requests


_STANDS_ON = {"azure": "openai_responses", "google_vertex": "google_generate"}


def encode_for(model: Model, messages: list[Message], **options: Any) -> dict[str, Any]:
    """The request body of a wire."""
    api = "google_generate" if model.api == "google_vertex" else model.api  # the same bodies, at another address
    return import_module(f"laneway.llm.wire.{api}.encode").encode(model, Transcript(messages=messages), StreamOptions(**options))


def check_against_sdk(api: str, body: dict[str, Any]) -> None:
    """Check a body against the vendor's own types, as the wire's contract tests do."""
    if api == "bedrock_converse":
        check_against_botocore(body)
        return
    import_module(f"llm.wire.{_STANDS_ON.get(api, api)}.test_contract").validate(body)


def check_against_botocore(body: dict[str, Any]) -> None:
    """Check a body against the service's own description of itself."""
    session = pytest.importorskip("botocore.session", reason="the service's description is the oracle; it is a development dependency only")
    validate = import_module("botocore.validate")
    shape = session.get_session().get_service_model("bedrock-runtime").operation_model("ConverseStream").input_shape
    report = validate.ParamValidator().validate({**json.loads(json.dumps(body)), "modelId": "m"}, shape)
    assert not report.has_errors(), report.generate_report()


def items_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages (items, contents) of a body, without a system prompt at their head."""
    items = next(body[key] for key in ("messages", "input", "contents") if key in body)
    return items[1:] if items and items[0].get("role") in ("system", "developer") else list(items)


def walk(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the items hold, in order: ("call", id), ("result", id), or the role of anything else."""
    for item in items_of(body):
        found = list(_calls_and_results(item))
        yield from found or [(item.get("role", "?"), "")]


def _calls_and_results(item: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if item.get("type") == "function_call":
        yield "call", item["call_id"]
    elif item.get("type") == "function_call_output":
        yield "result", item["call_id"]
    elif item.get("role") == "tool":
        yield "result", item["tool_call_id"]
    for call in item.get("tool_calls", ()):
        yield "call", call["id"]
    parts = item.get("parts", item.get("content"))
    for part in parts if isinstance(parts, list) else ():
        for kind, key, name in (("call", "functionCall", "id"), ("result", "functionResponse", "id"), ("call", "toolUse", "toolUseId")):
            if key in part:
                yield kind, part[key][name]
        if "toolResult" in part:
            yield "result", part["toolResult"]["toolUseId"]
        if part.get("type") == "tool_use":
            yield "call", part["id"]
        elif part.get("type") == "tool_result":
            yield "result", part["tool_use_id"]
