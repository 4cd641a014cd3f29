"""The face of the package: its names, and what importing it does not do."""

from __future__ import annotations

import subprocess
import sys

import pytest

import laneway.llm as llm


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Scenario 149: no wire, no HTTP client, no registry, no vendor, no model list, no SDK."""
    code = """
import sys
import laneway.llm
heavy = ("httpx2", "pydantic", "xllamacpp", "anthropic", "openai", "google.genai", "botocore", "laneway.llm.wire", "laneway.llm.vendors",
         "laneway.llm.catalog", "laneway.llm._registry", "laneway.llm._http", "laneway.llm._guided", "laneway.llm._local", "ssl", "subprocess")
print([name for name in heavy if name in sys.modules and name not in ("ssl", "subprocess")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_finding_a_model_loads_one_list_and_no_wire() -> None:
    """A wire, and the HTTP client with it, is loaded when a model is first asked."""
    code = """
import sys
from laneway.llm import model
from laneway.llm import catalog
assert model("anthropic/claude-sonnet-5-5").api == "anthropic_messages"
assert catalog.load_shard.cache_info().currsize == 1, catalog.load_shard.cache_info()
print([name for name in sys.modules if name.startswith(("httpx2", "laneway.llm.wire", "xllamacpp", "jsonschema_rs"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    """`__all__` is what can be imported, each name once, lazily or not."""
    assert len(set(llm.__all__)) == len(llm.__all__)
    for name in llm.__all__:
        assert getattr(llm, name) is not None
    assert set(llm.__all__) <= set(dir(llm))
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = llm.nothing_of_the_kind
