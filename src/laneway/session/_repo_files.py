"""Repositories in a folder: one file per session, and a catalogue so that listing opens none."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from laneway.errors import SessionExists, SessionNotFound, StorageCorruption, StorageError
from laneway.session._catalogue import Catalogue, CatalogueRow, SessionInfo
from laneway.session._ids import Ids
from laneway.session._repo import SessionRepo, info_if_readable, read_info
from laneway.session._search import SearchHit, SearchIndex, to_fts
from laneway.session._session import Session, SessionMetadata
from laneway.session.keys import is_session_id
from laneway.storage.base import Storage, Write

if TYPE_CHECKING:
    from laneway.storage._jsonl_salvage import Salvage

_log = logging.getLogger("laneway.session")
_AT_ONCE = 8
_LEFTOVER_AGE = 24 * 3600.0
CATALOGUE = ".catalogue.sqlite"
SEARCH_INDEX = ".search.sqlite"


class FolderRepo(SessionRepo):
    """Sessions in `directory`, each in the file `{id}{suffix}`. The directory is made when the first session is."""

    suffix: str
    side_suffixes: tuple[str, ...] = ()
    """What a store in use has beside its file."""
    own_suffixes: tuple[str, ...] = ()
    """What of that holds content, and goes with the file. (A lock goes with its owner.)"""

    def __init__(self, directory: str | os.PathLike[str], *, durability: Literal["process", "power"] = "process") -> None:
        super().__init__()
        self.directory = Path(directory)
        self._durability: Literal["process", "power"] = durability
        self.index = SearchIndex(self.directory / SEARCH_INDEX)
        self._catalogue = Catalogue(self.directory / CATALOGUE)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.directory)!r})"

    def path(self, id: str) -> Path:
        """Return the file of a session, whether it exists or not."""
        return self.directory / f"{id}{self.suffix}"

    async def search(self, query: str, *, session_id: str | None = None, limit: int = 20) -> list[SearchHit]:
        """Find text in the sessions; see `SearchIndex` for what a query is. Reads first what is new since the last search.

        Raises:
            SearchQueryError: `query` is not one.
        """
        to_fts(query)
        if not await asyncio.to_thread(self.directory.is_dir):
            return []
        await self.index.update(self)
        return await self.index.search(query, session_id=session_id, limit=limit)

    async def rebuild(self) -> None:
        """Throw the catalogue away and make it again from the sessions."""
        await asyncio.to_thread(self._catalogue.clear)
        await self._infos()

    # ------------------------------------------------------------------------------------------------ one session

    @abstractmethod
    async def _open_file(self, path: Path, *, wait: float = 0.0, create: bool = False, read_only: bool = False) -> Storage: ...

    async def _exists(self, id: str) -> bool:
        return await asyncio.to_thread(self.path(id).exists)

    async def _make(self, metadata: SessionMetadata, commits: AsyncIterator[Sequence[Write]]) -> None:
        # The session is written under a name that no list shows and gets its own in one step: there is never half a session.
        await asyncio.to_thread(self._make_directory)
        temporary = self.directory / f".{metadata.id}.{Ids().new()}.tmp{self.suffix}"
        try:
            storage = await self._open_file(temporary, create=True)
            try:
                async for writes in commits:
                    await storage.commit(writes)
                info = await read_info(storage, metadata.id)
            finally:
                await storage.close()
            await asyncio.to_thread(self._catalogue.write, [CatalogueRow(info, closed=False, signature=None)])
            await asyncio.to_thread(_give_name, temporary, self.path(metadata.id))
        finally:
            with contextlib.suppress(OSError):  # where it could not be made either, say: that error is the one to raise
                await asyncio.to_thread(self._unlink, temporary)

    async def _open_storage(self, id: str, wait: float) -> Storage:
        try:
            storage = await self._open_file(self.path(id), wait=wait)
        except SessionNotFound as error:
            raise self._missing(id) from error
        try:
            # Not before: the last owner writes a row that claims to be true until it gives the session up. And before the first commit.
            await asyncio.to_thread(self._catalogue.mark_open, id)
        except BaseException:
            await storage.close()
            raise
        return storage

    async def _open_to_read(self, id: str) -> Storage:
        if not is_session_id(id):
            raise self._missing(id)
        try:
            return await self._open_file(self.path(id), read_only=True)
        except SessionNotFound as error:
            raise self._missing(id) from error

    async def _detach(self, session: Session) -> None:
        try:
            # Nothing is written any more and the lease is still held, so nobody can have changed the session after this row.
            info = await info_if_readable(session.storage, session.metadata.id)
            if info is not None and await _is_owned(session.storage):
                await asyncio.to_thread(self._catalogue.write, [CatalogueRow(info, closed=True, signature=None)])
        finally:
            await session.storage.close()

    async def _after_rewrite(self, session: Session) -> None:
        await asyncio.to_thread(self._catalogue.remove, [session.metadata.id])
        await self.index.forget(session.metadata.id)

    async def _remove(self, id: str) -> None:
        if not await self._exists(id):
            raise self._missing(id)
        try:
            storage = await self._open_file(self.path(id))
        except StorageCorruption:  # nobody can have a damaged session open
            await asyncio.to_thread(self._delete_file, id)
        else:
            try:  # while it is ours, or somebody might open what is about to be deleted, and write to it
                deleted = await asyncio.to_thread(self._delete_file, id)
            finally:
                await storage.close()
            if not deleted:
                await asyncio.to_thread(self._delete_file, id)
        await asyncio.to_thread(self._catalogue.remove, [id])
        await self.index.forget(id)

    def _delete_file(self, id: str) -> bool:
        """Delete a session's file and what belongs to it; False if the system does not let go of a file that is open."""
        try:
            self._unlink(self.path(id), self.own_suffixes)
        except OSError as error:
            if error.errno == errno.EACCES and os.name != "posix":
                return False
            raise StorageError(f"cannot delete {self.path(id)}: {error}") from error
        return True

    def _missing(self, id: str) -> SessionNotFound:
        return SessionNotFound(f"there is no session {id!r} in {self.directory}")

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make the folder {self.directory} for sessions: {error}") from error

    def _unlink(self, path: Path, suffixes: Sequence[str] | None = None) -> None:
        for suffix in ("", *(self.side_suffixes if suffixes is None else suffixes)):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).unlink()

    # ------------------------------------------------------------------------------------------------ all sessions

    async def _infos(self) -> list[SessionInfo]:
        ids, rows = await asyncio.to_thread(lambda: (self._scan(), self._catalogue.read()))
        infos = [info for info in rows.closed if info.id in ids]
        gone = {info.id for info in rows.closed if info.id not in ids} | (rows.unsure.keys() - ids)
        if len(infos) != len(ids):
            unsure = [id for id in ids.difference(info.id for info in infos) if id in rows.unsure or is_session_id(id)]
            infos += await self._read_again(unsure, rows.unsure)
        if gone:
            await asyncio.to_thread(self._catalogue.remove, gone)
        return infos

    async def _read_again(self, ids: list[str], rows: dict[str, CatalogueRow]) -> list[SessionInfo]:
        """Return the rows of sessions that are open, crashed, or not in the catalogue, reading only those whose files changed."""
        found: list[SessionInfo] = []
        fresh: list[CatalogueRow] = []
        gate = asyncio.Semaphore(_AT_ONCE)

        async def look(id: str) -> None:
            async with gate:
                signature = await asyncio.to_thread(self._signature, id)
                known = rows.get(id)
                if known is not None and known.signature == signature:
                    found.append(known.info)
                    return
                row = await self._row_of_file(id, signature)
                if row is not None:
                    found.append(row.info)
                    fresh.append(row)

        await asyncio.gather(*(look(id) for id in ids))
        if fresh:
            await asyncio.to_thread(self._catalogue.write, fresh)
        return found

    async def _row_of_file(self, id: str, before: str) -> CatalogueRow | None:
        """Read a session whose files have the signature `before`; the row has none if somebody goes on writing."""
        info = await self._info_of_file(id)
        after = await asyncio.to_thread(self._signature, id)
        if info is not None and after != before:  # reading can change the files too, once
            info, before = await self._info_of_file(id), after
            after = await asyncio.to_thread(self._signature, id)
        return None if info is None else CatalogueRow(info, closed=False, signature=after if after == before else None)

    async def _info_of_file(self, id: str) -> SessionInfo | None:
        try:
            async with self.reading(id) as storage:
                return await read_info(storage, id)
        except SessionNotFound:
            return None  # deleted meanwhile
        except (StorageError, OSError) as error:
            _log.warning("session %s in %s is left out of the list: %s", id, self.directory, error)
            return None

    def _scan(self) -> set[str]:
        """Return the names of the session files, which are ids if they can be, and remove what a crash left of a creation long ago."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise StorageError(f"cannot list the sessions in {self.directory}: {error}") from error
        for name in names:
            if name[0] == "." and f".tmp{self.suffix}" in name:
                self._remove_leftover(self.directory / name)
        suffix, length = self.suffix, len(self.suffix)
        return {name[:-length] for name in names if name.endswith(suffix) and name[0] != "."}

    def _remove_leftover(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFTOVER_AGE:
                path.unlink()

    def _signature(self, id: str) -> str:
        """Return the sizes and times of a session's files: equal means that nothing was written."""
        parts: list[str] = []
        for suffix in ("", *self.side_suffixes):
            try:
                status = os.stat(f"{self.path(id)}{suffix}")
                parts.append(f"{status.st_size}@{status.st_mtime_ns}")
            except OSError:
                parts.append("-")
        return ",".join(parts)


