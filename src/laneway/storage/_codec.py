"""How rows become bytes: the same bytes on every backend.

`encode_commit` turns a whole commit into rows before a backend sees it. Everything is encoded, strictly decoded again and
compared, so what is stored can be read, equals what was given, and shares nothing with the caller's objects. A payload
is a JSON object as UTF-8 bytes (NUL inside text is the escape `\\u0000`), so a backend that keeps the bytes keeps all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import Raw, Struct

from laneway.errors import MessageError, StorageCorruption
from laneway.messages import AgentMessage, AssistantMessage, Usage, clean_json, decode_message, is_message, known_roles, role_of
from laneway.storage._checks import MAX_SEQ, address, identifier, label
from laneway.storage._json import decode_json, encode_any, encode_json, encode_plain, json_encoder, may_be_deep, refuse_deep, refuse_unsafe
from laneway.storage.base import (
    AppendList,
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    DeleteList,
    DeleteValue,
    Entry,
    EntryNode,
    EntryType,
    InsertEntry,
    InsertUsage,
    MessageEntry,
    SessionStats,
    SetValue,
    UsageRow,
    Write,
)

__all__ = [
    "EncodedCommit",
    "EncodedElement",
    "EncodedEntry",
    "EncodedUsage",
    "EncodedValue",
    "EncodedWrite",
    "decode_entry",
    "decode_json",
    "decode_stats",
    "decode_usage",
    "encode_commit",
    "encode_json",
    "encode_stats",
    "read_usage_row",
]

# ---------------------------------------------------------------------------------------------------- encoded rows


class EncodedEntry(Struct, frozen=True, gc=False):
    """An entry as a backend keeps it. `seq` and `timestamp` are 0 until a commit gives them, unless they are kept."""

    id: str
    parent_id: str | None
    type: EntryType
    custom_type: str | None
    payload: bytes
    seq: int = 0
    timestamp: int = 0

    def stored(self, seq: int, timestamp: int) -> EncodedEntry:
        """Return the row under the seq and time of its commit; a kept seq keeps its own time too."""
        return EncodedEntry(self.id, self.parent_id, self.type, self.custom_type, self.payload, seq, self.timestamp if self.seq else timestamp)

    def decode(self) -> Entry:
        """Return the entry; `StorageCorruption` names it if its payload cannot be decoded."""
        return decode_entry(self)

    def node(self) -> EntryNode:
        """Return the entry without its payload."""
        return EntryNode(id=self.id, parent_id=self.parent_id, seq=self.seq, timestamp=self.timestamp, type=self.type, custom_type=self.custom_type)


class EncodedUsage(Struct, frozen=True, gc=False):
    """A ledger row as a backend keeps it; `usage` is the amount that the stats grow by."""

    id: str
    entry_id: str | None
    payload: bytes
    usage: Usage
    seq: int = 0
    timestamp: int = 0

    def stored(self, seq: int, timestamp: int) -> EncodedUsage:
        """Return the row under the seq and time of its commit."""
        return EncodedUsage(self.id, self.entry_id, self.payload, self.usage, seq, timestamp)


class EncodedValue(Struct, frozen=True, gc=False):
    """Set a cell to the JSON `value`."""

    namespace: str
    key: str
    value: bytes


class EncodedElement(Struct, frozen=True, gc=False):
    """Append the JSON `value` to a list."""

    namespace: str
    key: str
    value: bytes


EncodedWrite: TypeAlias = EncodedEntry | EncodedUsage | EncodedValue | EncodedElement | DeleteValue | DeleteList


class EncodedCommit(Struct, frozen=True):
    """A whole commit, validated and encoded."""

    writes: list[EncodedWrite]

    def number(self, next_seq: int) -> list[int]:
        """Return one seq per write, strictly increasing from `next_seq`.

        Raises:
            ValueError: an entry that keeps its seq is not above all before it.
        """
        seqs: list[int] = []
        for write in self.writes:
            if type(write) is EncodedEntry and write.seq:
                if write.seq < next_seq:
                    raise ValueError(f"entry {write.id!r} cannot keep the seq {write.seq}: the session is already at {next_seq - 1}")
                next_seq = write.seq
            seqs.append(next_seq)
            next_seq += 1
        return seqs

    def stats_after(self, stats: SessionStats) -> SessionStats:
        """Return the totals once this commit is added to `stats`."""
        messages = stats.message_count
        usage = stats.usage
        for write in self.writes:
            if type(write) is EncodedEntry:
                messages += write.type == "message"
            elif type(write) is EncodedUsage:
                usage = usage + write.usage
        if messages == stats.message_count and usage is stats.usage:
            return stats
        return SessionStats(message_count=messages, usage=usage)


# ---------------------------------------------------------------------------------------------------- payloads


class _Payload(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an entry or usage row holds beside its columns. Unknown fields are refused: formats change with `storage_version`."""


