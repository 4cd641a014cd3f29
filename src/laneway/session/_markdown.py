"""Markdown to HTML that is safe to open: text is escaped first, and only what is made here is markup.

Covers what models write: headings, paragraphs, lists, quotes, fenced and inline code, tables, rules, emphasis and links. Links and
addresses keep only the schemes of `SAFE_SCHEMES`; anything else stays as text. Images in text are shown as links, so
that opening a file asks nobody for anything.
"""

from __future__ import annotations

import re
from html import escape
from urllib.parse import urlsplit

SAFE_SCHEMES = frozenset(("http", "https", "mailto"))

# None of these takes longer than in proportion to its text, whatever the text is: `*+` gives nothing back, and what is looked for
# far ahead has a longest length.
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*+([^`\s]*+)[^`]*+$")
_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_RULE = re.compile(r"^ {0,3}([-*_])(?:\s*\1){2,}\s*$")
_ITEM = re.compile(r"^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$")
_TABLE_RULE = re.compile(r"^\s*+\|?\s*+:?-++:?\s*+(\|\s*+:?-++:?\s*+)*+\|?\s*+$")
_CODE = re.compile(r"(`+)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"!?\[([^\[\]]*)\]\(\s*(&lt;[^\s]{0,1000}?&gt;|[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)(?:\s+&quot;[^\n]{0,300}?&quot;)?\s*\)")
_BARE = re.compile(r"(?<![\w/&;])(https?://[^\s<>\"'`*]+[^\s<>\"'`*.,:;!?)\]}&])")
_STRONG = re.compile(r"(\*\*|__)(?=\S)(.{1,1000}?)(?<=\S)\1", re.DOTALL)
_EMPHASIS = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*]+?)(?<=[^\s*])\*(?![\w*])|(?<!\w)_(?=[^\s_])([^_]+?)(?<=[^\s_])_(?!\w)", re.DOTALL)
_STRIKE = re.compile(r"~~(?=\S)(.{1,1000}?)(?<=\S)~~", re.DOTALL)
_KEPT = re.compile("\x02(\\d+)\x03")


def to_html(text: str) -> str:
    """Return the text as HTML blocks."""
    return _blocks(text.replace("\x02", "").replace("\x03", "").splitlines(), depth=0)


def safe_url(url: str) -> str | None:
    """Return the address if a person may follow it, else None (scripts, data and local files are not offered)."""
    cleaned = "".join(ch for ch in url.strip() if ch > " " and ch != "\x7f")
    try:
        scheme = urlsplit(cleaned).scheme.lower()
    except ValueError:
        return None
    return cleaned if scheme in SAFE_SCHEMES else None


def _blocks(lines: list[str], *, depth: int) -> str:
    out: list[str] = []
    i = 0
    while i < len(lines):
        line = lines[i]
        if not line.strip():
            i += 1
        elif match := _FENCE.match(line):
            html, i = _fenced(lines, i, match[1], match[2])
            out.append(html)
        elif match := _HEADING.match(line):
            level = min(len(match[1]) + 2, 6)
            out.append(f"<h{level}>{_inline(match[2])}</h{level}>")
            i += 1
        elif _RULE.match(line):
            out.append("<hr>")
            i += 1
        elif line.lstrip().startswith(">") and depth < 8:
            html, i = _quote(lines, i, depth)
            out.append(html)
        elif _ITEM.match(line) and depth < 8:
            html, i = _list(lines, i, depth)
            out.append(html)
        elif "|" in line and i + 1 < len(lines) and "|" in lines[i + 1] and _TABLE_RULE.match(lines[i + 1]):
            html, i = _table(lines, i)
            out.append(html)
        else:
            html, i = _paragraph(lines, i)
            out.append(html)
    return "\n".join(out)


def _fenced(lines: list[str], i: int, fence: str, language: str) -> tuple[str, int]:
    end = i + 1
    while end < len(lines) and not (lines[end].strip().startswith(fence) and not lines[end].strip().strip(fence[0])):
        end += 1
    code = escape("\n".join(lines[i + 1 : end]))
    title = f' data-language="{escape(language)}"' if language else ""
    return f"<pre{title}><code>{code}</code></pre>", end + 1


def _quote(lines: list[str], i: int, depth: int) -> tuple[str, int]:
    inner: list[str] = []
    while i < len(lines) and lines[i].lstrip().startswith(">"):
        inner.append(lines[i].lstrip()[1:].removeprefix(" "))
        i += 1
    return f"<blockquote>{_blocks(inner, depth=depth + 1)}</blockquote>", i


def _list(lines: list[str], i: int, depth: int) -> tuple[str, int]:
    """Read one list: its items, each with the lines that are indented under it."""
    first = _ITEM.match(lines[i])
    assert first is not None
    indent, ordered = len(first[1]), first[2][0].isdigit()
    items: list[list[str]] = []
    while i < len(lines):
        match = _ITEM.match(lines[i])
        if match and len(match[1]) <= indent:
            if match[2][0].isdigit() != ordered or len(match[1]) < indent:
                break
            items.append([match[3]])
        elif not lines[i].strip():
            if i + 1 >= len(lines) or not (lines[i + 1].startswith(" " * (indent + 2)) or _ITEM.match(lines[i + 1])):
                break
            items[-1].append("")
        elif lines[i].startswith(" " * (indent + 2)):
            items[-1].append(lines[i][indent + 2 :])
        elif _starts_block(lines[i]):
            break
        else:
            items[-1].append(lines[i].strip())
        i += 1
    tag = "ol" if ordered else "ul"
    start = f' start="{int(first[2][:-1])}"' if ordered and first[2][:-1] != "1" else ""
    return f"<{tag}{start}>{''.join(f'<li>{_item(item, depth)}</li>' for item in items)}</{tag}>", i


def _item(lines: list[str], depth: int) -> str:
    html = _blocks(lines, depth=depth + 1)
    if html.count("<p>") == 1 and html.startswith("<p>"):
        html = html.replace("<p>", "", 1).replace("</p>", "", 1)  # a tight list has no paragraphs
    return html


def _table(lines: list[str], i: int) -> tuple[str, int]:
    head, i = _cells(lines[i]), i + 2
    rows: list[list[str]] = []
    while i < len(lines) and "|" in lines[i]:
        rows.append(_cells(lines[i]))
        i += 1
    body = "".join(f"<tr>{''.join(f'<td>{_inline(cell)}</td>' for cell in row[: len(head)])}</tr>" for row in rows)
    return f"<table><thead><tr>{''.join(f'<th>{_inline(cell)}</th>' for cell in head)}</tr></thead><tbody>{body}</tbody></table>", i


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))]


