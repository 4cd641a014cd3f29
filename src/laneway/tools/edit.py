"""The edit tool: exact replacements in a file, all of them or none."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from typing import Any, cast

from laneway.abort import AbortSignal
from laneway.errors import ToolError
from laneway.tools._arguments import as_object, parsed, required
from laneway.tools._diff import diff_of
from laneway.tools._edit_match import Edit, apply_edits
from laneway.tools._files import read_all, replace
from laneway.tools._lines import encoding_of
from laneway.tools._mutation_queue import exclusive
from laneway.tools._paths import Place, Workspace
from laneway.tools._truncate import format_size, printable
from laneway.tools._work import Stop, in_thread
from laneway.tools.base import AgentTool, ToolResult, UpdateFn, text_result

__all__ = ["edit_tool"]

_ALIASES = {"file_path": "path", "filename": "path", "file": "path"}
_EDIT_ALIASES = {
    "old_string": "old_text", "old_str": "old_text", "old": "old_text", "search": "old_text",
    "new_string": "new_text", "new_str": "new_text", "new": "new_text", "replace": "new_text",
}  # fmt: skip
_MAX_BYTES = 64 * 1024 * 1024
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "File to edit, relative to the working directory or absolute"},
        "edits": {
            "type": "array",
            "minItems": 1,
            "description": "Replacements, each searched in the file as it is before any of them",
            "items": {
                "type": "object",
                "properties": {
                    "old_text": {"type": "string", "description": "Text to replace, exactly as in the file and only once in it"},
                    "new_text": {"type": "string", "description": "Text to put in its place"},
                },
                "required": ["old_text", "new_text"],
            },
        },
    },
    "required": ["path", "edits"],
}


def edit_tool(cwd: str | os.PathLike[str] = ".", *, confine: bool = False, root: str | os.PathLike[str] | None = None) -> AgentTool:
    """Return the tool that edits files: `edit(path, edits=[{old_text, new_text}, …])`.

    Each `old_text` must be in the file once; line endings, typographic quotes, dashes and spaces, and blanks at line ends may
    differ. All edits are made or none. Every byte outside of what changed stays as it was: byte-order mark, line endings, undecodable bytes.
    Writes and edits of one file run one at a time in request order. `confine` and `root` as for `read_tool`.

    `details` has `path`, `edits` (how many), `fuzzy` (whether normalising was needed), `diff`, `patch` and `first_changed_line`.
    """
    workspace = Workspace(cwd, confine=confine, root=root)

    async def execute(tool_call_id: str, args: Any, signal: AbortSignal, update: UpdateFn) -> ToolResult:
        arguments = _prepare(args)
        path, edits = required(arguments, "path"), _edits(arguments)
        aborted = f"Editing {printable(path)} was aborted: the file was not changed"
        async with exclusive(lambda: workspace.existing(path), signal, aborted=aborted) as place:
            return await in_thread(lambda stop: _edit(workspace, place, edits, stop), signal, aborted=aborted, finish=True)

    return AgentTool(
        name="edit",
        label="Edit",
        description=(
            "Replace text in a file. Each old_text must be exactly what is in the file, and only once in it; add neighbouring lines to make it "
            "unique. Make all changes to a file in one call; edits must not overlap."
        ),
        parameters=_PARAMETERS,
        execute=execute,
        prepare_arguments=_prepare,
        replay="never",
    )


def _edit(workspace: Workspace, place: Place, edits: list[Edit], stop: Stop) -> ToolResult:
    before, state = _load(workspace, place, stop.check)
    edited = apply_edits(before, edits, place.shown, stop.check)
    diff = diff_of(before, edited.text, edited.spans, workspace.relative(place))
    replace(workspace, place, edited.text.encode("utf-8", "surrogateescape"), stop.check, expected=state)
    count = f"{len(edits)} passage{'s' if len(edits) != 1 else ''}"
    note = " (found by ignoring typographic differences and blanks at line ends)" if edited.fuzzy else ""
    details = {
        "path": printable(place.path),
        "edits": len(edits),
        "fuzzy": edited.fuzzy,
        "diff": printable(diff.diff),
        "patch": printable(diff.patch),
        "first_changed_line": diff.first_changed_line,
    }
    return text_result(f"Replaced {count} in {place.shown}{note}", details=details)


def _load(workspace: Workspace, place: Place, check: Callable[[], None]) -> tuple[str, os.stat_result]:
    """Return the file as text and its state; bytes that are no UTF-8 become surrogates, which are written back as the same bytes."""
    fd = workspace.open(place)
    state = os.fstat(fd)
    if (size := state.st_size) > _MAX_BYTES:
        os.close(fd)
        raise ToolError(f"{place.shown} is {format_size(size)}; edit takes files up to {format_size(_MAX_BYTES)}: change it with bash (sed, python)")
    data = read_all(fd, check, place.shown)
    if (encoding := encoding_of(data[:4])) != "utf-8":
        name = "UTF-32" if data.startswith(codecs.BOM_UTF32_LE) else encoding.upper()
        raise ToolError(f"{place.shown} is {name} and edit works on UTF-8: convert it with bash (iconv), edit, and convert it back")
    return data.decode("utf-8", "surrogateescape"), state


def _edits(arguments: dict[str, Any]) -> list[Edit]:
    edits = arguments.get("edits")
    if not isinstance(edits, list) or not edits:
        raise ToolError("edits is missing: pass a list of objects with old_text and new_text")
    result: list[Edit] = []
    for index, edit in enumerate(cast("list[Any]", edits)):
        if not isinstance(edit, dict):
            raise ToolError(f"Edit {index + 1} is not an object: pass old_text and new_text")
        values = cast("dict[str, Any]", edit)
        result.append(Edit(old_text=required(values, "old_text"), new_text=required(values, "new_text")))
    return result


def _prepare(arguments: Any) -> Any:
    """Accept edits as JSON text, as one object, or as a pair of texts beside the path."""
    given = as_object(arguments, _ALIASES)
    if not isinstance(given, dict):
        return arguments
    values = as_object(given, _EDIT_ALIASES)
    several: Any = parsed(values.get("edits"))
    if several is None or isinstance(several, dict):
        several = [] if several is None else [several]
    if not isinstance(several, list):
        return values
    edits = [as_object(parsed(edit), _EDIT_ALIASES) for edit in cast("list[Any]", several)]
    if isinstance(values.get("old_text"), str) and isinstance(values.get("new_text"), str):
        edits.append({"old_text": values.pop("old_text"), "new_text": values.pop("new_text")})
    return {**values, "edits": edits}
