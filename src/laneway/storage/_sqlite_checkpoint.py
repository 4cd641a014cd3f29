"""Moving the write-ahead log into the main file, beside the commits and not in their way.

SQLite would do it within whatever commit fills the log, and that commit would wait for the disk. Here a connection of its own does it
on another thread while commits go on.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Final

from laneway.storage._sqlite_file import PAGE_SIZE, Durability, connect, sync
from laneway.storage._strand import Strand

DUE: Final = 1_000
"""Pages in the log that make a checkpoint worth its while: SQLite's own default."""
OVERDUE: Final = 8 * DUE
"""Pages from which on SQLite does it within a commit after all, so that a disk that cannot keep up holds the writer back."""


class Checkpoints:
    """The checkpoints of one open file."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self._path = path
        self._durability: Durability = durability
        self._running = threading.Lock()
        self._pages = 0  # written since the last one began, about
        self._asked = False
        self._closed = False

    def wrote(self, rows: int, size: int) -> None:
        """Count a commit of so many rows and bytes; ask for a checkpoint if one is due."""
        self._pages += 4 + rows + size // PAGE_SIZE
        if self._pages >= DUE and not self._asked:
            self._asked = True
            strand = Strand()
            strand.post(self._run)
            strand.close()

    def _run(self) -> None:
        with self._running:
            if not self._closed:
                self._pages = 0
                # What fails here fails again where somebody sees it: in a commit, or when the file is closed.
                with contextlib.suppress(sqlite3.Error), contextlib.closing(connect(self._path)) as connection:
                    sync(connection, self._durability)
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._asked = False

    def close(self) -> None:
        """Begin no more, and wait for the one that runs: afterwards the file has one connection less."""
        with self._running:
            self._closed = True
