"""Delivery of events: in the order of the commits, to each listener one at a time, and never in the way of the machine.

Recipients are bound when an event is told (`bind`, on the lane's line), so a later subscriber does not get it. Plain functions are
called in place. Coroutine functions run in a worker task of their own; whoever told a batch waits until they are done with
it (`deliver`), which is what makes a listener a barrier. A listener that keeps the machine waiting longer than `PATIENCE` is not
waited for any more until it has caught up; it still gets everything, up to `BUFFER` events behind.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, TypeAlias, cast, get_args

from laneway.harness._events import FOR_WATCHERS, HandlerError, HarnessEvent
from laneway.llm._writer import describe

logger = logging.getLogger("laneway")

Listener: TypeAlias = Callable[[Any], "Awaitable[object] | object"]
Wanted: TypeAlias = Callable[[HarnessEvent], bool]

_TYPES = frozenset(kind.type for kind in get_args(HarnessEvent))
PATIENCE = 2.0  # seconds that a batch waits for one listener
BUFFER = 10_000  # events that a listener may be behind
EASE = 1_000  # undelivered stream updates at which the stream waits for its listeners

_inside: ContextVar[bool] = ContextVar("laneway_inside_listener", default=False)


Overflow: TypeAlias = Callable[[], None]
"""Called when a subscriber is `BUFFER` events behind: it is stale from then on, until `revive` brings it up to date."""


class Subscriber:
    """One listener and what it has not seen yet."""

    __slots__ = (
        "_async", "_bus", "_done", "_done_waiters", "_due", "_listener", "_told", "held", "lagging", "name", "overflow", "queue", "stale",
        "wanted", "worker",
    )  # fmt: skip

    def __init__(self, bus: Bus, name: str, listener: Listener | None, wanted: Wanted, overflow: Overflow | None, held: bool) -> None:
        self._bus, self.name, self._listener, self.wanted, self.overflow = bus, name, listener, wanted, overflow
        self.queue: deque[HarnessEvent] = deque()
        self.held = held  # buffers until released
        self.lagging = False
        self.stale = False  # gets nothing until it is revived
        self._async = listener is not None and _is_async(listener)
        self._told = self._done = 0
        self._due = sys.maxsize  # how much must be seen before somebody who waits is to be told
        self._done_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.worker: asyncio.Task[None] | None = None  # what has something left to do

    def attach(self, listener: Listener) -> None:
        """Name the listener of a subscriber that was made without one, and let it have what was buffered."""
        self._listener, self._async, self.held = listener, _is_async(listener), False
        self.drain()

    def tell(self, event: HarnessEvent) -> None:
        """Queue an event."""
        if self.stale:
            return
        if len(self.queue) >= BUFFER:
            self._overflowed()
            return
        self.queue.append(event)
        self._told += 1

    def _overflowed(self) -> None:
        self.forget()
        if self.overflow is None:
            self._bus.remove(self)
            self._bus.report("event", self.name, f"the listener fell {BUFFER} events behind and was detached")
        else:
            self.stale = True
            self.overflow()

    def forget(self) -> None:
        """Drop what is queued."""
        self._done += len(self.queue)
        self.queue.clear()
        if self._done >= self._due:
            self._wake()

    def revive(self, first: HarnessEvent) -> None:
        """Begin again, with an event that makes up for those dropped."""
        self.forget()
        self.stale = False
        self.tell(first)

    def drain(self) -> None:
        """Call a plain listener for all that is queued, or wake the worker of an async one."""
        if self.held or self.worker is not None:
            return
        listener = self._listener
        assert listener is not None
        if not self._async:
            while self.queue:
                event = self.queue.popleft()
                try:
                    result = listener(event)
                except Exception as error:
                    self._failed(event, error)
                else:
                    if hasattr(result, "__await__"):
                        self._start(event, cast("Awaitable[object]", result))
                        return
                self._seen()
        elif self.queue:
            self._start(None, None)

    def _start(self, event: HarnessEvent | None, first: Awaitable[object] | None) -> None:
        self.worker = asyncio.get_running_loop().create_task(self._work(event, first), name=f"laneway listener {self.name}")

    async def _work(self, event: HarnessEvent | None, result: Awaitable[object] | object) -> None:
        _inside.set(True)
        listener = self._listener
        assert listener is not None
        try:
            while event is not None or self.queue:
                try:
                    if event is None:
                        event = self.queue.popleft()
                        result = listener(event)
                    if hasattr(result, "__await__"):
                        await cast("Awaitable[object]", result)
                except Exception as error:
                    self._failed(event, error)
                event = None
                self._done += 1
                if self._done >= self._due:
                    self._wake()
            self.lagging = False
        finally:
            self.worker = None

    def _seen(self) -> None:
        self._done += 1
        if self._done >= self._due:
            self._wake()

    def _wake(self) -> None:
        """Tell those who wait for what has been seen by now."""
        waiters = self._done_waiters
        while waiters and waiters[0][0] <= self._done:
            waiter = waiters.pop(0)[1]
            if not waiter.done():
                waiter.set_result(None)
        self._due = waiters[0][0] if waiters else sys.maxsize

    def _failed(self, event: HarnessEvent | None, error: Exception) -> None:
        logger.warning("a listener for %s raised", self.name, exc_info=error)
        if not isinstance(event, HandlerError):  # an error about an error goes no further
            self._bus.report("event", self.name, describe(error))

    @property
    def behind(self) -> bool:
        """Whether a worker has something left to do."""
        return self.worker is not None

    async def wait(self, patience: float) -> None:
        """Return when all that was told so far has been seen; give up, and mark the listener as lagging, after `patience`."""
        if self.worker is None or self.lagging:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done_waiters.append((self._told, waiter))
        self._due = self._done_waiters[0][0]
        await asyncio.wait((waiter,), timeout=patience)
        if not waiter.done():
            self.lagging = True
            waiter.cancel()
            text = f"the listener needs more than {patience:g} s for an event; it is not waited for until it catches up"
            self._bus.report("event", self.name, text)

    def cancel(self) -> asyncio.Task[None] | None:
        """Stop the worker; for the end of the harness."""
        worker = self.worker
        if worker is not None:
            worker.cancel()
        return worker


class Bus:
    """All listeners of a harness."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []
        self._closed = False
        self.patience = PATIENCE
        self.listened = False
        """Whether anybody listens: events are not even made otherwise."""

    def _have(self, subscribers: list[Subscriber]) -> None:
        self._subscribers = subscribers
        self.listened = bool(subscribers)

    def on(self, type: str, listener: Listener) -> Callable[[], None]:
        """Call `listener(event)` for every event of this type ("*": all). Returns an unsubscribe function.

        Raises:
            ValueError: there is no event of this type.
        """
        if type != "*" and type not in _TYPES:
            from difflib import get_close_matches

            near = get_close_matches(type, _TYPES, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"choose from * {' '.join(sorted(_TYPES))}"
            raise ValueError(f"there is no event {type!r}; {hint}")
        wanted: Wanted = (lambda event: event.type not in FOR_WATCHERS) if type == "*" else lambda event: event.type == type
        subscriber = self.subscribe(type, listener, wanted)
        return lambda: self.remove(subscriber)

    def subscribe(
        self, name: str, listener: Listener | None, wanted: Wanted, *, overflow: Overflow | None = None, held: bool = False
    ) -> Subscriber:
        """Add a subscriber; one without a listener buffers until it is attached."""
        subscriber = Subscriber(self, name, listener, wanted, overflow, held)
        self._have([*self._subscribers, subscriber])
        return subscriber

    def remove(self, subscriber: Subscriber) -> None:
        """Drop a subscriber and what it has not seen."""
        self._have([s for s in self._subscribers if s is not subscriber])
        subscriber.forget()

    def bind(self, events: Iterable[HarnessEvent]) -> bool:
        """Fix who gets these events, in order with all others. Delivers nothing yet. Returns whether anybody does."""
        if self._closed:
            return False
        bound = False
        for event in events:
            for subscriber in self._subscribers:
                if subscriber.wanted(event):
                    subscriber.tell(event)
                    bound = True
        return bound

    async def deliver(self) -> None:
        """Deliver what is bound and wait for the listeners, unless called from within one."""
        waiting: list[Subscriber] = []
        for subscriber in self._subscribers:
            subscriber.drain()
            if subscriber.behind:
                waiting.append(subscriber)
        if waiting and not _inside.get():
            for subscriber in waiting:
                await subscriber.wait(self.patience)

    def post(self, event: HarnessEvent) -> bool:
        """Tell one event of no commit (a stream or tool update). Returns whether the teller should `deliver` to let listeners catch up."""
        if self._closed:
            return False
        crowded = False
        for subscriber in self._subscribers:
            if subscriber.wanted(event):
                subscriber.tell(event)
                if subscriber.worker is None:
                    subscriber.drain()
                elif len(subscriber.queue) >= EASE and not subscriber.held:
                    crowded = True
        return crowded

    def report(self, kind: Any, name: str, error: str, *, lane: str | None = None, operation_id: str | None = None) -> None:
        """Tell of a handler that failed."""
        self.post(HandlerError(kind=kind, name=name, error=error, lane=lane, operation_id=operation_id))

    def seal(self) -> None:
        """Drop later events."""
        self._closed = True

    async def close(self) -> None:
        """Drop later events, give the listeners a last chance to see the earlier ones, then stop them."""
        self.seal()
        await self.deliver()
        workers = [worker for subscriber in self._subscribers if (worker := subscriber.cancel()) is not None and not _is_me(worker)]
        self._have([])
        if workers:
            await asyncio.wait(workers, timeout=self.patience)


def inside_listener() -> bool:
    """Whether the current task runs a listener (or was started by one)."""
    return _inside.get()


def _is_async(listener: Listener) -> bool:
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(getattr(listener, "__call__", None))  # noqa: B004 - a callable object


def _is_me(task: asyncio.Task[Any]) -> bool:
    return task is asyncio.current_task()
