"""What a harness has in this process and nowhere else: models, tools, prompts, policies. Nothing of it is durable.

A step *captures* some of it when its intent is committed (`GenerationContext`); tools, prompts and callbacks are taken as they
are when they are used.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import msgspec

from laneway.harness.state import CompactionSettings, LaneConfiguration, Limits, ModelRef, QueueMode, Retry, Settings
from laneway.llm._retry import RetryPolicy
from laneway.llm.base import Model, ResponseStream, StreamFn, StreamOptions
from laneway.messages import AgentMessage, AssistantMessage, DeferredHandle, Message
from laneway.session._context import EntryProjector
from laneway.tools.base import AgentTool, ExecutionMode

if TYPE_CHECKING:
    from laneway.llm import Models

SystemPrompt: TypeAlias = "str | Callable[[], str | Awaitable[str]]"
ToProvider: TypeAlias = "Callable[[list[AgentMessage]], Sequence[Message] | Awaitable[Sequence[Message]]]"

DURABLE_OPTIONS = (
    "thinking_budgets", "temperature", "max_tokens", "timeout", "idle_timeout", "max_retries", "max_retry_delay", "cache_retention",
    "tool_choice", "metadata", "sampling_params", "deferred",
)  # fmt: skip
"""Stream options that a step captures. Keys, headers and callbacks are never stored; signal, session id and thinking level are the harness's."""

MAX_DELAY_MS = 2**53 - 1


class DeferredModels(Protocol):
    """The part of `Models` that completes and cancels deferred responses."""

    def fetch_deferred(self, handle: DeferredHandle, options: StreamOptions | None = None) -> ResponseStream: ...
    async def cancel_deferred(self, handle: DeferredHandle, options: StreamOptions | None = None) -> None: ...


@dataclass(kw_only=True, slots=True)
class Resources:
    """Skills and prompt templates by name. A skill is text; a template is text with `$1`, `$2`, … and `$@` for its arguments."""

    skills: Mapping[str, str] = field(default_factory=dict[str, str])
    templates: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(kw_only=True, slots=True)
class Environment:
    """The live configuration of a harness. Settable parts are validated by `check`."""

    model: Model
    models: Models | None
    stream_fn: StreamFn | None
    tools: dict[str, AgentTool]
    active_tools: list[str] | None
    thinking_level: Any
    system_prompt: SystemPrompt
    resources: Resources
    tool_context: Any
    stream_options: StreamOptions
    retry: RetryPolicy
    compaction: CompactionSettings
    steering_mode: QueueMode
    follow_up_mode: QueueMode
    tool_execution: ExecutionMode
    limits: Limits | None
    to_provider_messages: ToProvider | None
    entry_projectors: Mapping[str, EntryProjector]
    clock: Callable[[], int]
    _captured: tuple[StreamOptions, dict[str, Any]] | None = None

    # -- what an operation or a step captures

    def default_configuration(self) -> LaneConfiguration:
        """Return what a new lane begins with."""
        ref = ModelRef(provider=self.model.provider, model_id=self.model.id)
        return LaneConfiguration(model=ref, thinking_level=self.thinking_level, active_tools=self.active_tools)

    def settings(self) -> Settings:
        """Return what an operation captures at its acceptance."""
        return Settings(
            compaction=self.compaction,
            steering_mode=self.steering_mode,
            follow_up_mode=self.follow_up_mode,
            tool_execution=self.tool_execution,
            limits=self.limits,
        )

    def captured_options(self) -> dict[str, Any]:
        """Return the stream options that a step captures: JSON data, only what differs from the default."""
        if self._captured is None or self._captured[0] is not self.stream_options:
            defaults = StreamOptions()
            options = {name: value for name in DURABLE_OPTIONS if (value := getattr(self.stream_options, name)) != getattr(defaults, name)}
            self._captured = self.stream_options, msgspec.to_builtins(options)
        return self._captured[1]

    def captured_retry(self) -> Retry:
        """Return the retry policy that a step captures."""
        policy = self.retry
        return Retry(
            max_attempts=policy.max_retries + 1 if policy.enabled else 1,
            base_delay_ms=min(int(policy.base_delay * 1000), MAX_DELAY_MS),
            max_delay_ms=min(int(policy.max_delay * 1000), MAX_DELAY_MS),
        )

    # -- what is looked up when it is used

    def find_model(self, ref: ModelRef) -> Model | None:
        """Return the model of this name, None if this process has none."""
        if (ref.provider, ref.model_id) == (self.model.provider, self.model.id):
            return self.model
        if self.models is not None:
            return self.models.get(ref.provider, ref.model_id)
        from laneway.llm import default_models

        return default_models().get(ref.provider, ref.model_id)

    def active(self, configuration: LaneConfiguration) -> dict[str, AgentTool]:
        """Return the tools that a lane may call, those of its names that exist."""
        if configuration.active_tools is None:
            return self.tools
        return {name: self.tools[name] for name in configuration.active_tools if name in self.tools}

    def missing_tools(self, configuration: LaneConfiguration) -> list[str]:
        """Return the active names for which there is no tool."""
        return [name for name in configuration.active_tools or () if name not in self.tools]

    def streamer(self) -> StreamFn:
        """Return what asks a model."""
        if self.stream_fn is not None:
            return self.stream_fn
        if self.models is not None:
            return self.models.stream
        from laneway.llm import get_default_stream_fn

        return get_default_stream_fn()

    def deferred_models(self) -> DeferredModels:
        """Return what completes deferred responses: the models, or a stream function that can do it itself."""
        if self.models is not None:
            return self.models
        if hasattr(self.stream_fn, "fetch_deferred"):
            return cast("DeferredModels", self.stream_fn)
        from laneway.llm import default_models

        return default_models()

    async def prompt_text(self) -> str:
        """Return the system prompt of now."""
        prompt = self.system_prompt
        if isinstance(prompt, str):
            return prompt
        text = prompt()
        return text if isinstance(text, str) else await text

    async def resolve_tool_context(self) -> Any:
        """Return the value that tools of one batch get: `tool_context`, called (and awaited) if it can be."""
        value: Any = self.tool_context
        if callable(value):
            value = value()
        return await value if inspect.isawaitable(value) else value


