"""The grep tool: search file contents with ripgrep, or without it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from dataclasses import dataclass
from typing import Any, Literal

from laneway.abort import AbortSignal
from laneway.errors import ToolError
from laneway.tools._arguments import as_object, at_least_one, flag, not_negative, optional, required
from laneway.tools._globs import PathFilter
from laneway.tools._paths import Workspace
from laneway.tools._process import Command, Control, Ended, run_to_end
from laneway.tools._search import LINE_LIMIT, Collector, Findings, Query, ripgrep_command, worker_command, write_prefilter
from laneway.tools._search_worker import MAX_CPU_SECONDS, compile_pattern
from laneway.tools._truncate import MAX_BYTES, format_size, printable, with_notices
from laneway.tools._work import in_thread
from laneway.tools.base import AgentTool, ToolResult, UpdateFn, text_result

__all__ = ["grep_tool", "ripgrep"]

_ALIASES = {
    "query": "pattern",
    "regex": "pattern",
    "directory": "path",
    "dir": "path",
    "include": "glob",
    "case_insensitive": "ignore_case",
    "head_limit": "limit",
}
_LIMIT = 100
_MOST_CONTEXT = 1000
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "pattern": {"type": "string", "description": "Regular expression to search for, in each line"},
        "path": {"type": "string", "description": "Directory or file to search (default: the working directory)"},
        "glob": {"type": "string", "description": "Only files that fit, relative to path: '*.py' at any depth, 'src/**/*.ts'"},
        "ignore_case": {"type": "boolean", "description": "Ignore upper and lower case (default false)"},
        "literal": {"type": "boolean", "description": "Take the pattern as plain text (default false)"},
        "context": {"type": "integer", "description": "Lines to show before and after each match (default 0)"},
        "limit": {"type": "integer", "description": f"Most matches to return (default {_LIMIT})"},
    },
    "required": ["pattern"],
}


def grep_tool(
    cwd: str | os.PathLike[str] = ".",
    *,
    confine: bool = False,
    root: str | os.PathLike[str] | None = None,
    backend: Literal["auto", "rg", "python"] = "auto",
    max_bytes: int = MAX_BYTES,
) -> AgentTool:
    """Return the tool that searches file contents: `grep(pattern, path=None, glob=None, ignore_case=False, literal=False, context=0, limit=100)`.

    Matches come back as `file:line: text`, context as `file-line- text`, in the order of the names, with paths relative to `path`. Hidden files
    are searched, ignored ones (`.gitignore`, `.ignore`) and binary ones are not, and links are not followed. Long lines are shortened
    around the match. Notices say what was left out.

    `backend="auto"` takes ripgrep if it is installed and otherwise a slower search of our own in a process of its own; both give the same.
    ripgrep's own configuration is not used. A pattern that only Python understands (look-around) is searched by the latter. `confine` and
    `root` as for `read_tool`, except that a search goes by paths: a directory that another process replaces by a link just then is followed
    out of the root. `details` has `matches`, `files`, `limit_reached`, `lines_shortened`, `truncated_by` and `backend`.
    """
    workspace = Workspace(cwd, confine=confine, root=root)

    async def execute(tool_call_id: str, args: Any, signal: AbortSignal, update: UpdateFn) -> ToolResult:
        arguments = _prepare(args)
        aborted = "The search was aborted"
        query = await in_thread(lambda _: _query(workspace, arguments), signal, aborted=aborted)
        program = None if backend == "python" else ripgrep()
        if backend == "rg" and program is None:
            raise ToolError("ripgrep (rg) is not installed: install it, or make the tool with backend='python'")
        if program is not None:
            search = await _search(query, program, signal, max_bytes)
            refusal = _refusal(search.ended, search.collector)
            if refusal is None:
                return _result(query, search, "rg", max_bytes, aborted)
            if not _python_can(query):
                raise ToolError(refusal)
        return _result(query, await _search(query, None, signal, max_bytes), "python", max_bytes, aborted)

    return AgentTool(
        name="grep",
        label="Grep",
        description=(
            "Search file contents for a regular expression. Returns file:line: text, paths relative to path. Includes hidden files, leaves out what "
            f".gitignore ignores. At most {_LIMIT} matches unless limit says otherwise; long lines are shortened."
        ),
        parameters=_PARAMETERS,
        execute=execute,
        prepare_arguments=_prepare,
        replay="safe",
    )


def ripgrep() -> str | None:
    """Return the path of the ripgrep that the grep tool would use, None if it would search without it."""
    return shutil.which("rg")


@dataclass(frozen=True, slots=True)
class _Search:
    """A search that has ended."""

    ended: Ended
    collector: Collector


async def _search(query: Query, program: str | None, signal: AbortSignal, max_bytes: int) -> _Search:
    """Search with ripgrep (`program`) or without it (None)."""
    prefilter = None
    if program is not None and query.glob is not None:
        prefilter = await in_thread(lambda _: write_prefilter(PathFilter(query.glob or "")), signal, aborted="The search was aborted")
    if program is None and (getattr(sys, "frozen", False) or not sys.executable):  # a frozen program would start itself again
        raise ToolError("Searching without ripgrep needs a Python interpreter, which a frozen program has not: install ripgrep (rg)")
    try:
        argv = worker_command(query) if program is None else ripgrep_command(program, query, prefilter)
        control = Control()
        collector = Collector(query, control, max_bytes)
        command = Command(argv, cwd=query.directory, env=None, control=control, on_output=collector.feed, on_error=collector.feed_error)
        return _Search(await run_to_end(command, control, signal), collector)
    except (OSError, ValueError) as error:
        raise ToolError(f"The search could not be started in {printable(query.directory)}: {error}") from error
    finally:
        if prefilter is not None:
            with contextlib.suppress(OSError):
                os.unlink(prefilter)


def _prepare(arguments: Any) -> Any:
    return as_object(arguments, _ALIASES)


def _query(workspace: Workspace, arguments: dict[str, Any]) -> Query:
    pattern = printable(required(arguments, "pattern"))
    literal = flag(arguments, "literal")
    if "\0" in pattern or "\n" in pattern or (not literal and re.search(r"(?<!\\)(?:\\\\)*\\n", pattern)):
        raise ToolError("The pattern has a line break, but each line is searched on its own: search for one of the lines, with context")
    workspace.check_cwd()
    place = workspace.existing(optional(arguments, "path") or ".")
    is_directory = os.path.isdir(place.real)
    if not is_directory and not os.path.isfile(place.real):
        raise ToolError(f"{place.shown} is neither a directory nor a regular file: pass one of these as path")
    return Query(
        pattern=pattern,
        directory=place.real if is_directory else os.path.dirname(place.real),
        file=None if is_directory else os.path.basename(place.real),
        glob=optional(arguments, "glob") if is_directory else None,
        literal=literal,
        ignore_case=flag(arguments, "ignore_case"),
        context=min(not_negative(arguments, "context"), _MOST_CONTEXT),
        limit=at_least_one(arguments, "limit", _LIMIT),
    )


def _refusal(ended: Ended, collector: Collector) -> str | None:
    """Return ripgrep's message if it refused the pattern, None if it searched."""
    if ended.reason != "exit" or ended.exit_code in (0, 1) or collector.findings.matches or b"(os error" in collector.errors:
        return None
    message = collector.errors.decode("utf-8", "replace").strip()
    why = message or f"rg ended with code {ended.exit_code}"
    return f"The pattern cannot be searched for: {why}\nUse literal=true to search for it as plain text"


