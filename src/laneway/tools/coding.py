"""The built-in tools as a set."""

from __future__ import annotations

import os

from laneway.tools.base import AgentTool
from laneway.tools.bash import bash_tool
from laneway.tools.edit import edit_tool
from laneway.tools.find import find_tool
from laneway.tools.grep import grep_tool
from laneway.tools.ls import ls_tool
from laneway.tools.read import read_tool
from laneway.tools.write import write_tool

__all__ = ["coding_tools"]


def coding_tools(
    cwd: str | os.PathLike[str] = ".",
    *,
    read_only: bool = False,
    confine: bool = False,
    root: str | os.PathLike[str] | None = None,
    bash: bool | None = None,
) -> list[AgentTool]:
    """Return the tools of a coding agent that works in `cwd`: read, write, edit, bash, grep, find, ls.

    `read_only` leaves out those that change something: write, edit, bash. `confine` and `root` keep the file tools inside a directory;
    nothing can keep a shell command there, so bash is then left out unless `bash=True` asks for it. `bash=False` always leaves it out.
    """
    with_bash = bash if bash is not None else not (read_only or confine or root is not None)
    tools = [read_tool(cwd, confine=confine, root=root)]
    if not read_only:
        tools += [write_tool(cwd, confine=confine, root=root), edit_tool(cwd, confine=confine, root=root)]
    if with_bash:
        tools.append(bash_tool(cwd))
    return [*tools, grep_tool(cwd, confine=confine, root=root), find_tool(cwd, confine=confine, root=root), ls_tool(cwd, confine=confine, root=root)]
