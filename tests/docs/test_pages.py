"""What the pages about the command line and about hooks list is all that there is, and as it is."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from laneway.agent import Agent
from laneway.cli import _exit
from laneway.cli._arguments import build
from laneway.events import AgentEvent
from laneway.harness._events import HarnessEvent
from laneway.harness._hooks import HOOK_NAMES
from laneway.llm.catalog import user_models
from laneway.loop import LoopConfig, LoopLimits
from laneway.session import SqliteRepo
from laneway.testing import call, serve_wire, text
from laneway.tools.bash import SESSION_VARIABLES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
CLI = (ROOT / "docs/cli.md").read_text("utf-8")
HOOKS = (ROOT / "docs/hooks.md").read_text("utf-8")
SHORTENED = "…"


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level."""
    level = heading.split()[0]
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{2,{len(level)}}} |\Z)", page, re.M | re.S)
    assert found is not None, heading
    return found[1]


def rows(text: str) -> list[str]:
    """The first cell of each row of the tables in a text."""
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]


# ---------------------------------------------------------------------------------------------------- the command line


def test_every_exit_code_is_explained():
    """The page has a row for each, the README names each."""
    codes = sorted(value for name, value in vars(_exit).items() if name.isupper() and isinstance(value, int))
    assert [int(cell) for cell in rows(section(CLI, "## Exit codes")) if cell.isdecimal()] == codes
    named = re.search(r"^Exit codes: (.*?)\n\n", README, re.M | re.S)
    assert named is not None
    assert all(re.search(rf"\b{code}\b", named[1]) for code in codes)


def test_every_variable_of_our_own_is_explained():
    """Those that laneway reads; not those that the bash tool keeps from commands and nobody reads."""
    read = {
        name
        for source in (ROOT / "src/laneway").rglob("*.py")
        if "testing" not in source.parts
        for name in re.findall(r"\bLANEWAY_[A-Z_]+[A-Z]\b", source.read_text("utf-8"))
    }
    unread = set(SESSION_VARIABLES) - {"LANEWAY_MODEL"}
    assert sorted(name for name in read - unread if f"`{name}`" not in section(CLI, "## Environment variables")) == []


def test_every_action_on_sessions_is_explained():
    """As the parser has them."""
    sessions = next(action for action in build()[1]["sessions"]._actions if action.dest == "verb")  # pyright: ignore[reportPrivateUsage] - argparse has no other way
    assert {f"sessions {verb}" for verb in sessions.choices or ()} == set(re.findall(r"^\| `(sessions \w+)", section(CLI, "## Sessions"), re.M))


def test_the_settings_and_models_of_the_page_can_be_read(tmp_path: Path):
    """They are TOML, and mean what the text says."""
    setting, own = re.findall(r"^```toml\n(.*?)^```", CLI, re.M | re.S)
    assert tomllib.loads(setting) == {"model": "anthropic/claude-sonnet-5-5:high"}
    path = tmp_path / "models.toml"
    path.write_text(own, "utf-8")
    (model,) = user_models(path).models
    assert (model.spec, model.context_window, model.max_tokens) == ("ollama/qwen3", 40960, 8192)


async def test_the_queries_of_the_page_find_what_it_says(tmp_path: Path):
    """Each operator, on a session with a few entries."""
    queries = [cell.strip("`") for cell in rows(section(CLI, "## Search")) if cell.startswith("`")]
    repo = SqliteRepo(tmp_path)
    async with await repo.create() as session:
        branch = await session.create_branch("main")
        for said in ("a flaky parser", "a parser that is flaky", "flaky tests", "parsley"):
            await branch.append_message(said)
    found = {query: sorted(hit.snippet for hit in await repo.search(query)) for query in queries}
    assert found == {
        "flaky parser": ["a flaky parser", "a parser that is flaky"],
        '"flaky parser"': ["a flaky parser"],
        "flaky -parser": ["flaky tests"],
        "pars*": ["a flaky parser", "a parser that is flaky", "parsley"],
    }


