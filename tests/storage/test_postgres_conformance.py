"""The Postgres store keeps every rule of the store, and behaves like memory."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from laneway.storage.base import Storage
from laneway.storage.postgres import PostgresPool, PostgresStorage
from laneway.testing._storage import DurableRewritableConformance, DurableStorageConformance, EnumerableConformance, Reopen
from laneway.testing._storage_model import assert_behaves_like_memory
from storage.pg import postgres, postgres_dsn

__all__ = ["postgres", "postgres_dsn"]


class TestPostgresStorage(DurableStorageConformance, EnumerableConformance, DurableRewritableConformance):
    """S-01 to S-18 and what must survive, each test in a session of its own."""

    @pytest.fixture
    async def pool(self, postgres_dsn: str) -> AsyncIterator[PostgresPool]:
        """Connections to the test server."""
        pool = await PostgresPool.open(postgres_dsn, schema="conformance")
        yield pool
        await pool.close()

    @pytest.fixture
    async def storage(self, pool: PostgresPool) -> AsyncIterator[Storage]:
        """A new session."""
        storage = await PostgresStorage.open(pool, uuid.uuid4().hex)
        yield storage
        await storage.close()

    @pytest.fixture
    def reopen(self, pool: PostgresPool) -> Reopen:
        """Close a session and open it again."""

        async def reopen(storage: Storage) -> Storage:
            assert isinstance(storage, PostgresStorage)
            await storage.close()
            return await PostgresStorage.open(pool, storage.session_id, create=False)

        return reopen


def test_it_behaves_like_memory(postgres_dsn: str) -> None:
    """Random commits and reads, closed and reopened at random points, answer as the store in memory does."""
    run = uuid.uuid4().hex
    assert_behaves_like_memory(lambda name: PostgresStorage.open(postgres_dsn, f"{run}-{name}", schema="conformance"), examples=40)
