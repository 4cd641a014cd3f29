"""A store's whole content, encoded, with the seqs and times that it keeps: what a rewrite puts in place of what is there."""

from __future__ import annotations

from msgspec import Struct

from laneway.storage._codec import EncodedCommit, EncodedEntry, EncodedUsage, EncodedWrite, encode_commit
from laneway.storage._rows import Rows
from laneway.storage.base import AppendList, Content, InsertEntry, InsertUsage, SetValue


class NumberedWrite(Struct, frozen=True, gc=False):
    """One write and the seq and time under which it is kept."""

    write: EncodedWrite
    seq: int
    timestamp: int


class NewContent:
    """Checked and encoded content. `rows` is the same in memory, with the totals; `writes` are in the order of their seqs."""

    def __init__(self, content: Content, *, next_seq: int) -> None:
        """Check and encode.

        Raises:
            StorageCorruption: the entries are no tree, or an id is used twice.
            TypeError, ValueError: see `Storage.commit`.
        """
        self.writes = sorted(_numbered(content), key=lambda numbered: numbered.seq)
        self.rows = Rows()
        for numbered in self.writes:
            commit = EncodedCommit([numbered.write])
            self.rows.check(commit)
            self.rows.apply(commit, [numbered.seq], numbered.timestamp)
        self.rows.next_seq = max(self.rows.next_seq, next_seq)

    @property
    def entries(self) -> int:
        """How many entries there are."""
        return sum(isinstance(numbered.write, EncodedEntry) for numbered in self.writes)

    @property
    def usage_rows(self) -> int:
        """How many ledger rows there are."""
        return sum(isinstance(numbered.write, EncodedUsage) for numbered in self.writes)


def _numbered(content: Content) -> list[NumberedWrite]:
    numbered = [
        NumberedWrite(write, entry.seq, entry.timestamp)
        for entry, write in zip(content.entries, encode_commit([InsertEntry(e, keep_seq=True) for e in content.entries]).writes, strict=True)
    ]
    ledger = encode_commit([InsertUsage(row) for row in content.usage]).writes
    numbered += [NumberedWrite(write, row.seq, row.timestamp) for row, write in zip(content.usage, ledger, strict=True)]
    cells = encode_commit([SetValue(cell.namespace, cell.key, cell.value) for cell in content.cells]).writes
    numbered += [NumberedWrite(write, cell.seq, 0) for cell, write in zip(content.cells, cells, strict=True)]
    for (namespace, key), elements in content.lists.items():
        writes = encode_commit([AppendList(namespace, key, element.value) for element in elements]).writes
        numbered += [NumberedWrite(write, element.seq, 0) for element, write in zip(elements, writes, strict=True)]
    return numbered
