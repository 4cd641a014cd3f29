"""The right to write one session: a row with an owner, a fence and a time, all by the server's clock.

The fence counts owners. Every commit names the fence it holds and the server compares; times only decide when somebody else may
take the session over, so a clock that jumps or a process that sleeps cannot make two writers.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from laneway.errors import LeaseLost, SessionExists, SessionLocked, SessionNotFound, StorageError
from laneway.messages import now_ms
from laneway.storage._codec import decode_stats, encode_stats
from laneway.storage._heartbeat import heartbeats
from laneway.storage._loss import Loss
from laneway.storage._owner import decode_owner, this_process
from laneway.storage._postgres_pool import PostgresPool, quoted
from laneway.storage._postgres_renew import Renewals
from laneway.storage.base import SessionStats

if TYPE_CHECKING:
    from psycopg import Connection

LIFE: Final = 30.0
HEARTBEAT: Final = 10.0
_POLL: Final = 0.1
_GIVE_BACK: Final = 1.0
_log = logging.getLogger("laneway.storage")

_CREATE = """
INSERT INTO sessions (session_id, created_at, stats, owner, fence, expires_at)
VALUES (%s, %s, %s, %s, 1, clock_timestamp() + make_interval(secs => %s))
ON CONFLICT (session_id) DO NOTHING
RETURNING session_key, fence, next_seq, next_segment, stats
"""
_TAKE = """
UPDATE sessions SET owner = %s, fence = fence + 1, expires_at = clock_timestamp() + make_interval(secs => %s)
WHERE session_id = %s AND (owner IS NULL OR owner = %s OR expires_at <= clock_timestamp() OR fence = %s)
RETURNING session_key, fence, next_seq, next_segment, stats
"""
_RENEW = "UPDATE {}.sessions SET expires_at = clock_timestamp() + make_interval(secs => %s) WHERE session_key = %s AND owner = %s RETURNING true"
_RAISE_FENCE = """
UPDATE sessions SET fence = fence + 1, expires_at = clock_timestamp() + make_interval(secs => %s)
WHERE session_key = %s AND owner = %s
RETURNING session_key, fence, next_seq, next_segment, stats
"""
_RELEASE = "UPDATE sessions SET owner = NULL, expires_at = NULL WHERE session_id = %s AND owner = %s"
_HOLDER = "SELECT owner, fence FROM sessions WHERE session_id = %s"
_HOLDER_IN = "SELECT owner FROM {}.sessions WHERE session_id = %s"


class Position(Struct, frozen=True):
    """How far a session has come: what the next commit builds on."""

    next_seq: int
    next_segment: int
    stats: SessionStats


class Lease:
    """A held lease; renewed from a thread until it is released, lost, or forgotten."""

    def __init__(self, pool: PostgresPool, session_id: str, owner: str, life: float) -> None:
        self.session_key = 0
        self.fence = 0
        self.life = life
        self.loss = Loss()
        self._pool = pool
        self._session_id = session_id
        self._owner = owner
        self._renewals: Renewals | None = None
        self._ended = False  # by ourselves
        self._beat_key: int | None = None

    @property
    def lost(self) -> LeaseLost | None:
        """Why nothing can be written any more; None while it can."""
        return self.loss.error

    @classmethod
    async def acquire(
        cls, pool: PostgresPool, session_id: str, *, create: bool, exclusive: bool, wait: float, life: float, heartbeat: float
    ) -> tuple[Lease, Position]:
        """Take the lease, at once if it is free, expired or a dead process's, else after waiting at most `wait` seconds.

        Raises:
            SessionLocked: a live owner has it; named.
            SessionExists, SessionNotFound: see `PostgresStorage.open`.
        """
        # The token makes each statement below safe to repeat when the connection breaks: what it did is recognised as ours.
        lease = cls(pool, session_id, this_process(uuid.uuid4().hex).encode(), life)
        try:
            position = await lease._create() if create else None
            if position is None:
                position = await lease._take_over(exclusive=exclusive, deadline=time.monotonic() + wait)
        except asyncio.CancelledError:
            # The server may have given us the lease after all; nobody would renew or release it.
            await asyncio.wait([asyncio.create_task(lease._give_back())], timeout=_GIVE_BACK)
            raise
        lease._renewals = pool.renewals
        lease._beat_key = heartbeats().add(lease._beat, heartbeat)
        return lease, position

    async def _create(self) -> Position | None:
        return self._hold(await self._pool.fetch(_CREATE, (self._session_id, now_ms(), encode_stats(SessionStats()), self._owner, self.life)))

    async def _take_over(self, *, exclusive: bool, deadline: float) -> Position:
        dead_fence = -1
        while True:
            if exclusive:
                await self._refuse_existing()
            taken = self._hold(await self._pool.fetch(_TAKE, (self._owner, self.life, self._session_id, self._owner, dead_fence)))
            if taken is not None:
                return taken
            rows = await self._pool.fetch(_HOLDER, (self._session_id,))
            if not rows:
                raise SessionNotFound(f"there is no session {self._session_id!r} in Postgres schema {self._pool.schema!r}")
            holder = decode_owner(rows[0][0]) if rows[0][0] else None
            if holder is not None and holder.is_dead:
                dead_fence = rows[0][1]
                continue
            if time.monotonic() >= deadline:
                name = str(holder) if holder else "another process"
                raise SessionLocked(f"session {self._session_id!r} is open in {name}: one process writes a session; close it there first", owner=name)
            await asyncio.sleep(_POLL)

    async def _refuse_existing(self) -> None:
        rows = await self._pool.fetch(_HOLDER, (self._session_id,))
        if rows and rows[0][0] != self._owner:
            raise SessionExists(f"there is a session {self._session_id!r} in Postgres schema {self._pool.schema!r} already")

    def _hold(self, rows: list[tuple[int, int, int, int, bytes]]) -> Position | None:
        if not rows:
            return None
        self.session_key, self.fence, next_seq, next_segment, stats = rows[0]
        return Position(next_seq, next_segment, decode_stats(stats))

    async def raise_fence(self, within: float) -> Position | None:
        """Shut out whatever this owner's broken connections may still carry, and return how far the session has come.

        The server lets the update wait for a commit that is being made, and refuses one that comes later with the old fence. So
        what is read here is final. None when somebody else has taken the session over; `lost` says so.
        """
        position = self._hold(await self._pool.fetch(_RAISE_FENCE, (self.life, self.session_key, self._owner), within=within))
        if position is None:
            await self.note_loss()
        return position

    async def note_loss(self) -> LeaseLost:
        """Remember that the session is somebody else's now."""
        rows = await self._pool.fetch(_HOLDER, (self._session_id,))
        return self.loss.note(self._taken_over(rows))

    def _taken_over(self, rows: Sequence[tuple[Any, ...]]) -> LeaseLost:
        holder = decode_owner(rows[0][0]) if rows and rows[0][0] else None
        who = "was deleted" if not rows else f"was taken over by {holder}" if holder else "was taken over"
        return LeaseLost(f"session {self._session_id!r} {who}; this process can no longer write to it: open it again")

    async def release(self) -> None:
        """Give the lease up, if it is still ours. A successor's is not touched."""
        if self._beat_key is not None:
            heartbeats().remove(self._beat_key)
        self._ended = True
        if self.lost is None:
            await self._give_back()

    async def end_with(self, ending: Callable[[], Awaitable[bool]]) -> bool:
        """Do what ends the session for good and return whether it did; a renewal that comes too late for it is no loss to tell of."""
        self._ended = True
        try:
            self._ended = await ending()
        except BaseException:
            self._ended = False
            raise
        return self._ended

    async def _give_back(self) -> None:
        try:
            await self._pool.fetch(_RELEASE, (self._session_id, self._owner), within=_GIVE_BACK)
        except StorageError as error:
            _log.warning("the lease of session %r was not released and will run out by itself: %s", self._session_id, error)

    def _beat(self) -> None:
        if self.lost is None and self._renewals is not None:
            self._renewals.post(self._renew, f"the lease of session {self._session_id!r}")

    def _renew(self, connection: Connection[Any]) -> None:
        """Put the end off, in the thread of the renewals."""
        schema = quoted(self._pool.schema)
        # By owner, not by fence: the event loop may be raising that at this very moment.
        row = connection.execute(_RENEW.format(schema).encode(), (self.life, self.session_key, self._owner)).fetchone()
        if row is None and self.lost is None and not self._ended:
            lost = self._taken_over(connection.execute(_HOLDER_IN.format(schema).encode(), (self._session_id,)).fetchall())
            _log.warning("%s", lost)
            self.loss.note(lost)
