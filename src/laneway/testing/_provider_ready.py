"""The check of what providers refuse in a list of messages, for asserting that a transcript can be sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from laneway.llm.base import Model
from laneway.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolResultMessage,
    UserMessage,
    role_of,
)


@dataclass(frozen=True, slots=True)
class _Limits:
    """What an API takes as a tool-call id and as a tool name."""

    id_length: int = 64
    id_characters: str = "A-Za-z0-9_-"
    name_length: int = 64
    name_characters: str = "A-Za-z0-9_-"


_LIMITS: dict[str, _Limits] = {
    "any": _Limits(id_length=40),  # what Chat Completions, Responses, Anthropic and Google all take
    "scripted": _Limits(),
    "openai_chat": _Limits(id_length=40),
    "openai_responses": _Limits(),
    "azure": _Limits(),
    "anthropic_messages": _Limits(),
    "google_generate": _Limits(name_characters="A-Za-z0-9_.:-"),
    "google_vertex": _Limits(name_characters="A-Za-z0-9_.:-"),
    "bedrock_converse": _Limits(),
    "mistral": _Limits(id_length=9, id_characters="A-Za-z0-9"),
}


def provider_ready(messages: Sequence[Message], api: str = "any", *, model: Model | None = None) -> list[str]:
    """Return what a provider would refuse in these messages, one sentence per problem; [] is good.

    Checked: each tool call has exactly one result, directly after its message and in the order of the calls, and no result
    stands elsewhere; nothing is empty or blank; no response that failed or is unfinished is there; the last message is a user
    message or a tool result; ids and tool names are within the limits of `api` (a wire's name; "any": the strictest of the common ones)
    and ids are distinct; thinking is signed, and by one model (by `model`, if given); everything is UTF-8 and strict JSON.
    System messages may stand anywhere but between a call and its result.

    Raises:
        ValueError: no such API.
    """
    if api not in _LIMITS:
        raise ValueError(f"provider_ready knows no API {api!r}; choose one of {', '.join(_LIMITS)}")
    problems = [problem for index, message in enumerate(messages) for problem in _about(f"message {index}", message, _LIMITS[api])]
    problems += _pairing(messages)
    problems += _thinking(messages, api, model)
    talk = [(index, message) for index, message in enumerate(messages) if not isinstance(message, SystemMessage)]
    if not talk:
        problems.append("there is nothing to answer: no user message and no tool result")
    elif not isinstance(talk[-1][1], (UserMessage, ToolResultMessage)):
        problems.append(f"message {talk[-1][0]} is the last one and is of role {role_of(talk[-1][1])}; it must be a user message or a tool result")
    return problems


# ---------------------------------------------------------------------------------------------------- one message


def _about(where: str, message: Any, limits: _Limits) -> Iterator[str]:
    if not isinstance(message, (SystemMessage, UserMessage, AssistantMessage, ToolResultMessage)):
        yield f"{where} is of role {role_of(message)!r}, which no provider knows; convert it with convert_to_llm"
        return
    if isinstance(message, SystemMessage):
        for declaration in message.tools_added or ():
            yield from _name(f"{where}: the declared tool", declaration.name, limits)
    else:
        yield from _content(where, message.content)
    if isinstance(message, AssistantMessage):
        if message.stop_reason in ("error", "aborted", "deferred", "pending"):
            yield f"{where} is a response that ended in {message.stop_reason!r}; it must be left out"
        for call in message.tool_calls:
            yield from _id(f"{where}: the tool call", call.id, limits)
            yield from _name(f"{where}: the called tool", call.name, limits)
    if isinstance(message, ToolResultMessage):
        yield from _id(f"{where}: the answered call", message.tool_call_id, limits)
        yield from _name(f"{where}: the tool of the result", message.tool_name, limits)
    yield from _encoding(where, message)


def _content(where: str, content: Any) -> Iterator[str]:
    if isinstance(content, str):
        if not content.strip():
            yield f"{where} is {'blank' if content else 'empty'}"
        return
    if not content:
        yield f"{where} is empty: it has no content"
    for index, block in enumerate(content):
        if isinstance(block, TextContent) and not block.text.strip():
            yield f"{where}, block {index} is {'a blank' if block.text else 'an empty'} text"
        elif isinstance(block, ImageContent) and (not block.data or block.data.startswith("data:") or "/" not in block.mime_type):
            yield f"{where}, block {index} is an image without base64 data or media type"


def _id(what: str, call_id: str, limits: _Limits) -> Iterator[str]:
    if not call_id:
        yield f"{what} has no id"
    elif len(call_id) > limits.id_length:
        yield f"{what} has the id {call_id!r} of {len(call_id)} characters; the limit is {limits.id_length}"
    elif not re.fullmatch(f"[{limits.id_characters}]+", call_id):
        yield f"{what} has the id {call_id!r}; only the characters {limits.id_characters} are allowed"


def _name(what: str, name: str, limits: _Limits) -> Iterator[str]:
    if not name:
        yield f"{what} has no name"
    elif len(name) > limits.name_length:
        yield f"{what} has the name {name!r} of {len(name)} characters; the limit is {limits.name_length}"
    elif not re.fullmatch(f"[{limits.name_characters}]+", name):
        yield f"{what} has the name {name!r}; only the characters {limits.name_characters} are allowed"


def _encoding(where: str, message: Message) -> Iterator[str]:
    try:
        json.dumps(msgspec.to_builtins(message), ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        yield f"{where} has half of a surrogate pair, which UTF-8 cannot hold"
    except (ValueError, TypeError, RecursionError) as error:
        yield f"{where} is not strict JSON ({error})"


# ---------------------------------------------------------------------------------------------------- all messages


def _pairing(messages: Sequence[Message]) -> Iterator[str]:
    """Calls and results, in order. `open_calls` are those of the last response that have no result yet."""
    open_calls: list[str] = []
    answered: set[str] = set()
    asked: dict[str, int] = {}
    for index, message in enumerate(messages):
        if isinstance(message, ToolResultMessage):
            yield from _result(index, message.tool_call_id, open_calls, answered)
            continue
        for call_id in open_calls:
            yield f"the tool call {call_id!r} has no result before message {index}"
        open_calls, answered = [], set()
        if isinstance(message, AssistantMessage):
            open_calls = [call.id for call in message.tool_calls]
            for call_id in open_calls:
                if call_id in asked:
                    where = "twice" if asked[call_id] == index else f"also in message {asked[call_id]}"
                    yield f"message {index} has a tool call with the id {call_id!r}, which is {where}"
                asked[call_id] = index
    for call_id in open_calls:
        yield f"the tool call {call_id!r} has no result"


def _result(index: int, call_id: str, open_calls: list[str], answered: set[str]) -> Iterator[str]:
    if call_id in answered and call_id not in open_calls:
        yield f"message {index} is a second result for the tool call {call_id!r}"
    elif call_id not in open_calls:
        yield f"message {index} is a result for {call_id!r}, which the response before it did not call"
    else:
        if open_calls[0] != call_id:
            yield f"message {index} is the result for {call_id!r}, but {open_calls[0]!r} was called before it: results follow the order of the calls"
        open_calls.remove(call_id)
        answered.add(call_id)


def _thinking(messages: Sequence[Message], api: str, model: Model | None) -> Iterator[str]:
    first: tuple[str, str, str] | None = None if model is None else (model.provider, model.api, model.id)
    for index, message in enumerate(messages):
        if not isinstance(message, AssistantMessage):
            continue
        thoughts = [block for block in message.content if isinstance(block, ThinkingContent)]
        if not thoughts:
            continue
        if any(not block.signature for block in thoughts):
            yield f"message {index} has thinking without a signature"
        maker = (message.provider, message.api, message.model)
        first = first or maker
        if maker != first:
            yield f"message {index} has thinking of {message.provider}/{message.model}, but only thinking of {first[0]}/{first[2]} may be sent"
        elif api not in ("any", message.api):
            yield f"message {index} has thinking of the API {message.api!r}, which {api!r} cannot take"
