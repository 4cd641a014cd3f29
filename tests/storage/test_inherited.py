"""What was opened before a fork, or in another event loop: whose it is, and that closing it twice is nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from laneway.storage._heartbeat import Heartbeats
from laneway.storage.base import Storage
from laneway.storage.jsonl import JsonlStorage
from laneway.storage.postgres import PostgresStorage
from laneway.storage.sqlite import SqliteStorage
from storage.child import numbered_commit
from storage.children import child, committed_by_child
from storage.pg import PostgresForTests, postgres, postgres_dsn, schema

__all__ = ["postgres", "postgres_dsn", "schema"]

KINDS = ["jsonl", "sqlite", "postgres"]


class Place:
    """Where a session of one kind is: for a child's command line, and to open."""

    def __init__(self, kind: str, folder: Path, dsn: str, schema: str) -> None:
        self.kind, self._path, self._dsn, self._schema = kind, folder / "s", dsn, schema

    @property
    def arguments(self) -> list[str]:
        """What `child.py` wants to know."""
        return [self.kind, self._dsn, self._schema, "s1"] if self.kind == "postgres" else [self.kind, str(self._path)]

    async def open(self) -> Storage:
        """Open it here."""
        if self.kind == "postgres":
            return await PostgresStorage.open(self._dsn, "s1", schema=self._schema)
        return await (JsonlStorage if self.kind == "jsonl" else SqliteStorage).open(self._path)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresForTests, schema: str) -> Place:
    """A session of each kind in turn, not made yet."""
    return Place(request.param, tmp_path, postgres.dsn, schema)


async def test_a_forked_child_cannot_use_what_its_parent_has_open(place: Place) -> None:
    """S-26, B80: it is told so at once, it can let go of it, and neither takes the session from the parent, who goes on."""
    async with child("inherit", *place.arguments) as parent:
        assert [await parent.line() for _ in range(3)] == ["LeaseLost", "left", "closed"]
        await parent.ends()
    storage = await place.open()
    assert await committed_by_child(storage) == 2
    await storage.close()


def test_a_storage_may_be_closed_again_in_another_loop(place: Place) -> None:
    """S-18: closing is idempotent, also when the loop in which it was closed is gone."""
    storage = asyncio.run(opened_and_closed(place))
    asyncio.run(closed(storage))


async def closed(storage: Storage) -> None:
    """Close a session."""
    await storage.close()


async def opened_and_closed(place: Place) -> Storage:
    """Open a session, commit to it and close it."""
    storage = await place.open()
    await storage.commit(numbered_commit(0))
    await storage.close()
    return storage


def test_a_childs_heartbeats_have_keys_of_their_own() -> None:
    """B81: a child that lets go of its parent's session must not stop the beat of one that it has opened itself."""
    parents = Beating(Heartbeats())
    childs = Beating(Heartbeats(parents.heartbeats.next_key))
    childs.heartbeats.remove(parents.key)
    assert childs.beaten.wait(5)
    for beating in (parents, childs):
        beating.heartbeats.remove(beating.key)


class Beating:
    """Something that is beaten for."""

    def __init__(self, heartbeats: Heartbeats) -> None:
        self.heartbeats = heartbeats
        self.beaten = threading.Event()
        self.key = heartbeats.add(self.beat, 0.05)

    def beat(self) -> None:
        """Be beaten for."""
        self.beaten.set()
