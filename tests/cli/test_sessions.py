"""`laneway sessions …`: what is printed, what is refused, and with which exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from laneway.cli._exit import DONE, FAILED, LOCKED, USAGE, CliError
from laneway.cli.commands import sessions as cli
from laneway.cli.render._terminal import printable
from laneway.cli.render.sessions import ago, short_ids
from laneway.messages import AssistantMessage, TextContent, ToolCall, ToolResultMessage
from laneway.session import JsonlRepo, MemoryRepo, SessionRepo, SqliteRepo


class Out(list[str]):
    """Collects what is printed."""

    def __call__(self, line: str) -> None:
        self.append(line)

    @property
    def text(self) -> str:
        return "\n".join(self)

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self]


@pytest.fixture
def out() -> Out:
    return Out()


@pytest.fixture(params=[SqliteRepo, JsonlRepo])
async def repo(request: pytest.FixtureRequest, tmp_path: Path) -> SessionRepo:
    """Two sessions: one with a call, a label, a name and a second branch; one with a single word."""
    made: SessionRepo = request.param(tmp_path / "sessions")
    async with await made.create(id="aaaa-work", cwd="/work") as session:
        main = await session.create_branch("main")
        asked = await main.append_message("Fix the flaky parser")
        call = ToolCall(id="k", name="bash", arguments={"command": "pytest -q"})
        await main.append_message(AssistantMessage(content=[TextContent(text="Running it."), call], model="m1", stop_reason="tool_use"))
        await main.append_message(ToolResultMessage(tool_call_id="k", tool_name="bash", content=[TextContent(text="1 failed\n" * 30)], is_error=True))
        await main.append_message(AssistantMessage(content=[TextContent(text="Fixed.")], model="m1"))
        side = await session.create_branch("side", at=asked)
        await side.append_message(AssistantMessage(content=[TextContent(text="Another way.")]))
        await session.set_label(asked, "start")
        await session.set_name("parser work")
    async with await made.create(id="aaab-chat", cwd="/home") as session:
        await session.append_message("hello")
    return made


async def test_a_list_shows_ids_ages_counts_and_names(repo: SessionRepo, out: Out):
    """Newest first, shortest ids that tell the sessions apart, the name or the first words."""
    assert await cli.list_sessions(repo, out=out) == DONE
    assert len(out) == 2
    assert re.fullmatch(r"aaab-cha\s+\d+ s ago\s+1\s+\$0\.00\s+“hello”", out[0])
    assert re.fullmatch(r"aaaa-wor\s+\d+ s ago\s+5\s+\$0\.00\s+parser work", out[1])
    filtered = Out()
    await cli.list_sessions(repo, cwd="/work", json=True, out=filtered)
    assert [o["id"] for o in filtered.objects()] == ["aaaa-work"]
    assert filtered.objects()[0]["message_count"] == 5
    nothing = Out()
    assert await cli.list_sessions(MemoryRepo(), out=nothing) == DONE
    assert nothing == ["No sessions yet."]


async def test_a_session_is_shown_as_text(repo: SessionRepo, out: Out):
    """Head, then who said what; long output is cut; labels stand beside."""
    assert await cli.show_session(repo, "aaaa", out=out) == DONE
    assert out[0] == "parser work"
    assert "branch main; others: side" in out
    for part in ("user  [start]", "  Fix the flaky parser", "assistant m1", "  → bash pytest -q", "error of bash", "  … 10 more lines", "  Fixed."):
        assert part in out
    assert "Another way." not in out.text
    side = Out()
    await cli.show_session(repo, "aaaa", branch="side", out=side)
    assert "  Another way." in side
    last = Out()
    await cli.show_session(repo, "aaaa", last=1, json=True, out=last)
    assert [(o["type"], o["message"]["role"]) for o in last.objects()] == [("message", "assistant")]


async def test_a_tree_marks_the_active_path(repo: SessionRepo, out: Out):
    """Forks are indented, tips named, tool results left out unless asked for."""
    assert await cli.show_tree(repo, "aaaa-work", out=out) == DONE
    assert len(out) == 4
    assert re.fullmatch(r"● [0-9a-f]{6,8}  user: Fix the flaky parser \[start\]", out[0])
    assert re.fullmatch(r"● ├─ [0-9a-f]{6,8}  assistant: Running it\.", out[1])
    assert out[2].endswith("Fixed. ← main")
    assert out[3].startswith("○ └─ ")
    assert out[3].endswith("Another way. ← side")
    everything = Out()
    await cli.show_tree(repo, "aaaa-work", everything=True, out=everything)
    assert len(everything) == 5
    rows = Out()
    await cli.show_tree(repo, "aaaa-work", json=True, branch="side", out=rows)
    assert [o["active"] for o in rows.objects()] == [True, False, False, False, True]


async def test_searching_finds_and_says_so(repo: SessionRepo, out: Out):
    """Matches with their session; nothing found exits with 1; a bad query with 2."""
    assert await cli.search_sessions(repo, "flaky", out=out) == DONE
    assert "Fix the flaky parser" in out.text
    assert "parser work" in out.text
    bold = Out()
    await cli.search_sessions(repo, "flaky", color=True, out=bold)
    assert "\x1b[1mflaky\x1b[0m" in bold.text
    rows = Out()
    assert await cli.search_sessions(repo, "hello", json=True, out=rows) == DONE
    assert [(o["session_id"], o["spans"]) for o in rows.objects()] == [("aaab-chat", [[0, 5]])]
    assert await cli.search_sessions(repo, "hello", id="aaaa", out=Out()) == FAILED
    with pytest.raises(CliError, match="quote") as refused:
        await cli.search_sessions(repo, '"open', out=out)
    assert refused.value.code == USAGE


async def test_a_session_is_exported_by_the_files_suffix(repo: SessionRepo, out: Out, tmp_path: Path):
    """HTML, Markdown or JSON lines; an existing file is kept; without a file the text is printed."""
    for name, start in (("a.html", "<!doctype html>"), ("a.md", "# parser work"), ("a.jsonl", '{"type":"session"')):
        assert await cli.export_session(repo, "aaaa", to=tmp_path / name, out=out) == DONE
        assert (tmp_path / name).read_text("utf-8").startswith(start)
    assert out == [str(tmp_path / name) for name in ("a.html", "a.md", "a.jsonl")]
    with pytest.raises(CliError, match="there already"):
        await cli.export_session(repo, "aaaa", to=tmp_path / "a.md", out=out)
    with pytest.raises(CliError, match="format"):
        await cli.export_session(repo, "aaaa", to=tmp_path / "a.pdf", out=out)
    with pytest.raises(CliError) as failed:
        await cli.export_session(repo, "aaaa", to=tmp_path / "no" / "a.md", out=out)
    assert failed.value.code == FAILED
    printed = Out()
    await cli.export_session(repo, "aaaa", branch="side", out=printed)
    assert "Another way." in printed.text


async def test_a_session_is_forked(repo: SessionRepo, out: Out):
    """At the tip, before an entry, or whole; the new id is printed."""
    assert await cli.fork_session(repo, "aaaa", new_id="f1", out=out) == DONE
    assert out == ["f1"]
    rows = Out()
    await cli.show_session(repo, "aaaa", json=True, out=rows)
    await cli.fork_session(repo, "aaaa", entry_id=rows.objects()[1]["id"], before=True, new_id="f2", out=Out())
    shown = Out()
    await cli.show_session(repo, "f2", json=True, out=shown)
    assert len(shown) == 1
    await cli.fork_session(repo, "aaaa", entry_id=rows.objects()[0]["id"][-8:], new_id="f3", out=Out())
    made = Out()
    await cli.fork_session(repo, "aaaa", tree=True, json=True, out=made)
    assert made.objects()[0]["parent_session_id"] == "aaaa-work"
    with pytest.raises(CliError, match="entry") as refused:
        await cli.fork_session(repo, "aaaa", entry_id="nowhere", out=out)
    assert refused.value.code == USAGE
    with pytest.raises(CliError, match="--at does not go with --tree"):
        await cli.fork_session(repo, "aaaa", entry_id=rows.objects()[0]["id"], tree=True, out=out)


async def test_sessions_are_deleted_after_a_question(repo: SessionRepo, out: Out):
    """The question names them; a no deletes nothing; one that is open is refused with 4."""
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    assert await cli.remove_sessions(repo, ["aaaa", "aaab"], confirm=no, out=out) == FAILED
    assert "parser work" in asked[0]
    assert "“hello”" in asked[0]
    assert len(await repo.list()) == 2
    async with await repo.open("aaab-chat"):
        with pytest.raises(CliError) as locked:
            await cli.remove_sessions(repo, ["aaab"], out=out)
        assert locked.value.code == LOCKED
    assert await cli.remove_sessions(repo, ["aaaa", "aaab"], out=out) == DONE
    assert await repo.list() == []


async def test_what_is_not_there_or_ambiguous_is_named(repo: SessionRepo, out: Out):
    """B96: the true cause, a usage error, nothing created."""
    for id, words in (("zzz", "no session"), ("aaa", "2 ids"), ("", "no session"), ("../x", "no session")):
        for call in (cli.show_session, cli.show_tree, cli.export_session, cli.fork_session, cli.repair_session):
            with pytest.raises(CliError, match=words) as refused:
                await call(repo, id, out=out)
            assert refused.value.code == USAGE
    with pytest.raises(CliError, match="main, side"):
        await cli.show_session(repo, "aaaa", branch="nope", out=out)
    assert len(await repo.list()) == 2


async def test_sessions_that_are_open_elsewhere_can_be_looked_at(repo: SessionRepo, out: Out):
    """Nothing here needs the lease but naming, repairing and deleting."""
    other = type(repo)(repo.directory)  # type: ignore[attr-defined, call-arg] - both kinds have a folder
    async with await other.open("aaaa-work") as session:
        await session.append_message("goes on")
        await cli.show_session(repo, "aaaa", out=out)
        assert "  goes on" in out
        await cli.fork_session(repo, "aaaa", new_id="f", out=out)
        with pytest.raises(CliError) as locked:
            await cli.name_session(repo, "aaaa", "x", out=out)
        assert locked.value.code == LOCKED
        assert "wait=" not in str(locked.value)
        assert "read_only=" not in str(locked.value)


async def test_a_name_is_given_and_taken(repo: SessionRepo, out: Out):
    """The list shows it."""
    await cli.name_session(repo, "aaab", "chat", out=out)
    await cli.name_session(repo, "aaaa", None, out=out)
    assert out == ["chat", "The session has no name now."]
    assert {info.id: info.name for info in await repo.list()} == {"aaaa-work": None, "aaab-chat": "chat"}


async def test_a_pi_session_is_imported(repo: SessionRepo, out: Out, tmp_path: Path):
    """The new id, and what was lost on the way."""
    pi = tmp_path / "pi.jsonl"
    message = {"type": "message", "id": "1", "parentId": None, "message": {"role": "user", "content": "from pi"}}
    pi.write_text(json.dumps({"type": "session", "version": 3, "id": "pi-1", "cwd": "/x"}) + "\n" + json.dumps(message) + "\nbroken\n")
    assert await cli.import_session(repo, pi, out=out) == DONE
    assert out[0] == "pi-1"
    assert "1 lines could not be read" in out[1]
    with pytest.raises(CliError) as again:
        await cli.import_session(repo, pi, out=out)
    assert again.value.code == FAILED
    for bad in (tmp_path / "nope.jsonl", tmp_path):
        with pytest.raises(CliError, match="cannot read"):
            await cli.import_session(repo, bad, out=out)


async def test_a_damaged_session_says_why_and_can_be_repaired_or_removed(tmp_path: Path, out: Out):
    """A text session is saved as far as it can be read; the true cause is told everywhere else."""
    repo = JsonlRepo(tmp_path)
    async with await repo.create(id="s") as session:
        for i in range(5):
            await session.append_message(f"m{i}")
    assert await cli.repair_session(repo, "s", out=out) == DONE
    assert out == ["Nothing is wrong."]
    lines = repo.path("s").read_bytes().splitlines(keepends=True)
    repo.path("s").write_bytes(b"".join([*lines[:3], b"xx\n", *lines[4:]]))
    with pytest.raises(CliError, match="line 4") as refused:
        await cli.show_session(repo, "s", out=out)
    assert refused.value.code == FAILED
    saved = Out()
    assert await cli.repair_session(repo, "s", out=saved) == DONE
    assert "line 4" in saved[0]
    assert "kept in" in saved[-1]
    repo.path("s").write_bytes(b"garbage\n" * 20)
    assert await cli.remove_sessions(repo, ["s"], out=out) == DONE


async def test_what_a_session_says_does_nothing_to_the_terminal(tmp_path: Path, out: Out):
    """Escape sequences in names, messages, labels and tool names are shown, not obeyed."""
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\b"
    repo = SqliteRepo(tmp_path)
    async with await repo.create(id="s", cwd=evil) as session:
        root = await session.append_message(f"needle {evil}")
        call = ToolCall(id="k", name=evil, arguments={"a": evil})
        await session.append_message(AssistantMessage(content=[call], model=evil, stop_reason="error", error_message=evil))
        await session.set_name(f"name {evil}")
        await session.set_label(root, evil)
        await session.create_branch(evil)
    await cli.list_sessions(repo, out=out)
    await cli.show_session(repo, "s", out=out)
    await cli.show_tree(repo, "s", out=out)
    await cli.search_sessions(repo, "needle", out=out)
    await cli.name_session(repo, "s", f"other {evil}", out=out)
    await cli.remove_sessions(repo, ["s"], confirm=lambda question: out(question) is None, out=out)
    assert not set(out.text) & {"\x1b", "\x07", "\x9b", "\r", "\b"}


def test_small_things():
    """Ages, beginnings of ids, and text that is safe to show."""
    now = 1_000_000_000.0
    assert [ago(int((now - s) * 1000), now) for s in (0, 5, 600, 7200, 5 * 86400)] == ["0 s ago", "5 s ago", "10 min ago", "2 h ago", "5 d ago"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", ago(0, now))
    assert short_ids(["aaaaaaaaaaaa", "aaaaaaaaaabb", "b", "aaaaaaaaaa"]) == {
        "aaaaaaaaaaaa": "aaaaaaaaaaa",
        "aaaaaaaaaabb": "aaaaaaaaaab",
        "aaaaaaaaaa": "aaaaaaaaaa",
        "b": "b",
    }
    assert printable("a\tb\r\nc\x00\x1b[0m") == "a\tb\nc\ufffd\ufffd[0m"
    assert printable("a\u00a0b 👩\u200d👧") == "a\u00a0b 👩\u200d👧"
