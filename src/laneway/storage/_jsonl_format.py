"""The lines of a JSONL session.

The first line says what the file is. Every other line is one commit: a JSON object for one write, an array of them for several::

    {"format":"laneway-session","version":1,"id":"…","created_at":1767225600000,"next_seq":1}
    [{"type":"message","seq":1,"id":"…","parent_id":null,"timestamp":…,"payload":{"message":{…}}},{"type":"set","seq":2,"namespace":"branch.tip",…}]
    {"type":"usage","seq":3,"id":"…","entry_id":"…","timestamp":…,"payload":{"usage":{…}}}

Writes are `message`, `compaction`, `branch_summary`, `custom` (entries), `usage`, `set`, `delete`, `append` and `delete_list`.
Seqs rise from line to line. `next_seq` of the first line is the lowest that the file may give: a compacted file has dropped writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import Raw, Struct

from laneway.errors import StorageCorruption, StorageVersionError
from laneway.storage._codec import EncodedElement, EncodedEntry, EncodedUsage, EncodedValue, EncodedWrite, read_usage_row
from laneway.storage.base import DeleteList, DeleteValue, EntryType

FORMAT = "laneway-session"
VERSION = 1
LONGEST_HEADER = 64 * 1024
"""A first line beyond this is not one of ours."""


class Header(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The first line. `id` and `metadata` are what the creator of the file wanted to be found without reading the rest."""

    format: str
    version: int
    id: str | None = None
    created_at: int = 0
    next_seq: int = 1
    metadata: Any = None


class _Kind(Struct):
    format: str
    version: int


class _Record(Struct, kw_only=True, frozen=True, gc=False, tag_field="type", forbid_unknown_fields=True):
    seq: int


class _EntryRecord(_Record, kw_only=True, frozen=True, gc=False, omit_defaults=True):
    type: ClassVar[EntryType]
    id: str
    parent_id: str | None
    timestamp: int
    custom_type: str | None = None
    payload: Raw


class _Message(_EntryRecord, frozen=True, gc=False, tag="message"):
    type: ClassVar[EntryType] = "message"


class _Compaction(_EntryRecord, frozen=True, gc=False, tag="compaction"):
    type: ClassVar[EntryType] = "compaction"


class _BranchSummary(_EntryRecord, frozen=True, gc=False, tag="branch_summary"):
    type: ClassVar[EntryType] = "branch_summary"


class _Custom(_EntryRecord, frozen=True, gc=False, tag="custom"):
    type: ClassVar[EntryType] = "custom"


class _Usage(_Record, kw_only=True, frozen=True, gc=False, tag="usage"):
    id: str
    entry_id: str | None
    timestamp: int
    payload: Raw


class _Set(_Record, kw_only=True, frozen=True, gc=False, tag="set"):
    namespace: str
    key: str
    value: Raw


class _Append(_Record, kw_only=True, frozen=True, gc=False, tag="append"):
    namespace: str
    key: str
    value: Raw


class _Delete(_Record, kw_only=True, frozen=True, gc=False, tag="delete"):
    namespace: str
    key: str


class _DeleteList(_Record, kw_only=True, frozen=True, gc=False, tag="delete_list"):
    namespace: str
    key: str


Record: TypeAlias = _Message | _Compaction | _BranchSummary | _Custom | _Usage | _Set | _Append | _Delete | _DeleteList

_ENTRY_RECORDS: dict[EntryType, type[_Message | _Compaction | _BranchSummary | _Custom]] = {
    kind.type: kind for kind in (_Message, _Compaction, _BranchSummary, _Custom)
}
_encode = msgspec.json.Encoder().encode
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_header = msgspec.json.Decoder(Header).decode
_decode_raws = msgspec.json.Decoder(list[Raw]).decode
_decode_record = msgspec.json.Decoder(Record).decode


def header_line(header: Header) -> bytes:
    """Return the first line of a file."""
    return _encode(header) + b"\n"


