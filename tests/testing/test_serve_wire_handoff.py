"""One conversation over two providers: what began on any wire goes on on any other, and the strict server takes every request."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from laneway import Agent, tool
from laneway.messages import AssistantMessage, ImageContent, SystemMessage
from laneway.testing import WireServer, call, serve_wire, text, thinking
from laneway.testing._serve.server import DIALECTS
from laneway.tools import ToolResult

WIRES = list(DIALECTS)
DOT = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
FIELDS: dict[str, Any] = {"reasoning": True, "max_tokens": 8000, "context_window": 100_000, "input": ("text", "image")}


def name_of(wire: str) -> str:
    """Models whose families are the strictest of their wire: signatures on calls, sealed thoughts, images and errors in results."""
    return "gemini-3-pro" if wire.startswith("google") else "anthropic.claude-sonnet-4-6" if wire == "bedrock_converse" else "model"


@tool
def read(path: str) -> ToolResult:
    """Read a file."""
    return ToolResult(content=[ImageContent(data=DOT, mime_type="image/png")] if path.endswith("png") else f"the text of {path}")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    if a < 0:
        raise ValueError("too small")
    return a + b


async def first_half(agent: Agent, server: WireServer) -> None:
    """Thinking, parallel calls with an image, an error and an unknown tool in their results, an answer; then a turn that is aborted while
    the model answers after a call.
    """
    await agent.prompt("Look.", images=[ImageContent(data=DOT, mime_type="image/png")])
    run = asyncio.create_task(agent.prompt("Once more."))
    await server.arrived(4)
    agent.abort("enough")
    await run


@pytest.mark.parametrize("second", WIRES)
@pytest.mark.parametrize("first", WIRES)
async def test_a_conversation_goes_on_on_another_wire(first: str, second: str):
    """There and back again: nothing is refused, on either side, and the other one's thinking is not passed on."""
    there = [
        thinking("secret thought") + text("I look.") + call("read", path="a.png") + call("read", path="b") + call("add", a=-1, b=1) + call("nothing"),
        text("Done."),
        thinking("secret thought") + call("add", a=1, b=1),
        text("never finished", gate=asyncio.Event()),
        text("I am back."),
    ]
    here = [thinking("another thought") + text("Mine now.") + call("add", a=2, b=40), text("It is 42.")]
    async with serve_wire(first, there) as one, serve_wire(second, here) as two:
        agent = Agent(model=one.model(f"{name_of(first)}-one", **FIELDS), tools=[read, add], system_prompt="You help.", thinking_level="medium")
        async with asyncio.timeout(30):
            await first_half(agent, one)
            agent.state.tools = [add]
            agent.state.messages.append(SystemMessage(content="You calculate."))
            agent.state.model = two.model(f"{name_of(second)}-two", **FIELDS)
            await agent.prompt("Add.")
            agent.state.model = one.model(f"{name_of(first)}-one", **FIELDS)
            await agent.prompt("And?")
    assert (one.refused, two.refused) == ([], [])
    assert (one.remaining, two.remaining) == (0, 0)
    said = [message.text for message in agent.state.messages if isinstance(message, AssistantMessage) and message.stop_reason == "stop"]
    assert said == ["Done.", "It is 42.", "I am back."]
    assert "secret thought" not in str(two.requests[0].body)
    assert "another thought" not in str(one.requests[-1].body)
