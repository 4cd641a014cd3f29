"""Transcript → request body of `POST {base_url}/models/{id}:streamGenerateContent`. Pure; the same beginning gives the same bytes.

The body ends with `contents`. The protocol knows no system message or change of tools inside of a conversation: the prompt and the tools
that hold now are at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from laneway.errors import ModelError
from laneway.llm._thinking import clamp_max_tokens, estimate_context, fit_budget, requested_level, sampling_params, thinking_word
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
from laneway.llm.base import Model, StreamOptions, ThinkingLevel, Transcript
from laneway.llm.wire.google_generate._contents import ContentConverter, ContentStyle
from laneway.llm.wire.google_generate.compat import GoogleCompat, resolve_compat
from laneway.messages import Message, SystemMessage, ToolDeclaration, clean_text

TOOL_IDS = IdPolicy(max_length=64)
THINKING_WORDS = frozenset({"MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH"})
_MODES = {"auto": "AUTO", "none": "NONE", "any": "ANY", "required": "ANY"}


def encode(model: Model, transcript: Transcript, options: StreamOptions) -> dict[str, Any]:
    """Return the request body.

    The contents in it are shared with later requests of the same conversation: copy the body before changing them.

    Raises:
        ModelError: the model's `compat` is wrong, or its word for a thinking level is none of the protocol's.
    """
    compat = resolve_compat(model)
    messages = transcript.messages
    systems = system_messages(messages)
    body: dict[str, Any] = {}
    prompt = _prompt(systems)
    if prompt and compat.supports_system_instruction:
        body["systemInstruction"] = {"parts": [{"text": prompt}]}
    _add_tools(body, current_tools(systems), options, compat)
    config = _config(model, messages, options, compat)
    if config:
        body["generationConfig"] = config
    body.update(compat.extra_body or {})
    lead = [] if not prompt or compat.supports_system_instruction else [{"role": "user", "parts": [{"text": prompt}]}]
    body.setdefault("contents", _contents(model, messages, lead, compat))
    return body


def _prompt(systems: list[SystemMessage]) -> str:
    merged = current_system_message(systems)
    return clean_text(render_system(merged)) if merged is not None else ""


def _contents(model: Model, messages: Sequence[Message], lead: list[dict[str, Any]], compat: GoogleCompat) -> list[dict[str, Any]]:
    style = ContentStyle(call_ids=compat.call_ids, images_in_results=compat.images_in_results, needs_signatures=compat.needs_signatures)
    items = convert_cached(("google_generate", model, style), messages, lambda: OutgoingConversation(model, TOOL_IDS, ContentConverter(style)))
    return items.with_lead(*lead) if lead else items


# ---------------------------------------------------------------------------------------------------- tools


def _add_tools(body: dict[str, Any], tools: list[ToolDeclaration], options: StreamOptions, compat: GoogleCompat) -> None:
    if not tools:
        return
    body["tools"] = [{"functionDeclarations": [declare_tool(tool) for tool in tools]}]
    strict = compat.validated_calls and any(tool.strict for tool in tools)
    config = calling_config(options.tool_choice, strict=strict)
    if config is not None:
        body["toolConfig"] = {"functionCallingConfig": config}


def declare_tool(tool: ToolDeclaration) -> dict[str, Any]:
    """Return a tool's declaration."""
    parameters: dict[str, Any] = tool.parameters
    if parameters.get("type", "object") == "object" and "properties" not in parameters:
        parameters = {**parameters, "type": "object", "properties": {}}
    return {"name": legal_tool_name(tool.name), "description": tool.description, "parametersJsonSchema": without_const(parameters)}


def without_const(schema: Any) -> Any:
    """Return a schema in which a constant text or number is a choice of one, which is how the API knows it; unchanged parts are shared."""
    if isinstance(schema, list):
        return [without_const(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    node = cast("dict[str, Any]", schema)
    copy = {key: value if key in ("enum", "default", "examples") else without_const(value) for key, value in node.items()}
    constant = node.get("const")
    if "enum" not in node and isinstance(constant, (str, int, float)) and not isinstance(constant, bool):
        copy.setdefault("type", "string" if isinstance(constant, str) else "number")
        copy["enum"] = [copy.pop("const")]
    return copy


def calling_config(choice: str | dict[str, Any] | None, *, strict: bool) -> dict[str, Any] | None:
    """Return how the model may call. "auto", "none" and "any" ("required") are modes; any other string, and `{"name": …}`, names the tool to call.

    With `strict`, calls are held to their schemas wherever the model may choose.
    """
    if isinstance(choice, dict) and not isinstance(choice.get("name"), str):
        return choice
    name = cast(str, choice["name"]) if isinstance(choice, dict) else choice
    if isinstance(choice, dict) or (name is not None and name not in _MODES):
        return {"mode": "ANY", "allowedFunctionNames": [legal_tool_name(cast(str, name))]}
    if strict and name in (None, "auto"):
        return {"mode": "VALIDATED"}
    return None if name is None else {"mode": _MODES[name]}


# ---------------------------------------------------------------------------------------------------- generation


def _config(model: Model, messages: Sequence[Message], options: StreamOptions, compat: GoogleCompat) -> dict[str, Any]:
    limited = options.max_tokens is not None or model.max_tokens > 0
    tokens = estimate_context(messages).tokens if limited and model.context_window > 0 else 0
    max_tokens = clamp_max_tokens(model, options.max_tokens, tokens)
    config: dict[str, Any] = {}
    if options.temperature is not None:
        config["temperature"] = options.temperature
    if max_tokens is not None:
        config["maxOutputTokens"] = max_tokens
    thinking = _thinking(model, options, max_tokens, compat)
    if thinking is not None:
        config["thinkingConfig"] = thinking
    config.update(sampling_params(model, options))
    return config


def _thinking(model: Model, options: StreamOptions, max_tokens: int | None, compat: GoogleCompat) -> dict[str, Any] | None:
    """Say how much to think. A model that cannot do without thinks as little as it can, and keeps it to itself, where thinking is to be off."""
    if not model.reasoning or compat.thinking == "none":
        return None
    shown = (options.reasoning or model.default_thinking_level or "off") != "off"
    level = requested_level(model, options.reasoning)
    amount = _level(model, level) if compat.thinking == "level" else {"thinkingBudget": _budget(level, options, max_tokens, compat)}
    return {"includeThoughts": True, **amount} if shown and level != "off" else amount


def _level(model: Model, level: ThinkingLevel) -> dict[str, Any]:
    if level == "off" and not model.thinking_levels.get("off"):
        return {"thinkingBudget": 0}
    word = thinking_word(model, level).upper()
    if word not in THINKING_WORDS:
        known = ", ".join(word.lower() for word in sorted(THINKING_WORDS))
        raise ModelError(f"{model.spec}: {word.lower()!r}, its word for the thinking level {level!r}, is unknown to the API; there are {known}")
    return {"thinkingLevel": word}


def _budget(level: ThinkingLevel, options: StreamOptions, max_tokens: int | None, compat: GoogleCompat) -> int:
    """Return the tokens to think with, of which `max_tokens` must leave some for the answer; −1 leaves it to the model."""
    if level == "off":
        return compat.min_budget
    name = "high" if level in ("xhigh", "max") else level
    budget = (options.thinking_budgets or {}).get(name, compat.budgets.get(name, -1))
    if budget < 0:
        return -1
    return max(compat.min_budget, budget if max_tokens is None else fit_budget(budget, max_tokens))
