"""The ls tool: what is in a directory."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from typing import Any

from laneway.abort import AbortSignal
from laneway.tools._arguments import as_object, at_least_one, optional
from laneway.tools._ignore import is_draft
from laneway.tools._paths import Workspace
from laneway.tools._truncate import MAX_BYTES, format_size, one_line_name, printable, size_of, with_notices
from laneway.tools._work import Stop, in_thread
from laneway.tools.base import AgentTool, ToolResult, UpdateFn, text_result

__all__ = ["ls_tool"]

_ALIASES = {"directory": "path", "dir": "path", "file_path": "path"}
_LIMIT = 500
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Directory to list (default: the working directory)"},
        "limit": {"type": "integer", "description": f"Most entries to return (default {_LIMIT})"},
    },
}


def ls_tool(
    cwd: str | os.PathLike[str] = ".", *, confine: bool = False, root: str | os.PathLike[str] | None = None, max_bytes: int = MAX_BYTES
) -> AgentTool:
    """Return the tool that lists a directory: `ls(path=None, limit=500)`.

    One name a line, hidden ones too, sorted without regard to case, directories (and links to them) with a `/`. Entries that cannot be
    examined are left out. `confine` and `root` as for `read_tool`. `details` has `path`, `entries`, `limit_reached` and `truncated_by`.
    """
    workspace = Workspace(cwd, confine=confine, root=root)

    async def execute(tool_call_id: str, args: Any, signal: AbortSignal, update: UpdateFn) -> ToolResult:
        arguments = _prepare(args)
        path, limit = optional(arguments, "path") or ".", at_least_one(arguments, "limit", _LIMIT)
        return await in_thread(lambda stop: _list(workspace, path, limit, max_bytes, stop), signal, aborted=f"Listing {printable(path)} was aborted")

    return AgentTool(
        name="ls",
        label="List",
        description=(
            "List a directory: one name a line, hidden files too, directories with a trailing slash. "
            f"At most {_LIMIT} entries unless limit says otherwise."
        ),
        parameters=_PARAMETERS,
        execute=execute,
        prepare_arguments=_prepare,
        replay="safe",
    )


def _prepare(arguments: Any) -> Any:
    return as_object(arguments, _ALIASES)


def _list(workspace: Workspace, path: str, limit: int, max_bytes: int, stop: Stop) -> ToolResult:
    workspace.check_cwd()
    place = workspace.existing(path)
    fd = workspace.open_directory(place)
    total = 0

    def names() -> Iterator[str]:
        nonlocal total
        with os.scandir(fd) as entries:
            for entry in entries:
                stop.check()
                if is_draft(entry.name):
                    continue
                try:
                    name = entry.name + ("/" if entry.is_dir() else "")
                except OSError:
                    continue
                total += 1
                yield name

    try:
        shown = heapq.nsmallest(limit, names(), key=lambda name: (name.casefold(), name))
    finally:
        os.close(fd)
    lines: list[str] = []
    size = 0
    for name in map(one_line_name, shown):
        size += size_of(name) + 1
        if size - 1 > max_bytes:
            break
        lines.append(name)
    notices: list[str] = []
    if total > limit:
        notices.append(f"{limit} entries limit reached: {total} are there. Use limit={limit * 2}, or find with a pattern")
    if len(lines) < len(shown):
        notices.append(f"{format_size(max_bytes)} limit reached: {len(lines)} of {total} entries are shown")
    details = {
        "path": printable(place.path),
        "entries": total,
        "limit_reached": total > limit,
        "truncated_by": "bytes" if len(lines) < len(shown) else "entries" if total > limit else None,
    }
    return text_result(with_notices("\n".join(lines), notices) if lines or notices else "(empty directory)", details=details)
