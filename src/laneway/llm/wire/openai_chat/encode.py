"""Transcript → request body of `POST {base_url}/chat/completions`. Pure; the same beginning gives the same bytes.

The body ends with `messages`, so a longer conversation's request starts with the shorter one's bytes, which is what prompt caches go by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from laneway.errors import ModelError
from laneway.llm._thinking import clamp_max_tokens, estimate_context, fit_budget, requested_level, sampling_params, thinking_budget, thinking_word
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
from laneway.llm.wire.openai_chat._messages import MessageConverter, MessageStyle, declare_tool
from laneway.llm.wire.openai_chat.compat import ChatCompat, resolve_compat
from laneway.messages import Message, ToolCall, ToolDeclaration, clean_text

CACHE_KEY_LENGTH = 64


def encode(model: Model, transcript: Transcript, options: StreamOptions) -> dict[str, Any]:
    """Return the request body.

    The messages in it are shared with later requests of the same conversation: copy the body before changing them.

    Raises:
        ModelError: the model's `compat` is wrong.
    """
    compat = resolve_compat(model)
    messages = transcript.messages
    level = requested_level(model, options.reasoning)
    max_tokens = _max_tokens(model, messages, options)
    in_place = compat.supports_mid_convo_system_messages and compat.supports_mid_convo_tool_additions
    plan = plan_tools(messages, "additions" if in_place else "none")
    body: dict[str, Any] = {"model": model.id, "stream": True}
    if compat.supports_usage_in_streaming:
        body["stream_options"] = {"include_usage": True}
    if compat.supports_store:
        body["store"] = False
    if max_tokens is not None:
        body[compat.max_tokens_field] = max_tokens
    if options.temperature is not None:
        body["temperature"] = options.temperature
    _add_tools(body, plan.declared, messages, options, compat)
    _add_cache_key(body, model, options, compat)
    if model.reasoning:
        _add_thinking(body, model, level, compat)
        _add_budget(body, level, max_tokens, options, compat)
    _add_routing(body, compat)
    body.update(sampling_params(model, options))
    body.setdefault("messages", _messages(model, messages, plan, compat))
    if compat.cache_control_format == "anthropic" and options.cache_retention != "none":
        _mark_for_cache(body, options)
    return body


def tool_ids(compat: ChatCompat) -> IdPolicy:
    """Return what this server accepts as the id of a tool call; never more than 40 characters."""
    return IdPolicy(max_length=max(16, min(40, compat.max_tool_call_id_length)))


# ---------------------------------------------------------------------------------------------------- messages


def _messages(model: Model, messages: Sequence[Message], plan: ToolPlan, compat: ChatCompat) -> list[dict[str, Any]]:
    role = "developer" if model.reasoning and compat.supports_developer_role else "system"
    if compat.supports_mid_convo_system_messages:
        prompt_message, rest = split_system(messages)
        leading, folded = len(messages) - len(rest), plan.folded_systems
    else:
        prompt_message, leading, folded = current_system_message(system_messages(messages)), 0, 0
    style = MessageStyle.of(compat, role=role, reasoning=model.reasoning, leading_systems=leading, folded_systems=folded)
    items = convert_cached(("openai_chat", model, style), messages, lambda: OutgoingConversation(model, tool_ids(compat), MessageConverter(style)))
    prompt = render_system(prompt_message) if prompt_message is not None else ""
    return items.with_lead({"role": role, "content": clean_text(prompt)}) if prompt else items


def _max_tokens(model: Model, messages: Sequence[Message], options: StreamOptions) -> int | None:
    limited = options.max_tokens is not None or model.max_tokens > 0
    tokens = estimate_context(messages).tokens if limited and model.context_window > 0 else 0
    return clamp_max_tokens(model, options.max_tokens, tokens)


# ---------------------------------------------------------------------------------------------------- tools, cache, routing


def _add_tools(body: dict[str, Any], tools: list[ToolDeclaration], messages: Sequence[Message], options: StreamOptions, compat: ChatCompat) -> None:
    if tools:
        body["tools"] = [declare_tool(tool, strict=compat.supports_strict_mode) for tool in tools]
        if options.tool_choice is not None:
            body["tool_choice"] = _tool_choice(options.tool_choice)
        if compat.zai_tool_stream:
            body["tool_stream"] = True
    elif compat.requires_tools_with_tool_history and _has_calls(messages):
        body["tools"] = []


def _tool_choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    """ "auto", "none" and "required" are the protocol's words; any other string, and `{"name": …}`, names the tool to call."""
    if isinstance(choice, str) and choice in ("auto", "none", "required"):
        return choice
    if choice == "any":
        return "required"
    name = choice if isinstance(choice, str) else choice.get("name")
    return {"type": "function", "function": {"name": legal_tool_name(name)}} if isinstance(name, str) else choice


def _has_calls(messages: Sequence[Message]) -> bool:
    return any(isinstance(block, ToolCall) for message in messages if message.role == "assistant" for block in message.content)


def _add_cache_key(body: dict[str, Any], model: Model, options: StreamOptions, compat: ChatCompat) -> None:
    long = options.cache_retention == "long" and compat.supports_long_cache_retention
    mode = compat.prompt_cache_key_mode
    own_api = model.provider == "openai" or "api.openai.com" in model.base_url
    wanted = mode == "enabled" or (mode == "auto" and (own_api or long))
    if options.session_id and options.cache_retention != "none" and wanted:
        body["prompt_cache_key"] = options.session_id[:CACHE_KEY_LENGTH]
    if long:
        body["prompt_cache_retention"] = "24h"


