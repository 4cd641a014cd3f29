"""The public face of laneway.tools."""

from __future__ import annotations

import subprocess
import sys

import pytest

import laneway.tools
from laneway.tools import AgentTool


def test_every_public_name_is_there():
    """Also the built-in tools, which are loaded when they are asked for; anything else is an AttributeError."""
    for name in laneway.tools.__all__:
        assert getattr(laneway.tools, name) is not None
    assert dir(laneway.tools) == sorted(laneway.tools.__all__)
    with pytest.raises(AttributeError, match="no attribute 'rm_tool'"):
        _ = laneway.tools.rm_tool  # pyright: ignore[reportAttributeAccessIssue] - there is none


def test_the_built_in_tools_are_tools_of_their_names(tmp_path: object):
    """`coding_tools` and each factory."""
    assert all(isinstance(a_tool, AgentTool) for a_tool in laneway.tools.coding_tools(str(tmp_path)))
    for name in ("read", "write", "edit", "bash", "grep", "find", "ls"):
        assert getattr(laneway.tools, f"{name}_tool")(str(tmp_path)).name == name


def test_importing_the_tools_loads_nothing_heavy():
    """Neither the built-in tools nor pydantic, the validator, or an HTTP client."""
    program = (
        "import sys, laneway.tools\n"
        "print([n for n in ('pydantic', 'jsonschema_rs', 'httpx2', 'laneway.tools.bash', 'laneway.tools._validate') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
