"""The bash tool on real commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from laneway.abort import AbortController
from laneway.errors import ToolError
from laneway.messages import ToolResult
from laneway.tools import bash_tool
from laneway.tools.base import set_current_host
from laneway.tools.bash import end_all_commands

Run = Callable[..., Awaitable[Any]]


def marked(marker: str) -> list[int]:
    """Return the processes that have the marker in their environment."""
    found: list[int] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path("/proc", pid, "environ").read_bytes()
            state = Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if marker.encode() in environment and state != b"Z":
            found.append(int(pid))
    return found


async def gone(marker: str) -> bool:
    """Return whether all processes with the marker are gone within two seconds."""
    for _ in range(100):
        if not marked(marker):
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.fixture
def marker(request: pytest.FixtureRequest):
    """A text to find this test's processes by; whatever is left of them in the end is killed."""
    text = f"LANEWAY_TEST_MARKER={os.getpid()}-{request.node.name}"
    yield text
    for pid in marked(text):
        with contextlib.suppress(ProcessLookupError):  # it may end by itself meanwhile
            os.kill(pid, signal.SIGKILL)


def tool_with(cwd: Path, marker: str, **options: Any) -> Any:
    """Return a bash tool whose processes carry the marker."""
    name, _, value = marker.partition("=")
    return bash_tool(cwd, env={name: value}, **options)


def content(path: str) -> str:
    """Return what is in a file."""
    return Path(path).read_text()


# ---------------------------------------------------------------------------------------------------- results


async def test_output_and_errors_come_back_together(tmp_path: Path, call: Run):
    """In the order of writing, from the working directory."""
    result = await call(bash_tool(tmp_path), command="pwd; echo oops >&2; echo end")
    assert result.content[0].text == f"{tmp_path}\noops\nend\n"
    assert result.details["exit_code"] == 0
    assert result.details["reason"] == "exit"
    assert result.details["truncation"] is None


async def test_a_silent_command_says_so(tmp_path: Path, ask: Run):
    """B43: a result is never empty."""
    assert await ask(bash_tool(tmp_path), command="true") == "(no output)"
    assert await ask(bash_tool(tmp_path), command="printf '\\n \\n'") == "(no output)"


async def test_a_failed_command_is_an_error_with_its_output(tmp_path: Path, fails: Run):
    """Output, blank line, exit code; the details are there too."""
    error = await fails(bash_tool(tmp_path), command="echo before; exit 3")
    assert str(error) == "before\n\nCommand exited with code 3"
    assert error.details["exit_code"] == 3
    assert str(await fails(bash_tool(tmp_path), command="exit 4")) == "Command exited with code 4"


async def test_death_by_a_signal_is_128_and_its_number(tmp_path: Path, fails: Run):
    """As shells say it, with the signal's name."""
    assert "Command exited with code 137 (SIGKILL)" in str(await fails(bash_tool(tmp_path), command="kill -9 $$"))


async def test_there_is_no_input(tmp_path: Path, ask: Run):
    """A command that asks gets end-of-file, and has no terminal to ask at."""
    assert await ask(bash_tool(tmp_path), command="cat; read x || echo none; [ -t 0 ] || echo 'no terminal'") == "none\nno terminal\n"


@pytest.mark.parametrize("timeout", [0, -1, 1e12, float("nan"), float("inf"), "soon", True, []])
async def test_a_time_limit_that_is_none_starts_nothing(tmp_path: Path, fails: Run, timeout: Any):
    """Regression 47."""
    error = await fails(bash_tool(tmp_path), command="touch ran", timeout=timeout)
    assert "timeout must be a number of seconds" in str(error)
    assert not (tmp_path / "ran").exists()


async def test_what_cannot_be_started_is_explained(tmp_path: Path, fails: Run):
    """No directory, no shell, a NUL, a command too long for any shell."""
    assert "does not exist" in str(await fails(bash_tool(tmp_path / "gone"), command="true"))
    assert "could not be started: no such file" in str(await fails(bash_tool(tmp_path, shell="/no/shell"), command="true"))
    assert "NUL" in str(await fails(bash_tool(tmp_path), command="a\0b"))
    assert "is longer than" in str(await fails(bash_tool(tmp_path), command="#" * 140_000))


async def test_a_lone_surrogate_in_a_command_does_not_crash(tmp_path: Path, ask: Run):
    """B44."""
    assert await ask(bash_tool(tmp_path), command="echo 'x\ud83d'") == "x\ufffd\n"


