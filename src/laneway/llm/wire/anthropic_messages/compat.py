"""How servers of the Anthropic messages protocol differ: one flag per quirk, found by provider id or base URL, overridden per model."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from laneway.errors import ModelError
from laneway.llm.base import Model, ModelCost


class AnthropicCompat(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The quirks of one server or model. Any of these fields may stand in `Model.compat`.

    The key:
        auth: the header that carries it; a subscription token (`sk-ant-oat…`) is a bearer token everywhere.
        keyless: no key is needed.

    Thinking:
        force_adaptive_thinking: the model decides how much to think and takes an effort instead of a token budget.
        supports_thinking_display: a budget request may say how thinking is shown (adaptive ones always do).
        interleaved_thinking: a budget model may think between tool calls; asked for with a beta header.
        allow_empty_signature: thinking without a signature is sent back as thinking with an empty one, not as text.
        supports_mid_convo_effort: a change of effort is said in the conversation and leaves what is cached as it is.

    Request fields:
        supports_temperature, supports_strict_tools, supports_eager_tool_input_streaming, supports_cache_control_on_tools,
        supports_long_cache_retention: what the server takes.
        supports_mid_convo_system_messages: later system messages stay where they are.
        supports_mid_convo_tool_changes: so do changes of the tools (needs the former, and a tool in the first system message).
        send_session_affinity_headers, session_affinity_format: the header that keeps a session on one machine.
        allowed_fallback_models: models (and their prices) that the provider may answer with if this one declines.
        extra_body: sent as it is.
    """

    auth: Literal["x-api-key", "bearer"] = "x-api-key"
    keyless: bool = False

    force_adaptive_thinking: bool = False
    supports_thinking_display: bool = False
    interleaved_thinking: bool = True
    allow_empty_signature: bool = False
    supports_mid_convo_effort: bool = False

    supports_temperature: bool = True
    supports_strict_tools: bool = False
    supports_eager_tool_input_streaming: bool = True
    supports_cache_control_on_tools: bool = True
    supports_long_cache_retention: bool = True
    supports_mid_convo_system_messages: bool = False
    supports_mid_convo_tool_changes: bool = False
    send_session_affinity_headers: bool = False
    session_affinity_format: Literal["affinity", "openrouter"] = "affinity"
    allowed_fallback_models: dict[str, ModelCost] = field(default_factory=dict[str, ModelCost])
    extra_body: dict[str, Any] | None = None


class Profile(Struct, kw_only=True, frozen=True):
    """A known server: how it is recognised, and where it differs from the defaults."""

    name: str
    providers: tuple[str, ...]
    hosts: tuple[str, ...]
    flags: dict[str, Any]


PROFILES: tuple[Profile, ...] = (
    Profile(
        name="anthropic",
        providers=("anthropic",),
        hosts=("api.anthropic.com",),
        flags={"supports_strict_tools": True, "supports_thinking_display": True},
    ),
    Profile(
        name="openrouter",
        providers=("openrouter",),
        hosts=("openrouter.ai",),
        flags={"auth": "bearer", "send_session_affinity_headers": True, "session_affinity_format": "openrouter"},
    ),
    Profile(
        name="fireworks",
        providers=("fireworks",),
        hosts=("api.fireworks.ai",),
        flags={
            "allow_empty_signature": True, "send_session_affinity_headers": True, "supports_eager_tool_input_streaming": False,
            "supports_cache_control_on_tools": False, "supports_long_cache_retention": False,
        },
    ),
    Profile(
        name="cloudflare-ai-gateway",
        providers=("cloudflare-ai-gateway",),
        hosts=("gateway.ai.cloudflare.com",),
        flags={"send_session_affinity_headers": True},
    ),
    Profile(name="vercel", providers=("vercel", "vercel-ai-gateway"), hosts=("ai-gateway.vercel.sh",), flags={"allow_empty_signature": True}),
    Profile(name="kimi-coding", providers=("kimi-coding",), hosts=("api.kimi.com",), flags={"allow_empty_signature": True}),
    Profile(name="minimax", providers=("minimax", "minimax-cn"), hosts=("api.minimax.io", "api.minimaxi.com"), flags={}),
)  # fmt: skip
"""Known servers. What a row does not name has the default of `AnthropicCompat`; an unknown server has all defaults."""


def find_profile(model: Model) -> Profile | None:
    """Return the row for the model's base URL, else for its provider id; None for an unknown server."""
    host = urlsplit(model.base_url).hostname or ""
    for profile in PROFILES:
        if any(host == known or host.endswith(f".{known}") for known in profile.hosts):
            return profile
    return next((profile for profile in PROFILES if model.provider in profile.providers), None)


def resolve_compat(model: Model) -> AnthropicCompat:
    """Return the quirks that hold for a model: the defaults, the known server's, then the model's own `compat`.

    Raises:
        ModelError: `model.compat` has an unknown flag or a wrong value.
    """
    profile = find_profile(model)
    flags: dict[str, Any] = {**(profile.flags if profile is not None else {}), **model.compat}
    try:
        return msgspec.convert(flags, AnthropicCompat)
    except msgspec.ValidationError as error:
        text = f"{model.spec}: `compat` does not fit the anthropic_messages wire: {error}; the flags are the fields of AnthropicCompat"
        raise ModelError(text) from error
