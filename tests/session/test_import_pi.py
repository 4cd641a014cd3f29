"""Import of pi's session files, formats 1 to 3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import SessionExists, SessionImportError
from laneway.messages import (
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ImageContent,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
)
from laneway.session import MemoryRepo, Session, import_pi
from laneway.session._import_pi import CONTEXT_EDIT, HIDDEN_MESSAGE
from laneway.storage.base import CompactionEntry, CustomEntry, MessageEntry

USAGE = {
    "input": 10, "output": 5, "cacheRead": 2, "cacheWrite": 1, "totalTokens": 18,
    "cost": {"input": 0.1, "output": 0.2, "cacheRead": 0.0, "cacheWrite": 0.0, "total": 0.3},
}  # fmt: skip


class PiFile:
    """Writes a session file line by line; each entry hangs on the one before unless it says otherwise."""

    def __init__(self, path: Path, version: int | None = 3) -> None:
        self.path = path
        header: dict[str, Any] = {"type": "session", "id": "pi-1", "timestamp": "2026-01-02T03:04:05.000Z", "cwd": "/work"}
        self.lines: list[str] = [json.dumps(header | ({} if version is None else {"version": version}))]
        self._last: str | None = None

    def add(self, type: str, id: str | None = None, **fields: Any) -> str:
        id = id or f"{len(self.lines):08x}"
        entry = {"type": type, "id": id, "parentId": self._last, "timestamp": f"2026-01-02T03:04:{len(self.lines) % 60:02}.000Z", **fields}
        self.lines.append(json.dumps(entry))
        self._last = id
        return id

    def user(self, text: str, **fields: Any) -> str:
        return self.add("message", message={"role": "user", "content": text, "timestamp": 7}, **fields)

    def assistant(self, *content: dict[str, Any], stop: str = "stop", usage: Any = None, **fields: Any) -> str:
        message = {
            "role": "assistant",
            "content": list(content),
            "api": "anthropic-messages",
            "provider": "anthropic",
            "model": "m",
            "stopReason": stop,
        }
        return self.add("message", message=message | {"usage": usage or USAGE, "timestamp": 8}, **fields)

    async def load(self, repo: MemoryRepo | None = None) -> tuple[Session, Any]:
        self.path.write_text("\n".join(self.lines) + "\n")
        return await import_pi(repo or MemoryRepo(), self.path)


@pytest.fixture
def pi(tmp_path: Path) -> PiFile:
    return PiFile(tmp_path / "s.jsonl")


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


async def context(session: Session) -> list[Any]:
    branch = await session.branch("main")
    assert branch is not None
    return await branch.context()


async def test_every_kind_of_message_becomes_ours(pi: PiFile):
    """Field by field, camelCase to ours, images, thinking and signatures included."""
    pi.add(
        "message",
        message={"role": "system", "content": "be brief", "toolsAdded": [{"name": "t", "description": "d", "parameters": {"type": "object"}}]},
    )
    pi.user("hello")
    pi.assistant(
        {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"}, {"type": "text", "text": "ok", "textSignature": "id1"},
        {"type": "toolCall", "id": "k", "name": "t", "arguments": {"a": 1}, "thoughtSignature": "x"}, stop="toolUse",
    )  # fmt: skip
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    pi.add(
        "message",
        message={"role": "toolResult", "toolCallId": "k", "toolName": "t", "content": [text("out"), image], "details": {"d": 1}, "isError": True},
    )
    pi.add(
        "message",
        message={
            "role": "bashExecution",
            "command": "ls",
            "output": "x",
            "exitCode": 1,
            "cancelled": False,
            "truncated": True,
            "fullOutputPath": "/f",
        },
    )
    pi.add("custom_message", customType="note", content=[text("c")], display=False, details=[1])
    pi.add("branch_summary", fromId="00000002", summary="went left")
    session, report = await pi.load()
    system, hello, answer, result, bash, note, left = await context(session)
    assert isinstance(system, SystemMessage)
    assert (system.content, system.tools_added) == ("be brief", [ToolDeclaration(name="t", description="d", parameters={"type": "object"})])
    assert hello == UserMessage(content="hello", timestamp=7)
    assert isinstance(answer, AssistantMessage)
    assert answer.content == [
        ThinkingContent(thinking="hm", signature="sig"), TextContent(text="ok", signature="id1"),
        ToolCall(id="k", name="t", arguments={"a": 1}, signature="x"),
    ]  # fmt: skip
    assert (answer.stop_reason, answer.provider, answer.api, answer.usage.cost.total) == ("tool_use", "anthropic", "anthropic-messages", 0.3)
    assert isinstance(result, ToolResultMessage)
    assert (result.content, result.details, result.is_error) == (
        [TextContent(text="out"), ImageContent(data="aGk=", mime_type="image/png")],
        {"d": 1},
        True,
    )
    assert isinstance(bash, BashExecutionMessage)
    assert (bash.command, bash.exit_code, bash.truncated, bash.full_output_path) == ("ls", 1, True, "/f")
    assert isinstance(note, CustomMessage)
    assert (note.custom_type, note.content, note.details) == ("note", [TextContent(text="c")], [1])
    assert isinstance(left, BranchSummaryMessage)
    assert (report.entries, report.skipped_lines, report.kept_raw) == (7, 0, 0)


async def test_the_session_keeps_its_id_directory_times_and_name(pi: PiFile):
    """The header becomes metadata; labels and the last name become values; ids are new and sort as the entries did."""
    first = pi.user("a")
    pi.add("label", targetId=first, label="old")
    pi.add("label", targetId=first, label="here")
    pi.add("session_info", name="  the\nname ")
    pi.add("model_change", provider="openai", modelId="gpt")
    pi.add("thinking_level_change", thinkingLevel="high")
    pi.user("b")
    session, _ = await pi.load()
    assert (session.metadata.id, session.metadata.cwd, session.metadata.created_at) == ("pi-1", "/work", 1767323045000)
    imported = session.metadata.metadata["imported_from"]
    assert (imported["model"], imported["thinking_level"], imported["version"]) == ("openai/gpt", "high", 3)
    entries = await session.find_entries(order="asc")
    assert [e.parent_id for e in entries] == [None, entries[0].id]
    assert sorted(e.id for e in entries) == [e.id for e in entries]
    assert entries[0].timestamp == 1767323041000
    assert await session.labels() == {entries[0].id: "here"}
    assert await session.get_name() == "the name"


async def test_what_it_cost_becomes_one_adjustment_row(pi: PiFile):
    """Responses of every branch, tools, summaries and `usage` entries are counted once."""
    pi.user("a")
    pi.assistant(text("x"))
    pi.add("message", message={"role": "toolResult", "toolCallId": "k", "content": [], "usage": USAGE})
    pi.add("usage", kind="cache_warm", provider="p", model="m", usage=USAGE)
    pi.add("compaction", summary="s", firstKeptEntryId=None, tokensBefore=5, usage=USAGE)
    pi.add("branch_summary", fromId="x", summary="s", usage=USAGE)
    session, report = await pi.load()
    from laneway.storage.base import UsageScan

    rows = await session.scan_usage(UsageScan())
    assert [row.adjustment for row in rows] == [True]
    stats = await session.get_stats()
    assert stats.usage.total_tokens == report.usage.total_tokens == 5 * 18
    assert stats.usage.cost.total == pytest.approx(1.5)


async def test_branches_stay_and_the_last_line_is_the_tip(pi: PiFile):
    """The whole tree is imported; the context is the path of the last line."""
    root = pi.user("root")
    pi.user("left")
    pi.user("right", parentId=root)
    session, _ = await pi.load()
    assert [m.content for m in await context(session)] == ["root", "right"]
    assert [node.entry.parent_id is None for node in (await session.tree()).roots] == [True]
    assert len(await session.find_entries()) == 3


async def test_a_compaction_keeps_copies_of_what_it_kept(pi: PiFile):
    """The newest one wins; system messages and older compactions are not part of the tail; a checkpoint goes first."""
    pi.user("a")
    kept = pi.user("b")
    pi.add("compaction", id="c1", summary="one", firstKeptEntryId=kept, tokensBefore=100)
    pi.add("message", message={"role": "system", "content": "sys"})
    pi.user("c")
    pi.add(
        "compaction",
        id="c2",
        summary="two",
        firstKeptEntryId=kept,
        tokensBefore=200,
        systemMessage={"role": "system", "content": "checkpoint"},
        fromHook=True,
    )
    pi.user("d")
    session, _ = await pi.load()
    summary, checkpoint, b, c, d = await context(session)
    assert isinstance(summary, CompactionSummaryMessage)
    assert (summary.summary, summary.tokens_before) == ("two", 200)
    assert isinstance(checkpoint, SystemMessage)
    assert [m.content for m in (b, c, d)] == ["b", "c", "d"]
    compactions = [e for e in await session.find_entries(type="compaction") if isinstance(e, CompactionEntry)]
    assert [e.from_hook for e in compactions] == [True, False]
    assert [m.content for m in compactions[1].retained_tail] == ["b"]  # type: ignore[union-attr] - a user message


async def test_a_compaction_that_keeps_itself_or_nothing_keeps_nothing(pi: PiFile):
    """Its own id, null, or an entry that is not on its path."""
    pi.user("a")
    for kept in ("self", None, "nowhere"):
        pi.add("compaction", id="self" if kept == "self" else None, summary="s", firstKeptEntryId=kept, tokensBefore=1)
    session, _ = await pi.load()
    for entry in await session.find_entries(type="compaction"):
        assert isinstance(entry, CompactionEntry)
        assert entry.retained_tail == []


async def test_context_edits_are_folded_into_what_they_edit(pi: PiFile):
    """The last edit of a target counts: replaced content, or a message out of the context; the original stays readable."""
    u = pi.user("secret")
    a = pi.assistant(text("long"))
    gone = pi.assistant(text("failed attempt"), stop="error")
    pi.add("context_edit", targetId=u, replacement=None)
    pi.add("context_edit", targetId=u, replacement={"content": "public"})
    pi.add("context_edit", targetId=a, replacement={"content": "short"})
    pi.add("context_edit", targetId=gone, replacement=None)
    session, _ = await pi.load()
    first, second = await context(session)
    assert first.content == "public"
    assert second.content == [TextContent(text="short")]
    hidden = await session.find_entries(type="custom", custom_type=HIDDEN_MESSAGE)
    assert len(hidden) == 1
    edits = [e for e in await session.find_entries(type="custom", custom_type=CONTEXT_EDIT) if isinstance(e, CustomEntry)]
    assert [e.data["original"] for e in edits][::-1] == ["secret", "secret", [text("long")], [text("failed attempt")]]


async def test_an_edit_on_another_branch_does_not_reach_the_active_one(pi: PiFile):
    """Edits belong to their branch: navigate before one, and the original is back."""
    root = pi.user("root")
    pi.add("context_edit", targetId=root, replacement={"content": "edited"})
    pi.user("left")
    pi.user("right", parentId=root)
    session, _ = await pi.load()
    assert [m.content for m in await context(session)] == ["root", "right"]


async def test_older_formats_are_brought_up_to_date(tmp_path: Path):
    """Format 1 is a list whose compactions count lines; format 2 calls custom messages hook messages."""
    one = PiFile(tmp_path / "one.jsonl", version=None)
    for line in (
        {"type": "message", "timestamp": "2026-01-01T00:00:00Z", "message": {"role": "user", "content": "a"}},
        {"type": "message", "timestamp": "2026-01-01T00:00:01Z", "message": {"role": "user", "content": "b"}},
        {"type": "compaction", "timestamp": "2026-01-01T00:00:02Z", "summary": "s", "firstKeptEntryIndex": 2, "tokensBefore": 3},
        {"type": "message", "timestamp": "2026-01-01T00:00:03Z", "message": {"role": "user", "content": "c"}},
    ):
        one.lines.append(json.dumps(line))
    session, report = await one.load()
    assert [getattr(m, "summary", None) or m.content for m in await context(session)] == ["s", "b", "c"]
    assert report.reattached == 0
    two = PiFile(tmp_path / "two.jsonl", version=2)
    two.add("message", message={"role": "hookMessage", "customType": "h", "content": "x", "display": True})
    session, _ = await two.load()
    assert [type(m) for m in await context(session)] == [CustomMessage]


async def test_damaged_lines_are_skipped_counted_and_bridged(pi: PiFile):
    """B90: what follows a lost line goes on after the line before it, so the context is never silently cut."""
    for name in ("a", "b", "c", "d"):
        pi.user(name)
    pi.lines[2] = "\0" * 300
    pi.lines[4] = pi.lines[4][:20]
    pi.lines.insert(3, "[1, 2]")
    session, report = await pi.load()
    assert [m.content for m in await context(session)] == ["a", "c"]
    assert (report.skipped_lines, report.reattached) == (3, 1)


async def test_what_is_unknown_is_kept_as_it_was(pi: PiFile):
    """Unknown entries and messages become custom entries with pi's own JSON."""
    pi.user("a")
    pi.add("hologram", payload={"x": 1})
    pi.add("message", message={"role": "martian", "content": "?"})
    pi.add("custom", customType="state", data={"n": 1})
    session, report = await pi.load()
    kinds = [e.custom_type for e in await session.find_entries(type="custom", order="asc") if isinstance(e, CustomEntry)]
    assert kinds == ["pi.hologram", "pi.message", "state"]
    assert report.kept_raw == 2


