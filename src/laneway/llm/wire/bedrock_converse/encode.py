"""Transcript → request body of `POST {base_url}/model/{id}/converse-stream`. Pure; the same beginning gives the same bytes (but for the
cache points).

The body ends with `messages`. The prompt and the tools that hold now are at the top: system messages and changes of tools inside of the
conversation are collapsed into them. Cache points, which are no part of what is cached, stand at the end of what a later request will
begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct

from laneway.llm._thinking import clamp_max_tokens, estimate_context, fit_budget, requested_level, sampling_params, thinking_budget, thinking_word
from laneway.llm._transform import (
    IdPolicy,
    OutgoingConversation,
    WireItems,
    convert_cached,
    current_system_message,
    current_tools,
    render_system,
    system_messages,
)
from laneway.llm.base import Model, StreamOptions, ThinkingLevel, Transcript
from laneway.llm.wire.bedrock_converse._messages import MessageConverter, MessageStyle
from laneway.llm.wire.bedrock_converse._tools import declare_gone, declare_tool, tool_choice
from laneway.llm.wire.bedrock_converse.compat import BedrockCompat, resolve_compat
from laneway.messages import Message, clean_text

TOOL_IDS = IdPolicy(max_length=64)
MIN_BUDGET = 1024
"""The least that Claude takes as a thinking budget."""
DEFAULT_MAX_TOKENS = 8192
"""The output limit of a request whose thinking budget needs one, for a model that has none."""
BETA_INTERLEAVED_THINKING = "interleaved-thinking-2025-05-14"
_EFFORTS: dict[str, str] = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
_INFERENCE = {
    "maxTokens": "maxTokens", "max_tokens": "maxTokens", "temperature": "temperature", "topP": "topP", "top_p": "topP",
    "stopSequences": "stopSequences", "stop_sequences": "stopSequences", "stop": "stopSequences",
}  # fmt: skip
_FIELDS = {
    "additionalModelRequestFields", "additionalModelResponseFieldPaths", "guardrailConfig", "inferenceConfig", "messages", "outputConfig",
    "performanceConfig", "projectIdentifier", "promptVariables", "requestMetadata", "serviceTier", "system", "toolConfig",
}  # fmt: skip


class Surroundings(Struct, kw_only=True, frozen=True):
    """What a body depends on beside the model, the conversation and the options.

    region: where the request goes; GovCloud's models do not know how thinking is shown. force_cache: set cache points for any model.
    """

    region: str = ""
    force_cache: bool = False


def encode(model: Model, transcript: Transcript, options: StreamOptions, surroundings: Surroundings | None = None) -> dict[str, Any]:
    """Return the request body.

    The messages in it are shared with later requests of the same conversation: copy the body before changing them.

    Raises:
        ModelError: the model's `compat` is wrong.
    """
    compat, around = resolve_compat(model), surroundings or Surroundings()
    messages = transcript.messages
    marker = _marker(options, compat, around)
    body: dict[str, Any] = {"inferenceConfig": {}, "additionalModelRequestFields": {}}
    _add_thinking(body, model, compat, around, options, messages)
    if options.temperature is not None and compat.supports_temperature and not _forbids_temperature(body):
        body["inferenceConfig"]["temperature"] = options.temperature
    items = _messages(model, messages, compat)
    _add_tools(body, messages, items, compat, options, marker)
    _add_prompt(body, messages, marker)
    _merge(body, compat.extra_body or {})
    _merge(body, sampling_params(model, options))
    body.setdefault("messages", _marked(items, marker) if marker is not None else items)
    return {key: value for key, value in body.items() if value != {}}


def _merge(body: dict[str, Any], extra: dict[str, Any]) -> None:
    """Put fields where the protocol has them: its own ones, those of `inferenceConfig`, and the rest as the model's own."""
    for key, value in extra.items():
        if value is None:
            continue
        if key in _INFERENCE:
            body["inferenceConfig"][_INFERENCE[key]] = [value] if key == "stop" and isinstance(value, str) else value
        elif key in ("service_tier", "serviceTier"):
            body["serviceTier"] = {"type": value} if isinstance(value, str) else value
        elif key in _FIELDS:
            known = body.get(key)
            both = isinstance(known, dict) and isinstance(value, dict)
            body[key] = {**cast("dict[str, Any]", known), **cast("dict[str, Any]", value)} if both else value
        else:
            body["additionalModelRequestFields"][key] = value


# ---------------------------------------------------------------------------------------------------- thinking


def _add_thinking(
    body: dict[str, Any], model: Model, compat: BedrockCompat, around: Surroundings, options: StreamOptions, messages: Sequence[Message]
) -> None:
    """Say how much to think, and the output limit, of which thinking is a part."""
    context = estimate_context(messages).tokens if model.context_window > 0 else 0
    limit = clamp_max_tokens(model, options.max_tokens, context)
    if limit is not None:
        body["inferenceConfig"]["maxTokens"] = limit
    level = requested_level(model, options.reasoning)
    extra: dict[str, Any] = body["additionalModelRequestFields"]
    kind = compat.thinking
    if not model.reasoning or kind == "none":
        return
    if kind in ("effort", "flat_effort"):
        word = thinking_word(model, level) if level != "off" else model.thinking_levels.get("off")
        if word:
            extra.update({"reasoning": {"effort": word}} if kind == "effort" else {"reasoning_effort": word})
    elif level == "off":
        if kind == "adaptive" and model.thinking_levels.get("off", "") is not None:
            extra["thinking"] = {"type": "disabled"}  # some think unless they are told not to
    elif kind == "adaptive":
        extra["thinking"] = {"type": "adaptive"} if _is_gov(model, around) else {"type": "adaptive", "display": "summarized"}
        extra["output_config"] = {"effort": model.thinking_levels.get(level) or _EFFORTS.get(level, "high")}
    elif kind == "nova":
        _add_nova(body, level)
    else:
        _add_budget(body, model, compat, options, context, level)


