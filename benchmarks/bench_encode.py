"""What a request of a long conversation costs, against its floor: one msgspec encode of the same messages, and nothing else.

    python benchmarks/bench_encode.py [--messages 2000] [--repeats 9]

For each wire: the first request (nothing is known), the next one (the conversation has grown by one turn), and the same request again (a retry).
The conversation is another model's, so everything in it is handed off; no response in it reports usage, so its size is estimated. Prints median CPU
times and their ratio to the floor; what counts is the ratio of the next request.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec

from laneway.llm import _thinking, _transform
from laneway.llm._transform import encode_body
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire import wire_names
from laneway.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
)

TARGET = 1.5
VARIANTS: dict[str, dict[str, Any]] = {
    "openai_chat": {"supports_mid_convo_system_messages": True, "supports_mid_convo_tool_additions": True},
    "openai_responses": {"supports_mid_convo_system_messages": True, "supports_additional_tools": True},
    "anthropic_messages": {"supports_mid_convo_system_messages": True, "supports_mid_convo_tool_changes": True},
}
"""Wires that can also keep system messages where they are, which is another way through the code."""


def conversation(count: int) -> list[Message]:
    """About `count` messages: questions, another model's reasoning, text and calls, results."""
    tool = ToolDeclaration(name="read", description="Reads a file.", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
    messages: list[Message] = [SystemMessage(content="You are helpful. " * 50, tools_added=[tool], timestamp=0)]
    for n in range(count // 3):
        call = ToolCall(id=f"call_{n}|fc_{n}", name="read", arguments={"path": f"f{n}"})
        said = [ThinkingContent(thinking="hm " * 20), TextContent(text="I look. " * 10), call]
        result = ToolResultMessage(tool_call_id=call.id, tool_name="read", content=[TextContent(text="line of the file\n" * 20)])
        messages += [UserMessage(content=f"question {n} " * 10), AssistantMessage(content=[*said], provider="other", model="x", api="y"), result]
    return messages


def encoder_of(api: str) -> Callable[[Model, Transcript, StreamOptions], dict[str, Any]]:
    """The wire's `encode`; a wire that stands on another one has none of its own."""
    try:
        return importlib.import_module(f"laneway.llm.wire.{api}.encode").encode
    except ModuleNotFoundError:
        return importlib.import_module("laneway.llm.wire.google_generate.encode").encode


def forget() -> None:
    """Make the next request a first one."""
    _transform._cache.clear()
    _transform._systems._entries.clear()
    _thinking._estimates._entries.clear()


def median(function: Callable[[], Any], repeats: int, prepare: Callable[[], Any] = lambda: None) -> float:
    """Median CPU seconds."""
    times: list[float] = []
    for _ in range(repeats + 1):
        prepare()
        started = time.process_time()
        function()
        times.append(time.process_time() - started)
    return statistics.median(times[1:])


def bench(api: str, compat: dict[str, Any], messages: list[Message], repeats: int) -> float:
    """Print one line; return the ratio of the next request."""
    model = Model(
        id="gemini-3-flash" if api.startswith("google") else "m", provider="bench", api=api, base_url="http://127.0.0.1:1/v1", compat=compat,
        context_window=2_000_000, max_tokens=8000,
    )  # fmt: skip
    encode, options = encoder_of(api), StreamOptions()

    def request(taken: list[Message]) -> bytes:
        return encode_body(encode(model, Transcript(messages=taken), options))

    def begin() -> None:
        forget()
        request(messages[:-3])

    floor = median(lambda: msgspec.json.encode(messages), repeats)
    first = median(lambda: request(messages), repeats, forget)
    following = median(lambda: request(messages), repeats, begin)
    again = median(lambda: request(messages), repeats)
    name = f"{api} (in place)" if compat else api
    times = {"first": first, "next": following, "again": again}
    ratios = "".join(f"  {what} {seconds * 1e3:7.2f} ms {seconds / floor:6.2f} x" for what, seconds in times.items())
    print(f"{name:<30} floor {floor * 1e3:6.2f} ms{ratios}")
    return following / floor


def main() -> None:
    """Run every wire."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    messages = conversation(arguments.messages)
    worst = 0.0
    for api in wire_names():
        for compat in ({}, VARIANTS[api]) if api in VARIANTS else ({},):
            worst = max(worst, bench(api, compat, messages, arguments.repeats))
    print(f"the next request of {len(messages)} messages costs at most {worst:.2f} x one encode of them (target: {TARGET})")


if __name__ == "__main__":
    main()
