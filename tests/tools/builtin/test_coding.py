"""The built-in tools as a set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from laneway.tools import coding_tools


def names(**options: Any) -> list[str]:
    """Return the names of the tools of a set."""
    return [tool.name for tool in coding_tools(".", **options)]


def test_there_are_seven():
    """In the order that a model should think of them."""
    assert names() == ["read", "write", "edit", "bash", "grep", "find", "ls"]


def test_a_set_can_be_made_harmless():
    """Reading only, or confined, where a shell could do anything and is left out unless it is asked for."""
    assert names(read_only=True) == ["read", "grep", "find", "ls"]
    assert names(confine=True) == ["read", "write", "edit", "grep", "find", "ls"]
    assert names(root="/tmp") == ["read", "write", "edit", "grep", "find", "ls"]
    assert names(confine=True, bash=True) == names()
    assert names(bash=False) == names(confine=True)


def test_confinement_reaches_every_file_tool(tmp_path: Path):
    """None is forgotten."""
    for tool in coding_tools(tmp_path, confine=True):
        closures = [cell.cell_contents for cell in getattr(tool.execute, "__closure__", None) or ()]
        (workspace,) = [value for value in closures if type(value).__name__ == "Workspace"]
        assert workspace.root == str(tmp_path.resolve())


@pytest.mark.parametrize("tool", coding_tools("."), ids=lambda tool: tool.name)
def test_each_tool_is_declared_completely(tool: Any):
    """A description, a schema whose parameters all say what they are, a label, a replay policy that was thought about."""
    declaration = tool.declaration
    assert declaration.parameters["type"] == "object"
    assert all(schema["description"] for schema in declaration.parameters["properties"].values())
    assert len(declaration.description) > 40
    assert tool.label
    assert tool.replay == {"edit": "never", "bash": "never"}.get(tool.name, "safe")


def test_the_tools_are_light_to_load():
    """No Pillow, no HTTP, no pydantic."""
    heavy = ["PIL", "pydantic", "httpx2", "jsonschema_rs"]
    code = f"import sys; from laneway.tools import coding_tools; coding_tools('.'); print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