class SqliteRepo(FolderRepo):
    """Sessions in a folder, one SQLite file each; the default. `durability="power"` makes each commit survive a power cut."""

    suffix = ".sqlite"
    side_suffixes = ("-wal", "-shm", "-journal")
    own_suffixes = side_suffixes

    async def _open_file(self, path: Path, *, wait: float = 0.0, create: bool = False, read_only: bool = False) -> Storage:
        from laneway.storage.sqlite import SqliteStorage

        return await SqliteStorage.open(path, durability=self._durability, wait=wait, create=create, read_only=read_only)


class JsonlRepo(FolderRepo):
    """Sessions in a folder, one text file each, that a person can read and mail."""

    suffix = ".jsonl"
    side_suffixes = (".lock",)

    async def salvage(self, id: str) -> Salvage:
        """Save what can be read of a damaged session, so that it opens again; see `Salvage` for what was lost.

        Raises:
            SessionNotFound: there is none.
            SessionLocked: it is open somewhere.
            StorageCorruption: its first line is no header; it was left as it was.
        """
        from laneway.storage._jsonl_salvage import salvage

        if not await self.exists(id):
            raise self._missing(id)
        report = await asyncio.to_thread(salvage, self.path(id))
        if report.original is not None:
            await asyncio.to_thread(self._catalogue.remove, [id])
            await self.index.forget(id)
        return report

    async def _open_file(self, path: Path, *, wait: float = 0.0, create: bool = False, read_only: bool = False) -> Storage:
        from laneway.storage.jsonl import JsonlStorage

        return await JsonlStorage.open(path, durability=self._durability, wait=wait, create=create, read_only=read_only)


async def _is_owned(storage: Storage) -> bool:
    """Whether the session is still ours: somebody who has taken it over may have changed it."""
    try:
        await storage.commit([])
    except StorageError:
        return False
    return True


def _give_name(temporary: Path, path: Path) -> None:
    """Rename a file unless the name is taken."""
    try:
        try:
            os.link(temporary, path)
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise
            if path.exists():  # a file system without hard links: not proof against a race, but against a slip
                raise FileExistsError(str(path)) from error
            os.rename(temporary, path)
    except FileExistsError:
        raise SessionExists(f"there is a session file {path} already: open it, or choose another id") from None
    except OSError as error:
        raise StorageError(f"cannot create {path}: {error}") from error
