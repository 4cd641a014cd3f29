"""The right to write a session's file: one row with a fence, an owner and a time.

The fence counts owners and every commit compares it, so a clock that jumps or a process that slept cannot make two writers. Times
only say when another process may take over: of the same machine by its time since boot, of another by the wall clock.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from pathlib import Path
from typing import Final

from msgspec import Struct

from laneway.errors import SessionLocked, StorageCorruption
from laneway.messages import now_ms
from laneway.storage._codec import decode_stats, encode_stats
from laneway.storage._owner import Owner, decode_owner, this_process
from laneway.storage._sqlite_rows import Row, checksum, damaged, fetch
from laneway.storage.base import SessionStats

LIFE: Final = 30.0
"""Seconds that a lease lasts without renewal."""
HEARTBEAT: Final = 10.0
"""Seconds between renewals."""

_READ_STATE: Final = "SELECT next_seq, next_segment, entry_count, usage_count, stats, checksum FROM state"
_READ_LEASE: Final = "SELECT fence, owner, expires_at, expires_in_boot FROM state"
_TAKE: Final = "UPDATE state SET fence = ?, owner = ?, expires_at = ?, expires_in_boot = ?"
_RENEW: Final = "UPDATE state SET expires_at = ?, expires_in_boot = ? WHERE one = 1 AND fence = ?"
_RELEASE: Final = "UPDATE state SET owner = NULL, expires_at = 0, expires_in_boot = 0 WHERE one = 1 AND fence = ? AND owner = ?"
_FIRST_STATE: Final = "INSERT INTO state VALUES (1, ?, ?, ?, ?, ?, ?, 0, NULL, 0, 0)"
# The one statement that makes a commit a commit of this owner: it finds nothing if another has the fence.
_MOVE_ON: Final = """
UPDATE state SET next_seq = ?, next_segment = ?, entry_count = ?, usage_count = ?, stats = ?, checksum = ?, expires_at = ?, expires_in_boot = ?
WHERE one = 1 AND fence = ? AND next_seq = ?
"""


class Position(Struct, frozen=True, gc=False):
    """How far a session has come: what the next commit builds on."""

    next_seq: int = 1
    next_segment: int = 1
    entry_count: int = 0
    usage_count: int = 0
    stats: SessionStats = SessionStats()

    def columns(self, *others: object) -> Row:
        """Return what the state's row holds of it, and `others` after that."""
        numbers = (self.next_seq, self.next_segment, self.entry_count, self.usage_count)
        stats = encode_stats(self.stats)
        return *numbers, stats, checksum(numbers, stats), *others


def read_position(cursor: sqlite3.Cursor) -> Position:
    """Return where the session is; `StorageCorruption` if the row was damaged. A new file has no row yet."""
    row = fetch(cursor, _READ_STATE)
    if row is None:
        return Position()
    next_seq, next_segment, entry_count, usage_count, stats, check = row
    if type(stats) is not bytes or check != checksum((next_seq, next_segment, entry_count, usage_count), stats):
        raise damaged("the session's state")
    return Position(next_seq, next_segment, entry_count, usage_count, decode_stats(stats))


class Lease(Struct, frozen=True):
    """A held lease. All methods run in a transaction of the caller."""

    fence: int
    owner: str
    life: float

    def move_on(self, cursor: sqlite3.Cursor, before: Position, after: Position) -> bool:
        """Write where the session is after a commit, and renew. False if this is not the owner any more."""
        return cursor.execute(_MOVE_ON, after.columns(*_expiry(self.life), self.fence, before.next_seq)).rowcount == 1

    def renew(self, cursor: sqlite3.Cursor) -> bool:
        """Put the end off. False if this is not the owner any more."""
        cursor.execute(_RENEW, (*_expiry(self.life), self.fence))
        return cursor.rowcount == 1

    def is_held(self, cursor: sqlite3.Cursor) -> bool:
        """Whether this is still the owner."""
        row = fetch(cursor, _READ_LEASE)
        return row is not None and row[0] == self.fence

    def release(self, cursor: sqlite3.Cursor) -> None:
        """Give the lease back, if it is still this owner's: a successor's is never touched."""
        cursor.execute(_RELEASE, (self.fence, self.owner))


def acquire(cursor: sqlite3.Cursor, path: Path, life: float, token: str) -> Lease:
    """Take the lease in the caller's transaction: if it is free or has run out, or its owner's process is dead.

    Raises:
        SessionLocked: somebody else has it; the error names the process.
    """
    row = fetch(cursor, _READ_LEASE)
    if row is None:
        cursor.execute(_FIRST_STATE, Position().columns())
        row = (0, None, 0, 0)
    fence, owner_text, expires_at, expires_in_boot = row
    me = this_process(token)
    owner = decode_owner(owner_text) if isinstance(owner_text, str) else None
    if owner is not None and not _may_take_over(owner, me, expires_at, expires_in_boot):
        raise SessionLocked(
            f"the session {path} is open in {owner}, which can write to it: close it there, or wait for it (`wait=` when opening it in Python)",
            owner=str(owner),
        )
    if not isinstance(fence, int):
        raise StorageCorruption(f"the session {path} is damaged: its lease cannot be read")
    lease = Lease(fence + 1, me.encode(), life)
    cursor.execute(_TAKE, (lease.fence, lease.owner, *_expiry(life)))
    return lease


def _may_take_over(owner: Owner, me: Owner, expires_at: int, expires_in_boot: int) -> bool:
    if owner.is_dead or _same_process(owner, me):  # this process has no other open storage for the file, or it would not have come here
        return True
    if _shares_clock(owner, me):
        return _since_boot() >= expires_in_boot
    return now_ms() >= expires_at


def _same_process(owner: Owner, me: Owner) -> bool:
    return bool(me.started) and (owner.machine, owner.pid, owner.started) == (me.machine, me.pid, me.started)


def _shares_clock(owner: Owner, me: Owner) -> bool:
    """Whether the owner's time since boot can be compared with ours: on Linux, where `machine` names the boot."""
    return sys.platform.startswith("linux") and bool(me.machine) and owner.machine == me.machine


def _since_boot() -> int:
    return time.monotonic_ns() // 1_000_000


def _expiry(life: float) -> tuple[int, int]:
    return int((time.time() + life) * 1000), int((time.monotonic() + life) * 1000)
