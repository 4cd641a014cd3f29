"""`laneway sessions`: list, show, tree, search, export, fork, import, name, repair and rm.

Plain functions: each takes a repository, parsed arguments and `out` (called with one line at a time), returns an exit code and
raises `CliError` with what to tell the person. With `json=True` every line is one JSON object. Sessions are read without
their lease, so all of this works while another process runs them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.cli._exit import DONE, FAILED, LOCKED, USAGE, CliError
from laneway.errors import SessionError, SessionExists, SessionLocked, SessionNotFound, StorageError
from laneway.messages import clean_json, encode

if TYPE_CHECKING:
    from laneway.session import ExportFormat, Session, SessionRepo

Out = Callable[[str], object]
_SUFFIXES: dict[str, ExportFormat] = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown", ".jsonl": "jsonl"}


async def list_sessions(repo: SessionRepo, *, cwd: str | None = None, limit: int | None = None, json: bool = False, out: Out = print) -> int:
    """List the sessions, last changed first; `cwd` keeps those of one directory."""
    from laneway.cli.render.sessions import list_lines, short_ids

    with failures():
        everything = await repo.list()
    infos = [info for info in everything if cwd in (None, info.cwd)][:limit]
    if json:
        return _print_json((msgspec.to_builtins(info) for info in infos), out)
    if not infos:
        out("No sessions yet." if cwd is None else f"No sessions in {cwd}.")
    for line in list_lines(infos, short_ids(info.id for info in everything), _width()):
        out(line)
    return DONE


async def show_session(
    repo: SessionRepo, id: str, *, branch: str | None = None, last: int | None = None, json: bool = False, out: Out = print
) -> int:
    """Show one branch of a session as text, or its entries; `last` keeps the newest entries."""
    from laneway.cli.render.sessions import head_lines, transcript_lines

    async with _viewing(repo, id) as session:
        tips = await session.branches()
        name = _branch(tips, branch, session)
        found = await (await session.branch(name)).find_entries(limit=last) if name in tips else []  # pyright: ignore[reportOptionalMemberAccess] - it is one of the tips
        path = found[::-1]
        if json:
            return _print_json(({"type": entry.type, **_fields(entry)} for entry in path), out)
        for line in head_lines(session.metadata, await session.get_name(), await session.get_stats(), tips, name):
            out(line)
        for line in await _work_lines(session):
            out(line)
        for line in transcript_lines(path, await session.labels()):
            out(line)
    return DONE


async def _work_lines(session: Session) -> list[str]:
    """Say what is not over in each lane: its operation, where it stands, what is queued; and how many prompts were not asked yet."""
    from laneway.cli.commands._planned import not_asked
    from laneway.harness import keys

    lines: list[str] = []
    for stored in await session.storage.scan_values(keys.LANE_STATE):
        lane: Any = stored.value
        operation = lane.get("current_operation_id")
        if operation is not None:
            state = await session.storage.get_value(keys.OP_STATE, operation)
            at: Any = state.value.get("at") if state is not None else "?"
            lines.append(f"Open in {stored.key}: {operation}, at {at}; laneway resume {session.metadata.id} goes on with it")
        kinds = [item.get("kind") for item in lane.get("inbox") or ()]
        if kinds:
            counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
            lines.append(f"Queued in {stored.key}: {counted}")
    if unasked := await not_asked(session.storage, session.metadata.id):
        lines.append(f"Not asked yet: {len(unasked)} prompt{'s' if len(unasked) > 1 else ''}; laneway resume {session.metadata.id} goes on")
    return lines


async def show_tree(repo: SessionRepo, id: str, *, branch: str | None = None, everything: bool = False, json: bool = False, out: Out = print) -> int:
    """Show a session as a tree; the active branch is marked."""
    from laneway.cli.render.sessions import tree_lines

    async with _viewing(repo, id) as session:
        tree = await session.tree()
        name = _branch(tree.tips, branch, session)
        if json:
            tree.activate(name)
            nodes = (
                {"id": n.entry.id, "parent_id": n.entry.parent_id, "type": n.entry.type, "label": n.label, "branches": n.branches, "active": n.active}
                for n in tree.nodes.values()
            )
            return _print_json(nodes, out)
        if not tree.nodes:
            out("This session is empty.")
        for line in tree_lines(tree, name, _width(), everything=everything):
            out(line)
    return DONE


async def search_sessions(
    repo: SessionRepo, query: str, *, id: str | None = None, limit: int = 20, json: bool = False, color: bool = False, out: Out = print
) -> int:
    """Find text in all sessions or in one. Exits with 1 if nothing was found, as grep does."""
    from laneway.cli.render.sessions import hit_lines, short_ids
    from laneway.session import SqliteRepo
    from laneway.session._repo_files import FolderRepo

    if not isinstance(repo, FolderRepo):
        raise CliError(f"only sessions in a folder can be searched ({SqliteRepo.__name__}), not {repo!r}")
    with failures():
        session_id = None if id is None else await resolve(repo, id)
        hits = await repo.search(query, session_id=session_id, limit=limit)
        if json:
            _print_json((msgspec.to_builtins(hit) for hit in hits), out)
        else:
            for line in hit_lines(hits, short_ids(info.id for info in await repo.list()), color=color):
                out(line)
    return DONE if hits else FAILED


async def export_session(
    repo: SessionRepo, id: str, *, to: str | os.PathLike[str] | None = None, format: ExportFormat | None = None, branch: str | None = None,
    entry_id: str | None = None, out: Out = print,
) -> int:  # fmt: skip
    """Export one branch to a file, or to `out` without one. The format is the file's suffix unless given; text is Markdown.

    An existing file is not overwritten.
    """
    from laneway.session import export

    path = None if to is None else Path(to)
    chosen = format or ("markdown" if path is None else _SUFFIXES.get(path.suffix.lower()))
    if chosen is None:
        raise CliError(f"cannot tell a format from {str(path)!r}: end it in .html, .md or .jsonl, or say --format")
    async with _viewing(repo, id) as session:
        name = _branch(await session.branches(), branch, session)
        text = await export(session, chosen, branch=name, entry_id=entry_id)
    if path is None:
        out(text.rstrip("\n"))
    else:
        _write_new(path, text)
        out(str(path))
    return DONE


async def fork_session(
    repo: SessionRepo, id: str, *, branch: str | None = None, entry_id: str | None = None, before: bool = False, tree: bool = False,
    new_id: str | None = None, json: bool = False, out: Out = print,
) -> int:  # fmt: skip
    """Fork a session, whole (`tree`) or one branch, and print the new id. `entry_id` may be the end of one, as a tree shows it."""
    from laneway.session import Fork

    if tree and (entry_id is not None or before):
        option = "--at" if entry_id is not None else "--before"
        raise CliError(f"{option} does not go with --tree, which copies every branch to its end: leave one of them out")
    async with _viewing(repo, id) as session:
        source = session.metadata.id
        lane = _branch(await session.branches(), branch, session)
        entry = None if entry_id is None else _matching(entry_id, [e.id for e in await session.find_entries()], "entry")
    with failures():
        fork = Fork(scope="tree" if tree else "branch", lane=lane, entry_id=entry, position="before" if before else "at")
        made = await repo.fork(source, fork, new_id=new_id)
        await made.close()
    _say(made.metadata.id, {"id": made.metadata.id, "parent_session_id": source}, json, out)
    return DONE


async def import_session(repo: SessionRepo, path: str | os.PathLike[str], *, id: str | None = None, json: bool = False, out: Out = print) -> int:
    """Import a pi session file or a JSONL export; print the new session's id and what could not be taken over."""
    from laneway.session import import_pi

    with failures():
        try:
            session, report = await import_pi(repo, Path(path), id=id)
        except SessionExists as error:
            raise CliError(f"there is a session with the id of {path} already: --id gives the new one another", FAILED) from error
        except OSError as error:
            raise CliError(f"cannot read {path}: {error.strerror or error}") from error
        await session.close()
    if json:
        return _print_json([_fields(report)], out)
    out(session.metadata.id)
    if report.skipped_lines or report.kept_raw or report.reattached:
        out(f"{report.skipped_lines} lines could not be read, {report.kept_raw} entries were kept as they are, {report.reattached} lost their parent")
    return DONE


