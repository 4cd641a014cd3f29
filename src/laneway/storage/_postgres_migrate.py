"""Tables for Postgres, created and migrated in place: once, in one transaction, by one process at a time."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from laneway.errors import StorageCorruption, StorageVersionError

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_NAME = re.compile(r"(\d{4})_\w+\.sql")


def migrations() -> list[tuple[int, str]]:
    """Return (version, SQL text) of every migration, in order."""
    folder = files("laneway.storage") / "migrations" / "postgres"
    found = [(int(match[1]), file.read_text("utf-8")) for file in folder.iterdir() if (match := _NAME.fullmatch(file.name))]
    return sorted(found)


async def migrate(connection: AsyncConnection[Any], schema: str) -> None:
    """Bring the tables of `schema` (the connection's search path) to the newest version; a second call reads one number.

    Raises:
        StorageVersionError: a newer laneway made them; nothing was changed.
    """
    known = migrations()
    if await _stored_version(connection, schema) == known[-1][0]:
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('laneway migration ' || %s::text, 0))", (schema,))
        version = await _stored_version(connection, schema)
        if version > known[-1][0]:
            raise StorageVersionError(
                f"the tables in Postgres schema {schema!r} have version {version}; this laneway knows up to {known[-1][0]}: upgrade laneway"
            )
        if not await _one(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", schema):
            await connection.execute(b'CREATE SCHEMA "' + schema.replace('"', '""').encode() + b'"')
        for number, text in known:
            if number > version:
                await connection.execute(text.encode())
        await connection.execute("UPDATE storage_version SET version = %s", (known[-1][0],))


async def _stored_version(connection: AsyncConnection[Any], schema: str) -> int:
    if not await _one(connection, "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'storage_version'", schema):
        return 0
    version = await _one(connection, "SELECT version FROM storage_version")
    if version is not None and not isinstance(version, int):
        raise StorageCorruption(f"Postgres schema {schema!r} has a table storage_version that is not laneway's: choose another schema")
    return version or 0


async def _one(connection: AsyncConnection[Any], query: str, *parameters: Any) -> Any:
    row = await (await connection.execute(query.encode(), parameters)).fetchone()
    return row[0] if row else None
