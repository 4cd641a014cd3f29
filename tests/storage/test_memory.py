"""The store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from laneway.errors import StorageClosed
from laneway.storage._rows import Rows
from laneway.storage.base import Storage
from laneway.storage.memory import MemoryStorage
from laneway.testing._storage import EnumerableConformance, RewritableConformance, StorageConformance
from laneway.testing._storage_model import assert_behaves_like_memory


class TestMemoryStorage(StorageConformance, EnumerableConformance, RewritableConformance):
    """S-01 to S-18 over plain dicts."""

    @pytest.fixture
    async def storage(self) -> AsyncIterator[Storage]:
        """A fresh store."""
        storage = MemoryStorage()
        yield storage
        await storage.close()


async def test_its_repr_says_where_it_is() -> None:
    """A person at a debugger sees how far it is and whether it is closed."""
    storage = MemoryStorage()
    assert repr(storage) == "<MemoryStorage at seq 0>"
    await storage.close()
    assert repr(storage) == "<MemoryStorage at seq 0, closed>"
    with pytest.raises(StorageClosed):
        await storage.get_stats()


def test_the_model_agrees_with_itself() -> None:
    """The random scripts that every other backend is held against run, and the store in memory answers them the same way twice."""
    stores: dict[str, MemoryStorage] = {}

    async def open_storage(name: str) -> Storage:
        stores[name] = _Kept(stores[name]._rows if name in stores else None)
        return stores[name]

    assert_behaves_like_memory(open_storage)


class _Kept(MemoryStorage):
    """A store in memory that can be opened again."""

    def __init__(self, rows: Rows | None) -> None:
        super().__init__()
        if rows is not None:
            self._rows = rows
