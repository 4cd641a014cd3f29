"""Export: JSON lines, Markdown, and HTML that is safe to open."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser

import pytest

from laneway.errors import BranchNotFound, EntryNotFound
from laneway.messages import (
    AssistantMessage,
    BashExecutionMessage,
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
from laneway.session import MemoryRepo, Session, export
from laneway.session._markdown import safe_url, to_html

HOSTILE = '<script>alert(1)</script> " onmouseover="x" [a](javascript:alert(1)) ![b](data:text/html,x) <img src=x onerror=alert(1)> &lt;'
VOID = {"meta", "img", "br", "hr"}


class Strict(HTMLParser):
    """Collects tags and attributes, and refuses markup that is not well nested."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, (tag, self._open)

    def handle_data(self, data: str) -> None:
        self.text += data

    def hrefs(self) -> list[str]:
        return [value for _, attrs in self.tags for name, value in attrs.items() if name in ("href", "src") and value]


@pytest.fixture
async def rich() -> Session:
    """A session with one of everything, and a branch that leaves it."""
    session = await MemoryRepo().create(id="rich", cwd="/work")
    main = await session.create_branch("main")
    await main.append_message(SystemMessage(content="be brief", tools_added=[ToolDeclaration(name="read", description="d", parameters={})]))
    asked = await main.append_message("Please *look* at `a < b`\n\n- one\n- two")
    call = ToolCall(id="k", name="read", arguments={"path": "x.py", "note": HOSTILE})
    await main.append_message(
        AssistantMessage(content=[ThinkingContent(thinking="hm"), TextContent(text="Looking."), call], model="m1", stop_reason="tool_use")
    )
    shot = ImageContent(data="aGk=", mime_type="image/png")
    await main.append_message(
        ToolResultMessage(tool_call_id="k", tool_name="read", content=[TextContent(text="```\ncode\n```"), shot], is_error=True)
    )
    await main.append_message(BashExecutionMessage(command="ls", output="file", exit_code=2))
    await main.append_message(CustomMessage(custom_type="note", content="a note"))
    await main.append_custom_entry("hidden", {"x": 1})
    await main.append_branch_summary("went left", from_id=asked)
    await main.append_compaction("all of it", tokens_before=1234)
    await main.append_message(AssistantMessage(content=[], stop_reason="error", error_message="boom"))
    side = await session.create_branch("side", at=asked)
    await side.append_message(AssistantMessage(content=[TextContent(text="another way")]))
    await session.set_name("A <b>name</b>")
    await session.set_label(asked, "start here")
    return session


async def test_json_lines_hold_one_branch_rechained(rich: Session):
    """A header, then the path of the branch; every parent is the line before."""
    header, *entries = [json.loads(line) for line in (await export(rich, "jsonl")).splitlines()]
    assert (header["type"], header["id"], header["name"], header["branch"]) == ("session", "rich", "A <b>name</b>", "main")
    assert len(entries) == 10
    assert [e["parent_id"] for e in entries] == [None, *(e["id"] for e in entries[:-1])]
    assert header["labels"] == {entries[1]["id"]: "start here"}
    assert entries[1]["message"]["role"] == "user"
    assert [e["type"] for e in entries[-4:]] == ["custom", "branch_summary", "compaction", "message"]
    side = (await export(rich, "jsonl", branch="side")).splitlines()
    assert len(side) == 4
    assert "another way" in side[-1]


async def test_a_part_of_a_branch_can_be_exported(rich: Session):
    """Up to an entry; unknown branches and entries are named."""
    second = (await rich.find_entries(order="asc"))[1].id
    assert len((await export(rich, "jsonl", entry_id=second)).splitlines()) == 3
    with pytest.raises(EntryNotFound):
        await export(rich, "html", entry_id="nowhere")
    with pytest.raises(BranchNotFound, match="main, side"):
        await export(rich, "markdown", branch="nowhere")
    with pytest.raises(ValueError, match="pdf"):
        await export(rich, "pdf")  # type: ignore[arg-type] - not a format


async def test_markdown_is_readable_and_cannot_be_broken_out_of(rich: Session):
    """Roles as headings; output in a fence longer than any inside it."""
    text = await export(rich, "markdown")
    assert text.startswith("# A <b>name</b>\n")
    for part in (
        "## User",
        "Please *look*",
        "## Assistant (m1)",
        "**Call** `read`",
        "### Error of `read`",
        "## Compaction",
        "> all of it",
        "*Ended: error, boom*",
    ):
        assert part in text
    assert "````\n```\ncode\n```\n````" in text
    assert "*Label: start here*" in text
    assert "hidden" not in text


