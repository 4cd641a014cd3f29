"""A served wire is the real protocol: the vendors' own SDKs understand it, and are refused where their provider would refuse them."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.messages import Usage
from laneway.testing import call, calls, error, serve_wire, text, thinking, truncated
from testing.sdks import KEY, SDKS, Failed, Understood, after_two_calls, hello, tools, without_the_last_result

WIRES = list(SDKS)
STOPS = {
    "openai_chat": ("stop", "length", "tool_calls"), "mistral": ("stop", "length", "tool_calls"),
    "anthropic_messages": ("end_turn", "max_tokens", "tool_use"), "bedrock_converse": ("end_turn", "max_tokens", "tool_use"),
    "openai_responses": ("completed", "max_output_tokens", "completed"), "azure": ("completed", "max_output_tokens", "completed"),
    "google_generate": ("STOP", "MAX_TOKENS", "STOP"), "google_vertex": ("STOP", "MAX_TOKENS", "STOP"),
}  # fmt: skip


async def ask(wire: str, reply: Any, messages: Any = None) -> Understood:
    """What the SDK of a wire understands of one reply."""
    async with serve_wire(wire, [reply], api_key=KEY) as server:
        got = await SDKS[wire](server, messages or hello(wire), tools(wire))
    assert isinstance(got, Understood), got
    assert server.refused == []
    assert server.remaining == 0
    return got


async def refused(wire: str, *script: Any, messages: Any = None, api_key: str | None = None) -> Failed:
    """How the SDK of a wire fails."""
    async with serve_wire(wire, script, api_key=api_key) as server:
        got = await SDKS[wire](server, messages or hello(wire), tools(wire))
    assert isinstance(got, Failed), got
    return got


@pytest.mark.parametrize("wire", WIRES)
async def test_an_sdk_reads_text_thinking_and_usage(wire: str):
    """In pieces, with a signature, with the tokens that the script says."""
    usage = Usage(input=100, output=20, cache_read=30, total_tokens=150)
    got = await ask(wire, thinking("Let me think.", signature="c2lnbmVk") + text("Grüße, 世界! 🐱", usage=usage, delta_size=3))
    assert (got.text, got.thinking, got.stop, got.usage) == ("Grüße, 世界! 🐱", "Let me think.", STOPS[wire][0], (130, 20))
    assert got.signature in {"google_generate": ("signed",), "google_vertex": ("signed",), "openai_chat": (None,)}.get(wire, ("c2lnbmVk",))


@pytest.mark.parametrize("wire", WIRES)
async def test_an_sdk_reads_parallel_calls(wire: str):
    """Each with an id of the wire's form, or with the one that the script gives; arguments come whole out of pieces."""
    got = await ask(wire, calls(call("read", path="a b"), call("read", path="ü", call_id="given0001"), text="Two files.") + text("", delta_size=4))
    assert got.text == "Two files."
    (first, *one), (second, *two) = got.calls
    assert (one, two, second) == (["read", {"path": "a b"}], ["read", {"path": "ü"}], "given0001")
    assert first not in ("", second)
    assert got.stop == STOPS[wire][2]


@pytest.mark.parametrize("wire", WIRES)
async def test_an_sdk_sees_that_an_answer_was_cut_at_its_limit(wire: str):
    """In the wire's own word for it."""
    assert (await ask(wire, truncated("half of"))).stop == STOPS[wire][1]


@pytest.mark.parametrize("wire", WIRES)
async def test_results_of_calls_are_taken(wire: str):
    """A conversation with two calls and their two results is what the provider takes."""
    assert (await ask(wire, text("done"), after_two_calls(wire))).text == "done"


@pytest.mark.parametrize("wire", WIRES)
async def test_a_call_without_its_result_is_refused(wire: str):
    """With the status with which the provider refuses it; no reply of the script is taken."""
    got = await refused(wire, text("never said"), messages=without_the_last_result(after_two_calls(wire)))
    assert got.status == 400


@pytest.mark.parametrize("wire", WIRES)
async def test_an_sdk_gets_an_http_error_with_its_text(wire: str):
    """And is not asked to try again when the script is at its end."""
    got = await refused(wire, error("slow down, please", 429))
    assert got.status == 429
    assert "slow down, please" in got.text
    got = await refused(wire)
    assert got.status == 400
    assert "no reply for request 1" in got.text


@pytest.mark.parametrize("wire", WIRES)
async def test_another_key_is_refused(wire: str):
    """The key may come in each of the ways that the provider takes; a wrong one is an authentication error."""
    got = await refused(wire, text("never said"), api_key="another")
    assert got.status == (403 if wire == "bedrock_converse" else 401)


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "mistral"])
async def test_an_sdk_gets_an_error_in_the_middle(wire: str):
    """As the provider's event for it. (Mistral's SDK knows no such event.)"""
    got = await refused(wire, text("Hel") + error("the model fell over", kind="server"))
    assert "the model fell over" in got.text
