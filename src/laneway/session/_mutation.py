"""The one line that every write of a session stands in.

A *scope* reads, plans and commits at most once while nobody else writes. Scopes run one at a time in the order in which
they were asked for. This is the only caller of `Storage.commit`, so a lane, a branch and an application that read
before they write can never interleave.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Literal

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
    Storage,
    StoredValue,
    UsageRow,
    UsageScan,
    Write,
)

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
            MessageError: a message is still streaming or of an unregistered role; the store was not called.
            StorageError, TypeError, ValueError: see `Storage.commit`; nothing was written.
        """
        if not self._open:
            raise RuntimeError("this mutation scope has ended or has tried its one commit: start another with session.mutate()")
        for write in writes:
            if type(write) is InsertEntry:
                check_entry(write.entry)
        self._open = False
        commit = self._storage.commit(writes)
        style = self._line.style
        if style == "at_once":
            result = await commit
        elif style == "survives":
            result = await _Protected(commit, self._note_cancellation)
        else:
            result = await self._in_a_task(commit)
        self.committed = result
        return result

    async def _in_a_task(self, commit: Coroutine[Any, Any, CommitResult]) -> CommitResult:
        loop = asyncio.get_running_loop()
        task = asyncio.Task(commit, loop=loop, **_EAGER)
        while not task.done():
            waiter = loop.create_future()
            task.add_done_callback(lambda _, waiter=waiter: waiter.done() or waiter.set_result(None))
            try:
                await waiter
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

    def _end(self) -> asyncio.CancelledError | None:
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
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    awaited: asyncio.Future[Any] = self._coroutine.send(None)
                except StopIteration as stop:
                    return stop.value
                while not awaited.done():
                    # The task waits for a stand-in: cancelling a task cancels the future that it waits for.
                    stand_in: asyncio.Future[None] = loop.create_future()
                    awaited.add_done_callback(lambda _, stand_in=stand_in: stand_in.done() or stand_in.set_result(None))
                    try:
                        yield from stand_in
                    except asyncio.CancelledError as error:
                        self._note(error)
        finally:
            self._coroutine.close()


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

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = asyncio.Lock()
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
        me = self._outsider()
        self._refuse_if_sealed()
        await self._lock.acquire()
        try:
            self._refuse_if_sealed()
            self._owner = me
            scope = Mutation(self, self._storage)
            try:
                result = plan(scope)
                if hasattr(result, "__await__"):
                    result = await result
            finally:
                self._owner = None
                cancelled = scope._end()  # pyright: ignore[reportPrivateUsage] - the line and its scope are one thing
        finally:
            self._lock.release()
        if cancelled is not None:
            raise cancelled
        return result

    def seal(self) -> None:
        """Let no further scope start. Raises WouldDeadlock from inside a scope, whose end `close` would wait for."""
        self._outsider()
        self._sealed = True

    async def close(self) -> None:
        """Seal the line and wait for the scope that runs."""
        self.seal()
        async with self._lock:
            pass

    def _outsider(self) -> asyncio.Task[Any] | None:
        """Return the running task, unless it is inside a scope of this line."""
        me = asyncio.current_task()
        if me is not None and self._owner is me:
            raise WouldDeadlock("a session cannot be written to or closed from inside one of its mutation scopes: use the scope's own commit()")
        return me

    def _refuse_if_sealed(self) -> None:
        if self._sealed:
            raise StorageClosed("the session is closed: open it again from its repository")


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
