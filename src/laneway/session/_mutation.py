"""The one line that every write of a session stands in.

A *scope* reads, plans and commits at most once while nobody else writes. Scopes run one at a time in the order in which
they were asked for. This is the only caller of `Storage.commit`, so a lane, a branch and an application that read
before they write can never interleave.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from laneway.abort import end_of
from laneway.errors import MessageError, StorageClosed, WouldDeadlock
from laneway.messages import AgentMessage, AssistantMessage, is_message, role_of
from laneway.storage.base import (
    DEFAULT_LIST_LIMIT,
    BranchScan,
    CommitResult,
    CompactionEntry,
    Entry,
    EntryNode,
    EntryScan,
    InsertEntry,
    ListElement,
    MessageEntry,
    SeqOrder,
    SessionStats,
    SetValue,
    Storage,
    StoredValue,
    UsageRow,
    UsageScan,
    Write,
)

if TYPE_CHECKING:
    from contextvars import Context

    from laneway.storage.memory import MemoryStorage

_EAGER: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class Mutation:
    """What a plan may do inside its scope: read, and commit once. Of no use after the scope has ended."""

    __slots__ = ("_cancelled", "_line", "_open", "_storage", "committed")

    def __init__(self, line: MutationLine, storage: Storage) -> None:
        self._line = line
        self._storage = storage
        self._open = True
        self._cancelled: asyncio.CancelledError | None = None
        self.committed: CommitResult | None = None

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        """Commit, once per scope. What a plan does after this must not await.

        A commit that has begun is completed even if the caller's task is cancelled: the cancellation is raised when the
        plan has ended, so what the plan does after its commit (publishing new state) is done too.

        Raises:
            RuntimeError: the scope has ended or has tried a commit before.
            MessageError: a message is still streaming or of an unregistered role; nothing was written.
            StorageError, TypeError, ValueError: see `Storage.commit`; nothing was written.
        """
        if not self._open:
            raise RuntimeError("this mutation scope has ended or has tried its one commit: start another with session.mutate()")
        style = self._line.style
        if style == "at_once":
            self._open = False
            result = cast("MemoryStorage", self._storage).commit_now(writes)
        elif style == "survives":
            self._open = False
            result = await _Protected(self._storage.commit(writes), self._note_cancellation)
        else:
            writes = [_for_any_store(write) for write in writes]
            self._open = False
            result = await self._in_a_task(self._storage.commit(writes))
        self.committed = result
        return result

    async def _in_a_task(self, commit: Coroutine[Any, Any, CommitResult]) -> CommitResult:
        task = asyncio.Task(commit, loop=asyncio.get_running_loop(), **_EAGER)
        while not task.done():
            try:
                await end_of(task)
            except asyncio.CancelledError as error:
                self._cancelled = error
        return task.result()

    def _note_cancellation(self, error: asyncio.CancelledError) -> None:
        self._cancelled = error

    async def get_entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        """See `Storage.get_entries`."""
        return await self._storage.get_entries(ids)

    async def get_value(self, namespace: str, key: str) -> StoredValue | None:
        """See `Storage.get_value`."""
        return await self._storage.get_value(namespace, key)

    async def scan_values(self, namespace: str, key_prefix: str = "") -> list[StoredValue]:
        """See `Storage.scan_values`."""
        return await self._storage.scan_values(namespace, key_prefix)

    async def read_list(
        self, namespace: str, key: str, *, after: int | None = None, order: SeqOrder = "asc", limit: int = DEFAULT_LIST_LIMIT
    ) -> list[ListElement]:
        """See `Storage.read_list`."""
        return await self._storage.read_list(namespace, key, after=after, order=order, limit=limit)

    async def scan_branch(self, scan: BranchScan) -> list[Entry]:
        """See `Storage.scan_branch`."""
        return await self._storage.scan_branch(scan)

    async def scan_branch_structure(self, scan: BranchScan) -> list[EntryNode]:
        """See `Storage.scan_branch_structure`."""
        return await self._storage.scan_branch_structure(scan)

    async def scan_entries(self, scan: EntryScan) -> list[Entry]:
        """See `Storage.scan_entries`."""
        return await self._storage.scan_entries(scan)

    async def scan_usage(self, scan: UsageScan) -> list[UsageRow]:
        """See `Storage.scan_usage`."""
        return await self._storage.scan_usage(scan)

    async def get_stats(self) -> SessionStats:
        """See `Storage.get_stats`."""
        return await self._storage.get_stats()

    def end(self) -> asyncio.CancelledError | None:
        """End the scope; return the cancellation that came while it committed."""
        self._open = False
        return self._cancelled


class _Protected:
    """Awaits a coroutine to its end in the caller's own task: a cancellation of the task is noted instead of passed on.

    It spares a task per commit, but a coroutine that cancels its own task (a timeout) would not be heard.
    """

    __slots__ = ("_coroutine", "_note")

    def __init__(self, coroutine: Coroutine[Any, Any, CommitResult], note: Callable[[asyncio.CancelledError], None]) -> None:
        self._coroutine = coroutine
        self._note = note

    def __await__(self) -> Generator[Any, None, CommitResult]:
        try:
            while True:
                try:
                    awaited: asyncio.Future[Any] = self._coroutine.send(None)
                except StopIteration as stop:
                    return stop.value
                while not awaited.done():
                    try:
                        yield _Uncancellable(awaited)
                    except asyncio.CancelledError as error:
                        if not awaited.cancelled():
                            self._note(error)
                    except BaseException:  # the future's own exception, which the coroutine gets from the future
                        if not awaited.done():
                            raise
        finally:
            self._coroutine.close()


class _Uncancellable:
    """Stands before a future that a task awaits: the task is woken by it, but a cancellation of the task does not reach the future.

    A task asks what it awaits to cancel itself, and remembers the cancellation for its next step if that says no.
    """

    __slots__ = ("_asyncio_future_blocking", "_future")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future
        self._asyncio_future_blocking = True  # how asyncio tells a future from another awaitable

    def cancel(self, msg: object = None) -> bool:
        return False

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        self._future.add_done_callback(callback, context=context)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._future.get_loop()


CommitStyle = Literal["at_once", "survives", "unknown"]


def commit_style(storage: Storage) -> CommitStyle:
    """Say how a store's `commit` behaves.

    "at_once": it never suspends. "survives": it awaits plain futures only, and an admitted commit is done whatever becomes of the
    caller. "unknown" for stores that are not ours, wrappers and subclasses: a task of its own keeps a cancellation from it.
    """
    kind = type(storage)
    if not kind.__module__.startswith("laneway.storage."):
        return "unknown"
    return "at_once" if kind.__module__ == "laneway.storage.memory" else "survives"


class MutationLine:
    """First come, first served; one scope at a time; sealed by `close()`."""

    __slots__ = ("_busy", "_owner", "_sealed", "_storage", "_waiting", "style")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._busy = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._owner: asyncio.Task[Any] | None = None
        self._sealed = False
        self.style = commit_style(storage)

    @property
    def sealed(self) -> bool:
        """Whether `close()` was called: no further scope starts."""
        return self._sealed

    async def run(self, plan: Callable[[Mutation], Any]) -> Any:
        """Run `plan(mutation)` (sync or async) as the only writer and return what it returns.

        Waiting for the turn can be cancelled and leaves no trace. Reads outside the line are not held up.

        Raises:
            WouldDeadlock: called from inside a scope of the same line.
            StorageClosed: the session was closed before the turn came.
        """
        scope = self.enter_now() or await self.enter()
        try:
            result = plan(scope)
            if hasattr(result, "__await__"):
                result = await result
        finally:
            cancelled = self.leave(scope)
        if cancelled is not None:
            raise cancelled
        return result

    def enter_now(self) -> Mutation | None:
        """Begin a scope if none is open; None if its turn must be waited for with `enter`. Raises as `run` does.

        Whoever enters must `leave`, and raise what that returns if nothing else is raised.
        """
        me = asyncio.current_task()
        if self._busy:
            self._refuse_owner(me)
            return None
        self._refuse_if_sealed()
        self._busy = True
        self._owner = me
        return Mutation(self, self._storage)

    async def enter(self) -> Mutation:
        """Begin a scope when its turn has come. See `enter_now`."""
        self._refuse_owner(asyncio.current_task())
        self._refuse_if_sealed()
        await self._turn()
        if self._sealed:
            self._pass_on()
            self._refuse_if_sealed()
        self._owner = asyncio.current_task()
        return Mutation(self, self._storage)

    def leave(self, scope: Mutation) -> asyncio.CancelledError | None:
        """End a scope and let the next one begin; return the cancellation that its commit has held back."""
        self._owner = None
        self._pass_on()
        return scope.end()

    async def _turn(self) -> None:
        if not self._busy:
            self._busy = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn came together with the cancellation
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False

    def seal(self) -> None:
        """Let no further scope start. Raises WouldDeadlock from inside a scope, whose end `close` would wait for."""
        self._refuse_owner(asyncio.current_task())
        self._sealed = True

    async def close(self) -> None:
        """Seal the line and wait for the scope that runs."""
        self.seal()
        await self._turn()
        self._pass_on()

    def _refuse_owner(self, me: asyncio.Task[Any] | None) -> None:
        if me is not None and self._owner is me:
            raise WouldDeadlock("a session cannot be written to or closed from inside one of its mutation scopes: use the scope's own commit()")

    def _refuse_if_sealed(self) -> None:
        if self._sealed:
            raise StorageClosed("the session is closed: open it again from its repository")


def _for_any_store(write: Write) -> Write:
    """Return a write as every `Storage` may be given it: checked, and with values as plain JSON data."""
    if type(write) is InsertEntry:
        check_entry(write.entry)
    elif type(write) is SetValue and type(write.value) is msgspec.Raw:
        return SetValue(write.namespace, write.key, msgspec.json.decode(write.value))
    return write


def check_entry(entry: Entry) -> None:
    """Refuse what must never be stored: a response that still streams, a message of a role nobody registered.

    Raises:
        MessageError: naming the entry and what to do.
    """
    if isinstance(entry, MessageEntry):
        _check_message(entry.message, entry.id)
    elif isinstance(entry, CompactionEntry):
        for message in entry.retained_tail:
            _check_message(message, entry.id)


def _check_message(message: AgentMessage, entry_id: str) -> None:
    if isinstance(message, AssistantMessage):
        if message.stop_reason == "pending":
            raise MessageError(f"entry {entry_id} holds a response that still streams (stop_reason 'pending'): store it once it has ended")
    elif not is_message(message):
        raise MessageError(
            f"entry {entry_id} holds a message of the unknown role {role_of(message)!r} ({type(message).__name__}): "
            "register_message() must know every custom role before its messages are stored"
        )
