"""How rows stand in SQLite's columns: short ids, type numbers, and a checksum over each whole row."""

from __future__ import annotations

import sqlite3
from typing import Any, Final, TypeAlias
from zlib import crc32

from laneway.errors import StorageCorruption
from laneway.storage._codec import EncodedEntry, decode_json
from laneway.storage.base import EntryNode, EntryType, ListElement, StoredValue

StoredId: TypeAlias = bytes | str
Row: TypeAlias = tuple[Any, ...]


TYPES: Final[tuple[EntryType, ...]] = ("message", "compaction", "branch_summary", "custom")
"""An entry's type by its number in the file."""
TYPE_NUMBERS: Final[dict[str, int]] = {name: number for number, name in enumerate(TYPES)}

# ---------------------------------------------------------------------------------------------------- ids


def pack_id(id: str) -> StoredId:
    """Return the form of an id in the file: the 16 bytes of a UUID in its canonical spelling, else the text."""
    digits = id.replace("-", "")
    if len(id) == 36 and len(digits) == 32 and id[8] == id[13] == id[18] == id[23] == "-":
        try:
            packed = bytes.fromhex(digits)
        except ValueError:
            return id
        if packed.hex() == digits:  # in lower case, and nothing else between the digits
            return packed
    return id


def unpack_id(stored: StoredId) -> str:
    """Return the id that `pack_id` was given."""
    if isinstance(stored, str):
        return stored
    text = stored.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# ---------------------------------------------------------------------------------------------------- checksums


def checksum(columns: Row, content: bytes) -> int:
    """Return a row's checksum: the upper half over the columns (and the lower half), the lower half over its JSON.

    So a row that is read without its JSON can be checked too.
    """
    lower = crc32(content)
    return (crc32(repr(columns).encode("utf-8", "surrogatepass"), lower) - 0x80000000) << 32 | lower


def _is_intact(columns: Row, content: object, stored: object) -> bool:
    return type(content) is bytes and stored == checksum(columns, content)


def _is_intact_without_content(columns: Row, stored: object) -> bool:
    return type(stored) is int and crc32(repr(columns).encode("utf-8", "surrogatepass"), stored & 0xFFFFFFFF) - 0x80000000 == stored >> 32


# ---------------------------------------------------------------------------------------------------- entries

ENTRY_COLUMNS: Final = "e.seq, e.id, e.parent, p.id, e.timestamp, e.type, e.custom_type, e.checksum, e.payload"
"""What `read_entry` takes, from `entries e LEFT JOIN entries p ON p.seq = e.parent`."""
NODE_COLUMNS: Final = ENTRY_COLUMNS.removesuffix(", e.payload")
"""What `read_node` takes."""


def entry_row(entry: EncodedEntry, id: StoredId, seq: int, parent: int | None, timestamp: int) -> Row:
    """Return the columns of an entry in the order of the table."""
    payload = entry.payload
    columns = (seq, id, parent, timestamp, TYPE_NUMBERS[entry.type], entry.custom_type)
    return *columns, checksum(columns, payload), payload


def read_entry(row: Row) -> EncodedEntry:
    """Return the entry of a row of `ENTRY_COLUMNS`.

    Raises:
        StorageCorruption: it was damaged, or its parent is gone.
    """
    seq, id, parent, parent_id, timestamp, _, custom_type, check, payload = row
    number: int = row[5]
    if not _is_intact((seq, id, parent, timestamp, number, custom_type), payload, check):
        raise damaged(f"the entry at seq {seq}")
    _check_parent(seq, id, parent, parent_id)
    return EncodedEntry(unpack_id(id), _unpack_optional(parent_id), TYPES[number], custom_type, payload, seq, timestamp)


def read_node(row: Row) -> EntryNode:
    """Return the entry of a row of `NODE_COLUMNS`; `StorageCorruption` as for `read_entry`."""
    seq, id, parent, parent_id, timestamp, _, custom_type, check = row
    number: int = row[5]
    if not _is_intact_without_content((seq, id, parent, timestamp, number, custom_type), check):
        raise damaged(f"the entry at seq {seq}")
    _check_parent(seq, id, parent, parent_id)
    return EntryNode(
        id=unpack_id(id), parent_id=_unpack_optional(parent_id), seq=seq, timestamp=timestamp, type=TYPES[number], custom_type=custom_type
    )


def _check_parent(seq: int, id: StoredId, parent: int | None, parent_id: StoredId | None) -> None:
    if parent is not None and (parent_id is None or parent >= seq):
        raise StorageCorruption(
            f"entry {unpack_id(id)!r} (seq {seq}) is stored with a parent at seq {parent}, which is missing or younger than itself"
        )


def _unpack_optional(stored: StoredId | None) -> str | None:
    return None if stored is None else unpack_id(stored)


def damaged(what: str) -> StorageCorruption:
    """The error for a row whose checksum does not fit."""
    return StorageCorruption(f"{what} is damaged: its checksum does not fit what is stored; restore the session from a copy")


# ---------------------------------------------------------------------------------------------------- usage, values, lists


def usage_row(seq: int, id: StoredId, entry_id: StoredId | None, timestamp: int, payload: bytes) -> Row:
    """Return the columns of a ledger row in the order of the table."""
    return seq, id, entry_id, timestamp, checksum((seq, id, entry_id, timestamp), payload), payload


def check_usage_row(row: Row) -> tuple[int, str, str | None, int, bytes]:
    """Return `seq, id, entry_id, timestamp, payload` of a stored ledger row, or raise that it was damaged."""
    seq, id, entry_id, timestamp, check, payload = row
    if not _is_intact((seq, id, entry_id, timestamp), payload, check):
        raise damaged(f"the usage row at seq {seq}")
    return seq, unpack_id(id), _unpack_optional(entry_id), timestamp, payload


def cell_row(namespace: str, key: str, seq: int, value: bytes) -> Row:
    """Return the columns of a cell or list element in the order of their tables."""
    return namespace, key, seq, crc32(value, crc32(f"{namespace}\0{key}\0{seq}".encode())), value


def read_value(row: Row) -> StoredValue:
    """Return the cell of a stored row, or raise that it was damaged."""
    namespace, key, seq, value = _check_cell(row, "value")
    return StoredValue(namespace=namespace, key=key, value=value, seq=seq)


def read_element(row: Row) -> ListElement:
    """Return the list element of a stored row, or raise that it was damaged."""
    _, _, seq, value = _check_cell(row, "list element")
    return ListElement(seq=seq, value=value)


def _check_cell(row: Row, what: str) -> tuple[str, str, int, Any]:
    namespace, key, seq, check, data = row
    if type(data) is not bytes or check != cell_row(namespace, key, seq, data)[3]:
        raise damaged(f"the {what} {namespace}/{key} at seq {seq}")
    return namespace, key, seq, decode_json(data, f"{what} {namespace}/{key}")


def fetch(cursor: sqlite3.Cursor, sql: str, parameters: Row = ()) -> Row | None:
    """Return the first row of a query; None if there is none."""
    row: Row | None = cursor.execute(sql, parameters).fetchone()
    return row
