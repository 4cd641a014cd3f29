"""The HTML export: one file without scripts, fonts or addresses to fetch; light or dark as the reader's system is."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from laneway.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    CustomMessage,
    ImageContent,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    role_of,
)
from laneway.session._export import Exported, moment, other_branches, pretty, size_of
from laneway.session._markdown import to_html as markdown_to_html
from laneway.session._tree import TreeNode
from laneway.session.entries import one_line, preview_of, text_of_content, text_of_message
from laneway.storage.base import BranchSummaryEntry, CompactionEntry, Entry, MessageEntry

_SHOWN_IMAGES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*={0,2}\s*")
_LONG_OUTPUT = 1200

_STYLE = """
:root{color-scheme:light dark;--bg:#fbfaf8;--card:#fff;--ink:#1f2328;--soft:#656d76;
 --line:#e4e2dd;--user:#eef4fb;--code:#f4f2ee;--accent:#0a5bb5;--bad:#b3261e;--mark:#8a5a00}
@media(prefers-color-scheme:dark){:root{--bg:#15171a;--card:#1c1f23;--ink:#e3e5e8;--soft:#969ea8;
 --line:#30353b;--user:#1d2937;--code:#24282d;--accent:#7cb7ff;--bad:#ff8a80;--mark:#e0b45c}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:52rem;margin:0 auto;padding:2rem 1rem 5rem}
header{border-bottom:1px solid var(--line);margin-bottom:1.5rem;padding-bottom:1rem}
h1{font-size:1.5rem;line-height:1.3;margin:0 0 .5rem;overflow-wrap:anywhere}
.facts{color:var(--soft);font-size:.875rem;display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;margin:0;list-style:none}
article{margin:1.25rem 0;overflow-wrap:anywhere}
.who{display:flex;flex-wrap:wrap;gap:.25rem .75rem;align-items:baseline;font-size:.8125rem;color:var(--soft);margin-bottom:.25rem}
.who b{color:var(--ink);font-size:.875rem}
.who a{color:inherit;text-decoration:none}
.user>.body{background:var(--user);border-radius:.75rem;padding:.75rem 1rem}
.label{color:var(--mark);font-weight:600}
.note{color:var(--soft);font-size:.875rem}
.bad{color:var(--bad)}
.tool,.summary,.system{border:1px solid var(--line);border-radius:.5rem;background:var(--card)}
.tool{margin:.5rem 0}
details>summary{cursor:pointer;padding:.5rem .75rem;font-size:.875rem;color:var(--soft)}
details>summary:hover{color:var(--ink)}
details>.in{padding:0 .75rem .75rem}
.summary>.in{padding:.75rem 1rem}
.thinking{color:var(--soft);border-left:3px solid var(--line);margin:.5rem 0}
.thinking .in{font-size:.9375rem}
.branch{border-left:3px solid var(--mark);padding:.25rem .75rem;margin:1rem 0;font-size:.875rem;color:var(--soft)}
.branch ul{margin:.25rem 0 0;padding-left:1.1rem}
pre{background:var(--code);border-radius:.5rem;padding:.75rem;overflow-x:auto;font-size:.8125rem;line-height:1.5;margin:.5rem 0;white-space:pre-wrap}
code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
:not(pre)>code{background:var(--code);border-radius:.25rem;padding:.1em .35em;font-size:.875em}
.body>:first-child{margin-top:0}.body>:last-child{margin-bottom:0}
a{color:var(--accent)}
blockquote{margin:.5rem 0;padding-left:.9rem;border-left:3px solid var(--line);color:var(--soft)}
table{border-collapse:collapse;display:block;overflow-x:auto}
th,td{border:1px solid var(--line);padding:.3rem .6rem;text-align:left}
img{max-width:100%;border-radius:.5rem;display:block;margin:.5rem 0}
hr{border:0;border-top:1px solid var(--line);margin:1.5rem 0}
h3,h4,h5,h6{line-height:1.3;margin:1.25rem 0 .5rem}
@media print{details:not([open])>.in{display:none}body{background:#fff}}
"""


def to_html(source: Exported) -> str:
    """Return the branch as one HTML document."""
    body = "\n".join(_node(node) for node in source.path)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="referrer" content="no-referrer">
<title>{escape(source.title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(source.title)}</h1>
{_facts(source)}
</header>
{body or '<p class="note">This branch is empty.</p>'}
</main>
</body>
</html>
"""


def _facts(source: Exported) -> str:
    usage = source.stats.usage
    others = sorted(name for name in source.tree.tips if name != source.branch)
    facts = [
        f"session <code>{escape(source.metadata.id)}</code>",
        f"branch <code>{escape(source.branch)}</code>",
        escape(moment(source.metadata.created_at)),
        f"{source.stats.message_count:,} messages",
        f"{usage.total_tokens:,} tokens",
        f"${usage.cost.total:,.4f}",
    ]
    if source.metadata.cwd:
        facts.append(f"<code>{escape(source.metadata.cwd)}</code>")
    if others:
        facts.append("other branches: " + ", ".join(f"<code>{escape(name)}</code>" for name in others))
    return '<ul class="facts">' + "".join(f"<li>{fact}</li>" for fact in facts) + "</ul>"


def _node(node: TreeNode) -> str:
    return _entry(node) + _branches(node)


def _branches(node: TreeNode) -> str:
    """Say which other branches leave the active path after this entry."""
    others = other_branches(node)
    if not others:
        return ""
    items = "".join(f"<li>{escape(preview_of(child.entry, 90))} <span class='note'>({_entries(size_of(child))})</span></li>" for child in others)
    count = "Another branch leaves" if len(others) == 1 else f"{len(others)} other branches leave"
    return f'<aside class="branch">{count} here:<ul>{items}</ul></aside>'


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _entry(node: TreeNode) -> str:
    entry = node.entry
    if isinstance(entry, MessageEntry):
        return _message(node, entry.message)
    if isinstance(entry, CompactionEntry):
        return _summary(node, "Compaction", entry.summary, f"stands for all before it ({entry.tokens_before:,} tokens)")
    if isinstance(entry, BranchSummaryEntry):
        return _summary(node, "Summary of another branch", entry.summary, "") if entry.summary else ""
    return ""


def _summary(node: TreeNode, title: str, text: str, note: str) -> str:
    body = f'<div class="summary"><div class="in body">{markdown_to_html(text)}</div></div>'
    return f'<article class="{node.entry.type}">{_who(node, title, note)}{body}</article>'


def _who(node: TreeNode, name: str, note: str = "") -> str:
    entry: Entry = node.entry
    parts = [f"<b>{escape(name)}</b>"]
    if note:
        parts.append(f"<span>{escape(note)}</span>")
    parts.append(f"<span>{escape(moment(entry.timestamp))}</span>")
    if node.label:
        parts.append(f'<span class="label">{escape(node.label)}</span>')
    return f'<div class="who" id="{escape(entry.id)}">{"".join(parts)}</div>'


def _message(node: TreeNode, message: AgentMessage) -> str:
    match message:
        case UserMessage():
            return _article("user", _who(node, "User"), _user_body(message.content))
        case AssistantMessage():
            return _article("assistant", _who(node, "Assistant", message.model), _assistant_body(message))
        case ToolResultMessage():
            return _article("tool_result", "", _tool_result(node, message))
        case BashExecutionMessage():
            code = "cancelled" if message.cancelled else f"exit code {message.exit_code}" if message.exit_code else ""
            return _article("bash", _who(node, "Command", code), f"<pre><code>{escape(text_of_message(message))}</code></pre>")
        case SystemMessage():
            tools = ", ".join(tool.name for tool in message.tools_added or [])
            note = f"<p class='note'>tools: {escape(tools)}</p>" if tools else ""
            inner = f"<pre><code>{escape(text_of_message(message))}</code></pre>{note}"
            return _article("system_message", "", f'<details class="system"><summary>System prompt</summary><div class="in">{inner}</div></details>')
        case CustomMessage():
            return _article("custom", _who(node, message.custom_type), _user_body(message.content))
        case _:
            return _article("other", _who(node, role_of(message) or "message"), markdown_to_html(text_of_message(message)))


def _article(kind: str, who: str, body: str) -> str:
    return f'<article class="{kind}">{who}<div class="body">{body}</div></article>'


def _user_body(content: str | list[Any]) -> str:
    text = text_of_content(content)
    images = "" if isinstance(content, str) else "".join(_image(block) for block in content if isinstance(block, ImageContent))
    return (markdown_to_html(text) if text else "") + images


def _assistant_body(message: AssistantMessage) -> str:
    parts: list[str] = []
    for block in message.content:
        match block:
            case TextContent():
                parts.append(markdown_to_html(block.text))
            case ThinkingContent():
                if block.thinking and not block.redacted:
                    inner = markdown_to_html(block.thinking)
                    parts.append(f'<details class="thinking"><summary>Thinking</summary><div class="in">{inner}</div></details>')
            case ToolCall():
                parts.append(_call(block))
    if message.stop_reason not in ("stop", "tool_use"):
        reason = f"{message.stop_reason}: {message.error_message}" if message.error_message else message.stop_reason
        parts.append(f'<p class="note bad">Ended: {escape(reason)}</p>')
    return "".join(parts)


def _call(call: ToolCall) -> str:
    hint = one_line(" ".join(str(value) for value in call.arguments.values() if isinstance(value, (str, int, float))), 90)
    arguments = f"<pre><code>{escape(pretty(call.arguments))}</code></pre>"
    summary = f"<summary>call <code>{escape(call.name)}</code> {escape(hint)}</summary>"
    return f'<details class="tool">{summary}<div class="in">{arguments}</div></details>'


def _tool_result(node: TreeNode, message: ToolResultMessage) -> str:
    text = text_of_message(message)
    opened = " open" if message.is_error and len(text) < _LONG_OUTPUT else ""
    images = "".join(_image(block) for block in message.content if isinstance(block, ImageContent))
    what = '<span class="bad">error of</span>' if message.is_error else "result of"
    label = f' <span class="label">{escape(node.label)}</span>' if node.label else ""
    summary = f"<summary>{what} <code>{escape(message.tool_name)}</code> {escape(one_line(text, 90))}{label}</summary>"
    inner = f"<pre><code>{escape(text)}</code></pre>" if text else ""
    return f'<details class="tool" id="{escape(node.entry.id)}"{opened}>{summary}<div class="in">{inner}{images}</div></details>'


def _image(block: ImageContent) -> str:
    if block.mime_type not in _SHOWN_IMAGES or not _BASE64.fullmatch(block.data):
        return f'<p class="note">(an image of type {escape(block.mime_type)} is not shown)</p>'
    return f'<img alt="image" src="data:{block.mime_type};base64,{"".join(block.data.split())}">'
