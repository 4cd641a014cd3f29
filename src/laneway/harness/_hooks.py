"""The eleven hooks: what a handler is asked, what it may answer, and how several answers become one.

A handler gets one event and may be sync or async; None means that it has no opinion. Handlers run in the order in which they were
added, as the list was when the hook began, off the lane's line: they may call the lane. One that raises is reported
(`handler_error`) and has no opinion, with three exceptions: `before_tool` blocks the call (a gate that fails does not open), `after_tool`
makes the result an error, and what `before_drive` raises is raised to whoever drives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct

from laneway._effects.decisions import Block, PatchResult, ReplaceArgs
from laneway.abort import AbortSignal
from laneway.errors import Aborted
from laneway.harness.state import CompactionReason, OperationKind
from laneway.llm._writer import describe
from laneway.llm.base import Model, StreamOptions
from laneway.messages import AgentMessage, AssistantMessage, ImageContent, TextContent, Usage

E = TypeVar("E")
HookName = Literal[
    "before_run", "before_drive", "before_run_end", "transform_context", "before_request", "before_payload", "after_response",
    "before_tool", "after_tool", "before_compaction", "before_navigation",
]  # fmt: skip
HOOK_NAMES: tuple[str, ...] = HookName.__args__  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType] - the values of a Literal
GRACE = 0.5  # seconds that a handler has, after an abort, to answer

# ---------------------------------------------------------------------------------------------------- answers


class Inject(Struct, kw_only=True, frozen=True):
    """Answer of `before_run`: put these messages after the prompt."""

    messages: list[AgentMessage]


class FollowUp(Struct, frozen=True):
    """Answer of `before_run_end`: do not stop, answer this first."""

    message: str | AgentMessage


class ContextPatch(Struct, kw_only=True, frozen=True):
    """Answer of `transform_context`: what this request sees instead. The history is not changed."""

    messages: list[AgentMessage] | None = None
    system_prompt: str | None = None


class RequestPatch:
    """Answer of `before_request`: stream options for this request; an explicit None deletes one.

    Raises:
        TypeError: there is no such stream option, or it is the harness's own (`signal`, `on_payload`, `on_response`).
    """

    __slots__ = ("options",)
    OWN: ClassVar[frozenset[str]] = frozenset(("signal", "on_payload", "on_response"))

    def __init__(self, **options: Any) -> None:
        for name in options:
            if name not in StreamOptions.__struct_fields__ or name in self.OWN:
                raise TypeError(f"RequestPatch cannot set {name!r}: it is no stream option that a hook may set")
        self.options = options

    def __repr__(self) -> str:
        return f"RequestPatch({', '.join(self.options)})"


class PayloadPatch(Struct, frozen=True):
    """Answer of `before_payload`: send this request body."""

    payload: dict[str, Any]


class ResponsePatch(Struct, frozen=True):
    """Answer of `after_response`: settle this message instead."""

    message: AssistantMessage


class Suspend(Struct, frozen=True):
    """Answer of `before_tool`: ask a person first. `payload` (JSON) is for whoever shows the question."""

    reason: str
    payload: Any = None


class Decline(Struct, frozen=True):
    """Answer of `before_compaction` and `before_navigation`: do not do it."""


class Supply(Struct, frozen=True):
    """Answer of `before_compaction` and `before_navigation`: use this summary. `usage` goes into the ledger."""

    summary: str
    details: Any = None
    usage: Usage | None = None


# ---------------------------------------------------------------------------------------------------- what is asked


@dataclass(kw_only=True, frozen=True)
class HookEvent:
    """What every handler gets. `signal` is set when the operation is aborted or the harness closes."""

    lane: str
    operation_id: str
    signal: AbortSignal


@dataclass(kw_only=True, frozen=True)
class BeforeRun(HookEvent):
    """A run starts. `prompt` are its messages, earlier injections included."""

    prompt: list[AgentMessage]
    resources: Any


@dataclass(kw_only=True, frozen=True)
class BeforeDrive(HookEvent):
    """A drive pass begins, of a new operation or of one that an earlier process left."""

    operation: OperationKind


@dataclass(kw_only=True, frozen=True)
class BeforeRunEnd(HookEvent):
    """A run would end. `messages` is its context, back to the newest compaction."""

    messages: list[AgentMessage]


@dataclass(kw_only=True, frozen=True)
class TransformContext(HookEvent):
    """A request is prepared."""

    messages: list[AgentMessage]
    system_prompt: str


@dataclass(kw_only=True, frozen=True)
class BeforeRequest(HookEvent):
    """A request is about to become an intent. `step` is "assistant", "deferred", "compaction" or "navigation"."""

    model: Model
    step: str
    attempt: int
    stream_options: StreamOptions


@dataclass(kw_only=True, frozen=True)
class BeforePayload(HookEvent):
    """The request's body is ready to be sent."""

    model: Model
    payload: dict[str, Any]


