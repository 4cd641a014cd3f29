"""What a provider's failure means: status, body or exception in, `ProviderFailure(kind, status, retry_after_ms)` out.

The order of trust is: the provider's own error code, then wordings that are unmistakable (a used-up quota, a prompt that is too
long, a refused image), then the provider's general error type, then the HTTP status, and free text last. Every table is data; a new
wording is a new row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from laneway.llm._overflow import excludes_overflow, is_overflow_text
from laneway.llm.base import ProviderFailure
from laneway.messages import ErrorKind

BODY_LIMIT = 4000
"""Characters of a provider's error body that are shown."""

CODE_KINDS: dict[str, ErrorKind] = {
    "context_length_exceeded": "overflow",
    "model_context_window_exceeded": "overflow",
    "exceed_context_size_error": "overflow",
    "request_too_large": "overflow",
    "string_above_max_length": "invalid_request",
    "insufficient_quota": "quota",
    "insufficient_balance": "quota",
    "billing_hard_limit_reached": "quota",
    "billing_error": "quota",
    "billing_not_active": "quota",
    "quota_exceeded": "quota",
    "usage_limit_reached": "quota",
    "gousagelimiterror": "quota",
    "freeusagelimiterror": "quota",
    "servicequotaexceededexception": "quota",
    "rate_limit_exceeded": "rate_limit",
    "rate_limit_error": "rate_limit",
    "rate_limit_reached_error": "rate_limit",
    "rate_limited": "rate_limit",
    "too_many_requests": "rate_limit",
    "throttlingexception": "rate_limit",
    "overloaded_error": "overloaded",
    "overloaded": "overloaded",
    "engine_overloaded_error": "overloaded",
    "engine_overloaded": "overloaded",
    "server_overloaded": "overloaded",
    "service_tier_capacity_exceeded": "overloaded",
    "slow_down": "overloaded",
    "serviceunavailableexception": "overloaded",
    "modelnotreadyexception": "overloaded",
    "authentication_error": "auth",
    "invalid_authentication_error": "auth",
    "invalid_api_key": "auth",
    "api_key_invalid": "auth",
    "permission_error": "auth",
    "permission_denied": "auth",
    "unauthenticated": "auth",
    "unauthorized": "auth",
    "accessdeniedexception": "auth",
    "unrecognizedclientexception": "auth",
    "expiredtokenexception": "auth",
    "not_found_error": "not_found",
    "model_not_found": "not_found",
    "not_found": "not_found",
    "resourcenotfoundexception": "not_found",
    "content_filter": "content_filter",
    "content_policy_violation": "content_filter",
    "responsibleaipolicyviolation": "content_filter",
    **dict.fromkeys((
        "invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_url", "image_too_large", "image_too_small",
        "image_parse_error", "image_content_policy_violation", "invalid_image_mode", "image_file_too_large", "unsupported_image_media_type",
        "empty_image_file", "failed_to_download_image", "image_file_not_found",
    ), "image"),
    "timeout_error": "timeout",
    "request_timeout": "timeout",
    "deadline_exceeded": "timeout",
    "modeltimeoutexception": "timeout",
    "modelstreamerrorexception": "server",
    "modelerrorexception": "server",
}
"""Codes that settle the matter. Compared in lower case."""

TYPE_KINDS: dict[str, ErrorKind] = {
    "resource_exhausted": "rate_limit",
    "unavailable": "overloaded",
    "api_error": "server",
    "server_error": "server",
    "internal_server_error": "server",
    "internalservererror": "server",
    "internalserverexception": "server",
    "internal": "server",
    "unknown_error": "server",
    "invalid_request_error": "invalid_request",
    "invalid_argument": "invalid_request",
    "failed_precondition": "invalid_request",
    "badrequesterror": "invalid_request",
    "validationexception": "invalid_request",
    "invalid_prompt": "invalid_request",
    "unprocessable_entity": "invalid_request",
}
"""General error types, which say less than a clear wording does."""

