"""Messages and content blocks: what a conversation is made of, and how it is stored.

Every type is a frozen, keyword-only `msgspec.Struct`. Blocks are tagged on `type`, messages on `role`; both tags are also
readable attributes. Decoding is strict: an unknown role, an unknown field or a wrong type is a `MessageError`
that names the place, never a surprise later. Encoding then decoding then encoding gives the same bytes.

Times are Unix milliseconds, token counts are integers, costs are US dollars.
"""

from __future__ import annotations

import copy
import re
import time
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, Union, cast, get_args

import msgspec
from msgspec import Struct, field

from laneway.errors import MessageError

StopReason = Literal["pending", "stop", "length", "tool_use", "error", "aborted", "deferred"]
ErrorKind = Literal[
    "overflow", "rate_limit", "overloaded", "quota", "auth", "invalid_request", "not_found", "content_filter", "image",
    "network", "timeout", "incomplete", "server", "protocol", "configuration", "unknown",
]  # fmt: skip
"""What kind of failure ended a response; `laneway.llm` decides which kinds are worth a retry.

"image": the provider refused an image of the request; later requests are sent without it (see `laneway.transcript.normalise`).
"""


def now_ms() -> int:
    """Return the current time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


# ---------------------------------------------------------------------------------------------------- content blocks


class _Value(Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Base of plain value types. `gc=False`: JSON data is never part of a reference cycle."""


class _Block(_Value, kw_only=True, frozen=True, tag_field="type"):
    """Base of content blocks."""


class TextContent(_Block, kw_only=True, frozen=True, tag="text"):
    """Text. `signature` is the provider's own metadata and is only ever sent back to the model that made it."""

    type: ClassVar[Literal["text"]] = "text"
    text: str
    signature: str | None = None


class ThinkingContent(_Block, kw_only=True, frozen=True, tag="thinking"):
    """The model's reasoning. With `redacted` the text is only a placeholder and the payload is in `signature`."""

    type: ClassVar[Literal["thinking"]] = "thinking"
    thinking: str
    signature: str | None = None
    redacted: bool = False


class ImageContent(_Block, kw_only=True, frozen=True, tag="image"):
    """An image: `data` is base64 without a `data:` prefix."""

    type: ClassVar[Literal["image"]] = "image"
    data: str
    mime_type: str


class ToolCall(_Block, kw_only=True, frozen=True, tag="tool_call"):
    """The model's request to call a tool.

    `arguments` is always an object. Arguments that could not be parsed are `{}` with the reason (and the text
    received) in `arguments_error`; such a call is answered with an error and never executed.
    """

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    arguments_error: str | None = None
    signature: str | None = None


AssistantContent: TypeAlias = TextContent | ThinkingContent | ToolCall
UserContent: TypeAlias = TextContent | ImageContent


# ---------------------------------------------------------------------------------------------------- usage


class Cost(_Value, kw_only=True, frozen=True):
    """US dollars. `total_from_provider`: the total is what was billed, not worked out from prices; a sum does not say so."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0
    total: float = 0.0
    total_from_provider: bool = False

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            total=self.total + other.total,
        )


class Usage(_Value, kw_only=True, frozen=True):
    """Tokens and cost of one response. `input` excludes cache reads and writes; `output` includes `reasoning`.

    `cache_write_1h` is the part of `cache_write` kept for an hour. Optional counts are None when the provider
    did not report them.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int | None = None
    reasoning: int | None = None
    total_tokens: int = 0
    cost: Cost = field(default_factory=Cost)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            cache_write_1h=_add_optional(self.cache_write_1h, other.cache_write_1h),
            reasoning=_add_optional(self.reasoning, other.reasoning),
            total_tokens=self.total_tokens + other.total_tokens,
            cost=self.cost + other.cost,
        )