def _is_gov(model: Model, around: Surroundings) -> bool:
    return around.region.startswith("us-gov-") or model.id.startswith(("us-gov.", "arn:aws-us-gov:"))


def _add_nova(body: dict[str, Any], level: ThinkingLevel) -> None:
    """At its highest effort the model sets its own limit."""
    effort = _EFFORTS.get(level, "high")
    body["additionalModelRequestFields"]["reasoningConfig"] = {"type": "enabled", "maxReasoningEffort": effort}
    if effort == "high":
        body["inferenceConfig"].pop("maxTokens", None)


def _add_budget(body: dict[str, Any], model: Model, compat: BedrockCompat, options: StreamOptions, context: int, level: ThinkingLevel) -> None:
    """Think on top of what the answer was to have, as far as the model's limit and the window allow."""
    limit = body["inferenceConfig"].get("maxTokens", DEFAULT_MAX_TOKENS)
    budget = thinking_budget(level, options.thinking_budgets)
    wanted = limit + budget
    if model.max_tokens > 0:
        wanted = min(wanted, max(model.max_tokens, limit))
    wanted = clamp_max_tokens(model, wanted, context) or wanted
    budget = fit_budget(budget, wanted)
    if budget < MIN_BUDGET:
        return
    body["inferenceConfig"]["maxTokens"] = wanted
    extra: dict[str, Any] = body["additionalModelRequestFields"]
    extra["thinking"] = {"type": "enabled", "budget_tokens": budget}
    if compat.interleaved_thinking:
        extra["anthropic_beta"] = [BETA_INTERLEAVED_THINKING]


def _forbids_temperature(body: dict[str, Any]) -> bool:
    extra: dict[str, Any] = body["additionalModelRequestFields"]
    thinks = extra.get("thinking", {}).get("type") in ("enabled", "adaptive")
    return thinks or extra.get("reasoningConfig", {}).get("maxReasoningEffort") == "high"


# ---------------------------------------------------------------------------------------------------- tools, prompt


def _marker(options: StreamOptions, compat: BedrockCompat, around: Surroundings) -> dict[str, Any] | None:
    """Return the cache point, None if nothing is to be cached."""
    if options.cache_retention == "none" or not (compat.supports_prompt_cache or around.force_cache):
        return None
    long = options.cache_retention == "long" and compat.supports_long_cache_retention
    return {"cachePoint": {"type": "default", "ttl": "1h"} if long else {"type": "default"}}


def _add_tools(
    body: dict[str, Any], messages: Sequence[Message], items: list[dict[str, Any]], compat: BedrockCompat, options: StreamOptions,
    marker: dict[str, Any] | None,
) -> None:  # fmt: skip
    """Declare the tools. Where the conversation has calls the protocol insists on tools, also for one that may call none now."""
    choice = options.tool_choice
    declared = [declare_tool(tool, compat) for tool in current_tools(system_messages(messages))]
    if choice == "none" or not declared:
        called = _called(items)
        if not called:
            return
        choice, declared = None, declared or [declare_gone(name) for name in called]
    config: dict[str, Any] = {"tools": [*declared, marker] if marker is not None else declared}
    if choice is not None:
        config["toolChoice"] = tool_choice(choice)
    body["toolConfig"] = config


def _called(items: list[dict[str, Any]]) -> list[str]:
    """Return the names of the tools that were called, in the order of their first calls."""
    calls = (block["toolUse"] for item in items if item["role"] == "assistant" for block in item["content"] if "toolUse" in block)
    return list(dict.fromkeys(call["name"] for call in calls))


def _add_prompt(body: dict[str, Any], messages: Sequence[Message], marker: dict[str, Any] | None) -> None:
    merged = current_system_message(system_messages(messages))
    prompt = render_system(merged) if merged is not None else ""
    if prompt.strip():
        body["system"] = [{"text": clean_text(prompt)}, *([marker] if marker is not None else ())]


# ---------------------------------------------------------------------------------------------------- messages


def _messages(model: Model, messages: Sequence[Message], compat: BedrockCompat) -> WireItems[dict[str, Any]]:
    style = MessageStyle(
        thoughts=compat.thoughts, result_status=compat.supports_result_status, result_images=compat.supports_result_images
    )  # fmt: skip
    return convert_cached(("bedrock_converse", model, style), messages, lambda: OutgoingConversation(model, TOOL_IDS, MessageConverter(style)))


def _marked(items: WireItems[dict[str, Any]], marker: dict[str, Any]) -> list[dict[str, Any]]:
    """Put the cache point at the end of the last message; the model's own words are never marked."""
    if not items or items[-1]["role"] == "assistant":
        return items
    return items.with_item(-1, {**items[-1], "content": [*items[-1]["content"], marker]})
