"""One tool call in phases: prepare → execute → finalise. The loop runs them in a row; the harness commits between them.

Nothing here raises for a tool's, a model's or a tool hook's fault: each becomes an `Outcome` whose text a model can act on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from laneway._effects.decisions import Block, PatchResult, ReplaceArgs, call_hook
from laneway.abort import AbortSignal, abort_scope, first_step, start_task
from laneway.errors import Aborted, ToolArgumentsError, ToolError
from laneway.messages import ImageContent, TextContent, ToolCall, ToolResult, ToolResultMessage, now_ms
from laneway.tools._validate import validate_arguments, validate_value
from laneway.tools.base import AgentTool, ToolHost, set_current_host

logger = logging.getLogger("laneway")

ABANDON_AFTER = 5.0  # seconds that a tool may ignore its cancellation
ABORTED = "Aborted: the call was not finished because the run was stopped."
NOT_STARTED = "Aborted: the call was not executed because the run was stopped."
INTERRUPTED = "Interrupted by a new message: the call was not finished."
TRUNCATED = (
    "Not executed: the response was cut off by the output limit, so the arguments of this call may be incomplete. "
    "Call the tool again with complete arguments, in smaller pieces if they are long."
)

Before: TypeAlias = Callable[[Any], "Awaitable[Block | ReplaceArgs | None] | Block | ReplaceArgs | None"]
After: TypeAlias = Callable[["Outcome"], "Awaitable[PatchResult | None] | PatchResult | None"]
Cut = Literal["aborted", "interrupted", "timeout"]


class Prepared(Struct, frozen=True, gc=False):
    """A call that may run: the tool was found, `args` are validated (and are what the before hook made of them)."""

    call: ToolCall
    tool: AgentTool
    args: Any


class Outcome(Struct, frozen=True, gc=False):
    """How a call ended. `cut` says that it did not end by itself."""

    result: ToolResult
    is_error: bool = False
    cut: Cut | None = None


def failure(text: str, *, cut: Cut | None = None, terminate: bool = False, details: Any = None) -> Outcome:
    """Return an error outcome with a text for the model."""
    return Outcome(ToolResult(content=[TextContent(text=text)], details=details, terminate=terminate), is_error=True, cut=cut)


def result_message(call: ToolCall, outcome: Outcome) -> ToolResultMessage:
    """Return the transcript's message for an outcome."""
    result = outcome.result
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=result.content,
        details=result.details,
        usage=result.usage,
        is_error=outcome.is_error,
        timestamp=now_ms(),
    )


def error_text(error: BaseException) -> str:
    """Return what the model reads of an exception: a ToolError's own words, else the type and its text."""
    try:
        text = str(error)
    except Exception:  # even that can fail; its type is left to tell
        text = ""
    if isinstance(error, (ToolError, ToolArgumentsError)) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def plain_args(args: Any) -> Any:
    """Return validated arguments as JSON data (what hooks see and the harness stores); a pydantic model is dumped."""
    return args.model_dump(mode="json") if hasattr(args, "model_dump") else args


# ---------------------------------------------------------------------------------------------------- prepare


async def prepare(
    call: ToolCall, tools: Mapping[str, AgentTool], *, before: Before | None, signal: AbortSignal | None, interrupt: AbortSignal | None = None
) -> Prepared | Outcome:
    """Find the tool, shim and validate the arguments, ask the before hook. Anything wrong is an error outcome.

    `before` gets the validated arguments as JSON data. It fails closed: if it raises, answers nonsense or is cut off by an abort
    or an interruption, the call does not run. The transcript's call is never changed.
    """
    ready = look_up(call, tools)
    if before is None or isinstance(ready, Outcome):
        return ready
    try:
        async with abort_scope(signal), abort_scope(interrupt):
            answer = await call_hook(before, plain_args(ready.args))
    except Exception as error:
        if isinstance(error, Aborted) and signal is not None and signal.aborted:
            return failure(NOT_STARTED, cut="aborted")
        if isinstance(error, Aborted) and interrupt is not None and interrupt.aborted:
            return failure(INTERRUPTED, cut="interrupted")
        return failure(f"The call was not allowed: the check before it failed ({error_text(error)}).")
    return _decide(ready, answer)