def _paragraph(lines: list[str], i: int) -> tuple[str, int]:
    start = i
    while i < len(lines) and lines[i].strip() and (i == start or not _starts_block(lines[i])):
        i += 1
    return f"<p>{_inline(chr(10).join(lines[start:i]))}</p>", i


def _starts_block(line: str) -> bool:
    return bool(_FENCE.match(line) or _HEADING.match(line) or _RULE.match(line) or _ITEM.match(line) or line.lstrip().startswith(">"))


def _inline(text: str) -> str:
    """Render emphasis, code and links of one block. What is finished is put aside so that nothing is rendered twice."""
    kept: list[str] = []

    def keep(html: str) -> str:
        kept.append(html)
        return f"\x02{len(kept) - 1}\x03"

    def link(match: re.Match[str]) -> str:
        url = safe_url(_unescape(match[2]).removeprefix("<").removesuffix(">"))
        label = match[1] or match[2]
        if url is None:
            return label
        opening = f'<a href="{escape(url)}" rel="noopener noreferrer nofollow">'
        return keep(f"{opening}{label}</a>") if "://" in label else keep(opening) + label + keep("</a>")

    def bare(match: re.Match[str]) -> str:
        url = safe_url(_unescape(match[1]))
        return match[1] if url is None else keep(f'<a href="{escape(url)}" rel="noopener noreferrer nofollow">{match[1]}</a>')

    text = _CODE.sub(lambda m: keep(f"<code>{escape(m[2].strip() or m[2])}</code>"), text)
    text = escape(text)
    text = _BARE.sub(bare, _LINK.sub(link, text))
    text = _STRONG.sub(r"<strong>\2</strong>", text)
    text = _EMPHASIS.sub(lambda m: f"<em>{m[1] or m[2]}</em>", text)
    text = _STRIKE.sub(r"<del>\1</del>", text).replace("\n", "<br>\n")
    return _KEPT.sub(lambda m: kept[int(m[1])], text)


def _unescape(text: str) -> str:
    return text.replace("&quot;", '"').replace("&#x27;", "'").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
