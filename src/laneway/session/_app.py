"""Application values: cells and lists in a namespace of the application's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from laneway.errors import InvalidName
from laneway.session._mutation import Mutation
from laneway.session.keys import APP_PREFIX
from laneway.storage.base import (
    DEFAULT_LIST_LIMIT,
    AppendList,
    CommitResult,
    DeleteList,
    DeleteValue,
    ListElement,
    SeqOrder,
    SetValue,
    Storage,
    Write,
)

_Mutate: TypeAlias = Callable[[Callable[[Mutation], Awaitable[CommitResult]]], Awaitable[CommitResult]]


class AppValues:
    """The cells and lists of one namespace `app.{name}`. Forks of the whole tree copy them.

    A cell holds any JSON value, None included; `get` cannot tell a stored None from an absent cell, `has` can.
    """

    def __init__(self, storage: Storage, mutate: _Mutate, name: str) -> None:
        if not name or "\0" in name:
            raise InvalidName(f"application values cannot be called {name!r}: a name has at least one character and no NUL")
        self.namespace = APP_PREFIX + name
        self._storage = storage
        self._mutate = mutate

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the cell's value, or `default`."""
        stored = await self._storage.get_value(self.namespace, key)
        return default if stored is None else stored.value

    async def has(self, key: str) -> bool:
        """Whether the cell exists."""
        return await self._storage.get_value(self.namespace, key) is not None

    async def items(self, key_prefix: str = "") -> dict[str, Any]:
        """Return all cells whose key starts with `key_prefix`."""
        return {stored.key: stored.value for stored in await self._storage.scan_values(self.namespace, key_prefix)}

    async def set(self, key: str, value: Any) -> None:
        """Set a cell. Raises TypeError, naming the path, if the value is not JSON."""
        await self._write(SetValue(self.namespace, key, value))

    async def delete(self, key: str) -> None:
        """Delete a cell; nothing happens if it is absent."""
        await self._write(DeleteValue(self.namespace, key))

    async def update(self, key: str, change: Callable[[Any], Any], default: Any = None) -> Any:
        """Set a cell to `change(its value, or default)` with no writer in between; returns the new value."""

        async def plan(mutation: Mutation) -> CommitResult:
            nonlocal new
            stored = await mutation.get_value(self.namespace, key)
            new = change(default if stored is None else stored.value)
            return await mutation.commit([SetValue(self.namespace, key, new)])

        new: Any = None
        await self._mutate(plan)
        return new

    async def append(self, key: str, value: Any) -> int:
        """Append to a list and return the element's seq."""
        return (await self._write(AppendList(self.namespace, key, value))).first_seq

    async def read(self, key: str, *, after: int | None = None, order: SeqOrder = "asc", limit: int = DEFAULT_LIST_LIMIT) -> list[ListElement]:
        """Return a page of a list; `after` is the exclusive seq of the page before."""
        return await self._storage.read_list(self.namespace, key, after=after, order=order, limit=limit)

    async def clear(self, key: str) -> None:
        """Delete a list; nothing happens if it is absent."""
        await self._write(DeleteList(self.namespace, key))

    async def _write(self, write: Write) -> CommitResult:
        return await self._mutate(lambda mutation: mutation.commit([write]))