def retry_delay(retry: Retry, message: AssistantMessage, failed_attempt: int) -> int:
    """Return the wait in ms after attempt n failed: base·2^(n−1), capped; a longer wait that the provider asks for is kept."""
    backoff = min(retry.base_delay_ms * 2 ** min(failed_attempt - 1, 64), retry.max_delay_ms, MAX_DELAY_MS)
    asked = message.error.retry_after_ms if message.error is not None else None
    return max(backoff, min(asked, MAX_DELAY_MS)) if asked else backoff


def check_tools(tools: Sequence[AgentTool]) -> dict[str, AgentTool]:
    """Return the tools by name.

    Raises:
        TypeError: two tools have the same name, or something is no tool.
    """
    by_name: dict[str, AgentTool] = {}
    for tool in tools:
        if not isinstance(tool, AgentTool):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise TypeError(f"{tool!r} is no tool: use @tool or AgentTool")
        if tool.name in by_name:
            raise TypeError(f"two tools are called {tool.name!r}: the model could not tell them apart")
        by_name[tool.name] = tool
    return by_name


def check_retry(policy: RetryPolicy) -> RetryPolicy:
    """Return the policy.

    Raises:
        ValueError: a number is negative, not whole, or absurdly large.
    """
    if type(policy.max_retries) is not int or not 0 <= policy.max_retries < 1_000_000:
        raise ValueError(f"RetryPolicy.max_retries must be a whole number from 0 to 999,999, not {policy.max_retries!r}")
    for name in ("base_delay", "max_delay"):
        value = getattr(policy, name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
            raise ValueError(f"RetryPolicy.{name} must be a number of seconds from 0, not {value!r}")
    return policy


def check_compaction(settings: CompactionSettings) -> CompactionSettings:
    """Return the settings.

    Raises:
        ValueError: a number is negative, not whole, or absurdly large.
    """
    for name in ("reserve_tokens", "keep_recent_tokens"):
        value = getattr(settings, name)
        if type(value) is not int or not 0 <= value <= MAX_DELAY_MS // 2:
            raise ValueError(f"CompactionSettings.{name} must be a whole number of tokens from 0, not {value!r}")
    return settings


def check_mode(mode: Any, what: str) -> QueueMode:
    """Return a queue mode, or raise ValueError."""
    if mode not in ("all", "one-at-a-time"):
        raise ValueError(f'{what} must be "all" or "one-at-a-time", not {mode!r}')
    return mode


def as_resources(value: Any) -> Resources:
    """Return resources from None, `Resources`, or a mapping with `skills` and `templates`."""
    if value is None:
        return Resources()
    if isinstance(value, Resources):
        return value
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Mapping[str, str]]", value)
        return Resources(skills=given.get("skills", {}), templates=given.get("templates", {}))
    if hasattr(value, "skills") and hasattr(value, "templates"):
        return Resources(skills=value.skills, templates=value.templates)
    raise TypeError(f"resources must be Resources or a mapping with 'skills' and 'templates', not {type(value).__name__}")
