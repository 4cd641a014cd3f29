"""Gemini's generateContent, as a server says it, and the same at the addresses of Vertex AI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from laneway.messages import ErrorKind
from laneway.testing._serve.dialect import Dialect, Speaker, arguments_object, fields, object_list, prompt_tokens, refuse, sentence, sse
from laneway.testing._serve.plan import Block, End, Failure, Plan, ScriptError

STATUS_WORDS: dict[ErrorKind, str] = {
    "auth": "UNAUTHENTICATED", "quota": "RESOURCE_EXHAUSTED", "rate_limit": "RESOURCE_EXHAUSTED", "overloaded": "UNAVAILABLE",
    "timeout": "DEADLINE_EXCEEDED", "not_found": "NOT_FOUND", "invalid_request": "INVALID_ARGUMENT", "overflow": "INVALID_ARGUMENT",
    "content_filter": "INVALID_ARGUMENT", "image": "INVALID_ARGUMENT", "configuration": "INVALID_ARGUMENT",
}  # fmt: skip
"""The word that stands beside the status of an error; "INTERNAL" for the other kinds."""
REASONS: dict[ErrorKind, str] = {
    "auth": "API_KEY_INVALID", "quota": "QUOTA_EXCEEDED", "overflow": "CONTEXT_LENGTH_EXCEEDED", "content_filter": "CONTENT_FILTER",
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}\Z")
_ACTION = ":streamGenerateContent"
_DATA = ("text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult")


class GoogleSpeaker(Speaker):
    """Chunks of parts. A call comes whole; the counts stand in every chunk; nothing says that it is the last but its finish reason."""

    def delta(self, block: Block, text: str) -> bytes:
        if block.kind == "call":
            return b""  # arguments are not cut into pieces
        return self._chunk([{"text": text, **({"thought": True} if block.kind == "thinking" else {})}])

    def close(self, block: Block) -> bytes:
        signature = {"thoughtSignature": block.signature} if block.signature else {}
        if block.kind == "call":
            call = {"name": block.name, "args": arguments_object(block), "id": block.call_id}
            return self._chunk([{"functionCall": call, **signature}])
        if not signature:
            return b""
        return self._chunk([{"text": "", **({"thought": True} if block.kind == "thinking" else {}), **signature}])

    def end(self, end: End) -> bytes:
        return self._chunk([{"text": ""}], finish="MAX_TOKENS" if end == "length" else "STOP")

    def fail(self, failure: Failure) -> bytes:
        return sse(_error(failure, failure.status or 500))

    def _chunk(self, parts: list[dict[str, Any]], finish: str | None = None) -> bytes:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        return sse(
            {
                "candidates": [candidate],
                "usageMetadata": self._usage(),
                "modelVersion": self.model.rpartition("/")[2],
                "responseId": f"response_{self.number}",
            }
        )

    def _usage(self) -> dict[str, Any]:
        usage = self.plan.usage
        prompt, thoughts = prompt_tokens(usage), usage.reasoning or 0
        counts = {"promptTokenCount": prompt, "candidatesTokenCount": usage.output - thoughts, "totalTokenCount": prompt + usage.output}
        if usage.reasoning is not None:
            counts["thoughtsTokenCount"] = thoughts
        return {**counts, "cachedContentTokenCount": usage.cache_read} if usage.cache_read else counts


def _error(failure: Failure, status: int) -> dict[str, Any]:
    error: dict[str, Any] = {"code": status, "message": sentence(failure), "status": STATUS_WORDS.get(failure.kind, "INTERNAL")}
    details: list[dict[str, Any]] = []
    reason = failure.code or REASONS.get(failure.kind)
    if reason is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com"})
    if failure.retry_after is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{failure.retry_after:g}s"})
    return {"error": {**error, "details": details} if details else error}


class GoogleDialect(Dialect):
    """The model is in the path."""

    name = "google_generate"
    base_path = "/v1beta"
    url_variable = "GEMINI_BASE_URL"
    key_variable = "GEMINI_API_KEY"
    key_headers = ("x-goog-api-key",)
    speaker = GoogleSpeaker
    where = re.compile(r"/v1beta/(?P<model>(?:models|tunedModels)/[^/:]+):streamGenerateContent\Z")
    example = "/v1beta/models/{model}:streamGenerateContent?alt=sse"

    def model_of(self, method: str, path: str, query: Mapping[str, str], body: dict[str, Any]) -> str:
        found = self.where.match(unquote(path))
        if found is None:
            refuse(f"there is nothing at {path}; this server answers POST {self.example}: check the base URL", kind="not_found")
        if method != "POST":
            refuse(f"{_ACTION} takes POST, not {method}", status=405)
        if query.get("alt") != "sse":
            refuse("alt: this server only streams events; send ?alt=sse")
        return found["model"].removeprefix("models/")

    def check(self, body: dict[str, Any], model: str, headers: Mapping[str, str]) -> None:
        for tool in object_list(body, "tools") if "tools" in body else ():
            for declaration in object_list(tool, "functionDeclarations", "tools.") if "functionDeclarations" in tool else ():
                name = declaration.get("name")
                if not isinstance(name, str) or not _NAME.match(name):
                    refuse(f"tools: {name!r} is no valid function name")
        _check_contents(object_list(body, "contents"), needs_signatures="gemini-3" in model)

    def check_plan(self, plan: Plan) -> None:
        bad = next((block for block in plan.blocks if block.kind == "call" and arguments_object(block) is None), None)
        if bad is not None:
            raise ScriptError(f"{self.name} sends arguments as an object, and those of {bad.name!r} are no JSON object: {bad.text[:200]}")

    def error(self, failure: Failure, status: int) -> tuple[dict[str, str], Any]:
        return {}, _error(failure, status)


class VertexDialect(GoogleDialect):
    """With a key the path has no project in it; the client adds the version to the base URL."""

    name = "google_vertex"
    base_path = ""
    url_variable = "VERTEX_BASE_URL"
    key_variable = "GOOGLE_CLOUD_API_KEY"
    key_headers = ("x-goog-api-key", "authorization")
    needs_key = True
    where = re.compile(
        r"/v1(?:beta1)?/(?:projects/[^/]+/locations/[^/]+/)?(?P<model>publishers/[^/]+/models/[^/:]+|endpoints/[^/:]+):streamGenerateContent\Z"
    )
    example = "/v1beta1/[projects/…/locations/…/]publishers/google/models/{model}:streamGenerateContent?alt=sse"

    def model_of(self, method: str, path: str, query: Mapping[str, str], body: dict[str, Any]) -> str:
        return super().model_of(method, path, query, body).removeprefix("publishers/google/models/")


def _check_contents(contents: list[dict[str, Any]], *, needs_signatures: bool) -> None:
    """After the model's calls come as many responses, under the same names; the calls of one turn bring a signature on the first."""
    waiting: list[str] | None = None
    for index, content in enumerate(contents):
        where, role = f"contents[{index}]", content.get("role", "user")
        if role not in ("user", "model"):
            refuse(f"{where}.role: please use a valid role: user, model")
        parts = object_list(content, "parts", f"{where}.")
        for number, part in enumerate(parts):
            if sum(name in part for name in _DATA) != 1:
                refuse(f"{where}.parts[{number}].data: exactly one field with data is required")
        calls = [part for part in parts if "functionCall" in part]
        responses = [fields(part["functionResponse"]) for part in parts if "functionResponse" in part]
        if responses or waiting:
            _check_responses(responses, waiting or [], where)
        if calls and (role != "model" or index == 0):
            refuse(f"{where}: a function call turn must come from the model, after a user turn or a function response turn")
        if calls and needs_signatures and not calls[0].get("thoughtSignature"):
            refuse(f"{where}: the function call is missing a thought_signature in its functionCall part")
        waiting = [str(fields(part["functionCall"]).get("name")) for part in calls]
    if waiting:
        refuse(f"contents: the function calls {', '.join(waiting)} have no response")


def _check_responses(responses: list[dict[str, Any]], waiting: list[str], where: str) -> None:
    if len(responses) != len(waiting):
        refuse(
            f"{where}: the number of function response parts ({len(responses)}) must equal the number of function call parts of the "
            f"function call turn before it ({len(waiting)})"
        )
    for number, response in enumerate(responses):
        if response.get("name") not in waiting:
            refuse(f"{where}.parts[{number}].functionResponse.name: {response.get('name')!r} was not called")
        if not isinstance(response.get("response"), dict):
            refuse(f"{where}.parts[{number}].functionResponse.response: an object is required")
