"""The page about providers says what the data says, and nothing that a person needs is missing from it."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

import pytest

from laneway.llm import vendors
from laneway.llm import wire as wires
from laneway.llm.catalog import user_models
from laneway.llm.vendors import builtin_providers

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "build_provider_docs.py"
PAGE = (ROOT / "docs" / "providers.md").read_text("utf-8")


def load_tool() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("build_provider_docs", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_data_says():
    """A vendor, a variable, a flag or a model that changed: run `python tools/build_provider_docs.py`."""
    assert load_tool().build() == PAGE, "docs/providers.md is stale: run python tools/build_provider_docs.py"


def test_the_page_is_the_same_for_everybody(tmp_path: Path):
    """Nobody's environment, keys, own models or local model are in it."""
    (tmp_path / "models.toml").write_text('[[provider]]\nid = "mine"\nbase_url = "http://127.0.0.1:1"\n')
    model = tmp_path / "mine.gguf"
    model.write_bytes(b"GGUF")
    env = {"LANEWAY_HOME": str(tmp_path), "LANEWAY_LOCAL_MODEL": str(model), "OPENAI_BASE_URL": "http://127.0.0.1:1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, str(TOOL), "--check"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_check_says_when_the_page_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """For a person, and for CI."""
    tool = load_tool()
    tool.PAGE = tmp_path / "providers.md"
    tool.PAGE.write_text("old")
    assert tool.main(["--check"]) == 1
    assert "run python tools/build_provider_docs.py" in capsys.readouterr().err
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0


def test_every_provider_and_wire_has_a_section():
    """And every link inside of the page leads to one."""
    headings = re.findall(r"^#{2,3} (.+)$", PAGE, re.M)
    for provider in builtin_providers().values():
        assert f"{provider.name} (`{provider.id}`)" in headings
    for module in iter_modules(wires.__path__):
        assert not module.ispkg or module.name in headings
    anchors = {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors


def test_every_variable_that_a_vendor_reads_is_there():
    """Also those that only the code of its resolver names."""
    found: set[str] = set()
    for source in Path(vendors.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", node.value):
                found.add(node.value)
    assert len(found) > 40
    assert sorted(name for name in found if not re.search(rf"`{name}[`=]", PAGE)) == []


def test_the_models_toml_of_the_page_is_one(tmp_path: Path):
    """It can be read, and means what the text says."""
    text = re.search(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)
    assert text is not None
    assert tomllib.loads(text[1])
    path = tmp_path / "models.toml"
    path.write_text(text[1])
    own = user_models(path)
    assert [provider.key_env for provider in own.providers] == ["WORK_LLM_KEY"]
    assert [model.spec for model in own.models] == ["work/claude-at-work"]