async def test_the_environment_is_the_programs_own_and_what_was_added(tmp_path: Path, ask: Run, monkeypatch: pytest.MonkeyPatch):
    """Stale session variables are not inherited; new ones can be given for each command."""
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.setenv("DROPPED", "yes")
    monkeypatch.setenv("LANEWAY_SESSION_ID", "stale")
    command = "echo $INHERITED/$DROPPED/$LANEWAY_SESSION_ID/$LANEWAY_MODEL"
    assert await ask(bash_tool(tmp_path, env={"DROPPED": None}), command=command) == "yes///\n"
    models = iter(["one", "two"])
    tool = bash_tool(tmp_path, env=lambda: {"LANEWAY_MODEL": next(models), "DROPPED": None})
    assert [await ask(tool, command=command) for _ in range(2)] == ["yes///one\n", "yes///two\n"]


async def test_another_shell_and_a_line_before_each_command(tmp_path: Path, ask: Run):
    """A shell by path, any words before the command, a prefix."""
    assert await ask(bash_tool(tmp_path, shell="/bin/sh"), command="echo $0") == "/bin/sh\n"
    assert await ask(bash_tool(tmp_path, shell=("env", "A=b", "sh", "-c")), command="echo $A") == "b\n"
    assert await ask(bash_tool(tmp_path, prefix="x=1"), command="echo $x") == "1\n"


# ---------------------------------------------------------------------------------------------------- much output


async def test_a_long_output_shows_its_end_and_where_the_rest_is(tmp_path: Path, call: Run):
    """B105: range, total, size and path; following the path gives everything."""
    result = await call(bash_tool(tmp_path, spill_dir=str(tmp_path)), command="seq 5000")
    text = result.content[0].text
    path = result.details["full_output_path"]
    assert text.startswith("3001\n3002\n")
    assert text.endswith(f"5000\n\n[Showing lines 3001-5000 of 5000 (23.3KB in all). Full output: {path}]")
    assert content(path) == "".join(f"{n}\n" for n in range(1, 5001))


async def test_output_within_the_limits_is_not_cut(tmp_path: Path, ask: Run):
    """B105: 200 lines of 200 characters are 40 KB."""
    assert (await ask(bash_tool(tmp_path), command="for i in $(seq 200); do printf '%0200d\\n' $i; done")).count("\n") == 200


async def test_a_huge_line_is_cut_inside(tmp_path: Path, call: Run):
    """B105, regression 45: five megabytes without a newline."""
    result = await call(bash_tool(tmp_path, spill_dir=str(tmp_path)), command="head -c 5000000 /dev/zero | tr '\\0' x")
    text, _, notice = result.content[0].text.partition("\n\n[")
    assert text == "x" * 51_200
    assert notice.startswith("Showing the last 50.0KB of line 1 (4.8MB); the whole output is 4.8MB. Full output: ")


async def test_a_failure_also_says_where_its_output_is(tmp_path: Path, fails: Run):
    """The notice comes before the exit code."""
    error = await fails(bash_tool(tmp_path, max_lines=1, spill_dir=str(tmp_path)), command="echo a; echo b; exit 1")
    assert str(error).startswith("b\n\n[Showing lines 2-2 of 2 (4B in all). Full output: ")
    assert str(error).endswith("]\n\nCommand exited with code 1")


