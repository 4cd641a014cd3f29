"""`laneway run` on every wire: a process of its own, a vendor's model, the key from the environment, a server on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.running import run
from laneway.llm.catalog import load_shard
from laneway.llm.vendors import builtin_providers
from laneway.testing import WireRequest, call, error, serve_wire, text, thinking

KEY = "key-that-nobody-may-see-0123456789"
PROVIDERS = {
    "openai_chat": "custom", "anthropic_messages": "anthropic", "openai_responses": "openai", "azure": "azure", "google_generate": "google",
    "google_vertex": "vertex", "mistral": "mistral", "bedrock_converse": "bedrock",
}  # fmt: skip
each_wire = pytest.mark.parametrize("wire", PROVIDERS)


def spec_of(wire: str) -> str:
    """A model of the wire's vendor, as a person names it."""
    provider = builtin_providers()[PROVIDERS[wire]]
    listed = [model.id for model in load_shard(provider.id) if model.api in ("", wire)]
    return f"{provider.id}/{provider.default_model or next(iter(listed), 'm')}"


def shown(done: Any, home: Path) -> bytes:
    """Everything that a run leaves behind: what it printed, and every file."""
    return b"\n".join([done.out.encode(), done.err.encode(), *(file.read_bytes() for file in home.rglob("*") if file.is_file())])


def key_in(request: WireRequest) -> bool:
    """Whether the key came with a request, in a header and nowhere else."""
    return any(KEY in value for value in request.headers.values()) and KEY not in f"{request.path}{request.query}{request.body}"


@each_wire
async def test_a_task_is_done_with_a_tool(wire: str, env: dict[str, str], work: Path):
    """A busy provider is asked again, the model thinks and reads a file through a call, the answer is printed. The key is sent, and is
    nowhere else: not in the output, not in the session.
    """
    calling = thinking("Hm.") + text("Let me look.") + call("read", path="notes.txt")
    async with serve_wire(wire, [error("busy", 429, retry_after=0.01), calling, text("On 14 March.", delta_size=4)], api_key=KEY) as server:
        words = ["run", "-m", spec_of(wire), "--thinking", "high", "When is the launch?"]
        done = await run(words, {**env, **server.env}, cwd=work)
    assert server.refused == []
    done.check(0)
    assert done.out == "On 14 March.\n"
    assert "● read path=notes.txt" in done.err
    assert "The launch is on 14 March." in str(server.requests[2].body)
    assert all(key_in(request) for request in server.requests)
    assert any((Path(env["LANEWAY_HOME"]) / "sessions").iterdir())
    assert KEY.encode() not in shown(done, Path(env["HOME"]))


@each_wire
async def test_a_wrong_key_is_a_clear_sentence(wire: str, env: dict[str, str], work: Path):
    """Which provider, which status, what to check; no second try, and the key is not in it."""
    async with serve_wire(wire, ["never said"], api_key="the right one") as server:
        wrong = {**server.env, **{name: KEY for name, value in server.env.items() if value == "the right one"}}
        done = await run(["run", "-m", spec_of(wire), "Hello"], {**env, **wrong}, cwd=work)
    status = "403" if wire == "bedrock_converse" else "401"
    done.check(1, "the run failed", PROVIDERS[wire], status, "Check the API key")
    assert (done.out, len(server.requests)) == ("", 1)
    assert KEY.encode() not in shown(done, Path(env["HOME"]))


@each_wire
async def test_a_server_of_ones_own_speaks_any_wire(wire: str, env: dict[str, str], work: Path):
    """`models.toml` names a URL, a wire and the variable that holds the key; any id is a model of it."""
    async with serve_wire(wire, [text("I am yours.")], api_key=KEY) as server:
        settings = Path(env["LANEWAY_HOME"])
        settings.mkdir(exist_ok=True)
        (settings / "models.toml").write_text(f'[[provider]]\nid = "mine"\nbase_url = "{server.url}"\napi = "{wire}"\nkey_env = "MY_KEY"\n')
        done = await run(["run", "-m", "mine/some-model", "Hello"], {**env, "MY_KEY": KEY}, cwd=work)
    assert server.refused == []
    done.check(0)
    assert done.out == "I am yours.\n"
    assert server.requests[0].model == "some-model"
    assert KEY.encode() not in shown(done, Path(env["HOME"]))