@dataclass(kw_only=True, frozen=True)
class AfterResponse(HookEvent):
    """A response arrived; nothing of it is stored yet. `status` and `headers` are None where the wire has none."""

    status: int | None
    headers: Mapping[str, str] | None
    message: AssistantMessage


@dataclass(kw_only=True, frozen=True)
class BeforeTool(HookEvent):
    """A call is about to become an intent; `args` are validated."""

    tool_call_id: str
    tool_name: str
    args: Any


@dataclass(kw_only=True, frozen=True)
class AfterTool(HookEvent):
    """A tool is done; nothing of its result is stored yet."""

    tool_call_id: str
    tool_name: str
    args: Any
    content: list[TextContent | ImageContent]
    details: Any
    is_error: bool
    usage: Usage | None


@dataclass(kw_only=True, frozen=True)
class BeforeCompaction(HookEvent):
    """A summary is about to be asked for; `preparation` says of what."""

    reason: CompactionReason
    preparation: Any
    instructions: str | None


@dataclass(kw_only=True, frozen=True)
class BeforeNavigation(HookEvent):
    """A branch is about to be left with a summary."""

    target_id: str | None
    preparation: Any
    instructions: str | None


Handler: TypeAlias = Callable[[Any], "Awaitable[Any] | Any"]
Report: TypeAlias = Callable[[str, str, HookEvent], None]