async def test_the_lines_of_json_are_those_of_a_run(tmp_path: Path):
    """The example is what the command prints, line by line: only ids, times, folders and counts may differ, and what is shortened."""
    (tmp_path / "notes.txt").write_text("The launch is on 14 March.\n", "utf-8")
    example = re.search(r"^```jsonl\n(.*?)^```", CLI, re.M | re.S)
    assert example is not None
    async with serve_wire("openai_chat", [call("read", path="notes.txt"), text("On 14 March.")]) as server:
        out = await laneway(tmp_path, server.env, "run", "--json", "--model", "custom/some", "When is the launch?")
    shown, printed = example[1].splitlines(), out.splitlines()
    assert len(shown) == len(printed)
    for ours, real in zip(shown, printed, strict=True):
        json.loads(real)
        assert re.fullmatch(_pattern(ours), real), (ours, real)


def _pattern(line: str) -> str:
    """A line of the page as a pattern."""
    line = re.sub(r'("cwd"|"session"):"[^"]*"', r'\1:"…"', line)
    return re.sub(r"\d+", r"\\d+", re.escape(line)).replace(re.escape(SHORTENED), ".*")


async def laneway(folder: Path, env: dict[str, str], *words: str) -> str:
    """Run the command in a folder of its own and return what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY") and not name.lower().endswith("_proxy")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "laneway", *words, cwd=folder, env={**kept, **env, "LANEWAY_HOME": str(folder / "home")},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err
    return out.decode()


# ---------------------------------------------------------------------------------------------------- hooks and events


def test_every_hook_is_explained():
    """Those of the loop, under the same name in `Agent`, and those of the harness in their order."""
    hooks = {field.name for field in dataclasses.fields(LoopConfig) if "Callable" in str(field.type) or "Poll" in str(field.type)}
    polled = {"get_steering_messages", "get_follow_up_messages", "has_queued_messages", "batch_interrupt"}
    table = {cell.strip("`") for cell in rows(section(HOOKS, "## Hooks of the loop and of Agent")) if cell.startswith("`")}
    assert table == hooks - polled
    assert all(f"`{name}`" in HOOKS for name in polled)
    assert table <= set(Agent.__init__.__annotations__)
    assert [cell.strip("`") for cell in rows(section(HOOKS, "## Hooks of the harness")) if cell.startswith("`")] == [
        name for name in ORDER if name in HOOK_NAMES
    ]


ORDER = [
    "before_drive", "before_run", "before_request", "transform_context", "before_payload", "after_response", "before_tool", "after_tool",
    "before_run_end", "before_compaction", "before_navigation",
]  # fmt: skip


@pytest.mark.parametrize(("heading", "union"), [("## Events of the loop and of Agent", AgentEvent), ("## Events of the harness", HarnessEvent)])
def test_every_event_is_explained(heading: str, union: Any):
    """By its type."""
    text = section(HOOKS, heading)
    assert sorted(kind.type for kind in get_args(union) if not re.search(rf"\b{kind.type}\b", text)) == []


def test_every_limit_is_explained():
    """By its name."""
    assert [name for name in LoopLimits.__struct_fields__ if f"{name}=" not in section(HOOKS, "### Limits")] == []


def test_the_answers_of_the_page_are_those_of_the_hooks():
    """Every class that an answer is made of is one that can be imported from `laneway`."""
    import laneway

    answers = re.findall(r"`([A-Z]\w+)\(", HOOKS)
    assert len(answers) > 15
    assert [name for name in answers if not hasattr(laneway, name) and name != "StreamOptions"] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/README.md", "docs/cli.md", "docs/hooks.md"])
def test_every_link_leads_somewhere(page: str):
    """To a file of the repository, and to a heading in it."""
    source = ROOT / page
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", source.read_text("utf-8")):
        path, _, anchor = link.partition("#")
        target = source.parent / path if path else source
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.M)
            assert anchor in {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}, link