async def test_a_gigabyte_is_read_in_bounded_memory(tmp_path: Path):
    """B105: 400 MB through a process of its own, whose peak is measured."""
    code = f"""
    import asyncio, resource
    from laneway.tools import bash_tool
    from laneway.abort import AbortController
    tool = bash_tool({str(tmp_path)!r}, spill_dir={str(tmp_path)!r})
    async def go(command):
        return (await tool.execute("1", {{"command": command}}, AbortController().signal, lambda partial: None)).content[0].text
    asyncio.run(go("seq 100000"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = asyncio.run(go("yes | head -c 400000000"))
    assert "of 200000000 (381.5MB in all)" in text, text[-300:]
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(code), stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    assert int(out) < 50_000  # kilobytes


# ---------------------------------------------------------------------------------------------------- progress


async def test_progress_is_reported_as_it_comes_and_not_too_often(tmp_path: Path, call: Run):
    """The first output at once, then at most ten times a second."""
    partials: list[str] = []

    def update(partial: ToolResult) -> None:
        partials.append(partial.content[0].text if partial.content else "")

    begun = time.monotonic()
    await call(bash_tool(tmp_path), update=update, command="for i in $(seq 40); do echo $i; sleep 0.01; done")
    assert partials[0].startswith("1\n")
    assert 2 <= len(partials) <= (time.monotonic() - begun) * 10 + 2


async def test_the_last_progress_comes_without_another_chunk(tmp_path: Path, call: Run):
    """What was held back by the throttle is reported when its time has come, not when something else is printed."""
    partials: list[str] = []
    abort = AbortController()

    def update(partial: ToolResult) -> None:
        partials.append(partial.content[0].text)
        if partials[-1] == "a\nb\n":
            abort.abort()

    async with asyncio.timeout(10):
        with pytest.raises(ToolError, match="aborted"):
            await call(bash_tool(tmp_path), abort=abort, update=update, command="echo a; sleep 0.02; echo b; sleep 30")


async def test_a_listener_that_fails_costs_no_result(tmp_path: Path, ask: Run, caplog: pytest.LogCaptureFixture):
    """Promise 4: its exception stays its own."""

    def update(partial: ToolResult) -> None:
        raise RuntimeError("listener")

    assert await ask(bash_tool(tmp_path), update=update, command="echo a; sleep 0.15; echo b") == "a\nb\n"
    assert "could not be delivered" in caplog.text


async def test_in_the_durable_harness_progress_is_checkpointed(tmp_path: Path, call: Run, monkeypatch: pytest.MonkeyPatch):
    """4.4: the visible tail becomes durable now and then."""
    monkeypatch.setattr("laneway.tools.bash._CHECKPOINT_EVERY", 0.15)
    saved: list[str] = []

    class Host:
        idempotency_key = "k"

        async def update(self, partial: ToolResult, checkpoint: bool) -> None:
            assert checkpoint
            saved.append(partial.content[0].text)

        async def get_memo(self, name: str) -> Any:
            return None

        async def set_memo(self, name: str, value: Any) -> None:
            return None

    set_current_host(Host())
    await call(bash_tool(tmp_path), command="for i in 1 2 3 4 5; do echo $i; sleep 0.1; done")
    assert 1 <= len(saved) <= 4


# ---------------------------------------------------------------------------------------------------- endings


async def test_a_time_limit_ends_the_whole_group(tmp_path: Path, fails: Run, marker: str):
    """B100: background children and pipelines too; what was printed is kept."""
    async with asyncio.timeout(10):
        error = await fails(
            tool_with(tmp_path, marker), command="echo begun; for i in 1 2 3; do sleep 300 & done; sleep 300 | cat | head -1", timeout=0.5
        )
    assert str(error) == "begun\n\nThe command timed out after 0.5 seconds: it was ended with all its processes"
    assert error.details["reason"] == "timeout"
    assert await gone(marker)


async def test_an_abort_lets_the_command_clean_up_and_ends_it(tmp_path: Path, call: Run, marker: str):
    """B102: SIGTERM before SIGKILL, partial output, nothing left."""
    abort = AbortController()
    asyncio.get_running_loop().call_later(0.3, abort.abort)
    async with asyncio.timeout(10):
        with pytest.raises(ToolError, match=r"^working\n\nThe command was aborted after"):
            await call(tool_with(tmp_path, marker, kill_grace=2), abort=abort, command='trap "echo bye > t" TERM; echo working; sleep 300 & wait')
    assert (tmp_path / "t").read_text() == "bye\n"
    assert await gone(marker)


async def test_a_command_that_ignores_the_polite_signal_is_killed(tmp_path: Path, fails: Run, marker: str):
    """After the grace time."""
    async with asyncio.timeout(10):
        await fails(tool_with(tmp_path, marker), command="trap '' TERM; (sleep 300); sleep 300", timeout=0.2)
    assert await gone(marker)


async def test_after_an_abort_the_next_command_of_a_list_never_starts(tmp_path: Path, call: Run):
    """Regression 48."""
    abort = AbortController()
    asyncio.get_running_loop().call_later(0.2, abort.abort)
    with pytest.raises(ToolError):
        await call(bash_tool(tmp_path), abort=abort, command="sleep 300; touch started")
    await asyncio.sleep(0.1)
    assert not (tmp_path / "started").exists()


async def test_an_abort_before_the_start_starts_nothing(tmp_path: Path, call: Run):
    """And says so."""
    abort = AbortController()
    abort.abort()
    with pytest.raises(ToolError, match="aborted before it started"):
        await call(bash_tool(tmp_path), abort=abort, command="touch ran")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("delay", [0, 0.001, 0.005, 0.02, 0.1])
async def test_a_cancelled_call_leaves_nothing_running(tmp_path: Path, call: Run, marker: str, delay: float):
    """Promise 5: cancelled at any moment, the command is ended before the cancellation goes on."""
    task = asyncio.create_task(call(tool_with(tmp_path, marker, spill_dir=str(tmp_path)), command="seq 100000; sleep 300"))
    await asyncio.sleep(delay)
    task.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await gone(marker)
    assert os.listdir(tmp_path) == []


async def test_a_signal_to_its_group_does_not_reach_us(tmp_path: Path, fails: Run):
    """B103: `kill 0` hits the command alone."""
    assert "(SIGTERM)" in str(await fails(bash_tool(tmp_path), command="kill -TERM 0; sleep 5", timeout=5))


@pytest.mark.parametrize("command", ["sleep 60 & echo done", "(while :; do echo tick; sleep 0.05; done) & echo done", "setsid sleep 60 & echo done"])
async def test_a_background_process_that_holds_the_pipe_does_not_hang(tmp_path: Path, call: Run, marker: str, command: str):
    """B101, regression 43: the command's own end counts; survivors are left running, silent, chattering or in a session of their own."""
    async with asyncio.timeout(5):
        result = await call(tool_with(tmp_path, marker), command=command, timeout=30)
    assert result.details["exit_code"] == 0
    assert "done" in result.content[0].text
    if "tick" not in command:
        assert marked(marker)


