"""Transcript → request body of `POST {base_url}/v1/messages`. Pure; the same beginning gives the same bytes (but for the cache markers).

The body ends with `messages`. Cache markers, which are no part of what is cached, stand at the end of what a later request will begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from laneway.llm._thinking import (
    clamp_max_tokens,
    estimate_context,
    fit_budget,
    requested_level,
    sampling_params,
    supported_thinking_levels,
    thinking_budget,
)
from laneway.llm._transform import (
    IdPolicy,
    OutgoingConversation,
    WireItems,
    convert_cached,
    current_system_message,
    current_tools,
    render_system,
    split_system,
    system_messages,
)
from laneway.llm.base import Model, StreamOptions, ThinkingLevel, Transcript
from laneway.llm.wire.anthropic_messages._messages import MessageConverter, MessageStyle
from laneway.llm.wire.anthropic_messages._tools import declare_tool, tool_choice
from laneway.llm.wire.anthropic_messages.compat import AnthropicCompat, resolve_compat
from laneway.messages import Message, clean_text

TOOL_IDS = IdPolicy(max_length=64)
MIN_BUDGET = 1024
"""The least that the protocol takes as a thinking budget."""
DEFAULT_MAX_TOKENS = 8192
"""The output limit, which the protocol insists on, of a model that has none."""
_FIXED_EFFORT = "low"
"""The request's effort where the effort in force is said in the conversation."""
_EFFORTS: dict[str, str] = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}

BETA_FINE_GRAINED_TOOLS = "fine-grained-tool-streaming-2025-05-14"
BETA_INTERLEAVED_THINKING = "interleaved-thinking-2025-05-14"
BETA_FALLBACK = "server-side-fallback-2026-07-01"
BETAS_TOOL_CHANGES = ("mid-conversation-tool-changes-2026-07-01", "inline-tools-2026-09-15")
BETAS_EFFORT = ("mid-conversation-output-config-2026-07-01", "thinking-binding-controls-2026-08-01")


class _Plan(Struct, kw_only=True, frozen=True):
    """What a request is made with: the quirks, the level, how many system messages are its prompt, whether tools change in place."""

    compat: AnthropicCompat
    level: ThinkingLevel
    leading: int
    native_tools: bool


def _plan(model: Model, messages: Sequence[Message], options: StreamOptions) -> _Plan:
    compat = resolve_compat(model)
    leading, native = 0, False
    if compat.supports_mid_convo_system_messages:
        leading = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
        native = compat.supports_mid_convo_tool_changes and bool(current_tools(messages[:leading]))
    return _Plan(compat=compat, level=requested_level(model, options.reasoning), leading=leading, native_tools=native)


def encode(model: Model, transcript: Transcript, options: StreamOptions) -> dict[str, Any]:
    """Return the request body.

    The messages in it are shared with later requests of the same conversation: copy the body before changing them.

    Raises:
        ModelError: the model's `compat` is wrong.
    """
    messages = transcript.messages
    plan = _plan(model, messages, options)
    compat = plan.compat
    body: dict[str, Any] = {"model": model.id, "max_tokens": 0, "stream": True}
    _add_thinking(body, model, plan, options, _context_tokens(model, messages))
    if options.temperature is not None and compat.supports_temperature and not _thinks(body) and not compat.supports_mid_convo_effort:
        body["temperature"] = options.temperature
    user = (options.metadata or {}).get("user_id")
    if isinstance(user, str):
        body["metadata"] = {"user_id": user}
    if compat.allowed_fallback_models:
        body["fallbacks"] = [{"model": name} for name in compat.allowed_fallback_models]
    _add_tools(body, messages, plan, options)
    body.update(compat.extra_body or {})
    body.update(sampling_params(model, options))
    _add_prompt(body, messages, plan, options)
    body.setdefault("messages", _messages(model, messages, plan, options))
    return body


def betas(model: Model, transcript: Transcript, options: StreamOptions, body: dict[str, Any]) -> list[str]:
    """Return the beta features that the body uses, for the `anthropic-beta` header. The same for every request of a conversation."""
    plan = _plan(model, transcript.messages, options)
    compat = plan.compat
    wanted: list[str] = []
    if body.get("tools") and not compat.supports_eager_tool_input_streaming:
        wanted.append(BETA_FINE_GRAINED_TOOLS)
    if body.get("thinking", {}).get("type") == "enabled" and compat.interleaved_thinking:
        wanted.append(BETA_INTERLEAVED_THINKING)
    if "fallbacks" in body:
        wanted.append(BETA_FALLBACK)
    if compat.supports_mid_convo_effort:
        wanted += BETAS_EFFORT
    if plan.native_tools:
        wanted += BETAS_TOOL_CHANGES
    return wanted


def affinity_headers(options: StreamOptions, compat: AnthropicCompat) -> dict[str, str | None]:
    """Return the header that keeps the requests of one session on one machine of the provider."""
    if not options.session_id or not compat.send_session_affinity_headers or options.cache_retention == "none":
        return {}
    return {"x-session-id" if compat.session_affinity_format == "openrouter" else "x-session-affinity": options.session_id}


# ---------------------------------------------------------------------------------------------------- thinking


def _context_tokens(model: Model, messages: Sequence[Message]) -> int:
    return estimate_context(messages).tokens if model.context_window > 0 else 0


def _thinks(body: dict[str, Any]) -> bool:
    return body.get("thinking", {}).get("type") in ("enabled", "adaptive")


def effort_word(model: Model, level: ThinkingLevel) -> str:
    """Return the provider's word for how hard to think."""
    return model.thinking_levels.get(level) or _EFFORTS.get(level, "high")


