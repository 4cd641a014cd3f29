"""The store in one SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from laneway.storage.base import Storage
from laneway.storage.sqlite import SqliteStorage
from laneway.testing._storage import DurableStorageConformance, Reopen
from laneway.testing._storage_model import assert_behaves_like_memory


class TestSqliteStorage(DurableStorageConformance):
    """S-01 to S-18 over a file."""

    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[Storage]:
        """A fresh session."""
        storage = await SqliteStorage.open(tmp_path / "session.sqlite")
        yield storage
        await storage.close()

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Reopen:
        """Close and open the file again."""

        async def reopen(storage: Storage) -> Storage:
            await storage.close()
            return await SqliteStorage.open(tmp_path / "session.sqlite", create=False)

        return reopen


def test_it_behaves_like_memory(tmp_path: Path) -> None:
    """S-01 to S-17: random scripts, closed and opened again at random points, answer as the store in memory does."""
    assert_behaves_like_memory(lambda name: SqliteStorage.open(tmp_path / name))
