"""Every complete Python example of the documents is run, with a scripted model in the place of a real one."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway.llm import AssistantStream, Model, StreamOptions, Transcript, set_default_stream_fn
from laneway.messages import ToolDeclaration, ToolResultMessage
from laneway.testing import Scripted, call, text
from laneway.transcript import current_tools

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SAMPLES = {"string": "x", "integer": 2, "number": 2.0, "boolean": True, "array": [], "object": {}}


def blocks() -> list[Any]:
    """The fenced blocks that begin with an import: whole programs, as a reader would copy them, and the output that follows (or None)."""
    found: list[Any] = []
    for document in DOCUMENTS:
        source = document.read_text("utf-8")
        for match in re.finditer(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", source, re.M | re.S):
            if match.group(1).lstrip().startswith(("from ", "import ")):
                line = source.count("\n", 0, match.start()) + 2
                found.append(pytest.param(*match.groups(), id=f"{document.relative_to(ROOT)}:{line}"))
    return found


class StandIn:
    """A model that calls the example's own tools once, then answers."""

    def __init__(self, own: set[str]) -> None:
        self.own, self.asked, self.called = own, 0, set[str]()

    def __call__(self, model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
        self.asked += 1
        fresh = [tool for tool in current_tools(transcript.messages) if tool.name in self.own - self.called]
        reply = call(fresh[0].name, _arguments(fresh[0])) if fresh and not isinstance(transcript.messages[-1], ToolResultMessage) else text("42")
        self.called |= {tool.name for tool in fresh[:1]}
        return Scripted([reply]).stream_fn(model, transcript, options)


def _arguments(tool: ToolDeclaration) -> dict[str, Any]:
    """Something of the right type for each parameter that must be given."""
    properties: dict[str, Any] = tool.parameters.get("properties") or {}
    return {
        name: (properties[name].get("enum") or [SAMPLES.get(properties[name].get("type"), "x")])[0] for name in tool.parameters.get("required") or ()
    }


def own_tools(program: str) -> set[str]:
    """The names of the functions that an example makes tools of."""
    functions = (node for node in ast.walk(ast.parse(program)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {node.name for node in functions if any("tool" in ast.unparse(decorator) for decorator in node.decorator_list)}


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own to run in, and no settings of anybody."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANEWAY_HOME", str(tmp_path / "home"))
    yield
    set_default_stream_fn(None)


@pytest.mark.usefixtures("somewhere")
@pytest.mark.parametrize(("program", "output"), blocks())
def test_an_example_runs(program: str, output: str | None, capsys: pytest.CaptureFixture[str]):
    """As it stands, from its first line to its last, but for its waits for a person; it prints what the page says that it prints."""
    set_default_stream_fn(StandIn(own_tools(program)))
    namespace: dict[str, Any] = {"__name__": "__example__"}
    impatient = re.sub(r"asyncio\.sleep\(\d+\)", "asyncio.sleep(0.01)", program)
    waiting = eval(compile(impatient, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
    if inspect.iscoroutine(waiting):
        asyncio.run(asyncio.wait_for(waiting, 60))
    if output is not None:
        assert capsys.readouterr().out == output


@pytest.mark.parametrize(("program", "_"), blocks())
def test_what_an_example_defines_it_runs(program: str, _: str | None):
    """A reader who copies it sees something happen: a `main()` that nobody runs does nothing, silently."""
    defined = {node.name for node in ast.parse(program).body if isinstance(node, ast.AsyncFunctionDef) and not node.decorator_list}
    used = {node.id for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Name)}
    assert defined <= used


@pytest.mark.usefixtures("somewhere")
def test_the_first_example_of_the_readme_is_the_hello_agent(capsys: pytest.CaptureFixture[str]):
    """It declares a tool, the model calls it, and the answer is printed."""
    program = blocks()[0].values[0]
    assert program.startswith("from laneway import Agent, tool")
    assert len(program.strip().splitlines()) <= 14
    stand_in = StandIn(own_tools(program))
    set_default_stream_fn(stand_in)
    exec(compile(program, "README.md", "exec"), {"__name__": "__example__"})
    assert capsys.readouterr().out == "42\n"
    assert stand_in.asked == 2
    assert stand_in.called == own_tools(program)
