"""Stores that misbehave or remember, around any other store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from laneway.errors import LeaseLost
from laneway.storage.base import (
    DEFAULT_LIST_LIMIT,
    BranchScan,
    CommitResult,
    Content,
    Entry,
    EntryNode,
    EntryScan,
    ListElement,
    SeqOrder,
    SessionStats,
    Storage,
    StoredValue,
    UsageRow,
    UsageScan,
    Values,
    Write,
)

T = TypeVar("T")


class Crash(Exception):
    """What a `CrashingStorage` raises from its crash on: to those above it, the process has died."""


_OPTIONAL = {"read_values": "_read_values", "rewrite": "_rewrite", "verify": "_verify", "repair": "_repair"}
"""What only some stores have, and where it is passed on."""


class _Wrapped:
    """Passes everything on to `storage`; `_touch` comes before every call but `close`.

    It has `read_values`, `rewrite`, `verify` and `repair` if (and only if) the store that is wrapped has them.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def _touch(self) -> None:
        return

    if not TYPE_CHECKING:  # to a type checker, a name that is not there stays an error

        def __getattr__(self, name: str) -> Any:
            own = _OPTIONAL.get(name)
            if own is None or not hasattr(self.storage, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            return getattr(self, own)

    async def _pass_on(self, name: str, *arguments: Any) -> Any:
        self._touch()
        return await getattr(self.storage, name)(*arguments)

    async def _read_values(self) -> Values:
        return await self._pass_on("read_values")

    async def _verify(self) -> list[str]:
        return await self._pass_on("verify")

    async def _rewrite(self, content: Content) -> None:
        await self._pass_on("rewrite", content)

    async def _repair(self) -> None:
        await self._pass_on("repair")

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        self._touch()
        return await self.storage.commit(writes)

    async def get_entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        self._touch()
        return await self.storage.get_entries(ids)

    async def get_value(self, namespace: str, key: str) -> StoredValue | None:
        self._touch()
        return await self.storage.get_value(namespace, key)

    async def scan_values(self, namespace: str, key_prefix: str = "") -> list[StoredValue]:
        self._touch()
        return await self.storage.scan_values(namespace, key_prefix)

    async def read_list(
        self, namespace: str, key: str, *, after: int | None = None, order: SeqOrder = "asc", limit: int = DEFAULT_LIST_LIMIT
    ) -> list[ListElement]:
        self._touch()
        return await self.storage.read_list(namespace, key, after=after, order=order, limit=limit)

    async def scan_branch(self, scan: BranchScan) -> list[Entry]:
        self._touch()
        return await self.storage.scan_branch(scan)

    async def scan_branch_structure(self, scan: BranchScan) -> list[EntryNode]:
        self._touch()
        return await self.storage.scan_branch_structure(scan)

    async def scan_entries(self, scan: EntryScan) -> list[Entry]:
        self._touch()
        return await self.storage.scan_entries(scan)

    async def scan_usage(self, scan: UsageScan) -> list[UsageRow]:
        self._touch()
        return await self.storage.scan_usage(scan)

    async def get_stats(self) -> SessionStats:
        self._touch()
        return await self.storage.get_stats()

    def on_lost(self, callback: Callable[[LeaseLost], None]) -> Callable[[], None]:
        """See `Leased.on_lost`; a store without a lease never calls it."""
        on_lost = getattr(self.storage, "on_lost", None)
        return (lambda: None) if on_lost is None else on_lost(callback)

    async def close(self) -> None:
        """Close the store that is wrapped."""
        await self.storage.close()


class CrashingStorage(_Wrapped):
    """Let `at` commits through, then raise `Crash` for everything, as if the process had been killed.

    With `before` the crash comes one commit earlier: what follows the commit `at - 1` still runs, and the commit `at`
    itself raises and is not applied. `storage` is the store as the dead process left it: open a new session over it.
    A rewrite and a repair, which write too, count as a commit; a call that fails on its own (a refused commit) does not count.
    `close()` closes `storage` unless the crash has come, for a dead process closes nothing.
    """

    def __init__(self, storage: Storage, at: int, before: bool = False) -> None:
        super().__init__(storage)
        if at < (1 if before else 0):
            raise ValueError(f"at must be the number of a commit, not {at}")
        self.at = at
        self.before = before
        self.commits = 0
        self.crashed = not before and at == 0

    def _touch(self) -> None:
        if self.crashed:
            raise Crash(f"the process died {'before' if self.before else 'after'} commit {self.at}")

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        """Commit, or crash."""
        return await self._written(lambda: self.storage.commit(writes))

    async def _rewrite(self, content: Content) -> None:
        await self._written(lambda: super(CrashingStorage, self)._rewrite(content))

    async def _repair(self) -> None:
        await self._written(super()._repair)

    async def _written(self, write: Callable[[], Awaitable[T]]) -> T:
        self._touch()
        if self.before and self.commits == self.at - 1:
            self.crashed = True
            self._touch()
        result = await write()
        self.commits += 1
        self.crashed = not self.before and self.commits >= self.at
        return result

    async def close(self) -> None:
        """Close the store that is wrapped, unless the crash has come."""
        if not self.crashed:
            await self.storage.close()


class RecordingStorage(_Wrapped):
    """Remember every commit that succeeded, in order, in `commits`; likewise what was put in place of everything, in `rewrites`."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.commits: list[tuple[Write, ...]] = []
        self.rewrites: list[Content] = []

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        """Commit and remember."""
        given = tuple(writes)
        result = await self.storage.commit(given)
        self.commits.append(given)
        return result

    async def _rewrite(self, content: Content) -> None:
        await super()._rewrite(content)
        self.rewrites.append(content)