async def test_a_cycle_or_a_parent_that_comes_later_cannot_hurt(pi: PiFile):
    """A child whose parent stands further down is hung on the line before."""
    pi.add("message", id="x", parentId="y", message={"role": "user", "content": "x"})
    pi.add("message", id="y", parentId="x", message={"role": "user", "content": "y"})
    pi.add("message", id="y", parentId="y", message={"role": "user", "content": "again"})
    session, report = await pi.load()
    assert [m.content for m in await context(session)] == ["x", "y", "again"]
    assert report.reattached == 1


async def test_what_is_no_pi_session_is_refused_and_left_alone(tmp_path: Path):
    """No header, a newer format, an empty file, a binary: a named error, nothing created, the file as it was."""
    repo = MemoryRepo()
    for i, data in enumerate(
        (b"", b"hello\n", b'{"type":"message"}\n', b'{"type":"session","version":4,"id":"x"}\n', b"\x00\xff" * 99, b'{"type":"session"}')
    ):
        path = tmp_path / f"{i}.jsonl"
        path.write_bytes(data)
        with pytest.raises(SessionImportError, match=path.name):
            await import_pi(repo, path)
        assert path.read_bytes() == data
    assert await repo.list() == []


async def test_importing_twice_is_refused(pi: PiFile):
    """The file's id is the session's, so a second import makes no second session, unless another id is given."""
    pi.user("a")
    repo = MemoryRepo()
    await pi.load(repo)
    with pytest.raises(SessionExists):
        await pi.load(repo)
    session, _ = await import_pi(repo, pi.path, id="other")
    assert session.metadata.id == "other"


