"""The store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from laneway.errors import StorageClosed
from laneway.storage.base import Storage
from laneway.storage.memory import MemoryStorage
from laneway.testing._storage import StorageConformance


class TestMemoryStorage(StorageConformance):
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