STATUS_KINDS: dict[int, ErrorKind] = {
    401: "auth", 402: "quota", 403: "auth", 404: "not_found", 408: "timeout", 409: "server", 410: "not_found", 413: "overflow",
    425: "server", 429: "rate_limit", 498: "overloaded", 499: "network", 503: "overloaded", 504: "timeout", 522: "timeout",
    524: "timeout", 529: "overloaded",
}  # fmt: skip

QUOTA_TEXTS: tuple[str, ...] = (
    r"\bgousagelimiterror\b", r"\bfreeusagelimiterror\b", r"monthly usage limit reached", r"available balance", r"insufficient[_ ]quota",
    r"insufficient (?:balance|credits|funds)", r"out of (?:budget|credits)", r"quota exceeded", r"exceeded your (?:current )?quota",
    r"(?<![/.])\bbilling\b", r"credit balance is too low", r"subscription sharing limit", r"\b1308\b.*usage limit",
)  # fmt: skip
"""Wordings of an account that may not go on; waiting does not help."""

IMAGE_TEXTS: tuple[str, ...] = (
    r"(?:could not|cannot|can't|unable to|failed to) (?:process|load|decode|parse|read|open|identify|download) (?:the |an |this )?(?:\w+ )?image",
    r"\bimage\.source\b", r"\bmember\.image\b",
    r"(?:unsupported|invalid|corrupt(?:ed)?|malformed) (?:base64 )?image(?: (?:data|file|format|type|url|content)|[.:,]|$)",
    r"\bimages?\b(?: data)?[^.]{0,60}? (?:is not valid|is invalid|cannot be empty|does not match|does not represent a valid|has an invalid format)",
    r"\bnot a valid image\b", r"invalid data url for image", r"base64 image_url", r"base64[ -]encoded data url with an image",
    r"unsupported (?:mime|media) ?type:? ['\"]?image/", r"(?:mime|media) type image/\S+ is not supported", r"media type for base64 image",
    r"inline_?data.{0,80}base64 decoding failed",
    r"\bimages?\b.{0,60}(?:too large|too small|exceed)", r"image dimensions?\b.{0,60}\bexceed", r"too many images", r"at most \d+ images?\b",
    r"image (?:input|content)s? (?:is|are) (?:not|un)\s?supported", r"(?:not|n't) support (?:image|vision)(?: input| content|s\b|[.:,]|$)",
    r"support image input", r"image_url is only supported by certain models",
)  # fmt: skip
"""Wordings of an image that is refused: broken, of the wrong kind, too large, one too many, or any at all."""

TEXT_KINDS: tuple[tuple[str, ErrorKind], ...] = (
    (r"overloaded|high demand|server (?:is )?busy|at capacity|no available capacity", "overloaded"),
    (r"rate[ _-]?limit|too many requests|too many tokens.*(?:wait|later|minute)|throttl|resource[ _]?exhausted", "rate_limit"),
    (r"retry delay|please retry your request|retry your request|try again later", "rate_limit"),
    (r"timed out|time-?out\b|deadline exceeded", "timeout"),
    (r"ended without|stream ended before|before message_stop|before a terminal response event|disconnected before completion", "incomplete"),
    (r"service unavailable|server error|internal error|bad gateway|provider returned error|upstream (?:connect|stream|error)", "server"),
    (r"exceeded request buffer limit", "server"),
    (r"(?:network|connection) (?:error|refused|lost|closed|reset|aborted)|other side closed|reset (?:before headers|by peer)", "network"),
    (r"fetch failed|socket hang up|socket (?:was )?closed|websocket (?:closed|error)|http/?2 .*no response|\bterminated\b", "network"),
    (r"\b(?:getaddrinfo|enotfound|eai_again|econnreset|econnaborted|econnrefused|etimedout|epipe)\b", "network"),
    (r"peer closed connection|server disconnected|all connection attempts failed|incomplete (?:chunked )?read", "network"),
    (r"\b(?:connecterror|connecttimeout|readerror|writeerror|remoteprotocolerror)\b", "network"),
    (r"\breadtimeout\b", "timeout"),
    (r"(?<![\w.-])429(?![\w.-])", "rate_limit"),
    (r"(?<![\w.-])(?:500|502|503|504|520|524|529)(?![\w.-])", "server"),
)
"""The last resort, for failures of which only a sentence is left. The first row that matches wins."""

