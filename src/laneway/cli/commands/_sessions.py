"""Connects the words of `laneway sessions …` to the functions that do it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any

from laneway.cli._exit import CliError
from laneway.cli.commands import sessions as verbs
from laneway.cli.config import sessions_dir, somebody_answers, wants_colour
from laneway.cli.render._terminal import printable
from laneway.session import SqliteRepo


def sessions(arguments: argparse.Namespace) -> int:
    """Do one of `laneway sessions …`; return the exit code."""
    return asyncio.run(_do(SqliteRepo(sessions_dir(arguments.session_dir)), arguments))


async def _do(repo: SqliteRepo, given: Any) -> int:
    match given.verb:
        case "list":
            return await verbs.list_sessions(repo, cwd=os.getcwd() if given.here else None, limit=given.limit, json=given.json)
        case "show":
            return await verbs.show_session(repo, given.id, branch=given.branch, last=given.last, json=given.json)
        case "tree":
            return await verbs.show_tree(repo, given.id, branch=given.branch, everything=given.everything, json=given.json)
        case "search":
            colour = wants_colour(sys.stdout)
            return await verbs.search_sessions(repo, given.query, id=given.session, limit=given.limit, json=given.json, color=colour)
        case "export":
            return await verbs.export_session(repo, given.id, to=given.to, format=given.format, branch=given.branch, out=_print_export)
        case "fork":
            return await verbs.fork_session(
                repo, given.id, branch=given.branch, entry_id=given.at, before=given.before, tree=given.tree, json=given.json
            )
        case "import":
            return await verbs.import_session(repo, given.path, id=given.id, json=given.json)
        case "name":
            return await verbs.name_session(repo, given.id, given.name)
        case "repair":
            return await verbs.repair_session(repo, given.id, json=given.json)
        case _:
            return await verbs.remove_sessions(repo, given.ids, confirm=None if given.yes else _ask, json=given.json)


def _print_export(text: str) -> None:
    """Print an export as it is into a file or pipe, and harmless to a terminal."""
    print(printable(text) if sys.stdout.isatty() else text)


def _ask(question: str) -> bool:
    if not somebody_answers():
        raise CliError("nobody is there to confirm: say --yes to delete without asking")
    print(f"{question}\nType yes: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