def look_up(call: ToolCall, tools: Mapping[str, AgentTool]) -> Prepared | Outcome:
    """`prepare` without the before hook: find the tool, shim and validate the arguments."""
    tool = tools.get(call.name)
    if tool is None:
        available = f" Available tools: {', '.join(tools)}." if tools else " No tools are available."
        return failure(f"Tool {call.name} not found.{available}")
    try:
        if tool.prepare_arguments is not None and call.arguments_error is None:
            args = validate_value(tool, tool.prepare_arguments(msgspec.json.decode(msgspec.json.encode(call.arguments))))
        else:
            args = validate_arguments(tool, call)
    except Exception as error:
        return failure(error_text(error))
    return Prepared(call, tool, args)


def _decide(ready: Prepared, answer: object) -> Prepared | Outcome:
    call, tool = ready.call, ready.tool
    if answer is None:
        return ready
    if isinstance(answer, Block):
        return failure(answer.reason or f"The call of {call.name} was blocked.", terminate=answer.terminate)
    if isinstance(answer, ReplaceArgs):
        try:
            return Prepared(call, tool, validate_value(tool, answer.args))
        except Exception as error:
            return failure(error_text(error))
    return failure(f"The call was not allowed: the check before it answered {type(answer).__name__}, not Block, ReplaceArgs or None.")


# ---------------------------------------------------------------------------------------------------- execute