def read_header(line: bytes, path: object) -> Header:
    """Decode the first line.

    Raises:
        StorageCorruption: the file is not a laneway session; the text says what it is like.
        StorageVersionError: it was written by a newer laneway.
    """
    try:
        kind = _decode_kind(line)
        if kind.format == FORMAT and kind.version > VERSION:
            raise StorageVersionError(
                f"{path} has storage version {kind.version}; this laneway knows up to {VERSION}: upgrade laneway to use it (nothing was changed)"
            )
        header = _decode_header(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageCorruption(f"{path} is not a laneway session: its first line is no session header: {error} (nothing was changed)") from error
    if header.format != FORMAT or not line.endswith(b"\n"):
        raise StorageCorruption(f"{path} is not a laneway session: its first line is no whole session header (nothing was changed)")
    return header


def commit_line(writes: Sequence[EncodedWrite], seqs: Sequence[int], timestamp: int) -> tuple[bytes, list[int]]:
    """Return the line of a commit and the length in bytes of each write in it."""
    records = [_encode(_record(write, seq, timestamp)) for write, seq in zip(writes, seqs, strict=True)]
    return join_records(records), [len(record) for record in records]


def join_records(records: Sequence[bytes]) -> bytes:
    """Return the line of records that are encoded already."""
    return records[0] + b"\n" if len(records) == 1 else b"[" + b",".join(records) + b"]\n"


def _record(write: EncodedWrite, seq: int, timestamp: int) -> Record:
    match write:
        case EncodedEntry():
            row = write.stored(seq, timestamp)
            return _ENTRY_RECORDS[row.type](
                seq=seq, id=row.id, parent_id=row.parent_id, timestamp=row.timestamp, custom_type=row.custom_type, payload=Raw(row.payload)
            )
        case EncodedUsage():
            return _Usage(seq=seq, id=write.id, entry_id=write.entry_id, timestamp=timestamp, payload=Raw(write.payload))
        case EncodedValue():
            return _Set(seq=seq, namespace=write.namespace, key=write.key, value=Raw(write.value))
        case EncodedElement():
            return _Append(seq=seq, namespace=write.namespace, key=write.key, value=Raw(write.value))
        case DeleteValue():
            return _Delete(seq=seq, namespace=write.namespace, key=write.key)
        case DeleteList():
            return _DeleteList(seq=seq, namespace=write.namespace, key=write.key)


class ReadCommit(Struct, frozen=True):
    """A line, decoded: the writes of one commit with the seqs and the time that they had."""

    writes: list[EncodedWrite]
    seqs: list[int]
    timestamp: int


def read_commit(line: bytes) -> tuple[ReadCommit, list[bytes]]:
    """Decode the line of a commit; return it and the bytes of each write in it.

    Raises:
        StorageCorruption: it is not one; the text says why, the caller knows where.
    """
    try:
        if not line.isascii():
            line.decode()  # the decoder passes payloads on unread
        raws = [bytes(raw) for raw in _decode_raws(line)] if line.startswith(b"[") else [line.rstrip(b"\n")]
        records = [_decode_record(raw) for raw in raws]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageCorruption(f"it is no commit: {error}") from error
    if not records:
        raise StorageCorruption("it is an empty commit")
    timestamps = {record.timestamp for record in records if isinstance(record, _Usage)}
    if len(timestamps) > 1:
        raise StorageCorruption("its usage rows have different times")
    commit = ReadCommit([_write(record) for record in records], [record.seq for record in records], timestamps.pop() if timestamps else 0)
    return commit, raws


def _write(record: Record) -> EncodedWrite:
    match record:
        case _Set():
            return EncodedValue(record.namespace, record.key, bytes(record.value))
        case _Append():
            return EncodedElement(record.namespace, record.key, bytes(record.value))
        case _Delete():
            return DeleteValue(record.namespace, record.key)
        case _DeleteList():
            return DeleteList(record.namespace, record.key)
        case _Usage():
            return read_usage_row(id=record.id, entry_id=record.entry_id, seq=record.seq, timestamp=record.timestamp, payload=bytes(record.payload))
        case _Message() | _Compaction() | _BranchSummary() | _Custom():
            payload = bytes(record.payload)
            return EncodedEntry(record.id, record.parent_id, record.type, record.custom_type, payload, record.seq, record.timestamp)
