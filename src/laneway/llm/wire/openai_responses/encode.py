"""Transcript → request body of `POST {base_url}/responses`. Pure; the same beginning gives the same bytes.

The body ends with `input`, so a longer conversation's request starts with the shorter one's bytes, which is what prompt caches go by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from laneway.llm._grammar import raw_inputs
from laneway.llm._thinking import clamp_max_tokens, estimate_context, requested_level, sampling_params, thinking_word
from laneway.llm._transform import (
    IdPolicy,
    OutgoingConversation,
    ToolPlan,
    convert_cached,
    current_system_message,
    legal_tool_name,
    plan_tools,
    render_system,
    split_system,
    system_messages,
)
from laneway.llm.base import Model, StreamOptions, ThinkingLevel, Transcript
from laneway.llm.wire.openai_responses._items import MAX_ID, ItemConverter, ItemStyle, declare_tool
from laneway.llm.wire.openai_responses.compat import ResponsesCompat, resolve_compat
from laneway.messages import Message, ToolDeclaration, clean_text

TOOL_IDS = IdPolicy(max_length=MAX_ID, compound=True)
CACHE_KEY_LENGTH = 64
MIN_OUTPUT_TOKENS = 16
"""The least that the protocol takes as an output limit."""
ENCRYPTED = "reasoning.encrypted_content"


def encode(model: Model, transcript: Transcript, options: StreamOptions) -> dict[str, Any]:
    """Return the request body.

    The items in it are shared with later requests of the same conversation: copy the body before changing them.

    Raises:
        ModelError: the model's `compat` is wrong, or a tool has a grammar that cannot be used.
    """
    compat = resolve_compat(model)
    messages = transcript.messages
    plan = plan_tools(messages, "additions" if _additions(compat) else "none")
    body: dict[str, Any] = {"model": model.id, "stream": True, "store": False}
    max_tokens = _max_tokens(model, messages, options)
    if max_tokens is not None and compat.supports_max_output_tokens:
        body["max_output_tokens"] = max(max_tokens, MIN_OUTPUT_TOKENS)
    if options.temperature is not None:
        body["temperature"] = options.temperature
    _add_tools(body, plan.declared, options, compat)
    _add_cache(body, options, compat)
    if model.reasoning:
        _add_thinking(body, model, requested_level(model, options.reasoning), compat)
    body.update(compat.extra_body or {})
    body.update(sampling_params(model, options))
    body.setdefault("input", _input(model, messages, plan, compat))
    return body


def affinity_headers(options: StreamOptions, compat: ResponsesCompat) -> dict[str, str | None]:
    """Return the headers that keep the requests of one session on one machine of the provider."""
    session = options.session_id
    if not session or not compat.send_session_affinity_headers or options.cache_retention == "none":
        return {}
    if compat.session_affinity_format == "openrouter":
        return {"x-session-id": session}
    headers: dict[str, str | None] = {"x-client-request-id": session}
    return headers if compat.session_affinity_format == "openai-nosession" else {"session-id": session, **headers}


def _max_tokens(model: Model, messages: Sequence[Message], options: StreamOptions) -> int | None:
    limited = options.max_tokens is not None or model.max_tokens > 0
    tokens = estimate_context(messages).tokens if limited and model.context_window > 0 else 0
    return clamp_max_tokens(model, options.max_tokens, tokens)


# ---------------------------------------------------------------------------------------------------- tools, cache, thinking


def _add_tools(body: dict[str, Any], tools: list[ToolDeclaration], options: StreamOptions, compat: ResponsesCompat) -> None:
    if tools:
        strict, grammar = compat.supports_strict_mode, compat.supports_grammar_tools
        declared = [declare_tool(tool, strict=strict, grammar=grammar) for tool in tools]
        body["tools"] = declared
        if options.tool_choice is not None:
            body["tool_choice"] = _tool_choice(options.tool_choice, {tool["name"] for tool in declared if tool["type"] == "custom"})


def _tool_choice(choice: str | dict[str, Any], custom: set[str]) -> str | dict[str, Any]:
    """ "auto", "none" and "required" (also "any") are the protocol's words; any other string, and `{"name": …}`, names the tool to call.

    `custom` are the tools that take a text as it is.
    """
    if isinstance(choice, str):
        word = "required" if choice == "any" else choice
        if word in ("auto", "none", "required"):
            return word
        choice = {"name": choice}
    given = choice.get("name")
    if not isinstance(given, str):
        return choice
    name = legal_tool_name(given)
    return {"type": "custom" if name in custom else "function", **choice, "name": name}


def _additions(compat: ResponsesCompat) -> Literal["item", "search"] | None:
    """Return how tools that are added later stay in their place; None if they cannot."""
    if not compat.supports_mid_convo_system_messages:
        return None
    return "item" if compat.supports_additional_tools else "search" if compat.supports_tool_search else None


def _add_cache(body: dict[str, Any], options: StreamOptions, compat: ResponsesCompat) -> None:
    retention = options.cache_retention
    if options.session_id and retention != "none":
        body["prompt_cache_key"] = options.session_id[:CACHE_KEY_LENGTH]
    if compat.supports_explicit_prompt_cache_mode:
        if retention != "short":
            body["prompt_cache_options"] = {"mode": "explicit"} if retention == "none" else {"ttl": "30m"}
    elif retention == "long" and compat.supports_long_cache_retention:
        body["prompt_cache_retention"] = "24h"


def _add_thinking(body: dict[str, Any], model: Model, level: ThinkingLevel, compat: ResponsesCompat) -> None:
    """Say how hard to think, and ask for the reasoning in the form in which it can be sent back."""
    reasoning: dict[str, Any] = {}
    if level != "off":
        if compat.supports_reasoning_effort:
            reasoning["effort"] = thinking_word(model, level)
        if compat.reasoning_summary is not None:
            reasoning["summary"] = compat.reasoning_summary
    elif compat.can_switch_thinking_off and model.thinking_levels.get("off", "") is not None:
        reasoning["effort"] = model.thinking_levels.get("off") or "none"
    if reasoning:
        body["reasoning"] = reasoning
    if level != "off" or compat.always_include_encrypted_reasoning:
        body["include"] = [ENCRYPTED]


# ---------------------------------------------------------------------------------------------------- input


def _input(model: Model, messages: Sequence[Message], plan: ToolPlan, compat: ResponsesCompat) -> list[dict[str, Any]]:
    role = "developer" if model.reasoning and compat.supports_developer_role else "system"
    if compat.supports_mid_convo_system_messages:
        prompt_message, rest = split_system(messages)
        leading, folded = len(messages) - len(rest), plan.folded_systems
    else:
        prompt_message, leading, folded = current_system_message(system_messages(messages)), 0, 0
    style = ItemStyle(
        role=role,
        leading_systems=leading,
        mid_system=compat.supports_mid_convo_system_messages,
        folded_systems=folded,
        mid_tools=_additions(compat),
        strict_tools=compat.supports_strict_mode,
        grammar_tools=compat.supports_grammar_tools,
        raw_inputs=_raw_inputs(messages) if compat.supports_grammar_tools else (),
    )
    key = ("openai_responses", model, style)
    items = convert_cached(key, messages, lambda: OutgoingConversation(model, TOOL_IDS, ItemConverter(model, style)))
    prompt = render_system(prompt_message) if prompt_message is not None else ""
    return items.with_lead({"role": role, "content": clean_text(prompt)}) if prompt else items


def _raw_inputs(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """The grammar tools that were ever declared: their calls stay in the conversation when they are gone."""
    return tuple(raw_inputs(tool for message in system_messages(messages) for tool in message.tools_added or ()).items())
