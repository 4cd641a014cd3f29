"""Answers of a provider on loopback, in the words of a test."""

from __future__ import annotations

import json
from typing import Any

from llm.chat import chunk, fragment, tools, usage
from llm.loopback import Answer, Loopback, sse_reply

END = ("[DONE]",)


def saying(*pieces: Any, finish: str = "stop") -> Answer:
    """An answer in pieces of text; numbers and events are steps of the server's own."""
    return sse_reply(*(chunk(piece) if isinstance(piece, str) else piece for piece in pieces), chunk(finish=finish), usage(prompt_tokens=9), *END)


def calling(name: str, arguments: Any, *, call_id: str = "call_1", text: str | None = None) -> Answer:
    """An answer that calls one tool; `arguments` may be any text."""
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
    said = [chunk(text)] if text else []
    return sse_reply(*said, tools(fragment(raw, index=0, call_id=call_id, name=name)), chunk(finish="tool_calls"), usage(prompt_tokens=9), *END)


def at(server: Loopback, env: dict[str, str]) -> dict[str, str]:
    """The environment in which `custom/m` is the server's model."""
    return {**env, "LANEWAY_CUSTOM_BASE_URL": server.url}


def asked(server: Loopback, number: int = -1) -> list[Any]:
    """The messages of a request, without the system prompt."""
    return [message for message in server.requests[number].json["messages"] if message["role"] not in ("system", "developer")]


def text_of(message: Any) -> str:
    """The text of one message of a request."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
