"""The whole command line against a real model: llama.cpp serving the bundled file over HTTP, in a process of its own.

The model is tiny and slow, so every test asks for as little as shows the point; sampling is fixed, so the same is said each time.
"""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.running import run, started
from laneway.llm._local.files import find_model_file
from laneway.llm._local.process import LocalServer, ensure_server, stop_servers
from laneway.llm.vendors.local import guidance
from laneway.messages import AssistantMessage, ToolResultMessage, UserMessage

GUARD = 240.0
"""Seconds after which a test that hangs is ended; a test takes a few."""
RUN = ("run", "-m", "lab/smollm2", "--json")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """The model's server, once for all tests."""
    yield ensure_server(find_model_file("smollm2"))
    stop_servers()


@pytest.fixture
def lab(env: dict[str, str], server: LocalServer) -> dict[str, str]:
    """The environment of somebody who has that server in their models.toml, guided as the embedded model is."""
    home = Path(env["LANEWAY_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    compat = guidance(server.parameters, server.calls_tools)
    sampling = ", ".join(f"{name} = {json.dumps(value)}" for name, value in compat["guided_sampling"].items())
    told = ", ".join(f"{name} = {json.dumps(value)}" for name, value in compat.items() if name != "guided_sampling")
    home.joinpath("models.toml").write_text(
        f'[[provider]]\nid = "lab"\nbase_url = "{server.url}/v1"\nkey_env = "LAB_KEY"\ncompat = {{ {told}, guided_sampling = {{ {sampling} }} }}\n'
        f'[[model]]\nid = "smollm2"\nprovider = "lab"\ncontext_window = {server.context}\nmax_tokens = 512\n'
    )
    return {**env, "LAB_KEY": server.key}


async def test_a_real_model_reads_a_real_file(lab: dict[str, str], work: Path):
    """Asked about a file it must call a tool first; the call is run, the result goes back, and it answers from it."""
    done = await run([*RUN, "--read-only", "--max-tokens", "32", "What does notes.txt say?"], lab, cwd=work, guard=GUARD)
    assert done.code in (0, 1), done.err  # 1 where the answer wanted to be longer
    prompt, calling, result, answer = done.check_transcript()
    assert isinstance(prompt, UserMessage)
    assert isinstance(calling, AssistantMessage)
    assert [(call.name, call.arguments["path"]) for call in calling.tool_calls] == [("read", "notes.txt")]
    assert calling.stop_reason == "tool_use"
    assert isinstance(result, ToolResultMessage)
    assert not result.is_error
    assert isinstance(answer, AssistantMessage)
    assert "14 March" in answer.text
    assert answer.usage.output > 0


async def test_a_response_that_reaches_its_limit(lab: dict[str, str], work: Path):
    """What there is of it is printed, the person reads that it is incomplete, exit code 1."""
    done = await run(["run", "-m", "lab/smollm2", "-t", "none", "--max-tokens", "3", "Tell me about the sea."], lab, cwd=work, guard=GUARD)
    done.check(1, "incomplete", "output limit")
    assert 0 < len(done.out.split()) <= 4


async def test_an_abort_in_the_middle_of_a_response(lab: dict[str, str], work: Path):
    """What had been said is kept, the run settles, and the server is free for the next one at once."""
    words = [*RUN, "-t", "none", "--max-tokens", "400", "Write a long story about the sea."]
    async with asyncio.timeout(GUARD), started(words, lab, cwd=work) as running:
        await running.until('"type":"text_delta"')
        running.signal(signal.SIGINT)
        done = await running.end()
    done.check(3, "aborted by SIGINT")
    last = done.check_transcript()[-1]
    assert isinstance(last, AssistantMessage)
    assert last.stop_reason == "aborted"
    assert last.text
    again = await run([*RUN, "-t", "none", "--max-tokens", "1", "Hello"], lab, cwd=work, guard=GUARD)
    assert again.messages[-1].text  # type: ignore[union-attr]


async def test_with_no_key_the_embedded_model_is_used(env: dict[str, str], work: Path):
    """One line says which model and why; its server ends with the command."""
    mark = uuid.uuid4().hex
    done = await run(["run", "-t", "none", "--max-tokens", "2", "Hello"], {**env, "MARK": mark}, cwd=work, guard=GUARD)
    done.check(1, "no key is set", "local/smollm2", "tiny")
    assert done.out.strip()
    await _nothing_left(mark)


async def test_ctrl_c_while_the_embedded_model_is_loading(env: dict[str, str], work: Path):
    """Loading cannot be interrupted, but nobody waits for it: the run settles, and the half-loaded server goes too."""
    mark = uuid.uuid4().hex
    async with asyncio.timeout(GUARD), started(["run", "-t", "none", "Hello"], {**env, "MARK": mark}, cwd=work) as running:
        await running.until("no key is set")
        while len(_marked(mark)) < 2:
            await asyncio.sleep(0.01)
        running.signal(signal.SIGINT)
        done = await running.end()
    done.check(3, "aborted by SIGINT")
    await _nothing_left(mark)


def _marked(mark: str) -> list[str]:
    """The processes that have the mark in their environment."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:  # it is gone, or not ours
            continue
    return found


async def _nothing_left(mark: str) -> None:
    async with asyncio.timeout(20):
        while _marked(mark):
            await asyncio.sleep(0.05)
