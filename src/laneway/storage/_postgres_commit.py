"""Commits of one session to Postgres: one call of one function each, and what to do when the line goes dead in the middle of it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from laneway.errors import CommitUnknown, LeaseLost, StorageError
from laneway.messages import now_ms
from laneway.storage import _checks as checks
from laneway.storage import _postgres_branch as branch
from laneway.storage._codec import EncodedCommit, EncodedElement, EncodedEntry, EncodedUsage, EncodedValue, encode_stats
from laneway.storage._postgres_lease import Lease, Position
from laneway.storage._postgres_pool import ConnectionLost, PostgresPool, StatementRefused, execute
from laneway.storage._postgres_repair import rebuild
from laneway.storage._postgres_rewrite import replace
from laneway.storage._rewrite import NewContent
from laneway.storage.base import CommitResult, Content, DeleteList, DeleteValue

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_KNOWN_PLACES: Final = 4096
_TRIES: Final = 3
_UNIQUE_VIOLATION: Final = "23505"
_PLACES = "SELECT id, segment, seq, is_tip, compaction_segment, compaction_seq, after FROM find_places(%s::bigint, %s, %s)"
_TAKEN = (
    "SELECT id FROM entries WHERE session_key = %s AND id = ANY (%s) UNION ALL SELECT id FROM usage_rows WHERE session_key = %s AND id = ANY (%s)"
)
_ERASE = "SELECT erase_session(%s::bigint, %s::bigint)"

# The parameters of commit_writes(), in order, with their types: the server must not have to guess what an absent group would be.
_SCALARS = "bigint bigint bigint bigint bigint bytea float8"
_GROUPS = {
    "entries": "bigint bigint text text text text bigint bytea",
    "segments": "bigint bigint bigint bigint",
    "copies": "bigint bigint bigint bigint",
    "usage": "bigint bigint text text bytea",
    "deleted_cells": "text text",
    "cells": "text text bigint bytea",
    "deleted_lists": "text text",
    "elements": "text text bigint bytea",
}
_COMMIT = "SELECT commit_writes({})".format(
    ", ".join([f"%s::{kind}" for kind in _SCALARS.split()] + [f"%s::{kind}[]" for kinds in _GROUPS.values() for kind in kinds.split()])
)


class _Prepared(Struct, frozen=True):
    """A commit ready to be sent, and what will be true once it is there."""

    parameters: list[Any]
    result: CommitResult
    after: Position
    places: dict[str, branch.Place]


class Writer:
    """The one writer of a session. Its methods must not run at the same time: the storage runs them one after the other."""

    def __init__(self, pool: PostgresPool, lease: Lease, position: Position) -> None:
        self.lease = lease
        self._pool = pool
        self._position = position
        self._places: OrderedDict[str, branch.Place] = OrderedDict()  # of the entries written last; never wrong, seldom complete
        self._unknown: _Prepared | None = None
        self._astray = False

    @property
    def in_doubt(self) -> bool:
        """Whether the last write failed without our knowing what became of it."""
        return self._unknown is not None or self._astray

    async def commit(self, commit: EncodedCommit) -> CommitResult:
        """See `PostgresStorage.commit`."""
        await self.settle()
        self._check_lease()
        if not commit.writes:
            return CommitResult(first_seq=self._position.next_seq, seqs=[], timestamp=now_ms(), stats=self._position.stats)
        prepared = await self._prepare(commit)
        deadline = time.monotonic() + self._pool.reconnect_timeout
        for _ in range(_TRIES):
            if await self._send(prepared, deadline):
                self._accept(prepared)
                return prepared.result
            # It is not there. A raised fence refuses what the dead connection may still carry, so it can be sent again.
            prepared.parameters[1] = self.lease.fence
        raise StorageError(f"the commit was not made: the connection to Postgres broke {_TRIES} times while it was being sent")

    def _check_lease(self) -> None:
        if self.lease.lost is not None:
            raise LeaseLost(str(self.lease.lost))

    # ------------------------------------------------------------------------------------------------ sending

    async def _send(self, prepared: _Prepared, deadline: float) -> bool:
        """Send a commit; return whether it is there. False only after a broken connection, and then it is certain."""
        try:
            async with self._pool.connection(deadline) as connection:
                self._unknown = prepared
                rows = await execute(connection, _COMMIT, prepared.parameters)
                self._unknown = None
        except ConnectionLost as error:
            if self._unknown is None:
                raise StorageError(f"the commit was not made: {error}") from error
            await self._pool.drop_idle()
            return await self._settle(max(0.0, deadline - time.monotonic()), error)
        except StatementRefused as error:
            self._unknown = None
            raise await self._refusal(error, prepared) from error
        if not rows[0][0]:
            raise await self.lease.note_loss()
        return True

    async def settle(self) -> None:
        """Find out what became of a commit that failed with `CommitUnknown`, and go on from there."""
        if self.in_doubt:
            await self._settle(self._pool.reconnect_timeout, None)

    async def _settle(self, within: float, cause: BaseException | None) -> bool:
        unknown, self._astray = self._unknown, True
        try:
            position = await self.lease.raise_fence(within)
        except StorageError as error:
            raise CommitUnknown(
                "the connection to Postgres was lost during a commit and could not be made again in time: whether the commit happened is not "
                f"known; the next call to this storage finds out ({error})"
            ) from cause or error
        self._unknown, self._astray = None, False
        if position is None:
            raise LeaseLost(f"{self.lease.lost}; whether the last commit happened is not known")
        if unknown is not None and position.next_seq == unknown.after.next_seq:
            self._accept(unknown)
            return True
        self._position = position
        return False

    def _accept(self, prepared: _Prepared) -> None:
        self._position = prepared.after
        self._places.update(prepared.places)
        while len(self._places) > _KNOWN_PLACES:
            self._places.popitem(last=False)

    async def _refusal(self, error: StatementRefused, prepared: _Prepared) -> StorageError:
        if error.sqlstate != _UNIQUE_VIOLATION:
            return StorageError(f"the commit was not made: {error}")
        ids = [id for column in (_column(prepared, "entries", 2), _column(prepared, "usage", 2)) for id in column]
        rows = await self._pool.fetch(_TAKEN, (self.lease.session_key, ids, self.lease.session_key, ids))
        return checks.duplicate_id(rows[0][0]) if rows else StorageError(f"the commit was not made: {error}")

    # ------------------------------------------------------------------------------------------------ preparing

    async def _prepare(self, commit: EncodedCommit) -> _Prepared:
        position = self._position
        seqs = commit.number(position.next_seq)
        timestamp = now_ms()
        nodes = _nodes(commit, seqs)
        planned = await self._plan_branches(nodes, position.next_segment)
        stats = commit.stats_after(position.stats)
        after = Position(seqs[-1] + 1, planned.next_segment, stats)
        groups = _groups(commit, seqs, timestamp, planned)
        parameters: list[Any] = [self.lease.session_key, self.lease.fence, position.next_seq, after.next_seq, after.next_segment]
        parameters += [encode_stats(stats), self.lease.life]
        for name, kinds in _GROUPS.items():
            rows = groups[name]
            parameters += [list(column) for column in zip(*rows, strict=True)] if rows else [None] * len(kinds.split())
        result = CommitResult(first_seq=seqs[0], seqs=seqs, timestamp=timestamp, stats=stats)
        return _Prepared(parameters, result, after, planned.places)

    async def _plan_branches(self, nodes: Sequence[branch.Node], next_segment: int) -> branch.BranchPlan:
        outside = branch.parents_outside(nodes)
        places = {id: self._places[id] for id in outside if id in self._places}
        if unknown := [id for id in outside if id not in places]:
            rows = await self._pool.fetch(_PLACES, (self.lease.session_key, unknown, branch.MAX_COPIED))
            places |= {id: _place(*row) for id, *row in rows}
        for node in nodes:
            if node.parent_id in outside and node.parent_id not in places:
                raise checks.missing_parent(node.id, str(node.parent_id))
        return branch.plan(nodes, places, next_segment)

    async def repair(self) -> None:
        """Make the branch index anew from the entries, in one transaction."""
        await self.settle()
        next_segment = await self._transact(lambda connection: rebuild(connection, self.lease.session_key, self.lease.fence))
        self._position = structs.replace(self._position, next_segment=next_segment)

    async def rewrite(self, content: Content) -> None:
        """Replace everything, in one transaction."""
        await self.settle()
        new = NewContent(content, next_seq=self._position.next_seq)
        next_segment = await self._transact(lambda connection: replace(connection, self.lease.session_key, self.lease.fence, new))
        self._position = Position(new.rows.next_seq, next_segment, new.rows.stats)

    async def _transact(self, work: Callable[[AsyncConnection[Any]], Awaitable[int | None]]) -> int:
        """Do in one transaction what may be done twice, and again if the line breaks; return the next segment's number."""
        self._check_lease()
        deadline = time.monotonic() + self._pool.reconnect_timeout
        for _ in range(_TRIES):
            try:
                async with self._pool.transaction(deadline) as connection:
                    next_segment = await work(connection)
            except ConnectionLost as error:
                await self._pool.drop_idle()
                await self._settle(max(0.0, deadline - time.monotonic()), error)
                continue
            finally:
                self._places.clear()
            if next_segment is None:
                raise await self.lease.note_loss()
            return next_segment
        raise StorageError(f"nothing was changed: the connection to Postgres broke {_TRIES} times meanwhile")

    async def erase(self) -> None:
        """Delete the session."""
        await self.settle()
        self._check_lease()
        if not await self.lease.end_with(self._erase):
            raise await self.lease.note_loss()
        self.lease.loss.error = LeaseLost("the session was erased")  # by us: there is nobody to tell

    async def _erase(self) -> bool:
        return (await self._pool.fetch(_ERASE, (self.lease.session_key, self.lease.fence)))[0][0]