async def test_survivors_are_named_with_the_command_that_ends_them(tmp_path: Path, ask: Run, call: Run, marker: str):
    """So that the model can stop the server it started."""
    result = await call(tool_with(tmp_path, marker), command="sleep 60 & echo started")
    group = result.details["background_group"]
    text = result.content[0].text
    assert text == f"started\n\n[Processes of this command go on in the background (group {group}); kill -- -{group} ends them]"
    await ask(bash_tool(tmp_path), command=text.split("; ")[1].split(" ends")[0])
    assert await gone(marker)


async def test_late_output_is_kept(tmp_path: Path, ask: Run):
    """Regression 43: a child that writes shortly after the shell's end."""
    assert (await ask(bash_tool(tmp_path), command="(sleep 0.05; echo late) & echo early")).startswith("early\nlate\n")


async def test_a_time_limit_does_not_punish_a_command_that_has_ended(tmp_path: Path, fails: Run, marker: str):
    """Regression 44: while a child still writes, the shell's own exit code counts."""
    async with asyncio.timeout(5):
        error = await fails(tool_with(tmp_path, marker), command="(while :; do echo t; sleep 0.02; done) & exit 3", timeout=0.4)
    assert str(error).endswith("Command exited with code 3")


async def test_many_commands_run_at_once(tmp_path: Path, call: Run):
    """Each has a thread of its own, so sixty sleepers do not stand in line for six workers."""
    tool = bash_tool(tmp_path)
    async with asyncio.timeout(20):
        begun = time.monotonic()
        await asyncio.gather(*(call(tool, command="sleep 1") for _ in range(60)))
        assert time.monotonic() - begun < 10


async def test_the_loop_is_not_blocked_by_a_flood(tmp_path: Path, call: Run):
    """Cleaning and storing happen in the command's thread."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    heart = asyncio.create_task(beat())
    begun = time.monotonic()
    await call(bash_tool(tmp_path, spill_dir=str(tmp_path)), command="yes abcdefghij | head -c 100000000")
    heart.cancel()
    assert beats > (time.monotonic() - begun) * 10


def test_the_interpreters_exit_ends_running_commands(tmp_path: Path, marker: str):
    """Regression 48: no orphans, and the command may clean up."""
    code = f"""
    import asyncio, sys
    from laneway.tools import bash_tool
    from laneway.abort import AbortController
    tool = bash_tool({str(tmp_path)!r})
    async def main():
        command = 'trap "echo bye > t; exit" TERM; sleep 300 & echo up; wait'
        started = asyncio.Event()
        task = asyncio.ensure_future(tool.execute("1", {{"command": command}}, AbortController().signal, lambda partial: started.set()))
        await started.wait()
        sys.exit(7)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    """
    name, _, value = marker.partition("=")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], env={**os.environ, name: value}, capture_output=True, timeout=30
    )
    assert done.returncode == 7
    assert (tmp_path / "t").read_text() == "bye\n"
    assert marked(marker) == []


async def test_a_program_that_dies_of_a_signal_can_end_its_commands_first(tmp_path: Path, fails: Run, marker: str):
    """B102: one call ends all, and each call gets its result."""
    tool = tool_with(tmp_path, marker)
    calls = [asyncio.create_task(fails(tool, command="sleep 300 | cat")) for _ in range(3)]
    async with asyncio.timeout(10):
        while len(marked(marker)) < 6:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(end_all_commands)
        errors = await asyncio.gather(*calls)
    assert all("(SIGTERM)" in str(error) for error in errors)
    assert await gone(marker)


def test_an_interrupted_command_is_not_run_again():
    """Nobody knows what it did."""
    assert bash_tool().replay == "never"
