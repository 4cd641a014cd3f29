"""The examples run as they stand; where one needs a model, a scripted one answers."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway.llm import set_default_stream_fn
from laneway.testing import Scripted, call, text

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """A scripted model in place of every real one."""
    script = Scripted([])
    set_default_stream_fn(script.stream_fn)
    yield script
    set_default_stream_fn(None)


def main_of(name: str) -> object:
    return runpy.run_path(str(EXAMPLES / name))["main"]


def test_the_loop(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    """The context that went in is unchanged; the tools were declared by a system message."""
    scripted.add(call("add", a=2, b=40), text("42"))
    asyncio.run(main_of("01_loop.py")())  # type: ignore[operator] - the example's entry
    assert "5 new messages; the context still has 1" in capsys.readouterr().out


def test_the_agent(scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the real file, answers, and answers again."""
    monkeypatch.chdir(EXAMPLES.parent)
    scripted.add(call("read", path="notes.txt"), text("On 14 March."), text("1200 euros."))
    asyncio.run(main_of("02_agent.py")())  # type: ignore[operator] - the example's entry
    out = capsys.readouterr().out
    assert "On 14 March." in out
    assert "1200 euros." in out
    assert "The launch is on 14 March" in scripted.requests[1].messages[-1].text  # type: ignore[union-attr] - a tool result


def test_steering(capsys: pytest.CaptureFixture[str]) -> None:
    """The steered message comes after the first search, the follow-up after the answer."""
    asyncio.run(main_of("03_steering.py")())  # type: ignore[operator] - the example's entry
    lines = [line.split(maxsplit=1)[1].strip() for line in capsys.readouterr().out.splitlines()]
    assert lines.index("I would rather not fly.") == lines.index("three results for hotels") + 1
    assert lines[-2:] == ["And what does it cost?", "It costs 40 euros."]
