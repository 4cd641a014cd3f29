"""The tool contract: what the loop and the harness call, and what a tool gets and returns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from laneway.abort import AbortSignal
from laneway.errors import ToolError
from laneway.messages import TextContent, ToolDeclaration, ToolGrammar, ToolResult

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = [
    "AgentTool", "ExecutionMode", "Replay", "ToolError", "ToolHost", "ToolResult", "ToolRun", "UpdateFn", "current_host", "set_current_host",
    "text_result",
]  # fmt: skip

ExecutionMode = Literal["sequential", "parallel"]
Replay = Literal["never", "safe"]
UpdateFn: TypeAlias = Callable[[ToolResult], None]
Execute: TypeAlias = Callable[[str, Any, AbortSignal, UpdateFn], Awaitable[ToolResult]]


@dataclass(kw_only=True)
class AgentTool:
    """A tool that a model can call.

    `parameters` is a JSON Schema object or a pydantic model. `execute(tool_call_id, args, signal, update)` gets validated
    arguments (a dict for a JSON Schema, a model instance for a pydantic model), raises to report failure, and may call
    `update(partial)` as it goes. `prepare_arguments` maps legacy arguments before validation.
    `execution_mode="sequential"` makes every batch with this tool run one call at a time. `replay` is the author's answer, in the
    durable harness, to "the process died while this call ran": "never" reports an interruption to the model, "safe" runs it again.
    `timeout` is in seconds. `strict` asks providers to enforce the schema; `grammar` (of a tool with one required string) to enforce what
    the string looks like, where a model can.

    Two tools are declared alike when name, description, parameters, strict and grammar are equal; see `declaration`.
    """

    name: str
    description: str
    parameters: dict[str, Any] | type[BaseModel]
    execute: Execute
    label: str = ""
    prepare_arguments: Callable[[Any], Any] | None = None
    execution_mode: ExecutionMode | None = None
    replay: Replay = "never"
    timeout: float | None = None
    strict: bool | None = None
    grammar: ToolGrammar | None = None
    _declaration: ToolDeclaration | None = field(default=None, init=False, repr=False, compare=False)
    _validator: Any = field(default=None, init=False, repr=False, compare=False)  # owned by laneway.tools._validate

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a tool needs a name: the model calls it by that name")
        self.label = self.label or self.name

    @property
    def declaration(self) -> ToolDeclaration:
        """What the model is told of this tool; computed once."""
        if self._declaration is None:
            schema = self.parameters if isinstance(self.parameters, dict) else self.parameters.model_json_schema()
            self._declaration = ToolDeclaration(
                name=self.name, description=self.description, parameters=schema, strict=self.strict, grammar=self.grammar
            )
        return self._declaration


class ToolHost(Protocol):
    """What an engine offers a running tool beyond signal and updates; the durable harness keeps all of it in the store."""

    idempotency_key: str

    async def update(self, partial: ToolResult, checkpoint: bool) -> None:
        """Deliver a partial result; with `checkpoint` it is durable when this returns."""
        ...

    async def get_memo(self, name: str) -> Any:
        """Return a stored memo of this call, None if there is none."""
        ...

    async def set_memo(self, name: str, value: Any) -> None:
        """Store a memo (any JSON value; None deletes it); it is there again if the call is replayed."""
        ...


_current_host: ContextVar[ToolHost | None] = ContextVar("laneway_tool_host", default=None)


def current_host() -> ToolHost | None:
    """Return the host of the tool call that is executing here; None outside of one, or where there is nothing durable."""
    return _current_host.get()


def set_current_host(host: ToolHost | None) -> None:
    """Name the host of the call that the current context executes. For engines only."""
    _current_host.set(host)


@dataclass(slots=True)
class ToolRun:
    """The running call, injected into a `@tool` function that has a parameter annotated `ToolRun`.

    An async function reports progress with `await update(...)`, a sync one (it runs in a thread) with `report(...)`.
    `idempotency_key` is stable across replays in the harness: hand it to services that deduplicate.
    """

    tool_call_id: str
    tool_name: str
    signal: AbortSignal
    idempotency_key: str
    _update: UpdateFn
    _tool_host: ToolHost | None = None
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._loop = _running_loop()

    async def update(self, partial: str | ToolResult, *, checkpoint: bool = False) -> None:
        """Report progress. With `checkpoint`, in the harness, it is durable when this returns and survives a crash."""
        result = text_result(partial) if isinstance(partial, str) else partial
        if self._tool_host is not None:
            await self._tool_host.update(result, checkpoint)
        else:
            self._update(result)
            await asyncio.sleep(0)

    def report(self, partial: str | ToolResult) -> None:
        """Report progress from a sync function; safe from any thread, never waits, is never durable. Late reports are dropped."""
        result = text_result(partial) if isinstance(partial, str) else partial
        if self._loop is None or self._loop is _running_loop():
            self._update(result)
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._update, result)

    async def get_memo(self, name: str) -> Any:
        """Return what `set_memo` stored for this call, also in an earlier process; None if nothing."""
        return await self._need_host().get_memo(name)

    async def set_memo(self, name: str, value: Any) -> None:
        """Store a JSON value for this call, durable when this returns."""
        await self._need_host().set_memo(name, value)

    def _need_host(self) -> ToolHost:
        if self._tool_host is None:
            raise ToolError("memos need the durable harness: this tool runs in an in-memory agent, where nothing survives the process")
        return self._tool_host


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def text_result(text: str, *, details: Any = None) -> ToolResult:
    """Return a result of one text block (none for an empty text)."""
    return ToolResult(content=[TextContent(text=text)] if text else [], details=details)
