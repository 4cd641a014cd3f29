"""Every session test runs on every backend: the meaning is the same wherever the rows are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from laneway.session import JsonlRepo, MemoryRepo, PostgresRepo, Session, SessionRepo, SqliteRepo
from storage.pg import postgres, postgres_dsn, running_server, schema

__all__ = ["postgres", "postgres_dsn", "running_server", "schema"]


@pytest.fixture(params=["memory", "jsonl", "sqlite", "postgres"])
async def repo(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionRepo]:
    """An empty repository, of each kind in turn."""
    match request.param:
        case "memory":
            made: SessionRepo = MemoryRepo()
        case "jsonl":
            made = JsonlRepo(tmp_path / "sessions")
        case "sqlite":
            made = SqliteRepo(tmp_path / "sessions")
        case _:
            made = PostgresRepo(request.getfixturevalue("postgres_dsn"), schema=request.getfixturevalue("schema"))
    async with made:
        yield made


@pytest.fixture
async def session(repo: SessionRepo) -> AsyncIterator[Session]:
    """A new session of that repository, closed afterwards."""
    async with await repo.create(id="one") as made:
        yield made
