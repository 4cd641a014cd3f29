"""Sessions: the meaning of what a store holds, and where sessions come from.

`Session` gives entries, branches, names, labels and application values over any `Storage`, and the one line in which everybody who
writes must stand. Repositories create, open, list, delete and fork sessions.
"""

from __future__ import annotations

from laneway.session._app import AppValues
from laneway.session._branch import Branch
from laneway.session._catalogue import SessionInfo
from laneway.session._context import EntryProjector, LaneContext, build_context
from laneway.session._export import ExportFormat, export
from laneway.session._fork import Fork
from laneway.session._ids import Ids
from laneway.session._import_pi import ImportReport, import_pi
from laneway.session._mutation import Mutation
from laneway.session._repo import MemoryRepo, SessionRepo
from laneway.session._repo_files import JsonlRepo, SqliteRepo
from laneway.session._repo_postgres import PostgresRepo
from laneway.session._rewrite import RewriteReport
from laneway.session._search import SearchHit, SearchIndex
from laneway.session._session import Session, SessionMetadata
from laneway.session._tree import SessionTree, TreeNode, read_tree

__all__ = [
    "AppValues",
    "Branch",
    "EntryProjector",
    "ExportFormat",
    "Fork",
    "Ids",
    "ImportReport",
    "JsonlRepo",
    "LaneContext",
    "MemoryRepo",
    "Mutation",
    "PostgresRepo",
    "RewriteReport",
    "SearchHit",
    "SearchIndex",
    "Session",
    "SessionInfo",
    "SessionMetadata",
    "SessionRepo",
    "SessionTree",
    "SqliteRepo",
    "TreeNode",
    "build_context",
    "export",
    "import_pi",
    "read_tree",
]
