"""Amazon Bedrock's ConverseStream, as a server says it: frames of a binary event stream instead of server-sent events."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote
from zlib import crc32

from laneway.messages import ErrorKind
from laneway.testing._serve.dialect import NAME, Dialect, Speaker, compact, fields, object_list, refuse, sentence, text_field, tool_names
from laneway.testing._serve.plan import Block, End, Failure

EXCEPTIONS: dict[ErrorKind, str] = {
    "auth": "AccessDeniedException", "quota": "ServiceQuotaExceededException", "rate_limit": "ThrottlingException",
    "overloaded": "ServiceUnavailableException", "timeout": "ModelTimeoutException", "not_found": "ResourceNotFoundException",
    "invalid_request": "ValidationException", "overflow": "ValidationException", "content_filter": "ValidationException",
    "image": "ValidationException", "configuration": "ValidationException",
}  # fmt: skip
"""The type of an error; "InternalServerException" for the other kinds."""
_STATUSES: dict[ErrorKind, int] = {"auth": 403, "quota": 400, "timeout": 408}
_PATH = re.compile(r"/model/(?P<model>.+)/converse-stream\Z")
_STRING = 7


def frame(payload: Any, **headers: str) -> bytes:
    """Return one frame: lengths and their checksum, headers (names with `_` for `-`), the payload as JSON, the checksum of all."""
    named = {f":{name.replace('_', '-')}": value for name, value in headers.items()}
    named[":content-type"] = "application/json"
    head = b"".join(_header(name, value) for name, value in named.items())
    body = compact(payload).encode("utf-8", "replace")
    prelude = struct.pack("!II", 16 + len(head) + len(body), len(head))
    message = prelude + struct.pack("!I", crc32(prelude)) + head + body
    return message + struct.pack("!I", crc32(message))


def _header(name: str, value: str) -> bytes:
    return struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", _STRING, len(value.encode())) + value.encode()


def _event(kind: str, payload: dict[str, Any]) -> bytes:
    return frame(payload, event_type=kind, message_type="event")


class BedrockSpeaker(Speaker):
    """A message of blocks; only calls have a start. What it cost comes after its end."""

    def begin(self) -> bytes:
        return _event("messageStart", {"role": "assistant"})

    def open(self, block: Block) -> bytes:
        if block.kind != "call":
            return self._delta(block, {"reasoningContent": {"redactedContent": block.signature or ""}}) if block.redacted else b""
        start = {"toolUse": {"toolUseId": block.call_id, "name": block.name}}
        return _event("contentBlockStart", {"start": start, "contentBlockIndex": block.index})

    def delta(self, block: Block, text: str) -> bytes:
        if block.kind == "text":
            return self._delta(block, {"text": text})
        return self._delta(block, {"toolUse": {"input": text}} if block.kind == "call" else {"reasoningContent": {"text": text}})

    def close(self, block: Block) -> bytes:
        signed = block.kind == "thinking" and block.signature and not block.redacted
        signature = self._delta(block, {"reasoningContent": {"signature": block.signature}}) if signed else b""
        return signature + _event("contentBlockStop", {"contentBlockIndex": block.index})

    def end(self, end: End) -> bytes:
        reason = {"stop": "end_turn", "length": "max_tokens", "tool_use": "tool_use"}[end]
        return _event("messageStop", {"stopReason": reason}) + _event("metadata", {"usage": self._usage(), "metrics": {"latencyMs": 1}})

    def fail(self, failure: Failure) -> bytes:
        name = failure.code or EXCEPTIONS.get(failure.kind, "InternalServerException")
        return frame({"message": _sentence(failure)}, exception_type=name[:1].lower() + name[1:], message_type="exception")

    def _delta(self, block: Block, delta: dict[str, Any]) -> bytes:
        return _event("contentBlockDelta", {"contentBlockIndex": block.index, "delta": delta})

    def _usage(self) -> dict[str, Any]:
        usage = self.plan.usage
        total = usage.input + usage.output + usage.cache_read + usage.cache_write
        return {
            "inputTokens": usage.input, "outputTokens": usage.output, "totalTokens": total,
            "cacheReadInputTokens": usage.cache_read, "cacheWriteInputTokens": usage.cache_write,
        }  # fmt: skip


def _sentence(failure: Failure) -> str:
    """Only the sentence tells that a prompt is too long: there is no code for it."""
    return f"Input is too long for requested model. {failure.message}" if failure.kind == "overflow" else sentence(failure)


class BedrockDialect(Dialect):
    """Requests bring a bearer token or are signed; of a signature only the access key's id is looked at."""

    name = "bedrock_converse"
    url_variable = "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"
    key_variable = "AWS_BEARER_TOKEN_BEDROCK"
    needs_key = True
    content_type = "application/vnd.amazon.eventstream"
    speaker = BedrockSpeaker

    def call_id(self, number: int) -> str:
        return f"tooluse_{number}"

    def status_of(self, failure: Failure) -> int:
        return failure.status or _STATUSES.get(failure.kind) or super().status_of(failure)

    def keys_in(self, headers: Mapping[str, str]) -> list[str]:
        value = headers.get("authorization", "")
        signed = re.match(r"AWS4-HMAC-SHA256 Credential=([^/]+)/", value)
        return [signed[1]] if signed else super().keys_in(headers)

    def model_of(self, method: str, path: str, query: Mapping[str, str], body: dict[str, Any]) -> str:
        found = _PATH.match(unquote(path))
        if found is None:
            refuse(f"there is nothing at {path}; this server answers POST /model/{{model}}/converse-stream: check the endpoint", kind="not_found")
        if method != "POST":
            refuse(f"ConverseStream takes POST, not {method}", status=405)
        return found["model"]

    def check(self, body: dict[str, Any], model: str, headers: Mapping[str, str]) -> None:
        messages = object_list(body, "messages")
        config = fields(body.get("toolConfig"))
        if config:
            tool_names(fields(tool.get("toolSpec")).get("name") for tool in object_list(config, "tools", "toolConfig.") if "toolSpec" in tool)
        elif any("toolUse" in block or "toolResult" in block for message in messages for block in object_list(message, "content")):
            refuse("the toolConfig field must be defined when toolUse and toolResult content blocks are used")
        _check_messages(messages)

    def error(self, failure: Failure, status: int) -> tuple[dict[str, str], Any]:
        name = failure.code or EXCEPTIONS.get(failure.kind, "InternalServerException")
        return {"x-amzn-errortype": f"{name}:http://internal.amazon.com/", "x-amzn-requestid": "scripted"}, {"message": _sentence(failure)}