class _MessagePayload(_Payload, frozen=True, kw_only=True):
    message: Raw
    terminate: bool = False


class _CompactionPayload(_Payload, frozen=True, kw_only=True):
    summary: str
    retained_tail: list[Raw] = msgspec.field(default_factory=list[Raw])
    tokens_before: int = 0
    details: Any = None
    usage: Usage | None = None
    from_hook: bool = False


class _BranchSummaryPayload(_Payload, frozen=True, kw_only=True):
    from_id: str | None
    summary: str
    details: Any = None
    usage: Usage | None = None
    from_hook: bool = False


class _CustomPayload(_Payload, frozen=True, kw_only=True):
    data: Any = None


class _UsagePayload(_Payload, frozen=True, kw_only=True):
    usage: Usage
    adjustment: bool = False
    details: Any = None


_decode_message_payload = msgspec.json.Decoder(_MessagePayload).decode
_decode_compaction_payload = msgspec.json.Decoder(_CompactionPayload).decode
_decode_branch_summary_payload = msgspec.json.Decoder(_BranchSummaryPayload).decode
_decode_custom_payload = msgspec.json.Decoder(_CustomPayload).decode
_decode_usage_payload = msgspec.json.Decoder(_UsagePayload).decode
_decode_stats = msgspec.json.Decoder(SessionStats).decode
_DECODE_ERRORS = (msgspec.DecodeError, MessageError, UnicodeDecodeError, RecursionError)
_ENCODE_ERRORS = (MessageError, TypeError, ValueError, OverflowError, RecursionError)

# ---------------------------------------------------------------------------------------------------- encoding


def encode_commit(writes: Sequence[Write]) -> EncodedCommit:
    """Validate and encode a whole commit; the caller's objects may change afterwards.

    Raises:
        TypeError: something is not JSON-safe or not of the declared type; the text names the write and the path.
        ValueError: a bad id, namespace, key or custom type.
        MessageError: a message that is still "pending", or of an unregistered role.
    """
    # By exact type: for classes of this kind (with a metaclass), `isinstance` costs as much as the encoding of a small value.
    return EncodedCommit([_ENCODERS.get(type(write), _encode_by_kind)(write) for write in writes])


def _encode_by_kind(write: Write) -> EncodedWrite:
    """Encode a write of a subclass of ours; refuse what is no write."""
    for kind, encode in _ENCODERS.items():
        if isinstance(write, kind):
            return encode(write)
    raise TypeError(f"a commit holds {type(write).__name__}, which is not a Write (nothing was written)")


def _encode_insert(write: InsertEntry) -> EncodedWrite:
    return _encode_entry(write.entry, keep_seq=write.keep_seq)


def _encode_value(write: SetValue) -> EncodedWrite:
    namespace, key = address(write.namespace, write.key)
    data = encode_plain(write.value)
    return EncodedValue(namespace, key, encode_json(write.value, f"value {namespace}/{key}") if data is None else data)


def _encode_element(write: AppendList) -> EncodedWrite:
    namespace, key = address(write.namespace, write.key)
    data = encode_plain(write.value)
    return EncodedElement(namespace, key, encode_json(write.value, f"list element {namespace}/{key}") if data is None else data)


def _encode_delete(write: DeleteValue) -> EncodedWrite:
    return DeleteValue(*address(write.namespace, write.key))


def _encode_delete_list(write: DeleteList) -> EncodedWrite:
    return DeleteList(*address(write.namespace, write.key))


def _encode_entry(entry: Entry, *, keep_seq: bool) -> EncodedEntry:
    if not isinstance(entry, (MessageEntry, CompactionEntry, BranchSummaryEntry, CustomEntry)):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise TypeError(f"InsertEntry takes an entry, not {type(entry).__name__}")
    identifier(entry.id, "an entry's id")
    if entry.parent_id is not None:
        identifier(entry.parent_id, "an entry's parent_id")
    if keep_seq and not (_is_whole(entry.seq, 1) and _is_whole(entry.timestamp, 0)):
        raise ValueError(
            f"entry {entry.id!r} cannot keep the seq {entry.seq!r} and timestamp {entry.timestamp!r}: they must be whole numbers above 0"
        )
    seq, timestamp = (entry.seq, entry.timestamp) if keep_seq else (0, 0)
    if type(entry) is MessageEntry and (payload := _plain_payload(entry)) is not None:
        return EncodedEntry(entry.id, entry.parent_id, "message", None, payload, seq, timestamp)
    if isinstance(entry, (MessageEntry, CompactionEntry)):
        entry = _with_storable_messages(entry)
    custom_type = label(entry.custom_type, "a custom_type") if isinstance(entry, CustomEntry) else None
    where = f"entry {entry.id!r}"
    row = EncodedEntry(entry.id, entry.parent_id, entry.type, custom_type, _entry_payload(entry, where), seq, timestamp)
    _compare(entry, row, where)
    return row


