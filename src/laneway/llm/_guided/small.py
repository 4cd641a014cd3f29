"""The conversation as a very small model can use it: short, with examples in place of rules.

Two kinds of request. To choose, the model sees a few examples that are most like the request and says what it would do. To answer, it
sees only the question and what the tool gave. What it was found to do, and what makes it fail, is in the package's tests.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

from laneway.llm._guided._examples import ANSWERS, CALLS, RESULTS, Reply
from laneway.llm._guided.dialogue import plain_text, reply_text, said
from laneway.llm._guided.schema import Schema, call_schema, mentioned_files, needs_file, response_schema, short_arguments
from laneway.llm.base import Model
from laneway.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolDeclaration, ToolResultMessage, UserMessage

Example = tuple[str, Reply]
EXAMPLES = 5
STOP = "\n\n"
_ANSWER_PROMPT = "You answer questions from tool results. Be short and quote the result."
_TOKEN = re.compile(r"PATHX|[a-z]+|\d+")
_BLANKS = re.compile(r"\n\s*\n+")


def choice_schema(request: str, tools: Sequence[ToolDeclaration], *, answer: bool) -> Schema:
    """Return what may be chosen: tools that need a file only where the request names one, and then no answer without looking."""
    files = mentioned_files(request)
    short = ((tool, short_arguments(tool, request)) for tool in tools)
    calls = [call_schema(tool, arguments) for tool, arguments in short if arguments is not None]
    look_first = bool(files) and any(needs_file(tool) for tool in tools)
    return response_schema(calls, answer=answer and not look_first)


def choice_messages(request: str, tools: Sequence[ToolDeclaration], model: Model) -> list[Message]:
    """Return the messages of a request to choose."""
    prompt = f"You are a helpful assistant with tools. Use a tool when the question is about files. Tools: {', '.join(tool.name for tool in tools)}"
    told: list[Message] = [SystemMessage(content=prompt, timestamp=0)]
    for question, reply in nearest_examples(request, tools):
        told += [UserMessage(content=question, timestamp=0), said(model, reply_text(reply))]
    return [*told, UserMessage(content=request, timestamp=0)]


def answer_messages(request: str, results: Sequence[tuple[ToolCall | None, ToolResultMessage]], model: Model, limit: int) -> list[Message]:
    """Return the messages of a request to answer from results."""
    told: list[Message] = [SystemMessage(content=_ANSWER_PROMPT, timestamp=0)]
    for question, tool, about, text, answer in RESULTS:
        told += [UserMessage(content=_told_result(question, [(tool, about, text)]), timestamp=0), said(model, answer)]
    given = [(result.tool_name, _about(call), _BLANKS.sub("\n", plain_text(result, limit)).strip() or "(nothing)") for call, result in results]
    return [*told, UserMessage(content=_told_result(request, given), timestamp=0)]


def _told_result(question: str, results: Iterable[tuple[str, str, str]]) -> str:
    return f"Question: {question}" + "".join(f"\n\n{tool} {about} gave:\n{text}" for tool, about, text in results)


def _about(call: ToolCall | None) -> str:
    """What a call was about, in a word: its first argument."""
    return str(next(iter(call.arguments.values()), "")) if call is not None else ""


def last_request(messages: Sequence[Message]) -> tuple[str, list[tuple[ToolCall | None, ToolResultMessage]]]:
    """Return the text of the last user message, and the calls since then with their results."""
    request, results = "", list[tuple["ToolCall | None", ToolResultMessage]]()
    calls: dict[str, ToolCall] = {}
    for message in messages:
        if isinstance(message, UserMessage):
            request, results = plain_text(message), []
        elif isinstance(message, AssistantMessage):
            calls = {call.id: call for call in message.tool_calls}
        elif isinstance(message, ToolResultMessage):
            results.append((calls.get(message.tool_call_id), message))
    return request, results


# ---------------------------------------------------------------------------------------------------- examples


def nearest_examples(request: str, tools: Sequence[ToolDeclaration]) -> list[Example]:
    """Return the examples most like the request, the nearest last; at least one calls a tool and one answers."""
    pool = [*ANSWERS, *(example for tool in tools for example in CALLS.get(tool.name) or _made_up(tool))]
    wanted = _words(request)
    seen = Counter(word for question, _ in pool for word in _words(question))

    def weight(words: Iterable[str]) -> float:
        return sum((math.log(1 + len(pool) / seen.get(word, 0.5)) * (1.5 if word == "PATHX" else 1)) ** 2 for word in words)

    def likeness(example: Example) -> float:
        words = _words(example[0])
        return weight(wanted & words) / math.sqrt(weight(wanted) * weight(words) or 1)

    ranked = sorted(pool, key=likeness, reverse=True)
    chosen = ranked[:EXAMPLES]
    for kind in ("answer", "tool"):
        if not any(kind in reply for _, reply in chosen):
            chosen += [next(example for example in ranked if kind in example[1])] if any(kind in reply for _, reply in pool) else []
    return sorted(chosen, key=likeness)


def _words(text: str) -> frozenset[str]:
    """The words of a text as examples are compared by: beginnings of words, one word for any file, one for any number."""
    text = text.lower()
    for file in mentioned_files(text):
        text = text.replace(file, " PATHX ")
    return frozenset("NUM" if word.isdigit() else word if word == "PATHX" else word[:5] for word in _TOKEN.findall(text))


def _made_up(tool: ToolDeclaration) -> list[Example]:
    """An example for a tool that has none: its own description as the request, and something in each argument that it needs."""
    properties: dict[str, Any] = tool.parameters.get("properties") or {}
    required = [name for name in tool.parameters.get("required") or () if name in properties]
    arguments = {name: _sample(name, properties[name]) for name in required or list(properties)[:1]}
    sentence = re.split(r"[.\n]", tool.description or tool.name.replace("_", " "), maxsplit=1)[0]
    about = ", ".join(str(value) for value in arguments.values())
    return [(f"{sentence}: {about}" if about else sentence, {"tool": tool.name, "arguments": arguments})]


def _sample(name: str, schema: Any) -> Any:
    """Something that fits an argument: what its schema offers, else a value of its type."""
    given = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    for key in ("default", "const"):
        if given.get(key) is not None:
            return given[key]
    choices: list[Any] = given.get("enum") or given.get("examples") or []
    samples: dict[Any, Any] = {"integer": 3, "number": 3.5, "boolean": True, "array": [], "object": {}, "null": None}
    return choices[0] if choices else samples.get(str(given.get("type")), f"some {name.replace('_', ' ')}")
