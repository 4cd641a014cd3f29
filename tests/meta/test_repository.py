"""The repository itself: its entry points name what exists, and it speaks of the project alone."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = {".py", ".md", ".toml", ".sql", ".json", ".txt", ".yml", ".sh", ""}


@cache
def tracked() -> list[Path]:
    """The files of the repository; without git (an unpacked archive) the source folders."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout:
        return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    return [path for folder in ("src", "tests", "docs", "benchmarks", "examples", "tools") for path in (ROOT / folder).rglob("*") if path.is_file()]


def texts() -> list[tuple[Path, str]]:
    return [(path, path.read_text("utf-8")) for path in tracked() if path.suffix in TEXTS]


def makefile() -> str:
    return (ROOT / "Makefile").read_text()


def test_make_targets_exist():
    """What .PHONY names is defined, has a description, and CI and the documents call only those."""
    text = makefile()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.M).group(1).split())  # type: ignore[union-attr]
    defined = dict(re.findall(r"^([a-z]+):[^=\n]*?(?:## (.*))?$", text, re.M))
    assert phony == set(defined)
    assert all(defined.values())
    for document in (".ci/run", "README.md", "CONTRIBUTING.md"):
        called = set(re.findall(r"^\s*make ([a-z]+)|`make ([a-z]+)`", (ROOT / document).read_text(), re.M))
        assert {first or second for first, second in called} <= phony, document


@pytest.mark.parametrize("document", ["Makefile", ".ci/run"])
def test_what_is_run_exists(document: str):
    """Modules and scripts that the entry points start are there, and so are the folders that they look at."""
    text = (ROOT / document).read_text()
    own = set(re.findall(r"-m (laneway[\w.]*)", text))
    assert [name for name in own if find_spec(name) is None] == []
    paths = set(re.findall(r"\b((?:benchmarks|tests|tools|examples|src)/[\w./]+)", text))
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for folders in re.findall(r"ruff check (.*)", text):
        assert [folder for folder in folders.split() if not (ROOT / folder).is_dir()] == []


def test_extras_that_texts_mention_exist():
    """`pip install 'laneway[…]'` works wherever it is said."""
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {(path, extra) for path, text in texts() if path.is_relative_to(ROOT / "src") or path.suffix == ".md"
              for group in re.findall(r"laneway\[([a-z,]+)\]", text) for extra in group.split(",")}  # fmt: skip
    assert [(str(path.relative_to(ROOT)), extra) for path, extra in wanted if extra not in extras] == []


def test_no_path_of_somebodys_machine():
    """Absolute paths of a home or a workplace say something about a machine, not about laneway."""
    private = re.compile(r"(?<![\w.])/(?:work|root|home/(?!me\b|user\b|ada\b|you\b|x\b|tester\b)\w+|Users/\w+)/[\w.]")
    found = [
        (str(path.relative_to(ROOT)), match.group())
        for path, text in texts()
        if path.name != Path(__file__).name
        for match in [private.search(text)]
        if match
    ]
    assert found == []


def test_links_in_the_documents_lead_somewhere():
    """Relative links of Markdown files name files of the repository."""
    broken: list[tuple[str, str]] = []
    for path, text in texts():
        if path.suffix == ".md":
            targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", re.sub(r"```.*?```", "", text, flags=re.S))
            broken += [(str(path.relative_to(ROOT)), target) for target in targets if not (path.parent / target).exists()]
    assert broken == []


def test_every_test_has_a_docstring():
    """Tests read as sentences."""
    silent: list[str] = []
    for path in tracked():
        if path.match("tests/**/test_*.py") or (path.is_relative_to(ROOT / "tests") and path.name.startswith("test_")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_") and not ast.get_docstring(node):
                    silent.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert silent == []


def test_nothing_is_left_to_do_later():
    """No placeholder and no excuse in the code."""
    later = re.compile(r"#.*\b(?:TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")
    found = [str(path.relative_to(ROOT)) for path, text in texts() if path.is_relative_to(ROOT / "src") and later.search(text)]
    assert found == []


def test_every_exception_to_the_types_has_a_reason():
    """A silenced checker says why beside it (or at the first of several in a row)."""
    bare: list[str] = []
    for path, text in texts():
        if path.is_relative_to(ROOT / "src") and path.suffix == ".py":
            lines = text.splitlines()
            for number, line in enumerate(lines):
                quiet = re.search(r"#\s*(?:type: ignore|pyright: ignore)(?:\[[^\]]*\])?(.*)", line)
                if quiet and not quiet.group(1).strip(" -") and not _explained_above(lines, number):
                    bare.append(f"{path.relative_to(ROOT)}:{number + 1}")
    assert bare == []


def _explained_above(lines: list[str], number: int) -> bool:
    """Whether one of the lines just above silences the checker with a reason."""
    return any(re.search(r"(?:type|pyright): ignore(?:\[[^\]]*\])?\s*-?\s*\w", line) for line in lines[max(0, number - 6) : number])