def _plain_payload(entry: MessageEntry) -> bytes | None:
    """Return the payload of a message that comes back as it was given, as nearly all do; None leaves it to the thorough way.

    The bytes are those of `_MessagePayload`, without going through it.
    """
    message, terminate = entry.message, entry.terminate
    if (type(message) is AssistantMessage and message.stop_reason == "pending") or type(terminate) is not bool:
        return None
    try:
        data = json_encoder.encode(message)
        if decode_message(data) != message:
            return None
    except _ENCODE_ERRORS:
        return None
    payload = b'{"message":%b,"terminate":true}' % data if terminate else b'{"message":%b}' % data
    return None if may_be_deep(payload) else payload


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= MAX_SEQ


def _with_storable_messages(entry: MessageEntry | CompactionEntry) -> MessageEntry | CompactionEntry:
    """Refuse messages that no store takes, and take a live assistant message as it is at this moment."""
    if isinstance(entry, MessageEntry):
        message = _storable(entry.message, entry.id)
        return entry if message is entry.message else msgspec.structs.replace(entry, message=message)
    return msgspec.structs.replace(entry, retained_tail=[_storable(message, entry.id) for message in entry.retained_tail])


def _storable(message: AgentMessage, entry_id: str) -> AgentMessage:
    if not isinstance(message, AssistantMessage):
        if is_message(message):
            return message
        role = role_of(message)
        what = f"the role {role!r}" if role else f"{type(message).__name__}, which is no message"
        raise MessageError(
            f"entry {entry_id!r} holds {what}; known roles are {', '.join(known_roles())}: "
            "give every custom message class to register_message() first (nothing was written)"
        )
    if message.stop_reason == "pending":
        raise MessageError(f"entry {entry_id!r} holds an assistant message that still streams; store it once it has settled (nothing was written)")
    return message if type(message) is AssistantMessage else copy.copy(message)


def _entry_payload(entry: Entry, where: str) -> bytes:
    match entry:
        case MessageEntry():
            fields: Struct = _MessagePayload(message=Raw(encode_any(entry.message, f"{where}: message", typed=True)), terminate=entry.terminate)
        case CompactionEntry():
            fields = _CompactionPayload(
                summary=entry.summary,
                retained_tail=[Raw(encode_any(message, f"{where}: retained_tail", typed=True)) for message in entry.retained_tail],
                tokens_before=entry.tokens_before,
                details=entry.details,
                usage=entry.usage,
                from_hook=entry.from_hook,
            )
        case BranchSummaryEntry():
            fields = _BranchSummaryPayload(
                from_id=entry.from_id, summary=entry.summary, details=entry.details, usage=entry.usage, from_hook=entry.from_hook
            )
        case CustomEntry():
            fields = _CustomPayload(data=entry.data)
    try:
        return json_encoder.encode(fields)
    except _ENCODE_ERRORS:
        refuse_unsafe(entry, where)
        return json_encoder.encode(_clean_struct(fields))


def _clean_struct(fields: Struct) -> Struct:
    """Return the payload without lone surrogates; a `Raw` message in it has been cleaned already."""
    cleaned = {name: _clean_field(getattr(fields, name)) for name in fields.__struct_fields__}
    return type(fields)(**cleaned)


def _clean_field(value: Any) -> Any:
    return value if isinstance(value, (Raw, Struct)) else clean_json(value)


def _compare(entry: Entry, row: EncodedEntry, where: str) -> None:
    """Refuse an entry whose encoded form cannot be read back, or reads back as something else."""
    as_given = EncodedEntry(row.id, row.parent_id, row.type, row.custom_type, row.payload, entry.seq, entry.timestamp)
    try:
        same = _decode_payload(as_given) == entry
    except _DECODE_ERRORS as error:
        refuse_unsafe(entry, where)
        raise TypeError(f"{where} cannot be stored, because it could not be read again: {error}") from error
    if not same:
        refuse_unsafe(entry, where)
    refuse_deep(row.payload, where)


