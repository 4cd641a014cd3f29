"""The model layer: one message model and one stream of events for every provider.

`model("provider/id")` finds a model, `Models` is the registry behind it, `StreamFn` is what asks one. Importing this loads no wire, no HTTP client
and no model list; each is loaded when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.events import (
    AssistantEvent,
    StreamDone,
    StreamError,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from laneway.llm.base import (
    THINKING_LEVELS,
    AssistantStream,
    CacheRetention,
    CostTier,
    Model,
    ModelCost,
    ProviderFailure,
    ResponseInfo,
    ResponseStream,
    StreamFn,
    StreamOptions,
    ThinkingLevel,
    Transcript,
)

if TYPE_CHECKING:
    from laneway.llm._auth import Auth, AuthRequest
    from laneway.llm._credentials import Credential, CredentialStore, FileCredentialStore, KeyringCredentialStore, MemoryCredentialStore
    from laneway.llm._guided import GuidedPolicy
    from laneway.llm._http import aclose_clients
    from laneway.llm._late import failed_stream
    from laneway.llm._local import LocalSetup, ensure_local_model, local_setup, stop_servers
    from laneway.llm._overflow import is_context_overflow, is_recoverable_length
    from laneway.llm._provider import DeferredOps, EnvKey, OAuthHandler, PreparedModel, Provider, RefreshContext, Setting
    from laneway.llm._registry import Models, RefreshResult, default_models, get_default_stream_fn, model, set_default_stream_fn
    from laneway.llm._retry import RetryCallbacks, RetryPolicy, is_retryable, retry_assistant_call, retry_delay_ms, should_retry
    from laneway.llm._thinking import (
        ContextEstimate,
        clamp_max_tokens,
        clamp_thinking_level,
        estimate_context,
        estimate_tokens,
        supported_thinking_levels,
        thinking_budget,
        usage_tokens,
    )
    from laneway.llm._usage import compute_cost, make_usage

_LAZY = {
    "_auth": ("Auth", "AuthRequest"),
    "_credentials": ("Credential", "CredentialStore", "FileCredentialStore", "KeyringCredentialStore", "MemoryCredentialStore"),
    "_guided": ("GuidedPolicy",),
    "_http": ("aclose_clients",),
    "_local": ("LocalSetup", "ensure_local_model", "local_setup", "stop_servers"),
    "_overflow": ("is_context_overflow", "is_recoverable_length"),
    "_provider": ("DeferredOps", "EnvKey", "OAuthHandler", "PreparedModel", "Provider", "RefreshContext", "Setting"),
    "_late": ("failed_stream",),
    "_registry": ("Models", "RefreshResult", "default_models", "get_default_stream_fn", "model", "set_default_stream_fn"),
    "_retry": ("RetryCallbacks", "RetryPolicy", "is_retryable", "retry_assistant_call", "retry_delay_ms", "should_retry"),
    "_thinking": (
        "ContextEstimate", "clamp_max_tokens", "clamp_thinking_level", "estimate_context", "estimate_tokens", "supported_thinking_levels",
        "thinking_budget", "usage_tokens",
    ),
    "_usage": ("compute_cost", "make_usage"),
}  # fmt: skip
_HOME = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "THINKING_LEVELS", "AssistantEvent", "AssistantStream", "Auth", "AuthRequest", "CacheRetention", "ContextEstimate", "CostTier", "Credential",
    "CredentialStore", "DeferredOps", "EnvKey", "FileCredentialStore", "GuidedPolicy", "KeyringCredentialStore", "LocalSetup",
    "MemoryCredentialStore", "Model", "ModelCost", "Models", "OAuthHandler", "PreparedModel", "Provider",
    "ProviderFailure", "RefreshContext", "RefreshResult",
    "ResponseInfo", "ResponseStream", "RetryCallbacks", "RetryPolicy", "Setting", "StreamDone", "StreamError", "StreamFn", "StreamOptions",
    "StreamStart", "TextDelta", "TextEnd", "TextStart", "ThinkingDelta", "ThinkingEnd", "ThinkingLevel", "ThinkingStart", "ToolCallDelta",
    "ToolCallEnd", "ToolCallStart", "Transcript", "aclose_clients", "clamp_max_tokens", "clamp_thinking_level", "compute_cost", "default_models",
    "ensure_local_model",
    "estimate_context", "estimate_tokens", "failed_stream", "get_default_stream_fn", "is_context_overflow", "is_recoverable_length", "is_retryable",
    "local_setup", "make_usage", "model", "retry_assistant_call", "retry_delay_ms", "set_default_stream_fn", "should_retry", "stop_servers",
    "supported_thinking_levels", "thinking_budget", "usage_tokens",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
