"""Transcript → request body of `POST {base_url}/v1/chat/completions`. Pure; the same beginning gives the same bytes.

The body ends with `messages`. The protocol knows no system message or change of tools inside of a conversation: the prompt and the tools
that hold now are at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laneway.llm._thinking import clamp_max_tokens, estimate_context, requested_level, sampling_params, thinking_word
from laneway.llm._transform import (
    IdPolicy,
    OutgoingConversation,
    convert_cached,
    current_system_message,
    current_tools,
    legal_tool_name,
    render_system,
    system_messages,
)
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire.mistral._messages import MessageConverter, MessageStyle, declare_tool
from laneway.llm.wire.mistral.compat import MistralCompat, resolve_compat
from laneway.messages import Message, SystemMessage, clean_text

TOOL_IDS = IdPolicy(max_length=9, chars="A-Za-z0-9", fixed=True)
_CHOICES = frozenset({"auto", "none", "any", "required"})


def encode(model: Model, transcript: Transcript, options: StreamOptions) -> dict[str, Any]:
    """Return the request body.

    The messages in it are shared with later requests of the same conversation: copy the body before changing them.

    Raises:
        ModelError: the model's `compat` is wrong.
    """
    compat = resolve_compat(model)
    messages = transcript.messages
    systems = system_messages(messages)
    body: dict[str, Any] = {"model": model.id, "stream": True}
    max_tokens = _max_tokens(model, messages, options)
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if options.temperature is not None:
        body["temperature"] = options.temperature
    tools = current_tools(systems)
    if tools:
        body["tools"] = [declare_tool(tool, strict=compat.supports_strict_mode) for tool in tools]
        if options.tool_choice is not None:
            body["tool_choice"] = _tool_choice(options.tool_choice)
    if options.session_id and compat.supports_prompt_cache_key and options.cache_retention != "none":
        body["prompt_cache_key"] = options.session_id
    _add_thinking(body, model, options, compat)
    body.update(compat.extra_body or {})
    body.update(sampling_params(model, options))
    body.setdefault("messages", _messages(model, messages, systems, compat))
    return body


def affinity_headers(options: StreamOptions) -> dict[str, str | None]:
    """Return the header that keeps the requests of one session on one machine of the provider."""
    return {"x-affinity": options.session_id} if options.session_id and options.cache_retention != "none" else {}


def _messages(model: Model, messages: Sequence[Message], systems: list[SystemMessage], compat: MistralCompat) -> list[dict[str, Any]]:
    style = MessageStyle(filler_after_result=compat.requires_assistant_after_tool_result, images_in_results=compat.supports_images_in_tool_results)
    items = convert_cached(("mistral", model, style), messages, lambda: OutgoingConversation(model, TOOL_IDS, MessageConverter(style)))
    merged = current_system_message(systems)
    prompt = render_system(merged) if merged is not None else ""
    return items.with_lead({"role": "system", "content": clean_text(prompt)}) if prompt else items


def _max_tokens(model: Model, messages: Sequence[Message], options: StreamOptions) -> int | None:
    limited = options.max_tokens is not None or model.max_tokens > 0
    tokens = estimate_context(messages).tokens if limited and model.context_window > 0 else 0
    return clamp_max_tokens(model, options.max_tokens, tokens)


def _tool_choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    """ "auto", "none", "any" and "required" are the protocol's words; any other string, and `{"name": …}`, names the tool to call."""
    if isinstance(choice, str) and choice in _CHOICES:
        return choice
    name = choice if isinstance(choice, str) else choice.get("name")
    return {"type": "function", "function": {"name": legal_tool_name(name)}} if isinstance(name, str) else choice


def _add_thinking(body: dict[str, Any], model: Model, options: StreamOptions, compat: MistralCompat) -> None:
    """Say how much to think. A model whose map has no word for "off" is told nothing then."""
    if not model.reasoning or compat.thinking == "none":
        return
    level = requested_level(model, options.reasoning)
    if compat.thinking == "prompt_mode":
        if level != "off":
            body["prompt_mode"] = "reasoning"
        return
    word = thinking_word(model, level) if level != "off" else model.thinking_levels.get("off")
    if word:
        body["reasoning_effort"] = word
