"""The find tool: files and directories by the pattern of their name or path."""

from __future__ import annotations

import os
from typing import Any

from laneway.abort import AbortSignal
from laneway.errors import ToolError
from laneway.tools._arguments import as_object, at_least_one, optional, required
from laneway.tools._globs import PathFilter
from laneway.tools._ignore import Walk
from laneway.tools._paths import Workspace, is_inside
from laneway.tools._truncate import MAX_BYTES, format_size, one_line_name, printable, size_of, with_notices
from laneway.tools._work import Stop, in_thread
from laneway.tools.base import AgentTool, ToolResult, UpdateFn, text_result

__all__ = ["find_tool"]

_ALIASES = {"glob": "pattern", "name": "pattern", "query": "pattern", "directory": "path", "dir": "path"}
_LIMIT = 1000
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "pattern": {"type": "string", "description": "Glob: '*.py' fits names at any depth, 'src/**/*.py' paths from path on"},
        "path": {"type": "string", "description": "Directory to search (default: the working directory)"},
        "limit": {"type": "integer", "description": f"Most results to return (default {_LIMIT})"},
    },
    "required": ["pattern"],
}


def find_tool(
    cwd: str | os.PathLike[str] = ".", *, confine: bool = False, root: str | os.PathLike[str] | None = None, max_bytes: int = MAX_BYTES
) -> AgentTool:
    """Return the tool that finds files: `find(pattern, path=None, limit=1000)`.

    A pattern without a slash fits names at any depth, one with a slash paths from `path` on; `**` crosses directories, `{a,b}` gives
    alternatives. Lower-case patterns ignore case. Results are relative to `path`, in the order of the names, directories with a `/`. Hidden
    files are included, ignored ones (`.gitignore`, `.ignore`) are not, links are listed but not followed. `confine` and `root` as
    for `read_tool`, except that a search goes by paths: a directory that another process replaces by a link just then is followed out of the
    root. `details` has `results`, `limit_reached`, `unreadable` and `truncated_by`.
    """
    workspace = Workspace(cwd, confine=confine, root=root)

    async def execute(tool_call_id: str, args: Any, signal: AbortSignal, update: UpdateFn) -> ToolResult:
        arguments = _prepare(args)
        pattern, path = required(arguments, "pattern"), optional(arguments, "path") or "."
        limit = at_least_one(arguments, "limit", _LIMIT)
        return await in_thread(lambda stop: _find(workspace, pattern, path, limit, max_bytes, stop), signal, aborted="The search was aborted")

    return AgentTool(
        name="find",
        label="Find",
        description=(
            "Find files and directories by glob pattern. Returns paths relative to path, directories with a trailing slash. Includes hidden files, "
            f"leaves out what .gitignore ignores. At most {_LIMIT} results unless limit says otherwise."
        ),
        parameters=_PARAMETERS,
        execute=execute,
        prepare_arguments=_prepare,
        replay="safe",
    )


def _prepare(arguments: Any) -> Any:
    return as_object(arguments, _ALIASES)


def _find(workspace: Workspace, pattern: str, path: str, limit: int, max_bytes: int, stop: Stop) -> ToolResult:
    workspace.check_cwd()
    place = workspace.existing(path)
    if not os.path.isdir(place.real):
        raise ToolError(f"{place.shown} is not a directory: pass the directory to search as path")
    only_directories, pattern = pattern.endswith("/"), _relative(pattern, place.path, place.real).rstrip("/")
    wanted = PathFilter(pattern or "*", ignore_case=pattern == pattern.lower())
    walk = Walk(place.real, stop.check)
    lines: list[str] = []
    count = size = 0
    more = over_bytes = False
    for entry in walk:
        if (only_directories and not entry.is_directory) or not wanted.fits(entry.parts):
            continue
        if count == limit:
            more = True
            break
        count += 1
        line = one_line_name("/".join(entry.parts)) + ("/" if entry.is_directory else "")
        size += size_of(line) + 1
        over_bytes = over_bytes or size - 1 > max_bytes
        if not over_bytes:
            lines.append(line)
    notices: list[str] = []
    if more:
        notices.append(f"{limit} results limit reached: there are more. Use limit={limit * 2}, or a narrower pattern or path")
    if over_bytes:
        notices.append(f"{format_size(max_bytes)} limit reached: {len(lines)} of the {count} results are shown")
    if walk.unreadable:
        directories = "1 directory" if len(walk.unreadable) == 1 else f"{len(walk.unreadable)} directories"
        notices.append(f"{directories} could not be read: {', '.join(printable(name) for name in walk.unreadable[:3])}")
    details = {
        "results": count,
        "limit_reached": more,
        "unreadable": len(walk.unreadable),
        "truncated_by": "bytes" if over_bytes else "results" if more else None,
    }
    return text_result(with_notices("\n".join(lines) if lines else "No files found matching the pattern", notices), details=details)


def _relative(pattern: str, path: str, real: str) -> str:
    """Return a pattern that begins with the absolute path of the searched directory relative to it."""
    if not pattern.startswith("/"):
        return pattern
    for base in (path, real):
        if is_inside(pattern.rstrip("/"), base) and base != "/":
            return "./" + pattern[len(base) :].lstrip("/")
    first = pattern.split("/")[1]
    if os.path.isdir(f"/{first}") and not os.path.lexists(os.path.join(real, first)):
        raise ToolError(f"The pattern {printable(pattern)} is an absolute path outside of {printable(path)}: pass its directory as path")
    return pattern