async def test_an_empty_pi_session_is_an_empty_session(pi: PiFile):
    """A header alone."""
    session, report = await pi.load()
    assert await session.branches() == {}
    assert report.entries == 0


async def test_long_files_are_imported_in_linear_time(pi: PiFile):
    """Thousands of lines with compactions; entries keep their order."""
    kept = pi.user("0")
    for i in range(3000):
        kept = pi.user(str(i)) if i % 100 else pi.add("compaction", summary="s", firstKeptEntryId=kept, tokensBefore=1)
    session, report = await pi.load()
    assert report.entries == 3001
    texts = [e.message.content for e in await session.find_entries(type="message", order="asc") if isinstance(e, MessageEntry)]  # type: ignore[union-attr] - users
    assert texts == ["0", *(str(i) for i in range(3000) if i % 100)]


def entry_line(**fields: Any) -> str:
    """A line of an entry, with what a test puts in it."""
    return json.dumps({"type": "custom", "id": "a", "parentId": None, "timestamp": "2026-01-02T03:04:05Z", "customType": "x", **fields})


@pytest.mark.parametrize(
    "line",
    [
        entry_line(parentId=[]), entry_line(parentId={}), entry_line(parentId=5), entry_line(id=[], type="context_edit", targetId="b"),
        entry_line(timestamp="1960-01-01T00:00:00Z"), entry_line(timestamp=-5), entry_line(customType="a\0b"),
        entry_line(type="message", message={"role": "bashExecution", "command": "x", "exitCode": True}),
    ],
)  # fmt: skip
async def test_a_line_that_pi_would_not_write_stops_no_import(tmp_path: Path, line: str):
    """Issue: ids and parents that are no text, times before 1970, NUL: the line is taken as far as it can be, and so are the others."""
    file = PiFile(tmp_path / "s.jsonl")
    file.lines += [line, entry_line(id="b", data="kept")]
    file.path.write_text("\n".join(file.lines))
    session, report = await import_pi(MemoryRepo(), file.path)
    assert report.skipped_lines == 0
    last = (await session.find_entries(limit=1))[0]
    assert isinstance(last, CustomEntry)
    assert last.data == "kept"


