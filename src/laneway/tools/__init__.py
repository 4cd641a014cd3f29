"""Tools: how a function becomes something that a model can call, and the built-in ones.

The built-in tools are loaded when their factory is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.tools._declare import FunctionTool, tool
from laneway.tools.base import AgentTool, ExecutionMode, Replay, ToolError, ToolResult, ToolRun, UpdateFn, text_result

if TYPE_CHECKING:
    from laneway.tools.bash import bash_tool
    from laneway.tools.coding import coding_tools
    from laneway.tools.edit import edit_tool
    from laneway.tools.find import find_tool
    from laneway.tools.grep import grep_tool
    from laneway.tools.ls import ls_tool
    from laneway.tools.read import read_tool
    from laneway.tools.write import write_tool

__all__ = [
    "AgentTool",
    "ExecutionMode",
    "FunctionTool",
    "Replay",
    "ToolError",
    "ToolResult",
    "ToolRun",
    "UpdateFn",
    "bash_tool",
    "coding_tools",
    "edit_tool",
    "find_tool",
    "grep_tool",
    "ls_tool",
    "read_tool",
    "text_result",
    "tool",
    "write_tool",
]

_BUILT_IN = {
    "bash_tool": "bash",
    "coding_tools": "coding",
    "edit_tool": "edit",
    "find_tool": "find",
    "grep_tool": "grep",
    "ls_tool": "ls",
    "read_tool": "read",
    "write_tool": "write",
}


def __getattr__(name: str) -> Any:
    module = _BUILT_IN.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
