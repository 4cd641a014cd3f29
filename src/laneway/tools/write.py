"""The write tool: a whole file, replaced at once or not at all."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from laneway.abort import AbortSignal
from laneway.errors import ToolError
from laneway.tools._arguments import as_object, required
from laneway.tools._diff import whole_diff
from laneway.tools._files import read_all, replace, status
from laneway.tools._mutation_queue import exclusive
from laneway.tools._paths import Place, Workspace
from laneway.tools._truncate import count_lines, printable
from laneway.tools._work import Stop, in_thread
from laneway.tools.base import AgentTool, ToolResult, UpdateFn, current_host, text_result

__all__ = ["write_tool"]

_ALIASES = {"file_path": "path", "filename": "path", "file": "path", "text": "content", "contents": "content", "file_text": "content"}
_MEMO = "write.before"
_DIFF_BYTES = 256 * 1024
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "File to write, relative to the working directory or absolute"},
        "content": {"type": "string", "description": "The whole new content of the file"},
    },
    "required": ["path", "content"],
}


def write_tool(cwd: str | os.PathLike[str] = ".", *, confine: bool = False, root: str | os.PathLike[str] | None = None) -> AgentTool:
    """Return the tool that writes whole files: `write(path, content)`.

    Missing directories are made, a file that is there is replaced. Readers see the old content or the new, never a part; mode bits, owner
    and links are kept. Writes and edits of one file run one at a time in request order. `confine` and `root` as for `read_tool`.

    Replay is safe. The content is the same each time, and in the durable harness the call first notes what it is about to replace:
    run again after a crash, it goes on only if the file is as it was then, or already has the new content. A file that somebody
    changed in the meantime is left alone, with an error that says so.

    `details` has `path`, `created`, `lines` and, for a text file of moderate size that was replaced, `diff`, `patch`, `first_changed_line`.
    """
    workspace = Workspace(cwd, confine=confine, root=root)

    async def execute(tool_call_id: str, args: Any, signal: AbortSignal, update: UpdateFn) -> ToolResult:
        arguments = _prepare(args)
        path, content = required(arguments, "path"), printable(required(arguments, "content"))
        data = content.encode()
        aborted = f"Writing {printable(path)} was aborted: the file was not changed"
        async with exclusive(lambda: workspace.target(path), signal, aborted=aborted) as place:
            await _guard_replay(workspace, place, data, signal, aborted)

            def work(stop: Stop) -> ToolResult:
                before = _before(workspace, place)
                diff = None if before is None else whole_diff(before, content, workspace.relative(place))
                created = status(workspace, place) is None
                replace(workspace, place, data, stop.check)
                details: dict[str, Any] = {"path": printable(place.path), "created": created, "lines": count_lines(content)}
                if diff is not None:
                    details |= {"diff": diff.diff, "patch": diff.patch, "first_changed_line": diff.first_changed_line}
                return text_result(f"{'Created' if created else 'Replaced the content of'} {place.shown}", details=details)

            return await in_thread(work, signal, aborted=aborted, finish=True)

    return AgentTool(
        name="write",
        label="Write",
        description="Write a whole file: creates it, with missing directories, or replaces everything in it. To change a part of a file, use edit.",
        parameters=_PARAMETERS,
        execute=execute,
        prepare_arguments=_prepare,
        replay="safe",
    )


def _prepare(arguments: Any) -> Any:
    return as_object(arguments, _ALIASES)


async def _guard_replay(workspace: Workspace, place: Place, data: bytes, signal: AbortSignal, aborted: str) -> None:
    """In the durable harness, note what is there before the first attempt; on a replay, refuse to replace anything else."""
    host = current_host()
    if host is None:
        return
    noted = await host.get_memo(_MEMO)
    now = await in_thread(lambda _: _fingerprint(workspace, place), signal, aborted=aborted)
    if noted is None:
        await host.set_memo(_MEMO, now)
    elif noted != now and not await in_thread(lambda stop: _has_content(workspace, place, data, stop), signal, aborted=aborted):
        raise ToolError(
            f"{place.shown} was changed after this write was interrupted, so it was not written again: read it and decide what it should be"
        )


def _fingerprint(workspace: Workspace, place: Place) -> str:
    found = status(workspace, place)
    return "absent" if found is None else f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def _has_content(workspace: Workspace, place: Place, data: bytes, stop: Stop) -> bool:
    found = status(workspace, place)
    if found is None or found.st_size != len(data):
        return False
    return hashlib.sha256(read_all(workspace.open(place), stop.check, place.shown)).digest() == hashlib.sha256(data).digest()


def _before(workspace: Workspace, place: Place) -> str | None:
    """Return the text that is about to be replaced, if it is worth a diff."""
    found = status(workspace, place)
    if found is None or found.st_size > _DIFF_BYTES:
        return None
    data = read_all(workspace.open(place), lambda: None, place.shown)
    return None if b"\0" in data else data.decode("utf-8", "replace")
