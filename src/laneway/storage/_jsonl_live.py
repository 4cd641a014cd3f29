"""Which bytes of a JSONL session still count, and the file without the others.

Entries and ledger rows live for ever; a cell that was set again, a deleted list and every deletion are dead bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from laneway.storage._codec import EncodedElement, EncodedValue, EncodedWrite
from laneway.storage._jsonl_format import join_records, read_commit
from laneway.storage.base import DeleteList, DeleteValue

FEWEST_DEAD: Final = 256 * 1024
"""Below this many dead bytes a file is left alone."""


class LiveBytes:
    """Counts the bytes that a compacted file would keep."""

    def __init__(self) -> None:
        self.total = 0
        self._cells: dict[tuple[str, str], tuple[int, int]] = {}  # address → (seq, bytes)
        self._lists: dict[tuple[str, str], tuple[int, int]] = {}  # address → (seq of the first element, bytes)

    def add(self, writes: Sequence[EncodedWrite], seqs: Sequence[int], lengths: Sequence[int]) -> None:
        """Count a commit."""
        for write, seq, length in zip(writes, seqs, lengths, strict=True):
            match write:
                case EncodedValue():
                    self._drop(self._cells, write.namespace, write.key)
                    self._cells[write.namespace, write.key] = seq, length
                case EncodedElement():
                    first, known = self._lists.get((write.namespace, write.key), (seq, 0))
                    self._lists[write.namespace, write.key] = first, known + length
                case DeleteValue():
                    self._drop(self._cells, write.namespace, write.key)
                    continue
                case DeleteList():
                    self._drop(self._lists, write.namespace, write.key)
                    continue
                case _:
                    pass
            self.total += length

    def _drop(self, table: dict[tuple[str, str], tuple[int, int]], namespace: str, key: str) -> None:
        self.total -= table.pop((namespace, key), (0, 0))[1]

    def outweighed_in(self, size: int) -> bool:
        """Whether a file of `size` bytes is mostly dead, so that copying the rest costs less than was written since the last time."""
        dead = size - self.total
        return dead > FEWEST_DEAD and dead > self.total

    def surviving(self, lines: Iterable[tuple[int, int, bytes]]) -> Iterator[bytes]:
        """Yield the lines with the dead writes left out and the others byte for byte as they were."""
        for _number, _offset, line in lines:
            commit, raws = read_commit(line)
            kept = [raw for raw, write, seq in zip(raws, commit.writes, commit.seqs, strict=True) if self._lives(write, seq)]
            if kept:
                yield line if len(kept) == len(raws) else join_records(kept)

    def _lives(self, write: EncodedWrite, seq: int) -> bool:
        match write:
            case EncodedValue():
                return self._cells.get((write.namespace, write.key), (0, 0))[0] == seq
            case EncodedElement():
                first = self._lists.get((write.namespace, write.key))
                return first is not None and seq >= first[0]
            case DeleteValue() | DeleteList():
                return False
            case _:
                return True
