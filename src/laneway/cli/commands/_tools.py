"""Which tools a run has, and what it is told about itself."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from laneway.cli._exit import CliError
from laneway.tools import bash_tool, edit_tool, find_tool, grep_tool, ls_tool, read_tool, write_tool
from laneway.tools.base import AgentTool

DEFAULT = ("read", "bash", "edit", "write")
READ_ONLY = ("read", "grep", "find", "ls")


def choose_tools(names: str | None, *, cwd: Path, read_only: bool, allow_outside: bool) -> list[AgentTool]:
    """Return the tools for `--tools`, `--read-only` and `--allow-outside`; write and edit stay in `cwd` unless allowed.

    Raises:
        CliError: an unknown name.
    """
    confine = not allow_outside
    make: dict[str, Callable[[], AgentTool]] = {
        "read": lambda: read_tool(cwd),
        "bash": lambda: bash_tool(cwd),
        "edit": lambda: edit_tool(cwd, confine=confine),
        "write": lambda: write_tool(cwd, confine=confine),
        "grep": lambda: grep_tool(cwd),
        "find": lambda: find_tool(cwd),
        "ls": lambda: ls_tool(cwd),
    }
    if names is None:
        wanted = READ_ONLY if read_only else DEFAULT
    elif names.strip() in ("", "none"):
        wanted = ()
    else:
        wanted = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    unknown = [name for name in wanted if name not in make]
    if unknown:
        raise CliError(f"--tools: there is no tool {', '.join(unknown)}; choose from {', '.join(make)}")
    if read_only and (changing := [name for name in wanted if name not in READ_ONLY]):
        raise CliError(f"--read-only does not go with --tools {', '.join(changing)}")
    return [make[name]() for name in wanted]


def system_prompt(tools: list[AgentTool], cwd: Path, *, replace: str | None, append: str | None) -> str:
    """Return the system prompt of a run in `cwd`."""
    if replace is not None:
        text = replace
    elif tools:
        text = (
            "You are an assistant that works in a folder with tools. Look before you answer: use the tools to read what you need, "
            "do what was asked, check the result, and then answer briefly. Paths are relative to the folder."
        )
    else:
        text = "You are an assistant. Answer briefly."
    if replace is None:
        text += f"\n\nFolder: {cwd}\nDate: {datetime.date.today().isoformat()}"
    return f"{text}\n\n{append}" if append else text