async def name_session(repo: SessionRepo, id: str, name: str | None, *, out: Out = print) -> int:
    """Give a session a name, or take it away."""
    from laneway.cli.render._terminal import printable

    with failures():
        async with await repo.open(await resolve(repo, id)) as session:
            await session.set_name(name)
            out(printable(await session.get_name() or "The session has no name now."))
    return DONE


async def repair_session(repo: SessionRepo, id: str, *, json: bool = False, out: Out = print) -> int:
    """Save what can be read of a damaged text session, make derived data anew, and print what remains wrong."""
    from laneway.session import JsonlRepo

    lost: list[str] = []
    with failures():
        session_id = await resolve(repo, id)
        if isinstance(repo, JsonlRepo):
            report = await repo.salvage(session_id)
            lost = [*report.lost, *(f"entry {entry} lost its parent and was hung on the one before" for entry in report.reattached)]
            if report.original is not None:
                lost.append(f"the original is kept in {report.original}")
        async with await repo.open(session_id) as session:
            problems = await session.repair()
    if json:
        _print_json([{"id": session_id, "lost": lost, "problems": problems}], out)
    else:
        for line in [*lost, *problems] or ["Nothing is wrong."]:
            out(line)
    return FAILED if problems else DONE


async def remove_sessions(
    repo: SessionRepo, ids: Iterable[str], *, confirm: Callable[[str], bool] | None = None, json: bool = False, out: Out = print
) -> int:
    """Delete sessions for good. `confirm` is asked once with what would go; without it nothing is asked."""
    from laneway.cli.render._terminal import printable
    from laneway.cli.render.sessions import title_of

    with failures():
        chosen = list(dict.fromkeys([await resolve(repo, id) for id in ids]))
        known = {info.id: info for info in await repo.list()}
        titles = [f"{id}  {printable(title_of(known[id]))}" if id in known else id for id in chosen]
        if confirm is not None and not confirm("Delete for good?\n" + "\n".join(f"  {title}" for title in titles)):
            out("Nothing was deleted.")
            return FAILED
        for id in chosen:
            await repo.delete(id)
            _say(f"deleted {id}", {"deleted": id}, json, out)
    return DONE