def _encode_usage(write: InsertUsage) -> EncodedUsage:
    row = write.row
    if not isinstance(row, UsageRow):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"InsertUsage takes a UsageRow, not {type(row).__name__}")
    identifier(row.id, "a usage row's id")
    if row.entry_id is not None:
        identifier(row.entry_id, "a usage row's entry_id")
    where = f"usage row {row.id!r}"
    fields = _UsagePayload(usage=row.usage, adjustment=row.adjustment, details=row.details)
    try:
        payload = json_encoder.encode(fields)
    except _ENCODE_ERRORS:
        refuse_unsafe(row, where)
        payload = json_encoder.encode(_clean_struct(fields))
    try:
        read = _decode_usage_payload(payload)
    except _DECODE_ERRORS as error:
        refuse_unsafe(row, where)
        raise TypeError(f"{where} cannot be stored, because it could not be read again: {error}") from error
    if read != fields:
        refuse_unsafe(row, where)
    refuse_deep(payload, where)
    return EncodedUsage(row.id, row.entry_id, payload, read.usage)


_ENCODERS: Final[dict[type[Write], Callable[[Any], EncodedWrite]]] = {
    InsertEntry: _encode_insert,
    SetValue: _encode_value,
    InsertUsage: _encode_usage,
    AppendList: _encode_element,
    DeleteValue: _encode_delete,
    DeleteList: _encode_delete_list,
}


# ---------------------------------------------------------------------------------------------------- decoding


def decode_entry(row: EncodedEntry) -> Entry:
    """Decode a stored entry, strictly.

    Raises:
        StorageCorruption: the payload is not what an entry of its type holds; the text names the entry and the place.
    """
    try:
        return _decode_payload(row)
    except _DECODE_ERRORS as error:
        raise StorageCorruption(f"entry {row.id!r} (seq {row.seq}) cannot be decoded: {error}") from error


def _decode_payload(row: EncodedEntry) -> Entry:
    id, parent_id, seq, timestamp = row.id, row.parent_id, row.seq, row.timestamp
    match row.type:
        case "message":
            m = _decode_message_payload(row.payload)
            message = decode_message(cast(bytes, m.message))  # a Raw is as good as bytes to the decoder
            return MessageEntry(id=id, parent_id=parent_id, seq=seq, timestamp=timestamp, message=message, terminate=m.terminate)
        case "compaction":
            c = _decode_compaction_payload(row.payload)
            return CompactionEntry(
                id=id,
                parent_id=parent_id,
                seq=seq,
                timestamp=timestamp,
                summary=c.summary,
                retained_tail=[decode_message(cast(bytes, raw)) for raw in c.retained_tail],
                tokens_before=c.tokens_before,
                details=c.details,
                usage=c.usage,
                from_hook=c.from_hook,
            )
        case "branch_summary":
            b = _decode_branch_summary_payload(row.payload)
            return BranchSummaryEntry(
                id=id,
                parent_id=parent_id,
                seq=seq,
                timestamp=timestamp,
                from_id=b.from_id,
                summary=b.summary,
                details=b.details,
                usage=b.usage,
                from_hook=b.from_hook,
            )
        case "custom":
            if row.custom_type is None:
                raise msgspec.ValidationError("a custom entry has no custom_type")
            data = _decode_custom_payload(row.payload).data
            return CustomEntry(id=id, parent_id=parent_id, seq=seq, timestamp=timestamp, custom_type=row.custom_type, data=data)
        case _:  # pyright: ignore[reportUnnecessaryComparison] - a damaged file may hold anything
            raise msgspec.ValidationError(f"unknown entry type {row.type!r}")


def decode_usage(*, id: str, entry_id: str | None, seq: int, timestamp: int, payload: bytes) -> UsageRow:
    """Decode a stored ledger row; `StorageCorruption` names it if it is not one."""
    try:
        fields = _decode_usage_payload(payload)
    except _DECODE_ERRORS as error:
        raise StorageCorruption(f"usage row {id!r} (seq {seq}) cannot be decoded: {error}") from error
    return UsageRow(id=id, usage=fields.usage, seq=seq, timestamp=timestamp, entry_id=entry_id, adjustment=fields.adjustment, details=fields.details)


def read_usage_row(*, id: str, entry_id: str | None, seq: int, timestamp: int, payload: bytes) -> EncodedUsage:
    """Return a stored ledger row in its encoded form, for backends that replay what they stored."""
    usage = decode_usage(id=id, entry_id=entry_id, seq=seq, timestamp=timestamp, payload=payload).usage
    return EncodedUsage(id, entry_id, payload, usage, seq, timestamp)


def encode_stats(stats: SessionStats) -> bytes:
    """Encode the totals."""
    return json_encoder.encode(stats)


def decode_stats(data: bytes) -> SessionStats:
    """Decode the totals; `StorageCorruption` if they are not that."""
    try:
        return _decode_stats(data)
    except _DECODE_ERRORS as error:
        raise StorageCorruption(f"the session's totals cannot be decoded: {error}") from error