def _add_optional(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


# ---------------------------------------------------------------------------------------------------- messages


class ToolGrammar(_Value, kw_only=True, frozen=True):
    """What a tool's text must look like, in the notations that providers take; where both are given and taken, Lark goes first."""

    lark: str | None = None
    regex: str | None = None


class ToolDeclaration(_Value, kw_only=True, frozen=True):
    """A tool as the model sees it; `parameters` is a JSON Schema object. `strict` asks the provider to follow it to the letter.

    `grammar` is for a tool whose only parameter is a required string: a model that can is held to it and writes the text as it is, not as JSON;
    other models get the parameters.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool | None = None
    grammar: ToolGrammar | None = None


class DeferredHandle(_Value, kw_only=True, frozen=True):
    """Names a response that the provider completes later."""

    id: str
    provider: str
    model_id: str
    api: str
    data: Any = None


class ErrorInfo(_Value, kw_only=True, frozen=True):
    """The machine-readable side of `AssistantMessage.error_message`.

    `retry_after_ms` is the wait that the provider asked for.
    """

    kind: ErrorKind = "unknown"
    status: int | None = None
    retry_after_ms: int | None = None


class _Message(_Value, kw_only=True, frozen=True, tag_field="role"):
    """Base of the four built-in messages."""


class SystemMessage(_Message, kw_only=True, frozen=True, tag="system"):
    """Instructions and tool declarations; the transcript's system messages are replayed in order.

    `content` adds to the prompt, `sections` replace by name (None removes one), `tools_removed` then `tools_added`
    change what the model may call. See `laneway.transcript`.
    """

    role: ClassVar[Literal["system"]] = "system"
    content: str = ""
    sections: dict[str, str | None] | None = None
    tools_added: list[ToolDeclaration] | None = None
    tools_removed: list[str] | None = None
    timestamp: int = field(default_factory=now_ms)

    @property
    def text(self) -> str:
        """What it adds to the prompt, without its sections."""
        return self.content


class UserMessage(_Message, kw_only=True, frozen=True, tag="user"):
    """What a person (or the application for them) says."""

    role: ClassVar[Literal["user"]] = "user"
    content: str | list[TextContent | ImageContent]
    timestamp: int = field(default_factory=now_ms)

    @property
    def text(self) -> str:
        """All text of the message, without images."""
        return self.content if isinstance(self.content, str) else _text_of(self.content)


class AssistantMessage(_Message, kw_only=True, frozen=True, tag="assistant"):
    """One response of a model. `stop_reason` is "pending" only while it streams; `error_message` explains "error"."""

    role: ClassVar[Literal["assistant"]] = "assistant"
    content: list[TextContent | ThinkingContent | ToolCall]
    api: str = ""
    provider: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    stop_reason: StopReason = "stop"
    error_message: str | None = None
    error: ErrorInfo | None = None
    response_id: str | None = None
    response_model: str | None = None
    raw_stop_reason: str | None = None
    thinking_level: str | None = None
    diagnostics: list[str] | None = None
    deferred: DeferredHandle | None = None
    timestamp: int = field(default_factory=now_ms)

    @property
    def text(self) -> str:
        """All text blocks joined, without thinking."""
        content: list[Any] = self.content
        return "".join([block.text for block in content if type(block) is TextContent])

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls, in order."""
        content: list[Any] = self.content
        calls: list[ToolCall] = []
        for block in content:  # not a comprehension: before Python 3.12 that is a call of its own, and every turn asks
            if type(block) is ToolCall:
                calls.append(block)
        return calls


class ToolResultMessage(_Message, kw_only=True, frozen=True, tag="tool_result"):
    """The answer to one tool call. `details` is any JSON value for the application; the model never sees it."""

    role: ClassVar[Literal["tool_result"]] = "tool_result"
    tool_call_id: str
    tool_name: str
    content: list[TextContent | ImageContent] = field(default_factory=list[TextContent | ImageContent])
    details: Any = None
    usage: Usage | None = None
    is_error: bool = False
    timestamp: int = field(default_factory=now_ms)

    @property
    def text(self) -> str:
        """All text of the result, without images."""
        return _text_of(self.content)


class ToolResult(_Value, kw_only=True, frozen=True):
    """What a tool returns. `terminate` hints that no further model call is needed (it counts only if unanimous)."""

    content: list[TextContent | ImageContent] = field(default_factory=list[TextContent | ImageContent])
    details: Any = None
    terminate: bool = False
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """All text of the result, without images."""
        return _text_of(self.content)


def _text_of(content: list[TextContent | ImageContent]) -> str:
    return "".join(block.text for block in content if isinstance(block, TextContent))


# ---------------------------------------------------------------------------------------------------- custom roles


class CustomMessage(_Message, kw_only=True, frozen=True, tag="custom"):
    """Application content that the model reads as a user message."""

    role: ClassVar[Literal["custom"]] = "custom"
    custom_type: str
    content: str | list[TextContent | ImageContent]
    details: Any = None
    timestamp: int = field(default_factory=now_ms)

    @property
    def text(self) -> str:
        """All text of the message, without images."""
        return self.content if isinstance(self.content, str) else _text_of(self.content)


class BashExecutionMessage(_Message, kw_only=True, frozen=True, tag="bash_execution"):
    """A command that the person ran; the model reads it as a user message unless `exclude_from_context`."""

    role: ClassVar[Literal["bash_execution"]] = "bash_execution"
    command: str
    output: str = ""
    exit_code: int | None = None
    cancelled: bool = False
    truncated: bool = False
    full_output_path: str | None = None
    exclude_from_context: bool = False
    timestamp: int = field(default_factory=now_ms)

    @property
    def text(self) -> str:
        """What the command wrote."""
        return self.output


class CompactionSummaryMessage(_Message, kw_only=True, frozen=True, tag="compaction_summary"):
    """Stands in a context for everything that a compaction replaced."""

    role: ClassVar[Literal["compaction_summary"]] = "compaction_summary"
    summary: str
    tokens_before: int = 0
    timestamp: int = field(default_factory=now_ms)

    @property
    def text(self) -> str:
        """The summary."""
        return self.summary


class BranchSummaryMessage(_Message, kw_only=True, frozen=True, tag="branch_summary"):
    """Stands in a context for a branch that was left."""

    role: ClassVar[Literal["branch_summary"]] = "branch_summary"
    summary: str
    from_id: str | None = None
    timestamp: int = field(default_factory=now_ms)

    @property
    def text(self) -> str:
        """The summary."""
        return self.summary


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolResultMessage
"""What a provider understands."""
AgentMessage: TypeAlias = (
    Message | CustomMessage | BashExecutionMessage | CompactionSummaryMessage | BranchSummaryMessage | Any
)
"""A `Message` or any registered custom message (a Struct with a `role` tag of its own; Any for type checkers)."""

_BUILT_IN: tuple[type[Struct], ...] = (*get_args(Message), CustomMessage, BashExecutionMessage, CompactionSummaryMessage, BranchSummaryMessage)
_registered: dict[str, type[Struct]] = {}
_decoder: msgspec.json.Decoder[Any] | None = None
_encoder = msgspec.json.Encoder()
_M = TypeVar("_M", bound=type[Struct])


def role_of(message: object) -> str | None:
    """Return the role of any message, custom ones included; None if it has none."""
    config = getattr(message, "__struct_config__", None)
    if config is not None and config.tag_field == "role":
        return cast(str, config.tag)
    return getattr(message, "role", None)


def register_message(cls: _M) -> _M:
    """Register a custom message: a `msgspec.Struct` with `tag_field="role"` and a role of its own. Usable as a decorator.

    It can then be stored, decoded and put into a transcript. A provider sees it only if `convert_to_llm` (loop, Agent)
    or `to_provider_messages` (harness) turns it into a built-in message. Registering the same class again is fine.

    Raises:
        ValueError: the class has no `role` tag, or another class already has that role.
    """
    global _decoder
    config = getattr(cls, "__struct_config__", None)
    if config is None or config.tag_field != "role" or not isinstance(config.tag, str):
        raise ValueError(f"{cls.__name__} cannot be registered: declare it as a msgspec.Struct with tag_field='role' and tag='your-role'")
    role = config.tag
    if role in {c.__struct_config__.tag for c in _BUILT_IN}:
        raise ValueError(f"{cls.__name__} cannot be registered: {role!r} is a built-in role; choose another tag")
    known = _registered.get(role)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"{cls.__name__} cannot be registered: {role!r} already belongs to {known.__qualname__}; choose another tag")
    _registered[role] = cls
    if not hasattr(cls, "role"):
        cls.role = role  # pyright: ignore[reportAttributeAccessIssue] - the tag as a readable attribute, as built-in messages have it
    _decoder = None
    return cls