async def test_half_a_surrogate_pair_costs_one_character(tmp_path: Path):
    """B44: pi writes it where it has cut an output; the message stays, and so does what only looks like one."""
    file = PiFile(tmp_path / "s.jsonl")
    text = r"cut \ud83d here, \udc00 there, whole \ud83d\ude00, a path C:\\\\ud83d"
    file.lines.append('{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"' + text.replace("\\\\\\\\", "\\\\") + '"}}')
    file.path.write_text("\n".join(file.lines))
    session, report = await import_pi(MemoryRepo(), file.path)
    assert report.skipped_lines == 0
    entry = (await session.find_entries(type="message"))[0]
    assert isinstance(entry, MessageEntry)
    assert isinstance(entry.message, UserMessage)
    assert entry.message.content == "cut \ufffd here, \ufffd there, whole \U0001f600, a path C:\\ud83d"


async def test_a_line_nested_too_deeply_is_skipped_and_counted(tmp_path: Path):
    """Issue: no store takes it; the rest of the session is not lost for its sake."""
    file = PiFile(tmp_path / "s.jsonl")
    file.lines += ['{"type":"custom","id":"d","parentId":null,"customType":"x","data":' + "[" * 400 + "]" * 400 + "}", entry_line(data="kept")]
    file.path.write_text("\n".join(file.lines))
    session, report = await import_pi(MemoryRepo(), file.path)
    assert report.skipped_lines == 1
    assert len(await session.find_entries()) == 1


async def test_what_no_session_can_hold_is_named_and_leaves_none(tmp_path: Path):
    """Issue: costs that add up to infinity; the import fails as an import, and its id stays free."""
    file = PiFile(tmp_path / "s.jsonl")
    file.lines += [json.dumps({"type": "usage", "id": f"u{i}", "parentId": None, "usage": {"cost": {"total": 1e308}}}) for i in range(2)]
    file.path.write_text("\n".join(file.lines))
    repo = MemoryRepo()
    with pytest.raises(SessionImportError, match="cannot be stored; nothing was imported"):
        await import_pi(repo, file.path)
    assert await repo.list() == []
