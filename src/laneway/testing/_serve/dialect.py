"""What the wires have in common on the server's side: where requests arrive, what is refused, how a response and an error are said.

A wire is a `Dialect` (the rules) and a `Speaker` (one response). They know nothing of sockets: bytes come out.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, cast

from laneway.messages import ErrorKind, Usage
from laneway.testing._serve.plan import Block, End, Failure, Plan

STATUSES: dict[ErrorKind, int] = {
    "auth": 401, "quota": 429, "rate_limit": 429, "overloaded": 503, "server": 500, "timeout": 504, "not_found": 404, "invalid_request": 400,
    "overflow": 400, "content_filter": 400, "image": 400, "configuration": 400,
}  # fmt: skip
"""The HTTP status of a failure that names none; 500 for the other kinds."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def sentence(failure: Failure) -> str:
    """Return what the wires say that have no code for a refused image: only the sentence tells."""
    return f"Could not process image: {failure.message}" if failure.kind == "image" else failure.message


class Refused(Exception):
    """A request that the provider would refuse, and how."""

    def __init__(self, message: str, *, kind: ErrorKind = "invalid_request", status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(message=message, kind=kind, status=status, code=code)


class Speaker(ABC):
    """Says one response in the wire's words. Every method returns what goes out, which may be nothing."""

    def __init__(self, plan: Plan, *, number: int, model: str, body: dict[str, Any]) -> None:
        self.plan = plan
        self.number = number
        self.model = model
        self.body = body

    def begin(self) -> bytes:
        """The events before the first block."""
        return b""

    def open(self, block: Block) -> bytes:
        """The start of a block."""
        return b""

    @abstractmethod
    def delta(self, block: Block, text: str) -> bytes:
        """A piece of a block."""

    def close(self, block: Block) -> bytes:
        """The end of a block."""
        return b""

    @abstractmethod
    def end(self, end: End) -> bytes:
        """The end of the response."""

    @abstractmethod
    def fail(self, failure: Failure) -> bytes:
        """An error in the middle of the response, after which nothing comes."""


class Dialect(ABC):
    """The rules of one wire.

    `base_path` goes behind the server's address to make the base URL; `url_variable` and `key_variable` are the environment variables of its
    vendor; `key_headers` may carry the key, and the first of them does in `model()`. `needs_key`: the client asks for nothing without one.
    """

    name: str
    base_path = ""
    url_variable: str
    key_variable: str
    key_headers: tuple[str, ...] = ("authorization",)
    needs_key = False
    content_type = "text/event-stream"
    speaker: type[Speaker]

    def call_id(self, number: int) -> str:
        """Return the id of the n-th call that was given none."""
        return f"call_{number}"

    @abstractmethod
    def model_of(self, method: str, path: str, query: Mapping[str, str], body: dict[str, Any]) -> str:
        """Return the model that is asked for.

        Raises:
            Refused: the request is not the one that this wire has.
        """

    @abstractmethod
    def check(self, body: dict[str, Any], model: str, headers: Mapping[str, str]) -> None:
        """Check a request as the provider does.

        Raises:
            Refused: it would be refused.
        """

    def check_plan(self, plan: Plan) -> None:  # noqa: B027 - most wires can say everything
        """Check that the wire can say a response.

        Raises:
            ScriptError: it cannot.
        """

    @abstractmethod
    def error(self, failure: Failure, status: int) -> tuple[dict[str, str], Any]:
        """Return headers and body (as JSON) of an error answer."""

    def status_of(self, failure: Failure) -> int:
        """Return the HTTP status of a failure."""
        return failure.status or STATUSES.get(failure.kind, 500)

    def keys_in(self, headers: Mapping[str, str]) -> list[str]:
        """Return the keys that a request brings."""
        found = (headers.get(name, "") for name in self.key_headers)
        return [value.partition(" ")[2] if value.lower().startswith("bearer ") else value for value in found if value]

    def key_header(self, key: str) -> dict[str, str]:
        """Return the header with which a request brings a key."""
        name = self.key_headers[0]
        return {name: f"Bearer {key}" if name == "authorization" else key}


# ---------------------------------------------------------------------------------------------------- bytes


def compact(value: Any) -> str:
    """Write JSON without spaces."""
    return _ENCODER.encode(value)


def sse(value: Any, name: str | None = None) -> bytes:
    """Write one server-sent event."""
    data = value if isinstance(value, str) else compact(value)
    return f"{f'event: {name}' + chr(10) if name else ''}data: {data}\n\n".encode("utf-8", "replace")


def prompt_tokens(usage: Usage) -> int:
    """All tokens of the prompt, those of the cache included."""
    return usage.input + usage.cache_read + usage.cache_write


def arguments_object(block: Block) -> dict[str, Any] | None:
    """Return a call's arguments, None if its text is no JSON object."""
    try:
        value = json.loads(block.text or "{}")
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


# ---------------------------------------------------------------------------------------------------- checks


def refuse(message: str, **more: Any) -> NoReturn:
    """Refuse a request."""
    raise Refused(message, **more)


def expect_post(method: str, path: str, wanted: str) -> None:
    """Refuse what is not a POST to `wanted`."""
    if path != wanted:
        refuse(f"there is nothing at {path}; this server answers POST {wanted}: check the base URL", kind="not_found")
    if method != "POST":
        refuse(f"{wanted} takes POST, not {method}", status=405)


def fields(value: Any) -> dict[str, Any]:
    """Return an object, an empty one in the place of anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def text_field(body: Mapping[str, Any], name: str, where: str = "") -> str:
    """Return a field that must be a text with something in it."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        refuse(f"{where}{name}: a non-empty string is required")
    return value


def object_list(body: Mapping[str, Any], name: str, where: str = "", *, empty: bool = False) -> list[dict[str, Any]]:
    """Return a field that must be a list of objects, one at least unless `empty`."""
    value = body.get(name)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in cast("list[Any]", value)):
        refuse(f"{where}{name}: a list of objects is required")
    if not value and not empty:
        refuse(f"{where}{name}: at least one item is required")
    return cast("list[dict[str, Any]]", value)


def streams(body: Mapping[str, Any]) -> None:
    """Refuse a request that does not ask for a stream."""
    if body.get("stream") is not True:
        refuse("stream: this server only streams; send `true`")


def tool_names(names: Iterable[Any]) -> None:
    """Refuse tools whose names are illegal or not distinct."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if not isinstance(name, str) or not NAME.match(name):
            refuse(f"tools.{index}.name: {name!r} does not match the pattern ^[a-zA-Z0-9_-]{{1,64}}$")
        if name in seen:
            refuse(f"tools: names must be unique, and {name!r} is there twice")
        seen.add(name)
