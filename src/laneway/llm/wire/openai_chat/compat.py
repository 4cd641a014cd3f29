"""How servers of the chat-completions protocol differ: one flag per quirk, found by provider id or base URL, overridden per model."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from laneway.errors import ModelError
from laneway.llm.base import Model

ThinkingFormat = Literal[
    "openai", "openrouter", "deepseek", "together", "zai", "qwen", "qwen-chat-template", "chat-template", "baseten", "string-thinking",
    "ant-ling", "none",
]  # fmt: skip


class ChatCompat(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The quirks of one server or model. The defaults are what an unknown, simple server understands.

    Any of these fields may stand in `Model.compat`.

    Request fields:
        max_tokens_field: the name of the output limit.
        supports_store: `store: false` is sent.
        supports_usage_in_streaming: usage is asked for with `stream_options`.
        supports_long_cache_retention, prompt_cache_key_mode: how the prompt cache is steered ("auto" is OpenAI's own API, and
            others when long retention is asked for and supported).
        cache_control_format: "anthropic" puts cache markers into the messages.
        send_session_affinity_headers, session_affinity_format: headers that keep a session on one machine.
        zai_tool_stream, vllm_priority, open_router_routing, vercel_gateway_routing, extra_body: sent as they are.

    Thinking:
        thinking_format: how thinking is switched on and off; supports_reasoning_effort: whether an effort word is understood.
        thinking_budget_field: the name of a token budget; chat_template_kwargs, chat_template_args: template values, in which
            `{"$var": "thinking.enabled" | "thinking.effort" | "thinking.budget", "omitWhenOff": true}` is filled in.

    Messages:
        supports_developer_role: the system prompt of a reasoning model has the role "developer".
        supports_mid_convo_system_messages, supports_mid_convo_tool_additions: later system messages stay where they are.
        requires_tool_result_name, requires_assistant_after_tool_result, requires_non_null_assistant_content,
        requires_thinking_as_text, requires_reasoning_content_on_assistant_messages, requires_tools_with_tool_history: what the server insists on.
        supports_images_in_tool_results: tool messages may carry images.
        supports_strict_mode: tools may carry `strict`.
        max_tool_call_id_length: at most 40.

    Responses:
        supports_finish_reason: False infers the end of a response from the end of the stream.
        keyless: no key is needed.
    """

    max_tokens_field: str = "max_completion_tokens"
    supports_store: bool = False
    supports_usage_in_streaming: bool = True
    supports_long_cache_retention: bool = False
    prompt_cache_key_mode: Literal["auto", "enabled", "disabled"] = "auto"
    cache_control_format: Literal["anthropic"] | None = None
    send_session_affinity_headers: bool = False
    session_affinity_format: Literal["openai", "openai-nosession", "openrouter"] = "openai"
    zai_tool_stream: bool = False
    vllm_priority: int | None = None
    open_router_routing: dict[str, Any] | None = None
    vercel_gateway_routing: dict[str, Any] | None = None
    extra_body: dict[str, Any] | None = None

    thinking_format: ThinkingFormat = "openai"
    supports_reasoning_effort: bool = True
    thinking_budget_field: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    chat_template_args: dict[str, Any] = field(default_factory=dict[str, Any])

    supports_developer_role: bool = False
    supports_mid_convo_system_messages: bool = False
    supports_mid_convo_tool_additions: bool = False
    requires_tool_result_name: bool = False
    requires_assistant_after_tool_result: bool = False
    requires_non_null_assistant_content: bool = False
    requires_thinking_as_text: bool = False
    requires_reasoning_content_on_assistant_messages: bool = False
    requires_tools_with_tool_history: bool = False
    supports_images_in_tool_results: bool = False
    supports_strict_mode: bool = False
    max_tool_call_id_length: int = 40

    supports_finish_reason: bool = True
    keyless: bool = False


class Profile(Struct, kw_only=True, frozen=True):
    """A known server: how it is recognised, and where it differs from the defaults."""

    name: str
    providers: tuple[str, ...]
    hosts: tuple[str, ...]
    flags: dict[str, Any]


