"""`laneway run` and `laneway resume`: a run that survives its process, told as a person sees it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from cli.running import COMMAND, run, started
from cli.serving import asked, at, calling, saying, text_of
from laneway.cli._exit import CliError
from laneway.cli.commands._model import choose_model
from llm.loopback import Loopback, error_reply

RUN = ["run", "-m", "custom/m"]
SCRIPT = "echo ran >> ran.txt; echo begun; sleep 1000"


async def begun(work: Path) -> None:
    """Wait until the command of `SCRIPT` runs."""
    async with asyncio.timeout(30):
        while not (work / "ran.txt").exists():
            await asyncio.sleep(0.02)


async def left_open(env: dict[str, str], work: Path, number: signal.Signals) -> tuple[int, str]:
    """Run a task until its command is under way, send a signal, and return how the process ended and what it said."""
    replies = [calling("ls", {}), calling("bash", {"command": SCRIPT})]
    async with Loopback(replies) as server, started([*RUN, "do it"], at(server, env), cwd=work) as running:
        await begun(work)
        running.signal(number)
        done = await running.end()
    return done.code, done.err


async def test_a_killed_run_goes_on_without_repeating_what_had_begun(env: dict[str, str], work: Path) -> None:
    """SIGKILL in the middle of a command: the card says what is uncertain, resume tells the model, the command ran once."""
    code, _ = await left_open(env, work, signal.SIGKILL)
    assert code == -signal.SIGKILL
    async with Loopback([saying("It was interrupted.")]) as server:
        looked = await run(["resume"], at(server, env), cwd=work)
        looked.check(75, "laneway resume", "goes on")
        assert "asked          do it" in looked.err
        assert "done           ls" in looked.err
        assert "uncertain      bash" in looked.err
        assert server.requests == []
        resumed = await run(["resume", "--yes"], at(server, env), cwd=work)
    resumed.check(0)
    assert resumed.out == "It was interrupted.\n"
    assert "not run again" in text_of(asked(server)[-1])
    assert (work / "ran.txt").read_text() == "ran\n"


async def test_a_terminated_run_is_left_open(env: dict[str, str], work: Path) -> None:
    """SIGTERM is a controlled crash: the command is ended, the run stays, and how to go on is said."""
    code, said = await left_open(env, work, signal.SIGTERM)
    assert code == 143
    assert "stopped by SIGTERM; the run is open: laneway resume" in said
    async with Loopback([saying("Done.")]) as server:
        (await run(["resume", "-y", "-q"], at(server, env), cwd=work)).check(0)
    assert (work / "ran.txt").read_text() == "ran\n"


async def test_ctrl_c_ends_the_run_for_good(env: dict[str, str], work: Path) -> None:
    """The first Ctrl-C aborts: nothing is left to resume, and the session can go on with another prompt."""
    code, _ = await left_open(env, work, signal.SIGINT)
    assert code == 3
    async with Loopback([saying("Hello again.")]) as server:
        (await run(["resume", "-y"], at(server, env), cwd=work)).check(2, "nothing was left open")
        sessions = await run(["sessions", "list", "--json"], env, cwd=work)
        done = await run([*RUN, "--session", sessions.events[0]["id"], "and now?"], at(server, env), cwd=work)
    done.check(0)
    assert [m["role"] for m in asked(server)][-3:] == ["assistant", "tool", "user"]


async def test_a_session_goes_on_with_its_history(env: dict[str, str], work: Path) -> None:
    """`--session` takes any beginning or end of an id; the JSON header says the whole one."""
    async with Loopback([saying("One."), saying("Two.")]) as server:
        first = await run([*RUN, "--json", "one?"], at(server, env), cwd=work)
        session = first.events[0]["session"]
        second = await run([*RUN, "--session", session[-12:], "two?"], at(server, env), cwd=work)
    second.check(0)
    assert [text_of(m) for m in asked(server)][-3:] == ["one?", "One.", "two?"]


async def test_a_run_that_is_open_takes_no_other_prompt(env: dict[str, str], work: Path) -> None:
    """Exit code 75, and the way to go on."""
    await left_open(env, work, signal.SIGKILL)
    async with Loopback([]) as server:
        listed = await run(["sessions", "list", "--json"], env, cwd=work)
        done = await run([*RUN, "--session", listed.events[0]["id"], "more"], at(server, env), cwd=work)
    done.check(75, "laneway resume", "not over")
    assert server.requests == []


async def test_a_session_of_another_process_is_refused(env: dict[str, str], work: Path) -> None:
    """Exit code 4, and who has it."""
    replies = [calling("ls", {}), calling("bash", {"command": SCRIPT})]
    async with Loopback(replies) as server, started([*RUN, "do it"], at(server, env), cwd=work) as running:
        await begun(work)
        done = await run(["resume", "--yes"], at(server, env), cwd=work)
        done.check(4, str(running.process.pid))


async def test_nothing_is_kept_without_a_session(env: dict[str, str], work: Path) -> None:
    """`--no-session`."""
    async with Loopback([saying("Hi.")]) as server:
        (await run([*RUN, "--no-session", "hi"], at(server, env), cwd=work)).check(0)
    assert (await run(["sessions", "list", "--json"], env, cwd=work)).events == []


@pytest.mark.parametrize("words", [["resume", "nope"], ["run", "-m", "custom/m", "--session", "nope", "go"]])
async def test_an_unknown_session_is_one_sentence(env: dict[str, str], work: Path, words: list[str]) -> None:
    """Nothing is asked of a model."""
    async with Loopback([]) as server:
        done = await run(words, at(server, env), cwd=work)
    assert done.code == 2
    assert len(done.sentences) == 1
    assert "nope" in done.sentences[0]
    assert server.requests == []


async def test_a_session_shows_what_is_not_over(env: dict[str, str], work: Path) -> None:
    """`laneway sessions show` names the open operation, where it stands, and how to go on."""
    await left_open(env, work, signal.SIGKILL)
    listed = await run(["sessions", "list", "--json"], env, cwd=work)
    shown = await run(["sessions", "show", listed.events[0]["id"]], env, cwd=work)
    shown.check(0)
    assert "Open in main:" in shown.out
    assert "at tools; laneway resume" in shown.out


async def test_a_run_of_another_process_does_not_hide_one_that_was_left_open(env: dict[str, str], work: Path) -> None:
    """Two runs in one folder: the older was killed, the newer is under way; resume takes the one that waits for it."""
    await left_open(env, work, signal.SIGKILL)
    (work / "ran.txt").unlink()
    replies = [calling("ls", {}), calling("bash", {"command": SCRIPT})]
    async with Loopback(replies) as server, started([*RUN, "do something else"], at(server, env), cwd=work):
        await begun(work)
        done = await run(["resume"], at(server, env), cwd=work)
    done.check(75, "laneway resume", "goes on")
    assert "asked          do it" in done.err


async def test_a_card_is_shown_where_nobody_can_answer(env: dict[str, str], work: Path) -> None:
    """stdin was closed and stderr takes nothing: the run is left as it is."""
    await left_open(env, work, signal.SIGKILL)
    for redirect in ("<&-", "2>/dev/full"):
        command = ["/bin/sh", "-c", f"exec {COMMAND[0]} -m laneway resume {redirect}"]
        (await run([], env | {"LANEWAY_CUSTOM_BASE_URL": "http://127.0.0.1:9"}, cwd=work, command=command)).check(75)


def shape(events: list[dict[str, Any]]) -> list[str]:
    """The kinds of events in their order, messages with their role, without the pieces of answers."""
    named = {"message_start", "message_end"}
    kinds = [f"{e['type']}:{e['message']['role']}" if e["type"] in named else e["type"] for e in events]
    return [kind for kind in kinds if kind not in ("run", "message_update", "tool_execution_update")]


async def test_events_come_in_the_loops_order(env: dict[str, str], work: Path) -> None:
    """A turn begins before the messages that lead to its request, and once; a durable run tells what `--no-session` tells."""
    answers = [calling("ls", {}), saying("Done."), saying("Again.")]
    async with Loopback([*answers, *answers]) as server:
        durable = await run([*RUN, "--json", "go", "more"], at(server, env), cwd=work)
        plain = await run([*RUN, "--json", "--no-session", "go", "more"], at(server, env), cwd=work)
    durable.check(0)
    assert shape(durable.events)[:4] == ["agent_start", "turn_start", "message_start:user", "message_end:user"]

    def without_system(events: list[dict[str, Any]]) -> list[str]:
        return [kind for kind in shape(events) if not kind.endswith(":system")]

    assert without_system(durable.events) == without_system(plain.events)


async def test_a_resumed_run_tells_whole_turns(env: dict[str, str], work: Path) -> None:
    """What goes on in the middle of a turn begins with `turn_start` too, and turns never overlap."""
    await left_open(env, work, signal.SIGKILL)
    async with Loopback([saying("It was interrupted.")]) as server:
        resumed = await run(["resume", "--yes", "--json"], at(server, env), cwd=work)
    resumed.check(0)
    kinds = shape(resumed.events)
    assert kinds[:2] == ["agent_start", "turn_start"]
    turns = [kind for kind in kinds if kind in ("turn_start", "turn_end")]
    assert turns == ["turn_start", "turn_end"] * 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
async def test_prompts_that_were_not_asked_are_asked_by_resume(env: dict[str, str], work: Path, number: signal.Signals, code: int) -> None:
    """Every prompt of a command line is stored before the first runs; each is a run of its own, asked once, whichever process does it."""
    replies = [saying("A."), calling("bash", {"command": SCRIPT})]
    async with Loopback(replies) as server, started([*RUN, "first", "second", "third"], at(server, env), cwd=work) as running:
        await begun(work)
        running.signal(number)
        done = await running.end()
    assert done.code == code
    if number is signal.SIGTERM:
        done.check(143, "stopped by SIGTERM", "goes on with it", "1 more prompt will be asked by laneway resume")
    async with Loopback([saying("B."), saying("C.")]) as server:
        listed = await run(["sessions", "list", "--json"], env, cwd=work)
        shown = await run(["sessions", "show", listed.events[0]["id"]], env, cwd=work)
        assert "Not asked yet: 1 prompt; laneway resume" in shown.out
        looked = await run(["resume"], at(server, env), cwd=work)
        assert "asked          second" in looked.err
        assert "not asked yet  third" in looked.err
        resumed = await run(["resume", "--yes", "--json"], at(server, env), cwd=work)
        resumed.check(0)
        assert [text_of(m) for m in asked(server) if m["role"] == "user"] == ["first", "second", "third"]
        assert [event["type"] for event in resumed.events].count("agent_start") == 2
        (await run(["resume", "--yes"], at(server, env), cwd=work)).check(2, "nothing was left open")


async def test_a_process_that_ends_between_two_prompts_loses_none(env: dict[str, str], work: Path) -> None:
    """Killed when the first run was over and nothing was open: resume asks the second; another run in the session must wait for that."""
    program = (
        "import os, laneway.cli.render.json_lines as lines, laneway.cli.main as cli\n"
        "call = lines.JsonRenderer.__call__\n"
        "def dies(self, event, signal):\n"
        "    call(self, event, signal)\n"
        "    if event.type == 'agent_end': os.kill(os.getpid(), 9)\n"
        "lines.JsonRenderer.__call__ = dies\n"
        "cli.run()"
    )
    async with Loopback([saying("A."), saying("B.")]) as server:
        killed = await run([*RUN, "--json", "first", "second"], at(server, env), cwd=work, command=[COMMAND[0], "-c", program])
        assert killed.code == -9
        session = killed.events[0]["session"]
        (await run([*RUN, "--session", session, "third"], at(server, env), cwd=work)).check(75, "a prompt that was not asked yet", "laneway resume")
        looked = await run(["resume"], at(server, env), cwd=work)
        looked.check(75, "goes on")
        assert "not asked yet  second" in looked.err
        forked = await run(["sessions", "fork", session, "--tree"], env, cwd=work)
        (await run(["resume", forked.out.strip(), "--yes"], at(server, env), cwd=work)).check(0, "nothing is open")
        resumed = await run(["resume", "-y"], at(server, env), cwd=work)
        assert [text_of(m) for m in asked(server) if m["role"] == "user"] == ["first", "second"]
    assert resumed.out == "B.\n"


async def test_prompts_that_were_given_up_stay_unasked(env: dict[str, str], work: Path) -> None:
    """After a run that failed or was aborted the rest is not asked, which is said, and resume does not ask it either."""
    async with Loopback([error_reply(400, "no")]) as server:
        failed = await run([*RUN, "first", "second"], at(server, env), cwd=work)
        failed.check(1, "1 more prompt was not asked")
        (await run(["resume", "--yes"], at(server, env), cwd=work)).check(2, "nothing was left open")
    replies = [calling("bash", {"command": SCRIPT})]
    async with Loopback(replies) as server, started([*RUN, "first", "second"], at(server, env), cwd=work) as running:
        await begun(work)
        running.signal(signal.SIGINT)
        (await running.end()).check(3, "aborted by SIGINT", "1 more prompt was not asked")
        (await run(["resume", "--yes"], at(server, env), cwd=work)).check(2, "nothing was left open")


async def test_a_session_keeps_its_model_and_its_folder(env: dict[str, str], work: Path, tmp_path: Path) -> None:
    """`--session` goes on with the session's own model and folder, and says nothing of others, whatever the settings and keys would choose."""
    async with Loopback([saying("One."), saying("Two."), saying("Three.")]) as server:
        first = await run([*RUN, "--json", "one?"], at(server, env), cwd=work)
        words = ["run", "--session", first.events[0]["session"], "--json", "two?"]
        second = await run(words, at(server, env), cwd=tmp_path)
        keyed = await run(words, at(server, env) | {"GROQ_API_KEY": "k"}, cwd=tmp_path)
        assert len(server.requests) == 3
    for done in (second, keyed):
        done.check(0)
        assert done.err == ""
        assert (done.events[0]["model"], done.events[0]["cwd"]) == ("custom/m", str(work))


async def test_a_session_whose_model_or_folder_is_gone_says_what_to_do(env: dict[str, str], work: Path, tmp_path: Path) -> None:
    """Both can be named on the command line instead."""
    async with Loopback([saying("One."), saying("Two.")]) as server:
        first = await run([*RUN, "--json", "one?"], at(server, env), cwd=work)
        work.rename(tmp_path / "moved")
        words = ["run", "--session", first.events[0]["session"], "two?"]
        (await run(words, at(server, env), cwd=tmp_path)).check(2, "the session's folder", "--cwd names another")
        (await run([*words, "-C", "moved"], at(server, env), cwd=tmp_path)).check(0)


def test_a_sessions_model_that_is_not_known_here_is_named() -> None:
    """And how to go on without it."""
    with pytest.raises(CliError, match=r"the session's model: .*nope.*; --model chooses another"):
        choose_model(None, kept="nope/x")
