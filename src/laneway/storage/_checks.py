"""What every backend refuses, in the same words: addresses, ids, limits, orders, scans.

Everything here is pure and raises before a backend does any work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, get_args

from laneway.errors import StorageCorruption, StorageError
from laneway.messages import clean_text
from laneway.storage.base import MAX_LIST_LIMIT, BranchScan, EntryScan, EntryType, ScanOrder, SeqOrder, UsageScan

MAX_SEQ: Final = 2**63 - 1
"""The largest seq: what a 64-bit column holds."""

_ENTRY_TYPES: Final = frozenset(get_args(EntryType))
_SCAN_ORDERS: Final = get_args(ScanOrder)
_SEQ_ORDERS: Final = get_args(SeqOrder)

# ---------------------------------------------------------------------------------------------------- names


def identifier(value: object, what: str) -> str:
    """Return an entry's or usage row's id, or refuse it: ids are non-empty text without NUL or lone surrogates."""
    if type(value) is str and value and value.isascii() and "\0" not in value:  # nearly always
        return value
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{what} must not be empty")
    if "\0" in value or clean_text(value) != value:
        raise ValueError(f"{what} {value!r} must not contain NUL or lone surrogates")
    return value


def label(value: object, what: str) -> str:
    """Return text that a backend keeps in a column of its own, cleaned; NUL is refused."""
    if type(value) is str and value.isascii() and "\0" not in value:  # nearly always
        return value
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{what} {value!r} must not contain NUL")
    return clean_text(value)


def namespace_name(namespace: object) -> str:
    """Return a namespace as it is stored; it must not be empty."""
    name = label(namespace, "a namespace")
    if not name:
        raise ValueError("a namespace must not be empty")
    return name


def address(namespace: object, key: object) -> tuple[str, str]:
    """Return `(namespace, key)` as they are stored and compared. An empty key is allowed."""
    if type(namespace) is str and type(key) is str and namespace:
        text = namespace + key
        if text.isascii() and "\0" not in text:  # nearly always
            return namespace, key
    return namespace_name(namespace), label(key, "a key")


def possible_ids(ids: Iterable[str]) -> list[str]:
    """Return the ids that could be stored, each once, in order: what no commit accepts cannot be found either."""
    if isinstance(ids, str):
        raise TypeError("ids must be a sequence of ids, not one text")
    return [i for i in dict.fromkeys(ids) if i and "\0" not in i and clean_text(i) == i]


def prefix_end(prefix: str) -> str | None:
    """Return the smallest text above every text that begins with `prefix` (by code point); None if there is none."""
    for length in range(len(prefix), 0, -1):
        code = ord(prefix[length - 1])
        if code < 0x10FFFF:
            following = 0xE000 if code == 0xD7FF else code + 1  # surrogates are never stored
            return prefix[: length - 1] + chr(following)
    return None


# ---------------------------------------------------------------------------------------------------- queries


def page_limit(limit: object) -> int:
    """Return the limit of one page of a list: a positive whole number, clamped to `MAX_LIST_LIMIT`."""
    return min(_positive(limit), MAX_LIST_LIMIT)


def _positive(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ValueError(f"limit must be a positive whole number, not {limit!r}")
    return min(limit, MAX_SEQ)


def scan_limit(limit: int | None) -> int | None:
    """Return the limit of a scan, clamped to what a database counts to, so that any positive whole number will do."""
    return None if limit is None else _positive(limit)


def seq_order(order: str) -> SeqOrder:
    """Return "asc" or "desc"; anything else is a `ValueError`."""
    if order == "asc" or order == "desc":
        return order
    raise ValueError(f"order must be one of {', '.join(_SEQ_ORDERS)}, not {order!r}")


def seq_bound(value: object, what: str) -> int | None:
    """Return a seq to compare with, or None. It is clamped to what a seq can be, so that any whole number will do."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{what} must be a whole number, not {value!r}")
    return max(0, min(value, MAX_SEQ))


def check_branch_scan(scan: BranchScan) -> None:
    """Refuse a `BranchScan` that makes no sense."""
    if not isinstance(scan.start, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"start must be an entry's id, not {type(scan.start).__name__}")
    if scan.order not in _SCAN_ORDERS:
        raise ValueError(f"order must be one of {', '.join(_SCAN_ORDERS)}, not {scan.order!r}")
    _check_type(scan.stop_at_type, "stop_at_type")
    _check_type(scan.type, "type")
    _check_custom_type(scan.custom_type)
    seq_bound(scan.cursor, "cursor")
    if scan.limit is not None:
        _positive(scan.limit)


def check_entry_scan(scan: EntryScan) -> None:
    """Refuse an `EntryScan` that makes no sense."""
    _check_type(scan.type, "type")
    _check_custom_type(scan.custom_type)
    _check_range(scan)


def check_usage_scan(scan: UsageScan) -> None:
    """Refuse a `UsageScan` that makes no sense."""
    _check_range(scan)


def _check_range(scan: EntryScan | UsageScan) -> None:
    seq_order(scan.order)
    seq_bound(scan.from_seq, "from_seq")
    seq_bound(scan.to_seq, "to_seq")
    if scan.limit is not None:
        _positive(scan.limit)


def _check_type(value: Any, what: str) -> None:
    if value is not None and value not in _ENTRY_TYPES:
        raise ValueError(f"{what} must be one of {', '.join(sorted(_ENTRY_TYPES))}, not {value!r}")


def _check_custom_type(value: object) -> None:
    if value is not None and label(value, "custom_type") != value:
        raise ValueError(f"custom_type {value!r} must not contain lone surrogates")


# ---------------------------------------------------------------------------------------------------- refusals


def duplicate_id(id: str) -> StorageCorruption:
    """The error for an id that is taken: entries and usage rows are write-once and share one namespace."""
    return StorageCorruption(f"id {id!r} exists already in this session; entries and usage rows are never overwritten (nothing was written)")


def missing_parent(id: str, parent_id: str) -> StorageCorruption:
    """The error for a commit whose entry names a parent that is not an entry written before it."""
    return StorageCorruption(f"entry {id!r} names the parent {parent_id!r}, which is no entry written before it (nothing was written)")


def broken_parent(id: str, parent_id: str) -> StorageCorruption:
    """The error for a stored entry whose parent is gone or younger than itself (so that its path could be a cycle)."""
    return StorageCorruption(f"entry {id!r} is stored with the parent {parent_id!r}, which is missing or younger than itself")


def unknown_start(id: str) -> StorageError:
    """The error for a branch scan that starts at an entry that is not there."""
    return StorageError(f"there is no entry {id!r} to start from; pass the id of a stored entry")
