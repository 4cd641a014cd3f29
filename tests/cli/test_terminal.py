"""`laneway` in a real terminal (a pseudo-terminal of its own): streaming, the status line, colours, keys."""

from __future__ import annotations

import asyncio
import unicodedata
from pathlib import Path

import pytest

from cli.running import COMMAND, terminal, without_styles
from cli.serving import at, calling, saying
from laneway.session import SqliteRepo
from llm.loopback import Loopback

RUN = ("run", "--no-session", "-m", "custom/m")


async def test_an_answer_streams_as_it_arrives(env: dict[str, str], work: Path):
    """The first words are on the screen while the rest is still being thought of."""
    more = asyncio.Event()
    async with Loopback([saying("On 14 ", more, "March.")]) as server, terminal([*RUN, "When?"], at(server, env), cwd=work) as screen:
        await screen.until("On 14")
        assert "March" not in screen.screen
        more.set()
        assert await screen.end() == 0
    assert without_styles(screen.screen) == "On 14 March.\n"


async def test_a_status_line_says_what_is_waited_for_and_goes(env: dict[str, str], work: Path):
    """It appears while nothing else does, and the next output is where it was."""
    more = asyncio.Event()
    answers = [calling("bash", {"command": "echo working; until test -e go; do sleep 0.05; done"}), saying(more, "Done.")]
    async with Loopback(answers) as server, terminal([*RUN, "go"], at(server, env), cwd=work, columns=60) as screen:
        await screen.until("bash: working · ")
        (work / "go").touch()
        await screen.until("waiting for the model · ")
        more.set()
        assert await screen.end() == 0
    shown = without_styles(screen.screen).splitlines()
    assert shown[0].startswith("● bash command=echo working")
    assert shown[1:] == ["  └ working", "Done."]
    drawn = [part.split("\r")[0].split("\n")[0] for part in screen.screen.split("\r\x1b[K")[1:]]
    assert max(len(line) for line in drawn if "·" in line) < 60


WIDE = "echo 日本語の文字は二桁です日本語の文字は二桁です; until test -e go; do sleep 0.05; done"


@pytest.mark.parametrize("columns", [5, 30])
@pytest.mark.parametrize("redirect", ["", "> answer"])
async def test_the_status_line_never_wraps(env: dict[str, str], work: Path, columns: int, redirect: str):
    """A line that wraps is not erased and fills the screen: wide characters, a tiny terminal, and a stdout that is none."""
    command = ("/bin/sh", "-c", f'exec "$@" {redirect}', "sh", *COMMAND)
    async with (
        Loopback([calling("bash", {"command": WIDE}), saying("Done.")]) as server,
        terminal([*RUN, "go"], at(server, env), cwd=work, columns=columns, command=command) as screen,
    ):
        await screen.until(" b…" if columns == 5 else "bash: 日本語")
        (work / "go").touch()
        assert await screen.end() == 0
    drawn = [part.split("\r")[0].split("\n")[0] for part in screen.screen.split("\r\x1b[K")[1:]]
    frames = [line for line in drawn if line[:1] in tuple("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")]
    assert frames
    assert all(sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line) < columns for line in frames)


async def test_an_export_cannot_steer_the_terminal(env: dict[str, str], work: Path):
    """What a model or a tool said is shown on a terminal, not obeyed; a file gets it as it is."""
    async with await SqliteRepo(Path(env["LANEWAY_HOME"]) / "sessions").create(id="s") as session:
        await session.append_message("title \x1b]0;owned\x07")
    async with terminal(["sessions", "export", "s"], env, cwd=work) as screen:
        assert await screen.end() == 0
    assert "owned" in screen.screen
    assert "\x1b" not in screen.screen


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
async def test_colours_are_for_those_who_want_them(env: dict[str, str], work: Path, more: dict[str, str], coloured: bool):
    """NO_COLOR and a dumb terminal are respected."""
    async with Loopback([calling("ls", {"path": "nowhere"}), saying("Hm.")]) as server:
        listing = terminal([*RUN, "-t", "ls", "go"], at(server, {**env, **more}), cwd=work)
        async with listing as screen:
            assert await screen.end() == 0
    assert ("\x1b[31m" in screen.screen) is coloured
    assert ("\x1b[1m" in screen.screen) is coloured
    if more.get("TERM"):
        assert "\x1b" not in screen.screen


async def test_a_model_cannot_steer_a_real_terminal_either(env: dict[str, str], work: Path):
    """Every escape on the screen is one of ours, also where an escape sequence is split between two pieces."""
    (work / "nasty").write_bytes(b"\x1b[2Jtool\x1b]52;c;x\x07\n")
    answers = [calling("read", {"path": "nasty"}, text="\x1b[2Jsplit\x1b"), saying("\x1b", "[2J\x1b]0;t\x07", "\x9b2J", "end")]
    async with Loopback(answers) as server, terminal([*RUN, "go"], at(server, {**env, "NO_COLOR": "1"}), cwd=work) as screen:
        assert await screen.end() == 0
    left = screen.screen.replace("\r\x1b[K", "")
    assert not {"\x1b", "\x07", "\x9b"} & set(left), repr(left)


async def test_ctrl_c_typed_at_the_keyboard(env: dict[str, str], work: Path):
    """What was said stays on the screen, one line says that it was aborted, exit code 3."""
    async with Loopback([saying("On 14", asyncio.Event())]) as server, terminal([*RUN, "When?"], at(server, env), cwd=work) as screen:
        await screen.until("On 14")
        screen.press(b"\x03")
        assert await screen.end() == 3
    lines = without_styles(screen.screen).replace("^C", "").splitlines()
    assert lines[0] == "On 14"
    assert [line for line in lines if line.startswith("laneway: ")] == [lines[-1]]
    assert "aborted by SIGINT" in lines[-1]


async def test_the_terminal_is_closed(env: dict[str, str], work: Path):
    """SIGHUP, and an output that nobody can write to any more: the process ends, and the connection with it."""
    async with Loopback([saying("On 14", asyncio.Event())]) as server:
        async with terminal([*RUN, "When?"], at(server, env), cwd=work) as screen:
            await screen.until("On 14")
            screen.hang_up()
            assert await screen.exit_code() == 129
        await asyncio.wait_for(server.disconnected.wait(), 5)