def _place(segment: int, seq: int, is_tip: bool, compaction_segment: int | None, compaction_seq: int, after: int | None) -> branch.Place:
    compaction = None if compaction_segment is None else branch.Compaction(compaction_segment, compaction_seq)
    return branch.Place(segment, seq, is_tip, compaction, None if after is None or after > branch.MAX_COPIED else after)


def _nodes(commit: EncodedCommit, seqs: Sequence[int]) -> list[branch.Node]:
    """Return the entries of a commit; refuse an id that it uses twice and a parent that comes later in it."""
    ids = {write.id for write in commit.writes if isinstance(write, EncodedEntry)}
    earlier: set[str] = set()
    nodes: list[branch.Node] = []
    for write, seq in zip(commit.writes, seqs, strict=True):
        if not isinstance(write, (EncodedEntry, EncodedUsage)):
            continue
        if write.id in earlier:
            raise checks.duplicate_id(write.id)
        if isinstance(write, EncodedEntry):
            if write.parent_id in ids and write.parent_id not in earlier:
                raise checks.missing_parent(write.id, write.parent_id)
            nodes.append(branch.Node(write.id, write.parent_id, seq, write.type))
        earlier.add(write.id)
    return nodes


def _groups(commit: EncodedCommit, seqs: Sequence[int], timestamp: int, planned: branch.BranchPlan) -> dict[str, Sequence[tuple[Any, ...]]]:
    """Return the rows of a commit in their final form: of cells and lists only what remains."""
    homes = iter(planned.homes)
    entries: list[tuple[Any, ...]] = []
    usage: list[tuple[Any, ...]] = []
    cells: dict[tuple[str, str], tuple[int, bytes] | None] = {}
    lists: dict[tuple[str, str], list[tuple[int, bytes]]] = {}
    emptied: dict[tuple[str, str], None] = {}
    for write, seq in zip(commit.writes, seqs, strict=True):
        match write:
            case EncodedEntry():
                row = write.stored(seq, timestamp)
                entries.append((seq, row.timestamp, row.id, row.parent_id, row.type, row.custom_type, next(homes), row.payload))
            case EncodedUsage():
                usage.append((seq, timestamp, write.id, write.entry_id, write.payload))
            case EncodedValue():
                cells[write.namespace, write.key] = seq, write.value
            case DeleteValue():
                cells[write.namespace, write.key] = None
            case EncodedElement():
                lists.setdefault((write.namespace, write.key), []).append((seq, write.value))
            case DeleteList():
                lists.pop((write.namespace, write.key), None)
                emptied[write.namespace, write.key] = None
    return {
        "entries": entries,
        "segments": [structs.astuple(segment) for segment in planned.segments],
        "copies": [structs.astuple(copy) for copy in planned.copies],
        "usage": usage,
        "deleted_cells": [address for address, cell in cells.items() if cell is None],
        "cells": [(*address, *cell) for address, cell in cells.items() if cell is not None],
        "deleted_lists": list(emptied),
        "elements": [(*address, *element) for address, elements in lists.items() for element in elements],
    }


def _column(prepared: _Prepared, group: str, index: int) -> list[Any]:
    """Return one column of a group of a prepared commit."""
    start = len(_SCALARS.split())
    for name, kinds in _GROUPS.items():
        if name == group:
            return prepared.parameters[start + index] or []
        start += len(kinds.split())
    raise KeyError(group)
