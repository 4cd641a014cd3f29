"""Full-text search: what is found, how it keeps up, and that nothing waits for it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from laneway.errors import SearchQueryError, StorageError
from laneway.messages import AssistantMessage, TextContent, ToolResultMessage, UserMessage
from laneway.session import JsonlRepo, SearchIndex, SessionRepo, SqliteRepo
from laneway.session._repo_files import SEARCH_INDEX, FolderRepo
from laneway.session._search import LONGEST_TEXT, to_fts


@pytest.fixture(params=[JsonlRepo, SqliteRepo])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> FolderRepo:
    return request.param(tmp_path / "sessions")


async def write(repo: SessionRepo, id: str, *texts: str, name: str | None = None) -> None:
    async with await repo.create(id=id) as session:
        for text in texts:
            await session.append_message(text)
        if name:
            await session.set_name(name)


async def found(repo: FolderRepo, query: str) -> list[str]:
    return sorted({hit.session_id for hit in await repo.search(query)})


async def test_words_phrases_prefixes_and_exclusions(folder: FolderRepo):
    """Every word must occur; case and accents do not matter."""
    await write(folder, "a", "The flaky parser test fails on Tuesdays")
    await write(folder, "b", "A parser for café menus", "flaky elsewhere")
    assert await found(folder, "PARSER") == ["a", "b"]
    assert await found(folder, "parser flaky") == ["a"]
    assert await found(folder, '"flaky parser"') == ["a"]
    assert await found(folder, "parser -tuesdays") == ["b"]
    assert await found(folder, "Cafe") == ["b"]
    assert await found(folder, "tues*") == ["a"]
    assert await found(folder, "tues") == []
    assert await found(folder, "nothing") == []


async def test_hits_say_where_and_mark_the_words(folder: FolderRepo):
    """Session, entry, role, time, and a piece of text with the places in it; a name's match comes first."""
    async with await folder.create(id="s") as session:
        await session.append_message("x " * 200 + "the needle is here" + " y" * 200)
        answer = await session.append_message(AssistantMessage(content=[TextContent(text="Needle, found.")]))
        await session.append_message(ToolResultMessage(tool_call_id="k", tool_name="t", content=[TextContent(text="no such thing")]))
        await session.set_name("needle work")
    hits = await folder.search("needle")
    assert [h.role for h in hits] == ["name", "assistant", "user"]
    assert hits[0].entry_id is None
    assert {h.session_name for h in hits} == {"needle work"}
    assert hits[1].entry_id == answer
    for hit in hits:
        assert [hit.snippet[start:end].lower() for start, end in hit.spans] == ["needle"]
        assert len(hit.snippet) < 200


async def test_text_without_spaces_is_found_by_its_characters(folder: FolderRepo):
    """Chinese and Japanese words stand inside longer runs."""
    await write(folder, "zh", "这个会话的设计很好 and more")
    await write(folder, "ja", "セッションの検索")
    assert await found(folder, "设计") == ["zh"]
    assert await found(folder, "检索") == []
    assert await found(folder, "検索") == ["ja"]
    hit = (await folder.search("设计"))[0]
    assert [hit.snippet[a:b] for a, b in hit.spans] == ["设计"]
    assert "这个会话的设计很好 and more" in hit.snippet


async def test_the_index_keeps_up_with_what_changes(folder: FolderRepo):
    """New entries, new names, open sessions and deleted ones; what is known is not read again."""
    await write(folder, "s", "first")
    assert await found(folder, "first") == ["s"]
    async with await folder.open("s") as session:
        await session.append_message("second")
        assert await found(folder, "second") == ["s"]
        await session.set_name("titled")
        assert await found(folder, "titled") == ["s"]
        await session.set_name("renamed")
        assert await found(folder, "titled") == []
    assert await folder.index.update(folder) == 0
    await folder.delete("s")
    assert await found(folder, "first") == []


async def test_a_lost_or_damaged_index_is_made_again(folder: FolderRepo):
    """It holds nothing of its own."""
    await write(folder, "s", "text")
    assert await found(folder, "text") == ["s"]
    (folder.directory / SEARCH_INDEX).write_bytes(b"garbage" * 1000)
    assert await found(folder, "text") == ["s"]
    (folder.directory / SEARCH_INDEX).unlink()
    assert await found(folder, "text") == ["s"]


@pytest.mark.parametrize("query", ["", "   ", '"unclosed', "-only -excluded", "()", "***", '""'])
async def test_what_is_no_query_is_refused_with_a_reason(folder: FolderRepo, query: str):
    """The text says what a query looks like."""
    with pytest.raises(SearchQueryError, match="words"):
        await folder.search(query)


@pytest.mark.parametrize("query", ["a OR b", "NEAR(a b)", "body:x", "a AND", "x^2", "a' OR 1=1 --", "c++", "(a", "a*b*", "foo-bar", "\0a", "{a b}"])
async def test_nothing_that_a_person_types_is_an_operator(folder: FolderRepo, query: str):
    """Operators of the index's own language are plain text."""
    await write(folder, "s", "a b c")
    await folder.search(query)
    assert to_fts(query)


async def test_a_repository_of_any_kind_can_be_indexed(repo: SessionRepo, tmp_path: Path):
    """The index only needs a list and a way to read."""
    index = SearchIndex(tmp_path / "index.sqlite")
    async with await repo.create(id="open") as session:
        for i in range(1100):
            await session.app("a").set(str(i % 3), i)
        await session.append_message("needle")
        assert await index.update(repo) == 1
        assert [h.session_id for h in await index.search("needle")] == ["open"]
        assert await index.search("needle", session_id="other") == []
        assert await index.update(repo) == 0


async def test_the_end_of_a_huge_text_is_not_indexed(folder: FolderRepo):
    """A tool's megabytes do not make the index as large as the sessions."""
    await write(folder, "s", "start " + "x" * LONGEST_TEXT + " finish")
    assert await found(folder, "start") == ["s"]
    assert await found(folder, "finish") == []


async def test_an_index_that_cannot_be_written_is_named(tmp_path: Path):
    """The error says which file; sessions do not notice."""
    repo = SqliteRepo(tmp_path / "sessions")
    await write(repo, "s", "text")
    index = SearchIndex(tmp_path / "no" / "such" / "folder.sqlite")
    with pytest.raises(StorageError, match=r"folder\.sqlite"):
        await index.update(repo)
    async with await repo.open("s") as session:
        await session.append_message(UserMessage(content="more"))


async def test_a_damaged_session_does_not_keep_the_others_from_being_found(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """S-24: it is named in the log; what is new in the others is read all the same."""
    repo = SqliteRepo(tmp_path)
    for id in ("a", "b", "c"):
        await write(repo, id, f"a needle in {id}")
    content = repo.path("b").read_bytes()
    assert content.count(b"a needle in b") == 1
    repo.path("b").write_bytes(content.replace(b"a needle in b", b"a noodle in b"))
    assert await found(repo, "needle") == ["a", "c"]
    assert "session b is not searched" in caplog.text


async def test_an_index_without_its_tables_is_made_anew(folder: FolderRepo):
    """It can be thrown away at any time, and so can a part of it."""
    await write(folder, "a", "a needle")
    assert await found(folder, "needle") == ["a"]
    connection = sqlite3.connect(folder.directory / SEARCH_INDEX)
    connection.execute("DROP TABLE sessions")
    connection.close()
    assert await found(folder, "needle") == ["a"]
