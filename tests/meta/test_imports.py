"""What is loaded when: nothing that is not needed yet, so that a program that uses laneway starts at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "pydantic", "pydantic_core", "httpx2", "httpx", "httpcore2", "jsonschema_rs", "psycopg", "xllamacpp", "sqlite3", "rich", "prompt_toolkit",
    "typer", "cyclopts", "openai", "anthropic", "google", "boto3", "yaml", "PIL", "http", "email", "urllib3", "multiprocessing", "unittest",
}  # fmt: skip
PLAIN_AGENT = """
from laneway import Agent, Model, tool

@tool
def add(a: int, b: int = 1) -> str:
    "Add two numbers."
    return str(a + b)

Agent(model=Model(id="m", provider="p", api="a"), tools=[add], system_prompt="Add.")
"""


def loaded_by(program: str) -> set[str]:
    """The names of all modules that a program has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", program + "\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("program", ["import laneway", "from laneway import AgentEvent, ToolResult, UserMessage", PLAIN_AGENT])
def test_nothing_heavy_is_loaded(program: str):
    """No vendor's SDK, no HTTP, no validation library, no command line: importing laneway and building an agent with a tool need none of them."""
    assert {name.partition(".")[0] for name in loaded_by(program)} & HEAVY == set()


def test_the_bare_import_loads_one_module_of_ours():
    """Names come when they are used."""
    assert {name for name in loaded_by("import laneway") if name.startswith("laneway")} == {"laneway"}


def test_an_agent_loads_no_other_layer():
    """Neither the durable harness nor the stores, the sessions or the command line."""
    layers = {name.split(".")[1] for name in loaded_by(PLAIN_AGENT) if name.startswith("laneway.")}
    assert layers & {"harness", "session", "storage", "cli", "serve", "testing"} == set()


@pytest.mark.parametrize(
    "module", ["laneway.cli.commands.run", "laneway.cli.commands.sessions", "laneway.session", "laneway.harness", "laneway.testing"]
)
def test_no_module_loads_an_optional_package_on_import(module: str):
    """What an extra brings is imported by what uses it, when it is used."""
    optional = {"psycopg", "xllamacpp", "rich", "cyclopts", "prompt_toolkit", "PIL", "starlette", "uvicorn", "opentelemetry"}
    assert {name.partition(".")[0] for name in loaded_by(f"import {module}")} & optional == set()