class _Failed:
    """Stands for the answer of a handler that raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Asking(Generic[E]):
    """What the next handler of a chain is asked."""

    def __init__(self, event: E) -> None:
        self.event = event


class Hooks:
    """The handlers of a harness."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._handlers: dict[str, list[tuple[str | None, Handler]]] = {}

    def on(self, name: HookName, handler: Handler, id: str | None = None) -> Callable[[], None]:
        """Add a handler; one with the same `id` is replaced in its place. Returns an unsubscribe function.

        Raises:
            ValueError: there is no such hook.
        """
        if name not in HOOK_NAMES:
            raise ValueError(f"there is no hook {name!r}; the hooks are {', '.join(HOOK_NAMES)}")
        added = (id, handler)
        handlers = self._handlers.get(name, [])
        if id is not None and any(known == id for known, _ in handlers):
            self._handlers[name] = [added if known == id else (known, old) for known, old in handlers]
        else:
            self._handlers[name] = [*handlers, added]
        return lambda: self._remove(name, added)

    def _remove(self, name: str, added: tuple[str | None, Handler]) -> None:
        self._handlers[name] = [handler for handler in self._handlers.get(name, []) if handler is not added]

    def has(self, name: HookName) -> bool:
        """Whether anybody has an opinion on this."""
        return bool(self._handlers.get(name))

    async def _answers(self, name: str, asking: _Asking[Any], *allowed: type) -> AsyncIterator[Any]:
        """Ask each handler with the event of that moment; give answers that are not None. A failure is reported and given as `_Failed`."""
        for _, handler in self._handlers.get(name, []):
            event = asking.event
            try:
                answer = await _ask(handler, event)
                if answer is not None and not isinstance(answer, allowed):
                    names = ", ".join(kind.__name__ for kind in allowed) or "nothing"
                    raise TypeError(f"a {name} handler answered {type(answer).__name__}; it may answer {names} or None")
            except Exception as error:
                if isinstance(error, Aborted) and event.signal.aborted:
                    raise
                self._report(name, describe(error), event)
                yield _Failed(error)
            else:
                if answer is not None:
                    yield answer

    # -- one method per hook

    async def before_drive(self, event: BeforeDrive) -> None:
        """Ask; a handler that raises ends the pass with its exception, which is reported too."""
        async for answer in self._answers("before_drive", _Asking(event)):
            if isinstance(answer, _Failed):
                raise answer.error

    async def before_run(self, event: BeforeRun) -> list[AgentMessage]:
        """Return all injected messages, in order."""
        asking, injected = _Asking(event), list[AgentMessage]()
        async for answer in self._answers("before_run", asking, Inject):
            if isinstance(answer, Inject):
                injected += answer.messages
                asking.event = replace(event, prompt=[*event.prompt, *injected])
        return injected

    async def before_run_end(self, event: BeforeRunEnd) -> str | AgentMessage | None:
        """Return the last follow-up that anybody wants."""
        wanted: str | AgentMessage | None = None
        async for answer in self._answers("before_run_end", _Asking(event), FollowUp):
            if isinstance(answer, FollowUp):
                wanted = answer.message
        return wanted

    async def transform_context(self, event: TransformContext) -> TransformContext:
        """Return the event as the handlers, one after the other, left it."""
        asking = _Asking(event)
        async for answer in self._answers("transform_context", asking, ContextPatch):
            if isinstance(answer, ContextPatch):
                now = asking.event
                messages = now.messages if answer.messages is None else answer.messages
                prompt = now.system_prompt if answer.system_prompt is None else answer.system_prompt
                asking.event = replace(now, messages=messages, system_prompt=prompt)
        return asking.event

    async def before_request(self, event: BeforeRequest) -> dict[str, Any]:
        """Return the options to change, merged in order; None deletes."""
        asking, patch = _Asking(event), dict[str, Any]()
        async for answer in self._answers("before_request", asking, RequestPatch):
            if isinstance(answer, RequestPatch):
                patch |= answer.options
                asking.event = replace(event, stream_options=patched(event.stream_options, patch))
        return patch

    async def before_payload(self, event: BeforePayload) -> dict[str, Any]:
        """Return the body as the handlers left it."""
        asking = _Asking(event)
        async for answer in self._answers("before_payload", asking, PayloadPatch):
            if isinstance(answer, PayloadPatch):
                asking.event = replace(event, payload=answer.payload)
        return asking.event.payload

    async def after_response(self, event: AfterResponse) -> AssistantMessage:
        """Return the message as the handlers left it."""
        asking = _Asking(event)
        async for answer in self._answers("after_response", asking, ResponsePatch):
            if isinstance(answer, ResponsePatch):
                asking.event = replace(event, message=answer.message)
        return asking.event.message

    async def before_tool(self, event: BeforeTool) -> tuple[Block | Suspend | None, Any]:
        """Return the first decisive answer (None: go ahead) and the arguments as the handlers left them. Fails closed."""
        asking = _Asking(event)
        async for answer in self._answers("before_tool", asking, Block, ReplaceArgs, Suspend):
            if isinstance(answer, ReplaceArgs):
                asking.event = replace(event, args=answer.args)
            elif isinstance(answer, _Failed):
                reason = f"The call was not allowed: the check before it failed ({describe(answer.error)})."
                return Block(reason=reason), asking.event.args
            else:
                return answer, asking.event.args
        return None, asking.event.args

    async def after_tool(self, event: AfterTool) -> PatchResult | None:
        """Return the merged patch; later handlers see earlier ones. None: nobody changed anything."""
        asking, merged = _Asking(event), dict[str, Any]()
        async for answer in self._answers("after_tool", asking, PatchResult):
            if isinstance(answer, PatchResult):
                merged |= {name: value for name in answer.__struct_fields__ if (value := getattr(answer, name)) is not None}
                asking.event = replace(event, **{name: value for name, value in merged.items() if name != "terminate"})
            elif isinstance(answer, _Failed):
                raise answer.error
        return PatchResult(**merged) if merged else None

    async def before_compaction(self, event: BeforeCompaction) -> Decline | Supply | None:
        """Return the first decisive answer."""
        return await self._first("before_compaction", event)

    async def before_navigation(self, event: BeforeNavigation) -> Decline | Supply | None:
        """Return the first decisive answer."""
        return await self._first("before_navigation", event)

    async def _first(self, name: HookName, event: HookEvent) -> Decline | Supply | None:
        async for answer in self._answers(name, _Asking(event), Decline, Supply):
            if isinstance(answer, Decline) or (isinstance(answer, Supply) and answer.summary.strip()):
                return answer
        return None


def patched(options: StreamOptions, patch: Mapping[str, Any]) -> StreamOptions:
    """Return the options with a patch applied; None brings an option back to its default."""
    defaults = StreamOptions()
    changes = {name: getattr(defaults, name) if value is None else value for name, value in patch.items()}
    return msgspec.structs.replace(options, **changes) if changes else options


async def _ask(handler: Handler, event: HookEvent) -> Any:
    """Call one handler. After an abort it has a grace to answer; then it is cancelled, and this raises `Aborted`."""
    answer = handler(event)
    if not hasattr(answer, "__await__"):
        return answer
    task = asyncio.ensure_future(cast("Awaitable[Any]", answer))
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    detach = event.signal.on_abort(lambda: timers.append(loop.call_later(GRACE, task.cancel)))
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        detach()
        for timer in timers:
            timer.cancel()
    if task.cancelled():
        if event.signal.aborted:
            raise Aborted(event.signal.reason)
        raise RuntimeError("the handler's own work was cancelled")
    return task.result()