# ---------------------------------------------------------------------------------------------------- shared


async def resolve(repo: SessionRepo, text: str) -> str:
    """Return the id that `text` is, or begins or ends.

    Raises:
        CliError: there is no such session, or several.
    """
    if await repo.exists(text):
        return text  # also one that is damaged, which no list shows: the reason comes out when it is opened
    return _matching(text, [info.id for info in await repo.list()], "session")


def _matching(text: str, ids: Iterable[str], what: str) -> str:
    every = list(ids)
    found = [id for id in every if id == text] or [id for id in every if text and (id.startswith(text) or id.endswith(text))]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CliError(f"there is no {what} {text!r}; `laneway sessions list` shows the sessions, `tree` their entries")
    raise CliError(f"{text!r} is part of {len(found)} ids: {', '.join(sorted(found)[:5])}{' …' if len(found) > 5 else ''}; type more of it")


@asynccontextmanager
async def _viewing(repo: SessionRepo, id: str) -> AsyncGenerator[Session]:
    """Give a session for reading, whoever has it open."""
    with failures():
        session_id = await resolve(repo, id)
        async with repo.reading(session_id) as storage:
            yield await repo.view(session_id, storage)


@contextmanager
def failures() -> Generator[None]:
    """Turn what a session or repository refuses into a message and an exit code."""
    try:
        yield
    except SessionLocked as error:
        raise locked(error) from error
    except (SessionNotFound, SessionError) as error:
        raise CliError(str(error), USAGE) from error
    except StorageError as error:
        raise CliError(str(error), FAILED) from error


def locked(error: SessionLocked) -> CliError:
    """Say in the words of the command line who has a session."""
    if error.owner is None:
        return CliError(str(error), LOCKED)
    return CliError(f"the session is open in {error.owner}, which writes to it: wait for that to end, or end it; reading it works meanwhile", LOCKED)


def _branch(tips: dict[str, str | None], wanted: str | None, session: Session) -> str:
    """Return the branch to show: the one asked for, else "main", else the only one."""
    if wanted is None:
        return "main" if "main" in tips or len(tips) != 1 else next(iter(tips))
    if wanted not in tips:
        raise CliError(f"session {session.metadata.id} has no branch {wanted!r}; there are: {', '.join(sorted(tips)) or 'none'}")
    return wanted


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise CliError(f"{path} is there already: choose another name or remove it first") from None
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror or error}", FAILED) from error


def _fields(entry: Any) -> dict[str, Any]:
    from laneway.cli.render._plain import plain

    return {name: plain(getattr(entry, name)) for name in entry.__struct_fields__}


def _say(text: str, data: dict[str, Any], json: bool, out: Out) -> None:
    out(encode(clean_json(data)).decode() if json else text)


def _print_json(rows: Iterable[Any], out: Out) -> int:
    for row in rows:
        out(encode(row).decode())
    return DONE


def _width() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
