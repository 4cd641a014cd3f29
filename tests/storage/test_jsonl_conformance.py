"""The JSONL store keeps every rule of the store, and behaves like memory."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from laneway.storage.base import Storage
from laneway.storage.jsonl import JsonlStorage
from laneway.testing._storage import DurableRewritableConformance, DurableStorageConformance, EnumerableConformance, Reopen
from laneway.testing._storage_model import assert_behaves_like_memory


class TestJsonlStorage(DurableStorageConformance, EnumerableConformance, DurableRewritableConformance):
    """S-01 to S-18 and what must survive, each test in a file of its own."""

    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[Storage]:
        """A new session."""
        storage = await JsonlStorage.open(tmp_path / "s.jsonl")
        yield storage
        await storage.close()

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Reopen:
        """Close a session and open it again."""

        async def reopen(storage: Storage) -> Storage:
            await storage.close()
            return await JsonlStorage.open(tmp_path / "s.jsonl", create=False)

        return reopen


def test_it_behaves_like_memory(tmp_path: Path) -> None:
    """Random commits and reads, closed and reopened at random points, answer as the store in memory does."""
    assert_behaves_like_memory(lambda name: JsonlStorage.open(tmp_path / name), examples=60)


def test_it_behaves_like_memory_with_torn_tails(tmp_path: Path) -> None:
    """The same, when every close is followed by the torn line of a commit that did not happen."""
    torn = random.Random(1)
    line = b'[{"type":"set","seq":9999,"namespace":"n","key":"k","value":"torn"},{"type":"delete_list","seq":10000,"namespace":"n","key":""}]'

    def tear(name: str) -> None:
        with (tmp_path / name).open("ab") as file:
            file.write(line[: torn.randint(1, len(line))])

    assert_behaves_like_memory(lambda name: JsonlStorage.open(tmp_path / name), examples=60, while_closed=tear)