def _python_can(query: Query) -> bool:
    with contextlib.suppress(re.error):
        compile_pattern(query.pattern, literal=query.literal, ignore_case=query.ignore_case)
        return True
    return False


def _result(query: Query, search: _Search, backend: str, max_bytes: int, aborted: str) -> ToolResult:
    if search.ended.reason == "abort":
        raise ToolError(aborted)
    findings = search.collector.findings
    if backend == "python":
        _check_worker(query, search)
    unreadable = search.collector.errors.count(b"(os error")
    notices = _notices(query, findings, unreadable, max_bytes)
    text = "\n".join(findings.lines) if findings.lines else "No matches found"
    details = {
        "matches": findings.matches,
        "files": findings.files,
        "limit_reached": findings.more,
        "lines_shortened": findings.shortened,
        "truncated_by": "bytes" if findings.over_bytes else "matches" if findings.more else None,
        "unreadable": unreadable,
        "backend": backend,
    }
    return text_result(with_notices(text, notices), details=details)


def _check_worker(query: Query, search: _Search) -> None:
    """Raise `ToolError` if our own search did not run to its end, with the reason that the person can do something about."""
    if search.ended.reason != "exit" or search.ended.exit_code == 0:
        return
    try:
        compile_pattern(query.pattern, literal=query.literal, ignore_case=query.ignore_case)
    except re.error as error:
        raise ToolError(f"The pattern is no valid regular expression: {error}. Use literal=true to search for it as plain text") from None
    if search.ended.seconds >= MAX_CPU_SECONDS:
        raise ToolError("The search took too long and was ended: use a simpler pattern, or a narrower path or glob")
    message = search.collector.errors.decode("utf-8", "replace").strip().splitlines()
    raise ToolError(f"The search failed with {sys.executable} (code {search.ended.exit_code}): {message[-1] if message else 'no message'}")


def _notices(query: Query, findings: Findings, unreadable: int, max_bytes: int) -> list[str]:
    notices: list[str] = []
    if findings.more:
        notices.append(f"{query.limit} matches limit reached: there are more. Use limit={query.limit * 2}, or a narrower pattern, path or glob")
    if findings.over_bytes:
        notices.append(f"{format_size(max_bytes)} limit reached: {findings.shown_matches} of the {findings.matches} matches are shown")
    if findings.shortened:
        lines = "1 line was" if findings.shortened == 1 else f"{findings.shortened} lines were"
        notices.append(f"{lines} shortened to {LINE_LIMIT} characters: use read to see whole lines")
    if unreadable:
        notices.append(f"{unreadable} file{'s' if unreadable > 1 else ''} or directories could not be read")
    return notices