def _add_thinking(body: dict[str, Any], model: Model, plan: _Plan, options: StreamOptions, context: int) -> None:
    """Say how much to think, and the output limit, of which thinking is a part."""
    compat, level = plan.compat, plan.level
    limit = clamp_max_tokens(model, options.max_tokens, context) or DEFAULT_MAX_TOKENS
    body["max_tokens"] = limit
    if not model.reasoning:
        return
    if compat.supports_mid_convo_effort:
        binding = {"prefix_mismatch_behavior": "drop_block"}
        body["thinking"] = {"type": "adaptive", "display": "summarized", "block_binding": binding}
        body["output_config"] = {"effort": _FIXED_EFFORT}
    elif level == "off":
        _switch_off(body, model)
    elif compat.force_adaptive_thinking:
        body["thinking"] = {"type": "adaptive", "display": "summarized"}
        body["output_config"] = {"effort": effort_word(model, level)}
    else:
        _add_budget(body, model, plan, options, context)


def _switch_off(body: dict[str, Any], model: Model) -> None:
    """A model that cannot do without thinking (its map says None for "off") is told nothing."""
    if model.thinking_levels.get("off", "") is not None:
        body["thinking"] = {"type": "disabled"}


def _add_budget(body: dict[str, Any], model: Model, plan: _Plan, options: StreamOptions, context: int) -> None:
    """Think on top of what the answer was to have, as far as the model's limit and the window allow."""
    budget = thinking_budget(plan.level, options.thinking_budgets)
    wanted = body["max_tokens"] + budget
    if model.max_tokens > 0:
        wanted = min(wanted, max(model.max_tokens, body["max_tokens"]))
    body["max_tokens"] = clamp_max_tokens(model, wanted, context) or wanted
    budget = fit_budget(budget, body["max_tokens"])
    if budget < MIN_BUDGET:
        _switch_off(body, model)
        return
    body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    if plan.compat.supports_thinking_display:
        body["thinking"]["display"] = "summarized"


# ---------------------------------------------------------------------------------------------------- tools, prompt


def _marker(options: StreamOptions, compat: AnthropicCompat) -> dict[str, Any] | None:
    """Return the cache marker, None if nothing is to be cached."""
    if options.cache_retention == "none":
        return None
    long = options.cache_retention == "long" and compat.supports_long_cache_retention
    return {"type": "ephemeral", "ttl": "1h"} if long else {"type": "ephemeral"}


def _add_tools(body: dict[str, Any], messages: Sequence[Message], plan: _Plan, options: StreamOptions) -> None:
    compat = plan.compat
    declared = current_tools(messages[: plan.leading] if plan.native_tools else system_messages(messages))
    if not declared:
        return
    strict, eager = compat.supports_strict_tools, compat.supports_eager_tool_input_streaming
    tools = [declare_tool(tool, strict=strict, eager=eager) for tool in declared]
    marker = _marker(options, compat)
    if marker is not None and compat.supports_cache_control_on_tools:
        tools[-1]["cache_control"] = marker
    body["tools"] = tools
    if options.tool_choice is not None:
        body["tool_choice"] = tool_choice(options.tool_choice)


def _add_prompt(body: dict[str, Any], messages: Sequence[Message], plan: _Plan, options: StreamOptions) -> None:
    if plan.compat.supports_mid_convo_system_messages:
        merged, _ = split_system(messages)
    else:
        merged = current_system_message(system_messages(messages))
    prompt = render_system(merged) if merged is not None else ""
    if prompt:
        block: dict[str, Any] = {"type": "text", "text": clean_text(prompt)}
        marker = _marker(options, plan.compat)
        body["system"] = [block if marker is None else {**block, "cache_control": marker}]


# ---------------------------------------------------------------------------------------------------- messages


def _messages(model: Model, messages: Sequence[Message], plan: _Plan, options: StreamOptions) -> list[dict[str, Any]]:
    compat = plan.compat
    efforts = None
    if compat.supports_mid_convo_effort:
        efforts = tuple((level, effort_word(model, level)) for level in supported_thinking_levels(model) if level != "off")
    style = MessageStyle(
        leading_systems=plan.leading,
        mid_system=compat.supports_mid_convo_system_messages,
        native_tools=plan.native_tools,
        empty_signature=compat.allow_empty_signature,
        strict_tools=compat.supports_strict_tools,
        eager_tools=compat.supports_eager_tool_input_streaming,
        provider=model.provider,
        efforts=efforts,
    )
    key = ("anthropic_messages", model, style)
    items = convert_cached(key, messages, lambda: OutgoingConversation(model, TOOL_IDS, MessageConverter(style)))
    marker = _marker(options, compat)
    found = _marked(items, marker) if marker is not None else items
    if efforts is not None and plan.level != "off":
        found = _with_effort(found, effort_word(model, plan.level))
    return found


def _marked(items: WireItems[dict[str, Any]], marker: dict[str, Any]) -> list[dict[str, Any]]:
    """Put the marker on the last block of the last message; the model's own words are never marked."""
    if not items or items[-1]["role"] == "assistant":
        return items
    *blocks, last = items[-1]["content"]
    return items.with_item(-1, {**items[-1], "content": [*blocks, {**last, "cache_control": marker}]})


def _with_effort(items: list[dict[str, Any]], effort: str) -> list[dict[str, Any]]:
    """Say the effort in force at the end, where the protocol takes it: after a user's message."""
    config = {"output_config": {"effort": effort}}
    if items and items[-1]["role"] == "system":
        last = {**items[-1], **config}
        return items.with_item(-1, last) if isinstance(items, WireItems) else [*items[:-1], last]
    if items and items[-1]["role"] == "user":
        items.append({"role": "system", **config})
    return items