def known_roles() -> list[str]:
    """Return every role that can be stored, built-in ones first."""
    return [cast(str, c.__struct_config__.tag) for c in _BUILT_IN] + list(_registered)


def is_message(value: object) -> bool:
    """Whether `value` is a built-in or registered message."""
    return isinstance(value, _BUILT_IN) or type(value) in _registered.values()


# ---------------------------------------------------------------------------------------------------- codec

_SURROGATES = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Join split surrogate pairs and replace lone surrogates by U+FFFD, so that the text can be encoded as UTF-8."""
    if not _SURROGATES.search(text):
        return text
    return _SURROGATES.sub("\ufffd", text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def clean_json(value: Any) -> Any:
    """Return `value` (JSON data) with every string, keys included, passed through `clean_text`."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(k) if isinstance(k, str) else k: clean_json(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [clean_json(v) for v in cast("list[Any]", value)]
    return value


def encode(obj: Any) -> bytes:
    """Encode a message, block, event or any JSON value as compact UTF-8 JSON.

    Lone surrogates, which UTF-8 cannot hold, become U+FFFD.

    Raises:
        MessageError: something in it is not JSON.
    """
    if isinstance(obj, AssistantMessage) and type(obj) is not AssistantMessage:
        obj = copy.copy(obj)  # a message that still streams copies itself as a plain message of this moment
    try:
        return _encoder.encode(obj)
    except UnicodeEncodeError:
        return _encoder.encode(clean_json(msgspec.to_builtins(obj)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"cannot encode {type(obj).__name__}: {error}") from error


def decode_message(data: bytes | str) -> AgentMessage:
    """Decode one message, strictly.

    Raises:
        MessageError: not JSON, an unknown role, an unknown or missing field, a wrong type; the text names the place.
    """
    global _decoder
    if _decoder is None:
        _decoder = msgspec.json.Decoder(Union[(*_BUILT_IN, *_registered.values())])
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "; register_message() must know every custom role before its messages are read" if "$.role" in str(error) else ""
        raise MessageError(f"cannot decode a message: {error}{hint}") from error
