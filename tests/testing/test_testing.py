"""The public face of laneway.testing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import laneway.testing


def test_importing_the_doubles_needs_no_pytest():
    """They may be used in a script or a demo; only the conformance suite is made of tests."""
    program = "import sys, laneway.testing; laneway.testing.Scripted(); print(*(n in sys.modules for n in ('pytest', 'pydantic', 'httpx2')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False False False"


def test_every_public_name_is_there():
    """Also those that are loaded when they are asked for; anything else is an AttributeError."""
    for name in laneway.testing.__all__:
        assert getattr(laneway.testing, name) is not None
    assert sorted(laneway.testing.__all__) == dir(laneway.testing)
    with pytest.raises(AttributeError, match="no attribute 'Mock'"):
        _ = laneway.testing.Mock  # pyright: ignore[reportAttributeAccessIssue] - there is none