def _check_messages(messages: list[dict[str, Any]]) -> None:
    """Roles alternate, from the user's to the user's; the results of a turn's calls are all in the next message."""
    waiting: list[str] = []
    before = "assistant"
    for index, message in enumerate(messages):
        where, role = f"messages.{index}", message.get("role")
        if role not in ("user", "assistant"):
            refuse(f"{where}.role: {role!r} is not one of 'user' and 'assistant'")
        if role == before:
            refuse("a conversation must start with a user message" if index == 0 else f"{where}: roles must alternate between user and assistant")
        before = str(role)
        blocks = object_list(message, "content", f"{where}.")
        _check_results(blocks, waiting, where)
        waiting = _check_blocks(blocks, role, where)
    if waiting:
        refuse(f"expected toolResult blocks after the last message for the following ids: {', '.join(waiting)}")
    if before != "user":
        refuse("the conversation must end with a user message")


def _check_results(blocks: list[dict[str, Any]], waiting: list[str], where: str) -> None:
    found = [str(fields(block["toolResult"]).get("toolUseId")) for block in blocks if "toolResult" in block]
    missing = [call_id for call_id in waiting if call_id not in found]
    if missing:
        refuse(f"expected toolResult blocks at {where}.content for the following ids: {', '.join(missing)}")
    if len(found) > len(waiting) or any(call_id not in waiting for call_id in found):
        refuse(f"the toolResult blocks at {where}.content exceed the toolUse blocks of the previous turn")


def _check_blocks(blocks: list[dict[str, Any]], role: Any, where: str) -> list[str]:
    calls: list[str] = []
    for index, block in enumerate(blocks):
        here = f"{where}.content.{index}"
        if "text" in block and not str(block["text"]).strip():
            refuse(f"the text field in the ContentBlock object at {here} is blank")
        if "toolUse" not in block:
            continue
        if role != "assistant":
            refuse(f"{here}: toolUse blocks may only stand in assistant messages")
        call_id = text_field(fields(block["toolUse"]), "toolUseId", f"{here}.toolUse.")
        if not NAME.match(call_id):
            refuse(f"{here}.toolUse.toolUseId: {call_id!r} does not match the pattern [a-zA-Z0-9_-]{{1,64}}")
        if call_id in calls:
            refuse(f"{here}.toolUse.toolUseId: duplicate ids are not allowed: {call_id}")
        if not isinstance(fields(block["toolUse"]).get("input"), dict):
            refuse(f"{here}.toolUse.input: an object is required")
        calls.append(call_id)
    return calls
