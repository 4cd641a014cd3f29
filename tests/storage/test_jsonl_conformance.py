"""The JSONL store keeps every rule of the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from laneway.storage.jsonl import JsonlStorage
from laneway.testing._storage import StorageConformance


class TestJsonlStorage(StorageConformance):
    """The rules, on a file in a fresh folder."""

    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[JsonlStorage]:
        """An empty session."""
        storage = await JsonlStorage.open(tmp_path / "s.jsonl")
        yield storage
        await storage.close()