RETRYABLE_KINDS: frozenset[ErrorKind] = frozenset({"rate_limit", "overloaded", "network", "timeout", "incomplete", "server", "protocol"})
"""Failures that may well not happen again; see `laneway.llm._retry.is_retryable`."""

_HINTS: dict[ErrorKind, str] = {
    "auth": "Check the API key that is used for {provider}.",
    "not_found": "Check the model id and the base URL.",
    "image": "A note takes the place of the image in later requests.",
}
_QUOTA = re.compile("|".join(QUOTA_TEXTS), re.I)
_IMAGE = re.compile("|".join(IMAGE_TEXTS), re.I)
_TEXTS: tuple[tuple[re.Pattern[str], ErrorKind], ...] = tuple((re.compile(pattern, re.I | re.S), kind) for pattern, kind in TEXT_KINDS)
_KEY_SHAPES = re.compile(r"(?i)(bearer\s+|\bsk-|[?&](?:api_?)?key=)[\w.~+/-]{8,}=*")
_HTML = re.compile(r"\s*(?:<!doctype html|<html)", re.I)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.I | re.S)


# ---------------------------------------------------------------------------------------------------- secrets


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without the given secrets and without what looks like a key."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    return _KEY_SHAPES.sub(r"\1***", text)


# ---------------------------------------------------------------------------------------------------- reading a body


class ErrorBody(Struct, frozen=True):
    """What an error body says: its sentence, its codes (lower case, most telling first), the wait that it asks for."""

    message: str
    codes: tuple[str, ...] = ()
    retry_after_ms: int | None = None


def read_error_body(body: bytes | str) -> ErrorBody:
    """Read the body of an error answer, whatever its shape: the known JSON shapes, other JSON, HTML, plain text, nothing."""
    text = (body if isinstance(body, str) else body.decode("utf-8", "replace")).strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ErrorBody(_html_summary(text) if _HTML.match(text) else _shorten(text))
    return read_error_value(value)


def read_error_value(value: Any) -> ErrorBody:
    """Read a decoded error object, or one of the wrappers that providers put around it."""
    if isinstance(value, list) and value:
        value = cast("list[Any]", value)[0]
    if not isinstance(value, dict):
        return ErrorBody(_shorten(value if isinstance(value, str) else _compact(value)) if value is not None else "")
    outer = cast("dict[str, Any]", value)
    inner = outer.get("error")
    if isinstance(inner, str) and inner:
        inner = {"message": inner}
    errors = outer.get("errors")
    if not isinstance(inner, dict) and isinstance(errors, list) and errors and isinstance(errors[0], dict):
        inner = cast("dict[str, Any]", errors[0])
    detail = cast("dict[str, Any]", inner) if isinstance(inner, dict) else outer
    message = next((m for key in ("message", "detail", "Message", "msg", "error_description") if (m := _text(detail.get(key)))), "")
    raw = _text(_dict(detail.get("metadata")).get("raw"))
    if raw and raw not in message:
        message = f"{message}\n{raw}" if message else raw
    details = detail.get("details")
    reasons = [{"reason": _dict(item).get("reason")} for item in cast("list[Any]", details)] if isinstance(details, list) else []
    codes = (_code(source.get(key)) for source in (*reasons, detail, outer) for key in ("code", "status", "reason", "__type", "type"))
    found = tuple(dict.fromkeys(code for code in codes if code and code != "error"))
    return ErrorBody(_shorten(message or _compact(value)), found, _body_delay(detail, message))


def _text(value: Any) -> str:
    if value is None or value == "":
        return ""
    return value if isinstance(value, str) else _compact(value)


def _code(value: Any) -> str:
    return value.rpartition("#")[2].lower() if isinstance(value, str) and not value.isdecimal() else ""


def _dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _shorten(text: str) -> str:
    return text if len(text) <= BODY_LIMIT else f"{text[:BODY_LIMIT]}… ({len(text) - BODY_LIMIT} more characters)"