def _add_routing(body: dict[str, Any], compat: ChatCompat) -> None:
    if compat.vllm_priority is not None:
        body["priority"] = compat.vllm_priority
    if compat.open_router_routing:
        body["provider"] = compat.open_router_routing
    gateway = {key: value for key, value in (compat.vercel_gateway_routing or {}).items() if key in ("only", "order")}
    if gateway:
        body["providerOptions"] = {"gateway": gateway}
    body.update(compat.extra_body or {})


def affinity_headers(options: StreamOptions, compat: ChatCompat) -> dict[str, str | None]:
    """Return the headers that keep the requests of one session on one machine of the provider."""
    session = options.session_id
    if not session or not compat.send_session_affinity_headers or options.cache_retention == "none":
        return {}
    if compat.session_affinity_format == "openrouter":
        return {"x-session-id": session}
    headers: dict[str, str | None] = {"x-client-request-id": session, "x-session-affinity": session}
    return headers if compat.session_affinity_format == "openai-nosession" else {"session_id": session, **headers}


# ---------------------------------------------------------------------------------------------------- thinking


def _add_thinking(body: dict[str, Any], model: Model, level: ThinkingLevel, compat: ChatCompat) -> None:
    """Say how much to think, in the server's own way; a level "off" that the model lacks (None in its map) says nothing."""
    on = level != "off"
    word = thinking_word(model, level)
    effort = word if on and compat.supports_reasoning_effort else None
    can_be_off = model.thinking_levels.get("off", "") is not None
    match compat.thinking_format:
        case "none":
            pass
        case "openai":
            _set_effort(body, effort if on else model.thinking_levels.get("off"))
        case "openrouter":
            if on or can_be_off:
                body["reasoning"] = {"effort": word if on else model.thinking_levels.get("off") or "none"}
        case "deepseek":
            if on or can_be_off:
                body["thinking"] = {"type": "enabled" if on else "disabled"}
            _set_effort(body, effort)
        case "together":
            body["reasoning"] = {"enabled": on}
            _set_effort(body, effort)
        case "zai":
            body["thinking"] = {"type": "enabled", "clear_thinking": False} if on else {"type": "disabled"}
            _set_effort(body, effort if model.thinking_levels.get(level) else None)
        case "qwen":
            body["enable_thinking"] = on
            _set_effort(body, effort)
        case "qwen-chat-template":
            body["chat_template_kwargs"] = {"enable_thinking": on, "preserve_thinking": True}
        case "chat-template":
            _set_template(body, "chat_template_kwargs", compat.chat_template_kwargs, model, level)
        case "baseten":
            _set_template(body, "chat_template_args", compat.chat_template_args, model, level)
            _set_effort(body, effort if on else model.thinking_levels.get("off"))
        case "string-thinking":
            if on or can_be_off:
                body["thinking"] = word if on else model.thinking_levels.get("off") or "none"
        case "ant-ling":
            if on and model.thinking_levels.get(level):
                body["reasoning"] = {"effort": word}


def _set_effort(body: dict[str, Any], effort: str | None) -> None:
    if effort:
        body["reasoning_effort"] = effort


def _set_template(body: dict[str, Any], key: str, template: dict[str, Any], model: Model, level: ThinkingLevel) -> None:
    values = {name: value for name, raw in template.items() if (value := _template_value(raw, model, level)) is not None}
    if values:
        body[key] = values


def _template_value(raw: Any, model: Model, level: ThinkingLevel) -> Any:
    """Fill in `{"$var": …}`; None leaves the entry out."""
    variable = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    if "$var" not in variable:
        return cast(Any, raw)
    on = level != "off"
    if not on and (variable.get("omitWhenOff") or variable.get("omit_when_off")):
        return None
    match variable["$var"]:
        case "thinking.enabled":
            return on
        case "thinking.effort":
            return thinking_word(model, level) if on else model.thinking_levels.get("off")
        case "thinking.budget":
            return thinking_budget(level)
        case other:
            raise ModelError(f"{model.spec}: a chat template value names the unknown variable {other!r}; thinking.enabled, .effort and .budget exist")


def _add_budget(body: dict[str, Any], level: ThinkingLevel, max_tokens: int | None, options: StreamOptions, compat: ChatCompat) -> None:
    if compat.thinking_budget_field is None or level == "off":
        return
    budget = thinking_budget(level, options.thinking_budgets)
    budget = budget if max_tokens is None else fit_budget(budget, max_tokens)
    if budget > 0:
        body[compat.thinking_budget_field] = budget


# ---------------------------------------------------------------------------------------------------- cache markers


def _mark_for_cache(body: dict[str, Any], options: StreamOptions) -> None:
    """Put Anthropic's cache markers on the system prompt, the last tool and the last message that has text."""
    marker: dict[str, Any] = {"type": "ephemeral"}
    if options.cache_retention == "long":
        marker["ttl"] = "1h"
    messages = body["messages"] = list(body["messages"])
    if messages and messages[0]["role"] in ("system", "developer"):
        messages[0] = _marked(messages[0], marker) or messages[0]
    if body.get("tools"):
        body["tools"] = [*body["tools"][:-1], {**body["tools"][-1], "cache_control": marker}]
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] in ("user", "assistant", "tool") and (marked := _marked(messages[index], marker)) is not None:
            messages[index] = marked
            return


def _marked(message: dict[str, Any], marker: dict[str, Any]) -> dict[str, Any] | None:
    """Return a copy with the marker on its last text part; None if there is no text."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content, "cache_control": marker}]} if content else None
    parts: list[dict[str, Any]] = list(content or ())
    for index in range(len(parts) - 1, -1, -1):
        if parts[index].get("type") == "text" and parts[index].get("text"):
            parts[index] = {**parts[index], "cache_control": marker}
            return {**message, "content": parts}
    return None
