"""Ctrl-C and its relatives in `laneway run`: the first aborts and settles, the second leaves at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from cli.running import COMMAND, Running, started
from cli.serving import asked, at, calling, saying
from laneway.messages import AssistantMessage, ToolResultMessage
from llm.chat import chunk, fragment, tools
from llm.loopback import Loopback, error_reply, sse_reply

RUN = ("run", "--no-session", "-m", "custom/m", "--json")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 3), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_the_first_signal_in_the_middle_of_an_answer(env: dict[str, str], work: Path, number: signal.Signals, code: int):
    """What had arrived is kept as an aborted message, the connection is closed, later prompts are not asked."""
    never = asyncio.Event()
    async with Loopback([saying("On 14", never)]) as server, started([*RUN, "When?", "Why?"], at(server, env), cwd=work) as running:
        await running.until("On 14")
        running.signal(number)
        done = await running.end()
        await asyncio.wait_for(server.disconnected.wait(), 5)
    done.check(code, "aborted by " + number.name, "1 more prompt was not asked")
    last = done.check_transcript()[-1]
    assert isinstance(last, AssistantMessage)
    assert (last.stop_reason, last.text) == ("aborted", "On 14")
    assert len(server.requests) == 1


async def test_the_first_signal_while_a_tool_runs(env: dict[str, str], work: Path):
    """The command and its children are ended, every call has its result, and nobody asks the model again."""
    script = f"echo $$ > pid; sleep 1000 & echo $! > child; echo begun > {work}/begun; wait"
    async with Loopback([calling("bash", {"command": script})]) as server, started([*RUN, "go"], at(server, env), cwd=work) as running:
        await _file(work / "begun", running)
        running.signal(signal.SIGINT)
        done = await running.end()
    done.check(3, "aborted by SIGINT")
    *_, result = done.check_transcript()
    assert isinstance(result, (ToolResultMessage, AssistantMessage))
    results = [m for m in done.messages if isinstance(m, ToolResultMessage)]
    assert [r.is_error for r in results] == [True]
    assert not _alive(work / "pid")
    assert not _alive(work / "child")
    assert len(server.requests) == 1


async def test_the_first_signal_while_waiting_to_ask_again(env: dict[str, str], work: Path):
    """A Retry-After is a wait that an abort ends."""
    async with Loopback([error_reply(429, "slow down", headers={"retry-after": "50"})]) as server:
        waiting = started([*RUN, "go"], at(server, env), cwd=work)
        async with waiting as running:
            await asyncio.wait_for(server.arrived(), 60)
            running.signal(signal.SIGINT)
            done = await running.end()
    done.check(3, "aborted by SIGINT")
    done.check_transcript()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_the_second_signal_leaves_at_once(env: dict[str, str], work: Path, number: signal.Signals, code: int):
    """Whatever refuses to end: here a listener that is stuck. No traceback, and no child is left."""
    program = (
        "import laneway.cli.render.json_lines as lines, laneway.cli.main as cli, time\n"
        "call = lines.JsonRenderer.__call__\n"
        "def stuck(self, event, signal):\n"
        "    call(self, event, signal)\n"
        "    if event.type == 'tool_execution_update': time.sleep(1000)\n"
        "lines.JsonRenderer.__call__ = stuck\n"
        "cli.run()"
    )
    script = "echo $$ > pid; trap '' TERM; echo begun; sleep 1000; sleep 1000"
    async with Loopback([calling("bash", {"command": script})]) as server:
        stuck = started([*RUN, "go"], at(server, env), cwd=work, command=[COMMAND[0], "-c", program])
        async with stuck as running:
            await running.until('"type":"tool_execution_update"')
            running.signal(number)
            await asyncio.sleep(0.3)
            assert running.process.returncode is None
            running.signal(number)
            done = await running.end()
    done.check(code, "left at once")
    assert not _alive(work / "pid")


async def test_one_press_that_arrives_twice_is_one(env: dict[str, str], work: Path):
    """Wrappers pass Ctrl-C on to a child that has already got it from the terminal; the run still settles."""
    async with Loopback([saying("On 14", asyncio.Event())]) as server, started([*RUN, "go"], at(server, env), cwd=work) as running:
        await running.until("On 14")
        running.signal(signal.SIGINT)
        running.signal(signal.SIGINT)
        done = await running.end()
    done.check(3, "aborted by SIGINT")
    done.check_transcript()


async def test_a_signal_that_was_ignored_stays_ignored(env: dict[str, str], work: Path):
    """As under `nohup`: the terminal goes, the run goes on."""
    release = asyncio.Event()
    async with Loopback([saying("On 14", release, " March.")]) as server:
        command = ["/bin/sh", "-c", f"trap '' HUP; exec {COMMAND[0]} -m laneway run --no-session -m custom/m --json go"]
        async with started([], at(server, env), cwd=work, command=command) as running:
            await running.until("On 14")
            running.signal(signal.SIGHUP)
            release.set()
            done = await running.end()
    done.check(0)
    assert done.events[-1]["reason"] == "stop"


async def test_before_anything_was_asked_it_is_just_an_end(env: dict[str, str], work: Path):
    """Ctrl-C while stdin is still being read: exit code 130, no words."""
    async with Loopback([saying("never")]) as server, started([*RUN, "go"], at(server, env), cwd=work, stdin=-1) as running:
        await running.until("reading the task from stdin")
        running.signal(signal.SIGINT)
        done = await running.end()
    assert done.code == 130
    assert "Traceback" not in done.err
    assert server.requests == []


async def test_what_an_abort_leaves_can_be_gone_on_with(env: dict[str, str], work: Path):
    """Three calls at once, aborted while they run: three results in their order, and the request that was made had none of them."""
    commands = [json.dumps({"command": f"touch begun{n}; sleep 1000"}) for n in range(3)]
    pieces = [fragment(command, index=n, call_id=f"c{n}", name="bash") for n, command in enumerate(commands)]
    answer = sse_reply(tools(*pieces), chunk(finish="tool_calls"), "[DONE]")
    async with Loopback([answer]) as server, started([*RUN, "go"], at(server, env), cwd=work) as running:
        for number in range(3):
            await _file(work / f"begun{number}", running)
        running.signal(signal.SIGINT)
        done = await running.end()
    done.check(3, "aborted")
    messages = done.check_transcript()
    assert [m.tool_call_id for m in messages if isinstance(m, ToolResultMessage)] == ["c0", "c1", "c2"]
    assert len(asked(server, 0)) == 1


async def _file(path: Path, running: Running) -> None:
    """Return when the file exists."""
    async with asyncio.timeout(60):
        while not path.exists():
            assert running.process.returncode is None
            await asyncio.sleep(0.02)


def _alive(pid_file: Path) -> bool:
    """Whether the process whose id is in the file runs (a corpse that waits to be collected does not)."""
    pid = int(pid_file.read_text())
    with suppress(OSError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
