"""Status, body and exceptions → what kind of failure it is and what a person reads."""

from __future__ import annotations

import json

import pytest

from laneway.llm._errors import (
    CODE_KINDS,
    STATUS_KINDS,
    TYPE_KINDS,
    classify,
    classify_text,
    event_failure,
    exception_kind,
    http_failure,
    read_error_body,
    redact,
    retry_after_ms,
    transport_failure,
)
from laneway.messages import ErrorKind


@pytest.mark.parametrize("code", CODE_KINDS)
def test_a_provider_s_own_code_settles_the_kind(code: str) -> None:
    """Each row of the code table wins over the status and the text (decision 9)."""
    assert classify(status=500, codes=[code.upper()], text="Too many requests") == CODE_KINDS[code]


@pytest.mark.parametrize("code", TYPE_KINDS)
def test_a_general_type_counts_before_the_status(code: str) -> None:
    """Each row of the type table wins over the status."""
    assert classify(status=418, codes=[code]) == TYPE_KINDS[code]


@pytest.mark.parametrize("status", STATUS_KINDS)
def test_a_status_has_its_kind(status: int) -> None:
    """Each row of the status table holds when nothing else is known."""
    assert classify(status=status) == STATUS_KINDS[status]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request"), (418, "invalid_request"), (422, "invalid_request"), (500, "server"), (502, "server"), (599, "server")],
)
def test_other_statuses_fall_into_two_classes(status: int, kind: ErrorKind) -> None:
    """An unknown 4xx is the request's fault, an unknown 5xx the server's."""
    assert classify(status=status) == kind


@pytest.mark.parametrize(
    ("status", "text", "wait", "kind"),
    [
        (429, "You exceeded your current quota, please check your plan and billing details", None, "quota"),
        (429, "You exceeded your current quota, please check your plan and billing details", 30_000, "rate_limit"),
        (400, "This model's maximum context length is 8192 tokens. However, you requested 9000", None, "overflow"),
        (400, "messages[11].tool_calls[0].id string too long, maximum 40, got 46", None, "invalid_request"),
        (400, "max_tokens is too large: 99999. This model supports at most 16384 completion tokens", None, "invalid_request"),
        (413, "request entity too large", None, "overflow"),
        (413, "image too large", None, "image"),
        (429, "Too many tokens, please wait before trying again", None, "rate_limit"),
        (403, "Your credit balance is too low", None, "quota"),
        (500, "the request exceeds the available context size", None, "overflow"),
    ],
)
def test_clear_wordings_count_before_the_status(status: int, text: str, wait: int | None, kind: ErrorKind) -> None:
    """B53, B54: an overflow or a used-up quota is recognised by its words; look-alikes are not."""
    assert classify(status=status, text=text, retry_after_ms=wait) == kind


def test_cerebras_says_overflow_with_an_empty_body() -> None:
    """05 §6.5: only for that provider an empty 400 or 413 is an overflow."""
    assert http_failure(400, {}, b"", provider="cerebras").info.kind == "overflow"
    assert http_failure(400, {}, b"", provider="other").info.kind == "invalid_request"


TEXTS: list[tuple[str, ErrorKind]] = [
    ("overloaded_error: Overloaded", "overloaded"), ("The model is experiencing high demand", "overloaded"), ("Server busy", "overloaded"),
    ("Rate limit reached", "rate_limit"), ("Too many requests", "rate_limit"), ("ResourceExhausted", "rate_limit"),
    ("the server asks for a retry delay of 5 s", "rate_limit"), ("HTTP 429", "rate_limit"), ("Please retry your request", "rate_limit"),
    ("HTTP 503: nope", "server"), ("status=502", "server"), ("Service unavailable", "server"), ("Internal error", "server"),
    ("Provider returned error", "server"), ("upstream connect error", "server"), ("error code: 524", "server"),
    ("socket hang up", "network"), ("Connection error.", "network"), ("connection refused", "network"), ("fetch failed", "network"),
    ("other side closed", "network"), ("getaddrinfo ENOTFOUND api.x", "network"), ("read ECONNRESET", "network"), ("terminated", "network"),
    ("websocket closed 1006", "network"), ("peer closed connection without sending complete message body", "network"),
    ("Server disconnected without sending a response.", "network"), ("ConnectError", "network"), ("HTTP2 request got no response", "network"),
    ("The operation timed out", "timeout"), ("timeout", "timeout"), ("ReadTimeout", "timeout"),
    ("Stream ended without finish_reason", "incomplete"), ("Anthropic stream ended before message_stop", "incomplete"),
    ("OpenAI stream ended before a terminal response event", "incomplete"), ("stream disconnected before completion", "incomplete"),
    ("prompt is too long: 5 > 4", "overflow"), ("GoUsageLimitError: no", "quota"), ("monthly usage limit reached", "quota"),
    ("insufficient_quota", "quota"), ("Insufficient credits", "quota"), ("out of budget", "quota"), ("Quota exceeded", "quota"),
    ("please check your billing", "quota"), ("available balance is too low", "quota"),
    ("Request was aborted", "unknown"), ("request id 15003x", "unknown"), ("req_500a failed", "unknown"), ("bad thing at id 5021", "unknown"),
    ("see https://platform.example.com/account/billing", "unknown"), ("", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), TEXTS)
def test_a_sentence_alone_is_classified(text: str, kind: ErrorKind) -> None:
    """05 sc. 128, 129: the text table row by row; numbers inside ids say nothing."""
    assert classify_text(text) == kind


