"""Thinking levels, budgets and estimates."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from laneway.llm._thinking import (
    clamp_max_tokens,
    clamp_thinking_level,
    estimate_context,
    estimate_tokens,
    fit_budget,
    requested_level,
    sampling_params,
    supported_thinking_levels,
    thinking_budget,
    thinking_word,
)
from laneway.llm.base import Model, StreamOptions
from laneway.messages import (
    AssistantMessage,
    BashExecutionMessage,
    CompactionSummaryMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from llm.dialects import DIALECTS, encode_for


def model(**fields: object) -> Model:
    """A reasoning model."""
    return Model(**{"id": "m", "provider": "p", "api": "openai_chat", "reasoning": True, **fields})  # type: ignore[arg-type]  # test helper


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ({}, ["off", "minimal", "low", "medium", "high"]),
        ({"off": None}, ["minimal", "low", "medium", "high"]),
        ({"xhigh": "xhigh"}, ["off", "minimal", "low", "medium", "high", "xhigh"]),
        ({"max": "max", "off": None, "minimal": None, "low": None, "medium": None, "high": None}, ["max"]),
    ],
)
def test_the_map_says_which_levels_exist(levels: dict[str, str | None], expected: list[str]) -> None:
    """05 sc. 23: what is not mentioned exists, except xhigh and max."""
    assert supported_thinking_levels(model(thinking_levels=levels)) == expected


@pytest.mark.parametrize(
    ("levels", "asked", "expected"),
    [
        ({}, "xhigh", "high"),
        ({"off": None}, "off", "minimal"),
        ({"minimal": None, "low": None}, "low", "medium"),
        ({}, "medium", "medium"),
        ({"max": "max"}, "xhigh", "max"),
        ({"off": None, "high": None, "medium": None}, "high", "low"),
        (dict.fromkeys(["off", "minimal", "low", "medium", "high"]), "low", "off"),
    ],
)
def test_a_level_is_clamped_upwards_first(levels: dict[str, str | None], asked: str, expected: str) -> None:
    """05 sc. 24."""
    assert clamp_thinking_level(model(thinking_levels=levels), asked) == expected  # type: ignore[arg-type]  # parametrised literal


def test_a_model_that_does_not_reason_is_off() -> None:
    """05 sc. 23, 24."""
    assert supported_thinking_levels(model(reasoning=False)) == ["off"]
    assert clamp_thinking_level(model(reasoning=False), "high") == "off"


def test_the_request_s_level_is_the_asked_one_or_the_model_s_default() -> None:
    """A `:level` suffix of the model spec holds where the request asks for nothing."""
    assert requested_level(model(default_thinking_level="low"), None) == "low"
    assert requested_level(model(default_thinking_level="low"), "high") == "high"
    assert requested_level(model(), None) == "off"
    assert thinking_word(model(thinking_levels={"high": "HIGH"}), "high") == "HIGH"
    assert thinking_word(model(), "high") == "high"


def test_budgets() -> None:
    """05 sc. 25: xhigh and max use high's budget; a custom budget replaces its level's; room for the answer is kept."""
    assert [thinking_budget(level) for level in ("off", "minimal", "low", "medium", "high", "xhigh", "max")] == [
        0, 1024, 2048, 8192, 16384, 16384, 16384,
    ]  # fmt: skip
    assert thinking_budget("xhigh", {"high": 5000}) == 5000
    assert fit_budget(8192, 2000) == 976
    assert fit_budget(8192, 1000) == 0


def test_estimates_count_characters() -> None:
    """3.5 characters a token, an image as 4800, tools and arguments as their JSON; custom messages by what they hold."""
    assert estimate_tokens(UserMessage(content="x" * 35)) == 10
    assert estimate_tokens(UserMessage(content=[TextContent(text="x" * 35), ImageContent(data="", mime_type="image/png")])) == 1382
    assert estimate_tokens([UserMessage(content="x"), UserMessage(content="x")]) == 2
    assistant = AssistantMessage(
        content=[TextContent(text="x" * 7), ThinkingContent(thinking="y" * 7), ToolCall(id="1", name="f", arguments={"a": 1})]
    )
    assert estimate_tokens(assistant) == 7
    tool = ToolDeclaration(name="f", description="d", parameters={})
    assert (
        estimate_tokens(SystemMessage(content="x" * 7, sections={"s": "y" * 7, "gone": None}, tools_added=[tool], tools_removed=["g"])) == 4 + 14 + 2
    )
    assert estimate_tokens(CompactionSummaryMessage(summary="x" * 7)) == 2
    assert estimate_tokens(BashExecutionMessage(command="x" * 7, output="y" * 7)) == 4
    assert estimate_tokens(ToolResultMessage(tool_call_id="1", tool_name="f", content=[TextContent(text="\ud83d" * 7)])) == 2
    assert estimate_tokens(AssistantMessage(content=[ToolCall(id="1", name="f", arguments={"a": "\ud83d"})])) > 0


def test_the_provider_s_count_replaces_estimates() -> None:
    """05 §1.9: the last report that holds, plus estimates of what came later."""
    messages = [
        UserMessage(content="x" * 350, timestamp=1),
        AssistantMessage(content=[TextContent(text="a")], usage=Usage(input=100, output=10, total_tokens=110), timestamp=2),
        UserMessage(content="x" * 35, timestamp=3),
        AssistantMessage(content=[], stop_reason="error", usage=Usage(input=999), timestamp=4),
    ]
    estimate = estimate_context(messages)
    assert (estimate.tokens, estimate.usage_tokens, estimate.trailing_tokens, estimate.last_usage_index) == (120, 110, 10, 1)


def test_a_report_from_before_a_compaction_is_stale() -> None:
    """05 §1.9: a newer message in front of a response means its usage was counted for another context."""
    messages = [
        CompactionSummaryMessage(summary="x" * 35, timestamp=10),
        AssistantMessage(content=[TextContent(text="abc")], usage=Usage(input=100_000), timestamp=5),
    ]
    estimate = estimate_context(messages)
    assert (estimate.tokens, estimate.last_usage_index) == (11, None)


@pytest.mark.parametrize(
    ("window", "limit", "requested", "context", "expected"),
    [
        (0, 0, None, 10, None),
        (0, 0, 500, 10, 500),
        (0, 800, None, 10, 800),
        (0, 0, 0, 10, 1),
        (200_000, 8000, None, 1000, 8000),
        (200_000, 8000, 500, 1000, 500),
        (200_000, 100_000, None, 100_000, 85_000),
        (200_000, 100_000, None, 150_000, 32_768),
        (200_000, 100_000, None, 190_000, 5_904),
        (200_000, 100_000, None, 300_000, 1),
    ],
)
def test_the_output_limit_fits_into_the_window(window: int, limit: int, requested: int | None, context: int, expected: int | None) -> None:
    """05 §1.9: a wide margin while there is room, a narrow one when it gets tight, never below 1."""
    assert clamp_max_tokens(model(context_window=window, max_tokens=limit), requested, context) == expected


# ---------------------------------------------------------------------------------------------------- sampling parameters

PARAMS = {"top_p": 0.5, "seed": 1}


@pytest.mark.parametrize(
    ("reasoning", "asked", "found"),
    [
        (None, None, {"top_p": 0.5, "seed": 1}),
        ("high", None, {"top_p": 0.9, "seed": 1}),
        ("max", {"seed": 2, "top_k": 3}, {"top_p": 0.9, "seed": 2, "top_k": 3}),  # clamped to high
        ("high", {"top_p": None}, {"seed": 1}),
        ("low", {"seed": None}, {"top_p": 0.5}),
    ],
)
def test_sampling_parameters_of_the_model_its_level_and_the_request(reasoning: Any, asked: Any, found: dict[str, Any]) -> None:
    """05 §1.5, §9.11: model < thinking level < request; None removes one."""
    model = Model(
        id="m", provider="p", api="openai_chat", reasoning=True, sampling_params=PARAMS, sampling_params_by_thinking_level={"high": {"top_p": 0.9}}
    )
    assert sampling_params(model, StreamOptions(reasoning=reasoning, sampling_params=asked)) == found


@pytest.mark.parametrize("api", DIALECTS)
def test_every_wire_sends_the_models_sampling_parameters(api: str) -> None:
    """05 sc. 103: in the body, where the wire has such parameters."""
    model = msgspec.structs.replace(DIALECTS[api].model, sampling_params={"marker_a": 1}, sampling_params_by_thinking_level={"high": {"marker_b": 2}})
    messages: list[Message] = [UserMessage(content="q")]
    plain, high = (json.dumps(encode_for(model, messages, reasoning=level)) for level in ("low", "high"))
    assert "marker_a" in plain
    assert "marker_b" not in plain
    assert "marker_a" in high
    assert "marker_b" in high