class RunningCall:
    """A call that executes in a task of its own. Its outcome is set exactly once, whatever the tool does.

    The tool sees `signal` at once; after an abort and `grace` seconds it is cancelled, after an interruption or its own timeout
    at once; if it ignores the cancellation for 5 s it is abandoned with a logged warning. A result that it still returns
    within that time is kept. `on_update` is awaited for each partial result, in order, before the outcome is set;
    what it raises ends the call and is raised by `outcome`. `after` is the after hook, asked unless the call was cut.
    `on_settled` is called once the outcome is there. With `watch=False` the owner tells the call itself (`abort`, `interrupt`).
    """

    # What few calls ever need stays on the class: a call is made for every tool call of a run.
    result: Outcome | None = None
    _cut: Cut | None = None
    _error: BaseException | None = None
    _future: asyncio.Future[Outcome] | None = None
    _returned = _shielded = False
    _pending: deque[ToolResult] | None = None
    _pump: asyncio.Task[None] | None = None
    _timers: tuple[asyncio.TimerHandle, ...] = ()
    _detach: tuple[Callable[[], None], ...] = ()

    def __init__(
        self,
        prepared: Prepared,
        *,
        signal: AbortSignal,
        interrupt: AbortSignal | None = None,
        on_update: Callable[[ToolResult], Awaitable[None]] | None = None,
        after: After | None = None,
        host: ToolHost | None = None,
        grace: float = 0.5,
        on_settled: Callable[[], None] | None = None,
        watch: bool = True,
    ) -> None:
        self._prepared, self._signal, self._on_update, self._after, self._host = prepared, signal, on_update, after, host
        self._grace, self._on_settled = grace, on_settled
        self._loop = asyncio.get_running_loop()
        self._task = start_task(self._loop, self._run(), ended=self._ended)
        if self.result is not None:  # it never had to wait: there is nothing to watch
            return
        if watch:
            self._detach = (signal.on_abort(lambda: self._threadsafe(self.abort)),)
            if interrupt is not None:
                self._detach += (interrupt.on_abort(lambda: self._threadsafe(self.interrupt)),)
        if prepared.tool.timeout is not None:
            self._later(prepared.tool.timeout, self._cancel, "timeout")

    @property
    def outcome(self) -> asyncio.Future[Outcome]:
        """A future of the outcome."""
        if self._future is None:
            self._future = self._loop.create_future()
            if self.result is not None:
                self._fulfil(self._future, self.result)
        return self._future

    @property
    def done(self) -> bool:
        """Whether the outcome is there."""
        return self.result is not None

    # -- the tool's task

    async def _run(self) -> None:
        prepared = self._prepared
        try:
            await first_step()
            if self._host is not None:
                set_current_host(self._host)
            execute = prepared.tool.execute
            value = await execute(prepared.call.id, prepared.args, self._signal, self.update)
            outcome = _check_result(prepared.tool, value)
        except asyncio.CancelledError:
            outcome = self._cancelled()
        except Aborted:
            outcome = self._cancelled() if self._signal.aborted else failure("Aborted: the tool stopped its own work.")
        except BaseException as error:  # SystemExit of a command line called as a function, say: it must not end the run
            self._raise_if_over(error)
            outcome = failure(error_text(error), details=error.details if isinstance(error, ToolError) else None)
        self._returned = True
        if self._pump is not None or self._after is not None:
            outcome = await self._complete(outcome)
        self._settle(outcome)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Settle a call whose task never began."""
        if not task.cancelled():
            task.exception()
        if self.result is None:
            self._settle(self._cancelled())

    async def _complete(self, outcome: Outcome) -> Outcome:
        """Wait for the listeners of the updates, then ask the after hook."""
        try:
            if self._pump is not None:
                self._shielded = True  # the tool's result is in: an abort while listeners are slow must not lose it
                await self._pump
                self._shielded = False
            if self._after is not None and self._cut is None:
                outcome = await finalise(outcome, self._after, cut=lambda: self._cut is not None)
            return outcome
        except asyncio.CancelledError:
            return self._cancelled()
        except BaseException as error:
            self._raise_if_over(error)
            return failure(error_text(error))

    def _raise_if_over(self, error: BaseException) -> None:
        """Raise what is not the tool's: the person's Ctrl-C, and the end of a coroutine whose loop was closed on it."""
        if isinstance(error, GeneratorExit) and self._loop.is_closed():
            raise error
        if isinstance(error, KeyboardInterrupt):
            self._settle(failure(error_text(error)))
            raise error

    def _cancelled(self) -> Outcome:
        if self._cut == "interrupted":
            return failure(INTERRUPTED, cut="interrupted")
        if self._cut == "timeout":
            return failure(f"The tool was stopped: it did not finish within its timeout of {self._prepared.tool.timeout:g} s.", cut="timeout")
        if self._cut == "aborted" or self._signal.aborted:
            return failure(ABORTED, cut="aborted")
        return failure("The tool's own work was cancelled before it finished.")

    # -- updates

    def update(self, partial: ToolResult) -> None:
        """Report a partial result; safe from any thread. After the tool returned it does nothing."""
        if not self._here():
            self._threadsafe(lambda: self.update(partial))
            return
        if self._returned or self._on_update is None:
            return
        if self._pending is None:
            self._pending = deque()
        self._pending.append(partial)
        if self._pump is None or self._pump.done():
            self._pump = self._loop.create_task(self._deliver(self._pending, self._on_update))

    def _here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    async def _deliver(self, pending: deque[ToolResult], on_update: Callable[[ToolResult], Awaitable[None]]) -> None:
        try:
            while pending:
                await on_update(pending.popleft())
        except Exception as error:  # the listener's fault, not the tool's: it must reach the owner of the run
            self._error = error
            pending.clear()
            self._task.cancel()

    # -- what may happen to it from outside

    def _threadsafe(self, callback: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    def abort(self) -> None:
        """The run was aborted: cancel the tool if it is still there after the grace."""
        if self.result is None and self._cut is None:
            self._cut = "aborted"
            self._later(self._grace, self._cancel, "aborted")

    def interrupt(self) -> None:
        """A new message cannot wait: cancel the tool."""
        self._cancel("interrupted")

    def kill(self) -> None:
        """Cancel the tool at once, for an owner that is itself being torn down."""
        self._cancel("aborted")

    def _cancel(self, why: Cut) -> None:
        if self.result is not None or (why == "timeout" and self._returned):  # the timeout is the tool's, not that of what comes after
            return
        self._cut = self._cut or why
        if self._shielded:
            return
        self._task.cancel()
        self._later(ABANDON_AFTER, self._abandon)

    def _later(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        self._timers += (self._loop.call_later(seconds, callback, *args),)

    def _abandon(self) -> None:
        if self.result is None:
            call = self._prepared.call
            logger.warning("tool %s (call %s) ignored its cancellation for %g s and was abandoned", call.name, call.id, ABANDON_AFTER)
            self._settle(failure("The tool did not react when it was stopped and was abandoned; it may still be running.", cut=self._cut))

    def _settle(self, outcome: Outcome) -> None:
        for timer in self._timers:
            timer.cancel()
        for detach in self._detach:
            detach()
        self._returned = True
        if self.result is not None:  # it was abandoned before
            return
        self.result = outcome
        if self._future is not None:
            self._fulfil(self._future, outcome)
        settled = self._on_settled
        if settled is not None:
            settled()

    def _fulfil(self, future: asyncio.Future[Outcome], outcome: Outcome) -> None:
        if future.done():
            return
        if self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(outcome)


def _check_result(tool: AgentTool, value: object) -> Outcome:
    """Accept what a tool returned, or say what is wrong with it."""
    if type(value) is ToolResult:
        blocks = cast("list[Any]", value.content)
        if type(blocks) is list and len(blocks) == 1 and type(blocks[0]) is TextContent:  # the common case
            return Outcome(value)
    if value is None:
        return Outcome(ToolResult())
    if isinstance(value, str):
        return Outcome(ToolResult(content=[TextContent(text=value)]))
    if not isinstance(value, ToolResult):
        return failure(f"The tool {tool.name} returned {type(value).__name__} where a ToolResult was expected; its work may have been done.")
    content = cast("list[Any] | None", value.content)
    if content is None:
        return Outcome(msgspec.structs.replace(value, content=[]))
    for block in content:
        if not isinstance(block, (TextContent, ImageContent)):
            return failure(f"The tool {tool.name} returned a {type(block).__name__} as content; only text and images are allowed.")
    return Outcome(value)


# ---------------------------------------------------------------------------------------------------- finalise


async def finalise(outcome: Outcome, after: After, *, cut: Callable[[], bool] | None = None) -> Outcome:
    """Ask the after hook and apply its patch; a hook that raises or answers nonsense makes the result an error. None fields never erase.

    If the call is cut off while the hook runs, the tool's own outcome stands.
    """
    try:
        patch = await call_hook(after, outcome)
        return outcome if patch is None else _patched(outcome, patch)
    except asyncio.CancelledError:
        if cut is not None and cut():
            return outcome
        raise
    except Exception as error:
        return failure(f"The tool ran, but the check after it failed ({error_text(error)}).")


def _patched(outcome: Outcome, patch: object) -> Outcome:
    if not isinstance(patch, PatchResult):
        raise TypeError(f"it answered {patch!r}, not PatchResult or None")
    content = cast("Any", patch.content)
    blocks = cast("list[Any]", content if isinstance(content, list) else [content])
    if content is not None and not (blocks is content and all(isinstance(block, (TextContent, ImageContent)) for block in blocks)):
        raise TypeError("the content of its PatchResult is not a list of texts and images")
    result = outcome.result
    return Outcome(
        ToolResult(
            content=result.content if patch.content is None else patch.content,
            details=result.details if patch.details is None else patch.details,
            terminate=result.terminate if patch.terminate is None else patch.terminate,
            usage=result.usage if patch.usage is None else patch.usage,
        ),
        is_error=outcome.is_error if patch.is_error is None else patch.is_error,
        cut=outcome.cut,
    )