def _html_summary(text: str) -> str:
    title = _TITLE.search(text)
    name = " ".join(title.group(1).split())[:200] if title else ""
    return f"the server answered with an HTML page: {name}" if name else "the server answered with an HTML page"


# ---------------------------------------------------------------------------------------------------- how long to wait


def retry_after_ms(headers: Mapping[str, str], *, now: float | None = None) -> int | None:
    """Return the wait that response headers (lower-case names) ask for; None if there is none that makes sense.

    `retry-after-ms`, or `retry-after` in seconds or as a date; a date is read against the server's own `date` header, or `now`
    (Unix seconds). Negative or unreadable values are no request.
    """
    value = headers.get("retry-after-ms")
    if value is not None and (ms := _number(value)) is not None:
        return int(ms)
    value = headers.get("retry-after")
    if value is None:
        return None
    if (seconds := _number(value)) is not None:
        return int(seconds * 1000)
    from datetime import datetime
    from email.utils import parsedate_to_datetime

    try:
        at = parsedate_to_datetime(value)
        date = headers.get("date")
        start = parsedate_to_datetime(date) if date else datetime.fromtimestamp(now, at.tzinfo) if now is not None else datetime.now(at.tzinfo)
        wait = (at - start).total_seconds()
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    return int(wait * 1000) if wait >= 0 else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None


