"""How servers of the Responses protocol differ: one flag per quirk, found by provider id or base URL, overridden per model."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from laneway.errors import ModelError
from laneway.llm.base import Model


class ResponsesCompat(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The quirks of one server or model. Any of these fields may stand in `Model.compat`.

    Request fields:
        supports_max_output_tokens, supports_strict_mode, supports_long_cache_retention: what the server takes.
        supports_grammar_tools: a tool with a grammar takes a text that is held to it; else it is a tool with a schema like others.
        supports_explicit_prompt_cache_mode: the prompt cache is steered with `prompt_cache_options` instead of a retention.
        send_session_affinity_headers, session_affinity_format: headers that keep a session on one machine.
        extra_body: sent as it is.

    Thinking:
        supports_reasoning_effort: an effort word is understood; can_switch_thinking_off: so is one for none at all.
        reasoning_summary: how the reasoning is shown; None asks for nothing.
        always_include_encrypted_reasoning: reasoning comes, encrypted, even if none was asked for.

    Messages:
        supports_developer_role: the system prompt of a reasoning model has the role "developer".
        supports_mid_convo_system_messages: later system messages stay where they are.
        supports_additional_tools: so do tools that are added later (needs the former); supports_tool_search: they come as what a search for
            tools found, where there is no other way (needs the same).

    keyless: no key is needed.
    """

    supports_max_output_tokens: bool = True
    supports_strict_mode: bool = False
    supports_grammar_tools: bool = False
    supports_long_cache_retention: bool = True
    supports_explicit_prompt_cache_mode: bool = False
    send_session_affinity_headers: bool = True
    session_affinity_format: Literal["openai", "openai-nosession", "openrouter"] = "openai"
    extra_body: dict[str, Any] | None = None

    supports_reasoning_effort: bool = True
    can_switch_thinking_off: bool = True
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = "auto"
    always_include_encrypted_reasoning: bool = False

    supports_developer_role: bool = True
    supports_mid_convo_system_messages: bool = False
    supports_additional_tools: bool = False
    supports_tool_search: bool = False

    keyless: bool = False


class Profile(Struct, kw_only=True, frozen=True):
    """A known server: how it is recognised, and where it differs from the defaults."""

    name: str
    providers: tuple[str, ...]
    hosts: tuple[str, ...]
    flags: dict[str, Any]


PROFILES: tuple[Profile, ...] = (
    Profile(name="openai", providers=("openai",), hosts=("api.openai.com",), flags={"supports_strict_mode": True}),
    Profile(
        name="azure",
        providers=("azure",),
        hosts=("openai.azure.com", "cognitiveservices.azure.com", "services.ai.azure.com"),
        flags={"supports_strict_mode": True, "send_session_affinity_headers": False},
    ),
    Profile(
        name="xai",
        providers=("xai",),
        hosts=("api.x.ai",),
        flags={"supports_long_cache_retention": False, "always_include_encrypted_reasoning": True},
    ),
    Profile(name="openrouter", providers=("openrouter",), hosts=("openrouter.ai",), flags={"session_affinity_format": "openrouter"}),
    Profile(name="github-copilot", providers=("github-copilot",), hosts=("githubcopilot.com",), flags={"can_switch_thinking_off": False}),
    Profile(name="opencode", providers=("opencode", "opencode-go"), hosts=("opencode.ai",), flags={"session_affinity_format": "openai-nosession"}),
    Profile(
        name="cloudflare-ai-gateway", providers=("cloudflare-ai-gateway",), hosts=("gateway.ai.cloudflare.com",), flags={"supports_strict_mode": True}
    ),
    Profile(name="meta", providers=("meta",), hosts=("api.meta.ai",), flags={}),
)
"""Known servers. What a row does not name has the default of `ResponsesCompat`; an unknown server has all defaults."""


def find_profile(model: Model) -> Profile | None:
    """Return the row for the model's base URL, else for its provider id; None for an unknown server."""
    host = urlsplit(model.base_url).hostname or ""
    for profile in PROFILES:
        if any(host == known or host.endswith(f".{known}") for known in profile.hosts):
            return profile
    return next((profile for profile in PROFILES if model.provider in profile.providers), None)


def resolve_compat(model: Model) -> ResponsesCompat:
    """Return the quirks that hold for a model: the defaults, the known server's, then the model's own `compat`.

    Raises:
        ModelError: `model.compat` has an unknown flag or a wrong value.
    """
    profile = find_profile(model)
    flags: dict[str, Any] = {**(profile.flags if profile is not None else {}), **model.compat}
    try:
        return msgspec.convert(flags, ResponsesCompat)
    except msgspec.ValidationError as error:
        raise ModelError(f"{model.spec}: `compat` does not fit the {model.api} wire: {error}; the flags are the fields of ResponsesCompat") from error
