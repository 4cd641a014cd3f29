"""What of a session can change, as it is at one moment.

Read through the session's line if it is open here, else again and again until two readings in a row agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Protocol, cast

from msgspec import Struct, field

from laneway.errors import ForkError
from laneway.session.keys import kind_of
from laneway.storage.base import Addresses, Entry, EntryScan, ListElement, Storage, StoredValue

if TYPE_CHECKING:
    from laneway.session._session import Session
    from laneway.storage.base import Enumerable

_PAGE = 1000
_TRIES = 100


class ReadableStorage(Protocol):
    """What a fork reads: a store, or a mutation scope on it."""

    async def scan_values(self, namespace: str, key_prefix: str = "") -> list[StoredValue]: ...
    async def read_list(self, namespace: str, key: str, *, after: int | None = None, limit: int = ...) -> list[ListElement]: ...
    async def scan_entries(self, scan: EntryScan) -> list[Entry]: ...


class Snapshot(Struct, kw_only=True):
    """The cells and lists of a session at one moment, and the seq of its last entry then."""

    last_seq: int = 0
    cells: dict[str, list[StoredValue]] = field(default_factory=dict[str, list[StoredValue]])
    lists: dict[tuple[str, str], list[ListElement]] = field(default_factory=dict[tuple[str, str], list[ListElement]])

    def cell(self, namespace: str, key: str) -> StoredValue | None:
        """Return one cell, or None."""
        return next((stored for stored in self.cells.get(namespace, ()) if stored.key == key), None)


async def snapshot_open(session: Session) -> Snapshot:
    """Read a session that is open here, at this place in its line of writers."""
    return await session.mutate(lambda mutation: _collect(session.storage, mutation))


async def snapshot_storage(storage: Storage) -> Snapshot:
    """Read a store that somebody else may be writing: until two readings agree, for then nothing changed in between."""
    before = await _collect(storage, storage)
    for attempt in range(_TRIES):
        after = await _collect(storage, storage)
        if after == before:
            return after
        before = after
        await asyncio.sleep(min(0.001 * 2**attempt, 0.1))
    raise ForkError("the session is being written to so fast that it cannot be copied whole: try again, or fork it where it is open")


async def addresses_of(storage: Storage) -> Addresses:
    """Return where the store holds something. Raises ForkError if it cannot say."""
    enumerate_ = getattr(storage, "list_addresses", None)
    if enumerate_ is None:
        raise ForkError(f"{type(storage).__name__} has no list_addresses(), so a copy might not be whole: fork through its repository")
    return await cast("Enumerable", storage).list_addresses()


async def _collect(storage: Storage, reader: ReadableStorage) -> Snapshot:
    addresses = await addresses_of(storage)
    found = Snapshot()
    for namespace in addresses.namespaces:
        if kind_of(namespace) != "runtime":
            cells = await reader.scan_values(namespace)
            if cells:
                found.cells[namespace] = cells
    for namespace, key in addresses.lists:
        if kind_of(namespace) != "runtime":
            found.lists[namespace, key] = [element async for element in read_elements(reader, namespace, key)]
    newest = await reader.scan_entries(EntryScan(order="desc", limit=1))
    found.last_seq = newest[0].seq if newest else 0
    return found


async def read_elements(reader: ReadableStorage, namespace: str, key: str) -> AsyncIterator[ListElement]:
    """Yield every element of a list, in pages."""
    after: int | None = None
    while page := await reader.read_list(namespace, key, after=after, limit=_PAGE):
        for element in page:
            yield element
        after = page[-1].seq