_UNIT_MS = {"ms": 1.0, "s": 1000.0, "m": 60_000.0, "h": 3_600_000.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_TRY_AGAIN = re.compile(r"(?:try|retry) again in ((?:\d+(?:\.\d+)?(?:ms|s|m|h))+)", re.I)


def _body_delay(detail: dict[str, Any], message: str) -> int | None:
    """The wait that stands in the body: Google's `RetryInfo`, or "try again in 6m3.5s" in the sentence."""
    details = detail.get("details")
    for item in cast("list[Any]", details) if isinstance(details, list) else ():
        delay = _dict(item).get("retryDelay")
        if isinstance(delay, str) and (ms := _duration_ms(delay)) is not None:
            return ms
    match = _TRY_AGAIN.search(message)
    return _duration_ms(match.group(1)) if match else None


def _duration_ms(text: str) -> int | None:
    parts = _DURATION.findall(text)
    return int(sum(float(number) * _UNIT_MS[unit] for number, unit in parts)) if parts else None


# ---------------------------------------------------------------------------------------------------- classification


def classify(
    *, status: int | None = None, codes: Iterable[str] = (), text: str = "", provider: str = "", retry_after_ms: int | None = None
) -> ErrorKind:
    """Return what kind of failure this is; see the module for the order in which the evidence counts."""
    codes = [code.lower() for code in codes]
    for code in codes:
        if code in CODE_KINDS:
            return CODE_KINDS[code]
    if _QUOTA.search(text) and (status is None or status in (400, 402, 403, 429)):
        return "quota" if retry_after_ms is None else "rate_limit"  # "quota" with a wait is a quota per minute
    if status != 429 and is_overflow_text(text):
        return "overflow"
    if not text and status in (400, 413) and provider == "cerebras":
        return "overflow"  # it answers so, without a body, when the prompt is too long
    if status not in (401, 403, 429) and _IMAGE.search(text):
        return "image"
    for code in codes:
        if code in TYPE_KINDS:
            return TYPE_KINDS[code]
    if status == 413 and excludes_overflow(text):
        return "invalid_request"
    if status is not None and status >= 300:
        if status in STATUS_KINDS:
            return STATUS_KINDS[status]
        return "server" if status >= 500 else "invalid_request"
    return classify_text(text)


def classify_text(text: str) -> ErrorKind:
    """Classify a sentence of which nothing else is known."""
    if _QUOTA.search(text):
        return "quota"
    if is_overflow_text(text):
        return "overflow"
    if _IMAGE.search(text):
        return "image"
    for pattern, kind in _TEXTS:
        if pattern.search(text):
            return kind
    return "unknown"


# ---------------------------------------------------------------------------------------------------- failures


def http_failure(
    status: int, headers: Mapping[str, str], body: bytes, *, provider: str, secrets: Iterable[str] = (), now: float | None = None
) -> ProviderFailure:
    """Return the failure for an HTTP answer that is no success. `headers` have lower-case names; `secrets` are cut out of the text."""
    seen = read_error_body(body)
    named = _code(headers.get("x-amzn-errortype", "").partition(":")[0])
    seen = replace(seen, codes=tuple(dict.fromkeys((*seen.codes, named)))) if named else seen
    wait = retry_after_ms(headers, now=now)
    wait = seen.retry_after_ms if wait is None else wait
    kind = classify(status=status, codes=seen.codes, text=seen.message, provider=provider, retry_after_ms=wait)
    return _failure(provider, kind, seen, status=status, wait=wait, secrets=secrets)


def event_failure(value: Any, *, provider: str, secrets: Iterable[str] = ()) -> ProviderFailure:
    """Return the failure for an error that came inside a stream that had begun well (HTTP 200)."""
    seen = read_error_value(value)
    detail = _dict(_dict(value).get("error")) or _dict(value)
    numbers = (str(detail.get(key)) for key in ("code", "status"))
    status = next((int(number) for number in numbers if re.fullmatch("[45][0-9][0-9]", number)), None)
    kind = classify(status=status, codes=seen.codes, text=seen.message, provider=provider, retry_after_ms=seen.retry_after_ms)
    return _failure(provider, kind, seen, status=status, wait=seen.retry_after_ms, secrets=secrets)


def as_sentence(text: str) -> str:
    """Return the text with a full stop, so that another sentence can follow."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _failure(provider: str, kind: ErrorKind, seen: ErrorBody, *, status: int | None, wait: int | None, secrets: Iterable[str]) -> ProviderFailure:
    code = next((code for code in seen.codes if code not in seen.message.lower()), "")
    tag = " ".join(str(part) for part in (status, code) if part)
    message = seen.message or "the server gave no details"
    text = f"{provider} error ({tag}): {message}" if tag else f"{provider} error: {message}"
    hint = _HINTS.get(kind)
    if hint:
        text = f"{as_sentence(text)} {hint.format(provider=provider)}"
    return ProviderFailure(redact(text, secrets), kind=kind, status=status, retry_after_ms=wait)


_EXCEPTION_KINDS: tuple[tuple[str, ErrorKind], ...] = (
    ("ConnectTimeout", "timeout"), ("PoolTimeout", "timeout"), ("ReadTimeout", "timeout"), ("WriteTimeout", "timeout"), ("TimeoutError", "timeout"),
    ("UnsupportedProtocol", "configuration"), ("InvalidURL", "configuration"), ("LocalProtocolError", "configuration"),
    ("DecodingError", "protocol"), ("SseTooLarge", "protocol"), ("TransportError", "network"), ("OSError", "network"),
)  # fmt: skip
"""Exception class names (of the HTTP library too, so that it need not be imported), first match along the class's ancestry per row."""


def exception_kind(error: BaseException) -> ErrorKind:
    """Classify an exception of the transport."""
    names = {cls.__name__ for cls in type(error).__mro__}
    for name, kind in _EXCEPTION_KINDS:
        if name in names:
            return kind
    return "unknown"


def transport_failure(error: BaseException, *, provider: str, doing: str, secrets: Iterable[str] = ()) -> ProviderFailure:
    """Return the failure for an exception of the transport; `doing` is what was going on ("connecting to localhost:8080")."""
    kind = exception_kind(error)
    text = f"{provider}: {doing} failed: {_deepest(error)}"
    if type(error).__name__ == "ConnectError":
        text += "; check that the server runs and that the base URL is right"
    return ProviderFailure(redact(text, secrets), kind=kind)


def _deepest(error: BaseException) -> str:
    """The text of an exception, with the reason at the bottom of its chain when that says more."""
    text = str(error) or type(error).__name__
    cause = error
    for _ in range(5):
        below = cause.__cause__ or cause.__context__
        if below is None:
            break
        cause = below
    while isinstance(cause, BaseExceptionGroup):
        cause = cast("BaseExceptionGroup[BaseException]", cause).exceptions[0]
    reason = str(cause) if cause is not error else ""
    return f"{text} ({reason})" if reason and reason not in text else text