async def test_html_is_whole_and_fetches_nothing(rich: Session):
    """One file: no scripts, no addresses but data images, a policy that forbids the rest, light and dark."""
    html = await export(rich, "html")
    page = Strict(html)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "form", "base", "svg"})
    assert page.hrefs() == ["data:image/png;base64,aGk="]
    policy = next(attrs["content"] for tag, attrs in page.tags if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "prefers-color-scheme:dark" in html
    assert "<title>A &lt;b&gt;name&lt;/b&gt;</title>" in html
    for part in (
        "Please look at a < b",
        "Looking.",
        "a note",
        "went left",
        "all of it",
        "boom",
        "start here",
        "another way",
        "Another branch leaves here",
    ):
        assert part in page.text


async def test_hostile_content_stays_text():
    """Whatever is stored, wherever it stands, nothing of it becomes markup or an address that runs something."""
    session = await MemoryRepo().create(cwd=HOSTILE)
    main = await session.create_branch("main")
    root = await main.append_message(UserMessage(content=[TextContent(text=HOSTILE), ImageContent(data='"><script>', mime_type="image/png")]))
    blocks = [TextContent(text=HOSTILE), ThinkingContent(thinking=HOSTILE), ToolCall(id="k", name=HOSTILE, arguments={HOSTILE: [HOSTILE]})]
    await main.append_message(AssistantMessage(content=blocks, model=HOSTILE, stop_reason="error", error_message=HOSTILE))
    svg = ImageContent(data="aGk=", mime_type="image/svg+xml")
    await main.append_message(ToolResultMessage(tool_call_id="k", tool_name=HOSTILE, content=[TextContent(text=HOSTILE), svg]))
    await main.append_message(BashExecutionMessage(command=HOSTILE, output=HOSTILE))
    await main.append_message(CustomMessage(custom_type=HOSTILE, content=HOSTILE))
    await main.append_message(SystemMessage(content=HOSTILE))
    await main.append_compaction(HOSTILE)
    await session.create_branch(HOSTILE, at=root)
    await (await session.branch(HOSTILE)).append_message(HOSTILE)  # type: ignore[union-attr] - it was just made
    await session.set_name(HOSTILE)
    await session.set_label(root, HOSTILE)
    page = Strict(await export(session, "html"))
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "iframe", "svg"})
    assert page.hrefs() == []
    assert {name for _, attrs in page.tags for name in attrs}.isdisjoint({"onmouseover", "onerror", "onclick"})


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:x",
        " javascript:x",
        "java\nscript:x",
        "data:text/html,x",
        "file:///etc/passwd",
        "vbscript:x",
        "//x.y",
        "/x",
        "x",
    ],
)
def test_addresses_of_other_schemes_are_no_links(url: str):
    """Only http, https and mailto can be followed."""
    assert safe_url(url) is None
    assert "href" not in to_html(f"[text]({url}) <{url}>")


def test_markdown_becomes_the_html_that_a_reader_expects():
    """The parts that models write."""
    html = to_html(
        "# T\nA **b** *c* `d<` [e](https://f.g/h?i=1&j=2) ~~k~~\n\n1. x\n2. y\n   - z\n\n> q\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n```py\n<w>\n```"
    )
    Strict(html)
    for part in (
        "<h3>T</h3>", "<strong>b</strong>", "<em>c</em>", "<code>d&lt;</code>", '<a href="https://f.g/h?i=1&amp;j=2"', "<del>k</del>",
        "<ol><li>x</li><li>y",
        "<ul><li>z</li></ul>", "<blockquote><p>q</p></blockquote>", "<th>a</th>", "<td>2</td>",
        "<pre data-language=\"py\"><code>&lt;w&gt;</code></pre>",
    ):  # fmt: skip
        assert part in html
    assert to_html("snake_case_name and 2*3*4") == "<p>snake_case_name and 2*3*4</p>"
    assert len(re.findall("<a ", to_html("see https://a.b/c. And [https://d.e](https://f.g)"))) == 2


async def test_an_empty_session_exports_too():
    """A branch without entries is a page that says so."""
    session = await MemoryRepo().create()
    await session.create_branch("main")
    assert len((await export(session, "jsonl")).splitlines()) == 1
    assert "empty" in await export(session, "html")
    assert session.metadata.id in await export(session, "markdown")


async def test_nothing_that_stands_in_a_line_of_markdown_can_end_it():
    """Issue: a model invents a tool whose name holds a heading; a provider's error has many lines; a label too."""
    async with await MemoryRepo().create(cwd="/a`b\n# c") as session:
        await session.append_message("go\n# on")
        evil = "x`\n# Not a heading\n"
        call = ToolCall(id="1", name=evil, arguments={})
        answer = AssistantMessage(content=[call], model=evil, stop_reason="error", error_message='{\n# "no"\n}')
        await session.set_label(await session.append_message(answer), evil)
        result = ToolResultMessage(tool_call_id="1", tool_name=evil, content=[TextContent(text="r")])
        await session.append_message(result)
        await session.append_message(CustomMessage(custom_type=evil, content="c"))
        text = await export(session, "markdown")
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert [line.split()[:2] for line in headings] == [["#", "go"], ["##", "User"], ["#", "on"], ["##", "Assistant"], ["###", "Result"], ["##", "x`"]]
    assert "**Call** `` x` # Not a heading ``" in text


@pytest.mark.parametrize(
    "text",
    [
        "__a " * 20_000, "~~a " * 20_000, "a|b\n|-" + " " * 20_000 + "|" + " " * 20_000 + "x", '[a](b "' * 3_000, "[a](<" * 6_000,
        "```" + " " * 20_000 + "`",
    ],
)  # fmt: skip
async def test_no_text_takes_long_to_render(text: str):
    """Promise 6: what looks like the beginning of markup again and again costs no more than in proportion to its length."""
    async with asyncio.timeout(10):
        await asyncio.to_thread(to_html, text)