BODIES: list[tuple[object, str, tuple[str, ...]]] = [
    ({"error": {"message": "m", "type": "t", "code": "c"}}, "m", ("c", "t")),
    ({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, "m", ("overloaded_error",)),
    ({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}, "m", ("resource_exhausted",)),
    ([{"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}}], "m", ("invalid_argument",)),
    ({"error": "model not loaded"}, "model not loaded", ()),
    ({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, "m", ("badrequesterror",)),
    ({"message": "m", "__type": "com.amazon#ThrottlingException"}, "m", ("throttlingexception",)),
    ({"detail": "m"}, "m", ()),
    ({"detail": [{"msg": "bad", "loc": ["body"]}]}, '[{"msg":"bad","loc":["body"]}]', ()),
    ({"errors": [{"message": "m", "code": 7000}]}, "m", ()),
    ({"error": {"message": "Provider returned error", "metadata": {"raw": "deep reason"}}}, "Provider returned error\ndeep reason", ()),
    ({"weird": 1}, '{"weird":1}', ()),
    ("plain", "plain", ()),
    (None, "", ()),
]


@pytest.mark.parametrize(("value", "message", "codes"), BODIES)
def test_error_bodies_of_every_shape_are_read(value: object, message: str, codes: tuple[str, ...]) -> None:
    """05 §6.4: the sentence and the codes are found in every known shape; an unknown one is shown as it is."""
    seen = read_error_body(json.dumps(value))
    assert (seen.message, seen.codes) == (message, codes)


def test_html_and_long_bodies_are_shortened() -> None:
    """An HTML page is named by its title; a long text is cut with the number of what was cut."""
    assert read_error_body(b"<!DOCTYPE html><title>502 Bad\n Gateway</title>").message == "the server answered with an HTML page: 502 Bad Gateway"
    assert read_error_body("x" * 5000).message == "x" * 4000 + "… (1000 more characters)"
    assert read_error_body(b"\xff\xfe").message


def test_the_failure_says_who_what_and_why() -> None:
    """05 §6.4: provider, status, code and sentence; for a refused key also what to do."""
    failure = http_failure(401, {}, b'{"error": {"message": "Incorrect key", "code": "invalid_api_key"}}', provider="openai")
    assert str(failure) == "openai error (401 invalid_api_key): Incorrect key. Check the API key that is used for openai."
    assert (failure.info.kind, failure.info.status) == ("auth", 401)
    assert str(http_failure(502, {}, b"", provider="x")) == "x error (502): the server gave no details"


def test_an_error_inside_a_good_stream_is_classified_by_its_type() -> None:
    """B48: the type counts, not HTTP 200; type and text are in the message."""
    failure = event_failure({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, provider="anthropic")
    assert (failure.info.kind, "Overloaded" in str(failure)) == ("overloaded", True)
    assert event_failure({"error": {"type": "invalid_request_error", "message": "m"}}, provider="a").info.kind == "invalid_request"
    assert event_failure({"error": {"code": 502, "message": "m"}}, provider="a").info.status == 502
    text = event_failure({"error": {"code": "429", "message": "m"}}, provider="a")
    assert (str(text), text.info.kind) == ("a error (429): m", "rate_limit")
    assert event_failure({"error": {"code": True, "status": 7, "message": "m"}}, provider="a").info.status is None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "30"}, 30_000),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1500),
        ({"retry-after": "1.5"}, 1500),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:20 GMT", "date": "Thu, 01 Jan 2026 00:00:00 GMT"}, 20_000),
        ({"retry-after": "Thu, 01 Jan 1970 00:16:40 GMT"}, 20_000),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, None),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2000),
        ({}, None),
    ],
)
def test_the_wait_that_headers_ask_for(headers: dict[str, str], expected: int | None) -> None:
    """B50: milliseconds, seconds, dates (by the server's own clock); nonsense is no request."""
    assert retry_after_ms(headers, now=980.0) == expected


def test_the_wait_may_stand_in_the_body() -> None:
    """Some providers say how long to wait only in the body."""
    google = {"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": [{"retryDelay": "34.5s"}]}}
    assert http_failure(429, {}, json.dumps(google).encode(), provider="google").info.retry_after_ms == 34_500
    text = {"error": {"message": "Rate limit reached. Please try again in 6m3.5s."}}
    assert http_failure(429, {}, json.dumps(text).encode(), provider="openai").info.retry_after_ms == 363_500


def test_secrets_are_cut_out() -> None:
    """Decision 14: neither a known secret nor what looks like a key stays in a text."""
    assert redact("key planted-secret-1 here", ["planted-secret-1"]) == "key *** here"
    assert "abcdefgh12345" not in redact("Authorization: Bearer abcdefgh12345")
    assert "abcdefgh12345" not in redact("sk-proj-abcdefgh12345 and https://x/y?key=abcdefgh12345&z=1")
    failure = http_failure(401, {}, b'{"error": {"message": "bad key planted-secret-1"}}', provider="x", secrets=["planted-secret-1"])
    assert "planted-secret-1" not in str(failure)


def test_exceptions_have_a_kind_and_their_reason() -> None:
    """05 §6.4: "Connection error." keeps the reason at the bottom of its chain."""
    error = ConnectionError("Connection error.")
    error.__cause__ = OSError("name or service not known")
    failure = transport_failure(error, provider="x", doing="the request")
    assert (failure.info.kind, str(failure)) == ("network", "x: the request failed: Connection error. (name or service not known)")
    assert exception_kind(TimeoutError()) == "timeout"
    assert exception_kind(KeyError("a")) == "unknown"
    assert str(transport_failure(TimeoutError(), provider="x", doing="it")) == "x: it failed: TimeoutError"