PROFILES: tuple[Profile, ...] = (
    Profile(
        name="openai",
        providers=("openai",),
        hosts=("api.openai.com",),
        flags={"supports_store": True, "supports_developer_role": True, "supports_long_cache_retention": True, "supports_strict_mode": True},
    ),
    Profile(
        name="openrouter",
        providers=("openrouter",),
        hosts=("openrouter.ai",),
        flags={
            "supports_store": False, "thinking_format": "openrouter", "send_session_affinity_headers": True,
            "session_affinity_format": "openrouter", "supports_long_cache_retention": True, "supports_strict_mode": True,
        },
    ),
    Profile(
        name="deepseek",
        providers=("deepseek",),
        hosts=("api.deepseek.com",),
        flags={"max_tokens_field": "max_tokens", "thinking_format": "deepseek", "requires_reasoning_content_on_assistant_messages": True},
    ),
    Profile(
        name="zai",
        providers=("zai", "zai-coding-cn"),
        hosts=("api.z.ai", "open.bigmodel.cn"),
        flags={"max_tokens_field": "max_tokens", "thinking_format": "zai", "supports_reasoning_effort": False, "zai_tool_stream": True},
    ),
    Profile(
        name="together",
        providers=("together",),
        hosts=("api.together.ai", "api.together.xyz"),
        flags={"max_tokens_field": "max_tokens", "thinking_format": "together", "supports_reasoning_effort": False},
    ),
    Profile(
        name="moonshot",
        providers=("moonshot", "moonshotai", "moonshotai-cn"),
        hosts=("api.moonshot.ai", "api.moonshot.cn"),
        flags={
            "max_tokens_field": "max_tokens", "supports_reasoning_effort": False, "supports_mid_convo_system_messages": True,
        },
    ),
    Profile(
        name="nvidia",
        providers=("nvidia",),
        hosts=("integrate.api.nvidia.com",),
        flags={"max_tokens_field": "max_tokens", "supports_reasoning_effort": False},
    ),
    Profile(
        name="ant-ling",
        providers=("ant-ling",),
        hosts=("api.ant-ling.com",),
        flags={"max_tokens_field": "max_tokens", "supports_reasoning_effort": False, "thinking_format": "ant-ling"},
    ),
    Profile(name="chutes", providers=("chutes",), hosts=("llm.chutes.ai",), flags={"max_tokens_field": "max_tokens"}),
    Profile(
        name="cloudflare-ai-gateway",
        providers=("cloudflare-ai-gateway",),
        hosts=("gateway.ai.cloudflare.com",),
        flags={"max_tokens_field": "max_tokens", "supports_reasoning_effort": False, "send_session_affinity_headers": True},
    ),
    Profile(
        name="cloudflare-workers-ai",
        providers=("cloudflare", "cloudflare-workers-ai"),
        hosts=("api.cloudflare.com",),
        flags={"send_session_affinity_headers": True},
    ),
    Profile(name="cerebras", providers=("cerebras",), hosts=("api.cerebras.ai",), flags={}),
    Profile(name="xai", providers=("xai",), hosts=("api.x.ai",), flags={"supports_reasoning_effort": False}),
    Profile(name="groq", providers=("groq",), hosts=("api.groq.com",), flags={}),
    Profile(name="opencode", providers=("opencode", "opencode-go"), hosts=("opencode.ai",), flags={}),
    Profile(name="huggingface", providers=("huggingface",), hosts=("router.huggingface.co",), flags={}),
    Profile(
        name="fireworks", providers=("fireworks",), hosts=("api.fireworks.ai",), flags={"send_session_affinity_headers": True}
    ),
    Profile(
        name="baseten",
        providers=("baseten",),
        hosts=("inference.baseten.co",),
        flags={"max_tokens_field": "max_tokens", "send_session_affinity_headers": True},
    ),
    Profile(
        name="qwen",
        providers=("qwen-token-plan", "qwen-token-plan-cn", "qwen-token-plan-individual"),
        hosts=("aliyuncs.com",),
        flags={"thinking_format": "qwen"},
    ),
    Profile(
        name="xiaomi",
        providers=("xiaomi", "xiaomi-token-plan-ams", "xiaomi-token-plan-cn", "xiaomi-token-plan-sgp"),
        hosts=("xiaomimimo.com",),
        flags={"thinking_format": "deepseek", "requires_reasoning_content_on_assistant_messages": True},
    ),
    Profile(name="vercel-ai-gateway", providers=("vercel", "vercel-ai-gateway"), hosts=("ai-gateway.vercel.sh",), flags={}),
    Profile(
        name="github-copilot",
        providers=("github-copilot",),
        hosts=("githubcopilot.com",),
        flags={"supports_reasoning_effort": False},
    ),
    Profile(
        name="llama.cpp",
        providers=("llama.cpp", "llamacpp", "local"),
        hosts=(),
        flags={
            "max_tokens_field": "max_tokens", "thinking_format": "none", "supports_reasoning_effort": False,
            "thinking_budget_field": "thinking_budget_tokens", "keyless": True,
        },
    ),
    Profile(
        name="vllm",
        providers=("vllm",),
        hosts=(),
        flags={
            "max_tokens_field": "max_tokens", "thinking_format": "none", "supports_reasoning_effort": False,
            "thinking_budget_field": "thinking_token_budget", "keyless": True,
        },
    ),
    Profile(
        name="ollama",
        providers=("ollama", "lmstudio"),
        hosts=(),
        flags={"max_tokens_field": "max_tokens", "supports_reasoning_effort": False, "keyless": True},
    ),
)  # fmt: skip
"""Known servers. What a row does not name has the default of `ChatCompat`; an unknown server has all defaults."""


def find_profile(model: Model) -> Profile | None:
    """Return the row for the model's base URL, else (without one of its own) for its provider id; None for an unknown server."""
    host = urlsplit(model.base_url).hostname or ""
    for profile in PROFILES:
        if any(host == known or host.endswith(f".{known}") for known in profile.hosts):
            return profile
    return next((profile for profile in PROFILES if model.provider in profile.providers), None)


def resolve_compat(model: Model) -> ChatCompat:
    """Return the quirks that hold for a model: the defaults, the known server's, then the model's own `compat`.

    Raises:
        ModelError: `model.compat` has an unknown flag or a wrong value.
    """
    profile = find_profile(model)
    flags: dict[str, Any] = dict(profile.flags) if profile is not None else {}
    if model.provider == "openrouter" and model.id.startswith("anthropic/"):
        flags["cache_control_format"] = "anthropic"
    flags.update(model.compat)
    try:
        return msgspec.convert(flags, ChatCompat)
    except msgspec.ValidationError as error:
        raise ModelError(f"{model.spec}: `compat` does not fit the openai_chat wire: {error}; the flags are the fields of ChatCompat") from error
