"""Cooperative abort: a signal that the owner sets and everybody below can watch.

An abort is a request, not a cancellation: whoever does work looks at `AbortSignal.aborted`, awaits
`AbortSignal.wait()`, or lets `abort_scope` turn it into `Aborted` at an await.
"""

from __future__ import annotations

import asyncio
import sys
import time
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from laneway.errors import Aborted

__all__ = ["AbortController", "AbortSignal", "Aborted", "abort_scope"]


T = TypeVar("T")


class AbortSignal:
    """What a piece of work watches. Set by its `AbortController`, once, for ever.

    `aborted` says whether the abort was requested; only to be read, from any thread.
    """

    __slots__ = ("_callbacks", "_reason", "aborted")  # an attribute: `aborted` is looked at a dozen times a turn, and a property is a call

    def __init__(self) -> None:
        self.aborted = False
        self._reason: object = None
        self._callbacks: dict[object, Callable[[], None]] | None = None  # whoever pops one calls it: another thread may abort at any moment

    @property
    def reason(self) -> object:
        """What `AbortController.abort` was given; None before that."""
        return self._reason

    def raise_if_aborted(self) -> None:
        """Raise `Aborted` if the abort was requested."""
        if self.aborted:
            raise Aborted(self._reason)

    def on_abort(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when the abort is requested (at once if it already was); returns an unsubscribe function.

        The callback runs in the thread that aborts and must not raise.
        """
        if self.aborted:
            callback()
            return _nothing
        if self._callbacks is None:
            self._callbacks = {}
        callbacks = self._callbacks
        key = object()
        callbacks[key] = callback
        if self.aborted and callbacks.pop(key, None) is not None:  # by another thread, since the look above
            callback()
        return partial(callbacks.pop, key, None)  # pyright: ignore[reportReturnType] - what it returns is the callback, at which nobody looks

    async def wait(self) -> None:
        """Return when the abort is requested."""
        if self.aborted:
            return
        loop = asyncio.get_running_loop()
        event = asyncio.Event()
        unsubscribe = self.on_abort(lambda: soon(loop, event.set))
        try:
            await event.wait()
        finally:
            unsubscribe()

    def _fire(self, reason: object) -> bool:
        if self.aborted:
            return False
        self._reason = reason
        self.aborted = True
        callbacks, self._callbacks = self._callbacks, None
        for key in list(callbacks or ()):
            callback = callbacks.pop(key, None) if callbacks else None
            if callback is not None:
                callback()
        return True

    def __repr__(self) -> str:
        return f"<AbortSignal aborted={self.aborted}>"


class AbortController:
    """Owns one `AbortSignal`. With `parent`, the signal is also set when the parent's is.

    Call `close()` (or use it as a context manager) to stop following the parent.
    """

    __slots__ = ("_detach", "signal")

    def __init__(self, parent: AbortSignal | None = None) -> None:
        self.signal = AbortSignal()
        self._detach: Callable[[], None] = _nothing
        if parent is not None:
            self._detach = parent.on_abort(lambda: self.abort(parent.reason))

    def abort(self, reason: object = None) -> None:
        """Set the signal; later calls change nothing."""
        self.signal._fire(reason)  # pyright: ignore[reportPrivateUsage] - the controller is the signal's owner

    def close(self) -> None:
        """Stop following the parent signal."""
        self._detach()
        self._detach = _nothing

    def __enter__(self) -> AbortController:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class abort_scope:
    """`async with abort_scope(signal):` turns an abort into `Aborted` at the await it interrupts.

    Works like `asyncio.timeout`: it cancels the task that entered the scope and takes that one cancellation back
    on the way out, so a cancellation by somebody else still ends the task. Never hold a scope across a `yield`.
    With None, or a signal that is never set, it costs nothing that can be measured.
    """

    __slots__ = ("_cancelled", "_cancelling", "_detach", "_signal", "_task")

    def __init__(self, signal: AbortSignal | None) -> None:
        self._signal = signal

    async def __aenter__(self) -> None:
        self._cancelled = False
        if self._signal is None:
            return
        self._signal.raise_if_aborted()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        loop = asyncio.get_running_loop()
        self._detach = self._signal.on_abort(lambda: soon(loop, self._cancel))

    def _cancel(self) -> None:
        if self._signal is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal, self._signal = self._signal, None
        if signal is None:
            return
        self._detach()
        if self._cancelled and self._task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise Aborted(signal.reason) from None


def _nothing() -> None:
    """Stand for an unsubscribe function that has nothing to do."""


def soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call `callback` in the loop's own thread; a loop that was closed has nobody left to tell."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        if not loop.is_closed():
            raise


@types.coroutine
def first_step() -> Generator[None]:
    """Suspend a coroutine that `start_task` runs, until its task makes the first step."""
    yield


def start_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T],
    *,
    at_once: bool = True,
    ended: Callable[[asyncio.Task[T]], object] | None = None,
) -> asyncio.Task[T]:
    """Create a task for `work` and, if `at_once`, let it run, in its own context and as the current task, up to where it first waits.

    Work that never waits is done when this returns, without a turn of the event loop. The first await of `work` is `first_step()`, in a `try`:
    where a loop can only start it later, it then sees a cancellation however early that comes. (Any other coroutine that is cancelled before
    its task's first step never runs at all, not even its `finally`.) Under a task factory, which may wrap the work, that cannot be had: there
    `ended` is called when the task has ended, to do what the work did not.
    """
    if loop.get_task_factory() is not None:
        task = loop.create_task(work)
        if ended is not None:
            task.add_done_callback(ended)
        return task
    work.send(None)
    if not at_once:
        return loop.create_task(work)
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    # What `eager_start` does: take the first step out of the loop's queue. A loop of another make takes it in its next turn.
    task = asyncio.Task(work, loop=loop)
    ready: Any = getattr(loop, "_ready", None)
    if not ready:
        return task
    step = ready.pop()
    if getattr(step._callback, "__self__", None) is not task:  # another thread's, just now
        ready.append(step)
        return task
    caller = asyncio.current_task(loop)
    if caller is not None:
        asyncio._leave_task(loop, caller)  # pyright: ignore[reportPrivateUsage] - documented for who runs tasks, "Extending"
    try:
        step._run()
    finally:
        if caller is not None:
            asyncio._enter_task(loop, caller)  # pyright: ignore[reportPrivateUsage] - as above
    return task


def end_of(task: asyncio.Task[Any]) -> asyncio.Future[None]:
    """Return a future that is set when the task has ended, however: awaiting it can be cancelled without cancelling the task."""
    waiter: asyncio.Future[None] = task.get_loop().create_future()
    task.add_done_callback(partial(_tell, waiter))
    return waiter


def _tell(waiter: asyncio.Future[None], _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


SHARE = 0.005
"""Seconds for which a run may go on without letting the other tasks of its loop have a turn."""


class Sharing:
    """Nothing of a run need ever wait: models may be scripted, tools quick. `if sharing.due(): await sharing.turn()` now and then lets others in."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at = time.monotonic() + SHARE

    def due(self) -> bool:
        """Whether the others have waited long enough."""
        return time.monotonic() > self._at

    async def turn(self) -> None:
        """Let every other task that is ready have a turn."""
        await asyncio.sleep(0)
        self._at = time.monotonic() + SHARE


def being_cancelled() -> bool:
    """Whether a `CancelledError` here is meant for the current task, not the leak of something that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def void(_: object) -> None:
    """Drop a value where a callback must return None."""
