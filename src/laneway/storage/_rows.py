"""A session's rows in plain dicts: the rules of the store without any medium.

`MemoryStorage` is this and nothing else; a backend that replays a log keeps one beside its file. `check` looks, `apply`
changes; nothing here awaits, so a commit is never seen half done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from laneway.storage import _checks as checks
from laneway.storage._codec import EncodedCommit, EncodedElement, EncodedEntry, EncodedUsage, EncodedValue, decode_json, decode_usage
from laneway.storage.base import (
    BranchScan,
    CommitResult,
    DeleteList,
    DeleteValue,
    Entry,
    EntryScan,
    ListElement,
    SeqOrder,
    SessionStats,
    StoredValue,
    UsageRow,
    UsageScan,
    Values,
)


class Rows:
    """Entries, values, lists and ledger of one session. All payloads are encoded; every read decodes its own copy."""

    def __init__(self) -> None:
        self.next_seq = 1
        self.stats = SessionStats()
        self._entries: dict[str, EncodedEntry] = {}  # in the order of their seqs
        self._usage: dict[str, EncodedUsage] = {}  # in the order of their seqs
        self._values: dict[str, dict[str, tuple[int, bytes]]] = {}
        self._lists: dict[tuple[str, str], list[tuple[int, bytes]]] = {}

    # ------------------------------------------------------------------------------------------------ writing

    def check(self, commit: EncodedCommit) -> list[int]:
        """Return the seqs that `apply` will give to the writes; change nothing.

        Raises:
            StorageCorruption: an id exists already, or a parent is missing.
            ValueError: an entry cannot keep its seq.
        """
        fresh: dict[str, bool] = {}  # id → it is an entry
        entries, usage = self._entries, self._usage
        kept = False
        for write in commit.writes:  # exact types here and below, most frequent first: this is per write
            if type(write) is EncodedEntry or type(write) is EncodedUsage:
                id = write.id
                if id in entries or id in usage or id in fresh:
                    raise checks.duplicate_id(id)
                if type(write) is EncodedEntry:
                    parent_id, kept = write.parent_id, kept or write.seq > 0
                    if parent_id is not None and parent_id not in entries and not fresh.get(parent_id, False):
                        raise checks.missing_parent(id, parent_id)
                    fresh[id] = True
                else:
                    fresh[id] = False
        if not kept:
            return list(range(self.next_seq, self.next_seq + len(commit.writes)))
        return commit.number(self.next_seq)

    def apply(self, commit: EncodedCommit, seqs: Sequence[int], timestamp: int) -> CommitResult:
        """Take in a commit that `check` has passed."""
        values = self._values
        for write, seq in zip(commit.writes, seqs, strict=True):
            if type(write) is EncodedValue:
                cells = values.get(write.namespace)
                if cells is None:
                    cells = values[write.namespace] = {}
                cells[write.key] = (seq, write.value)
            elif type(write) is DeleteValue:
                if write.namespace in values:
                    values[write.namespace].pop(write.key, None)
            elif type(write) is EncodedEntry:
                self._entries[write.id] = write.stored(seq, timestamp)
            elif type(write) is EncodedUsage:
                self._usage[write.id] = write.stored(seq, timestamp)
            elif type(write) is EncodedElement:
                self._lists.setdefault((write.namespace, write.key), []).append((seq, write.value))
            elif type(write) is DeleteList:
                self._lists.pop((write.namespace, write.key), None)
        first_seq = seqs[0] if seqs else self.next_seq
        self.next_seq = seqs[-1] + 1 if seqs else self.next_seq
        self.stats = commit.stats_after(self.stats)
        return CommitResult(first_seq=first_seq, seqs=list(seqs), timestamp=timestamp, stats=self.stats)

    def become(self, other: Rows) -> None:
        """Take over the content of `other`, which is of no use afterwards; whoever shares this object sees it."""
        self.__dict__.update(other.__dict__)

    # ------------------------------------------------------------------------------------------------ values

    def value(self, namespace: str, key: str) -> StoredValue | None:
        """Answer `Storage.get_value`."""
        namespace, key = checks.address(namespace, key)
        found = self._values.get(namespace, {}).get(key)
        return None if found is None else self._stored_value(namespace, key, *found)

    def values(self, namespace: str, key_prefix: str) -> list[StoredValue]:
        """Answer `Storage.scan_values`."""
        namespace, key_prefix = checks.address(namespace, key_prefix)
        cells = sorted(self._values.get(namespace, {}).items(), key=itemgetter(0))
        return [self._stored_value(namespace, key, *cell) for key, cell in cells if key.startswith(key_prefix)]

    def _stored_value(self, namespace: str, key: str, seq: int, data: bytes) -> StoredValue:
        return StoredValue(namespace=namespace, key=key, value=decode_json(data, f"value {namespace}/{key}"), seq=seq)

    def all_values(self) -> Values:
        """Answer `Enumerable.read_values`."""
        cells = [self._stored_value(namespace, key, *cell) for namespace, found in self._values.items() for key, cell in found.items()]
        return Values(
            last_seq=next((row.seq for row in reversed(self._entries.values())), 0),
            cells=cells,
            lists={address: [_element(address, *element) for element in elements] for address, elements in self._lists.items()},
        )

    def elements(self, namespace: str, key: str, after: int | None, order: SeqOrder, limit: int) -> list[ListElement]:
        """Answer `Storage.read_list`."""
        where = checks.address(namespace, key)
        limit, after, order = checks.page_limit(limit), checks.seq_bound(after, "after"), checks.seq_order(order)
        stored = self._lists.get(where, [])
        if order == "asc":
            chosen = [e for e in stored if after is None or e[0] > after]
        else:
            chosen = [e for e in reversed(stored) if after is None or e[0] < after]
        return [_element(where, *element) for element in chosen[:limit]]

    # ------------------------------------------------------------------------------------------------ entries

    def entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Answer `Storage.get_entries`."""
        return {i: self._entries[i].decode() for i in checks.possible_ids(ids) if i in self._entries}

    def branch(self, scan: BranchScan) -> list[EncodedEntry]:
        """Answer `Storage.scan_branch` with encoded rows; it walks no further than it must."""
        checks.check_branch_scan(scan)
        newest_first = scan.order == "newest_first"
        chosen: list[EncodedEntry] = []
        for row in self._path(scan.start):
            passes_cursor = scan.cursor is None or (row.seq < scan.cursor if newest_first else row.seq > scan.cursor)
            if passes_cursor and scan.type in (None, row.type) and scan.custom_type in (None, row.custom_type):
                chosen.append(row)
            full = newest_first and len(chosen) == scan.limit
            if full or row.type == scan.stop_at_type or row.id == scan.stop_at_id:
                break
        if not newest_first:
            chosen.reverse()
        return chosen[: scan.limit]

    def _path(self, start: str) -> Iterator[EncodedEntry]:
        row = self._entries.get(start)
        if row is None:
            raise checks.unknown_start(start)
        yield row
        while row.parent_id is not None:
            parent = self._entries.get(row.parent_id)
            if parent is None or parent.seq >= row.seq:  # a parent is always older, so a path cannot be a cycle
                raise checks.broken_parent(row.id, row.parent_id)
            row = parent
            yield row

    def scan_entries(self, scan: EntryScan) -> list[EncodedEntry]:
        """Answer `Storage.scan_entries` with encoded rows."""
        checks.check_entry_scan(scan)
        rows = [
            row
            for row in (self._entries.values() if scan.order == "asc" else reversed(self._entries.values()))
            if _within(row.seq, scan) and scan.type in (None, row.type) and scan.custom_type in (None, row.custom_type)
        ]
        return rows[: scan.limit]

    def scan_usage(self, scan: UsageScan) -> list[UsageRow]:
        """Answer `Storage.scan_usage`."""
        checks.check_usage_scan(scan)
        rows = [r for r in (self._usage.values() if scan.order == "asc" else reversed(self._usage.values())) if _within(r.seq, scan)]
        return [decode_usage(id=r.id, entry_id=r.entry_id, seq=r.seq, timestamp=r.timestamp, payload=r.payload) for r in rows[: scan.limit]]


def _element(address: tuple[str, str], seq: int, data: bytes) -> ListElement:
    return ListElement(seq=seq, value=decode_json(data, "list element {}/{}".format(*address)))


def _within(seq: int, scan: EntryScan | UsageScan) -> bool:
    return (scan.from_seq is None or seq >= scan.from_seq) and (scan.to_seq is None or seq <= scan.to_seq)
