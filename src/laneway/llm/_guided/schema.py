"""What a guided response may be, as a JSON schema."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from laneway.messages import ToolDeclaration

Schema = dict[str, Any]
FILE_ARGUMENTS = frozenset({"path", "file", "file_path", "filename", "file_name", "directory", "dir", "folder"})
"""Names of arguments that say where something is in the file system."""
SEARCH_ARGUMENTS = frozenset({"pattern", "query", "search", "regex", "keyword"})
"""Names of arguments that say what is searched for (a glob is none of those)."""
_COMMON = frozenset({
    "a", "all", "an", "and", "any", "are", "called", "can", "class", "code", "contain", "contains", "defined", "do", "does", "file", "files", "find",
    "folder", "for", "function", "grep", "have", "in", "is", "it", "look", "mention", "mentions", "me", "named", "of", "on", "please", "search",
    "show", "tell", "text", "that", "the", "there", "this", "to", "what", "where", "which", "who", "with", "word", "words",
})  # fmt: skip

_WORD = re.compile(r"[\w./~+\\-]+")
_FILE = re.compile(r"\w\.[A-Za-z]\w{0,7}\Z")
_ABBREVIATIONS = frozenset({"e.g", "i.e"})
_REFERENCE = re.compile(r"\A#/(\$defs|definitions)/")
ANSWER: Schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"], "additionalProperties": False}


def call_schema(tool: ToolDeclaration, arguments: Schema) -> Schema:
    """Return the schema of a call of one tool."""
    properties = {"tool": {"const": tool.name}, "arguments": arguments}
    return {"type": "object", "properties": properties, "required": ["tool", "arguments"], "additionalProperties": False}


def response_schema(calls: Sequence[Schema], *, answer: bool) -> Schema:
    """Return the schema of a response: one of the calls, or an answer where that is allowed.

    Definitions that a tool's schema refers to move to the root, which is where `$ref` looks for them.
    """
    members: list[Schema] = []
    definitions: Schema = {}
    for number, call in enumerate(calls):
        arguments = dict(call["properties"]["arguments"])
        for place in ("$defs", "definitions"):
            found = cast("Schema", arguments.pop(place, {}))
            definitions |= {f"{number}_{name}": _moved(schema, number) for name, schema in found.items()}
        members.append({**call, "properties": {**call["properties"], "arguments": _moved(arguments, number)}})
    if answer or not members:
        members.append(ANSWER)
    schema = members[0] if len(members) == 1 else {"anyOf": members}
    return {**schema, "$defs": definitions} if definitions else schema


def _moved(value: Any, number: int) -> Any:
    """Point references into a tool's own definitions at where they are now."""
    if isinstance(value, dict):
        return {
            key: _REFERENCE.sub(f"#/$defs/{number}_", item) if key == "$ref" and isinstance(item, str) else _moved(item, number)
            for key, item in cast("Schema", value).items()
        }
    return [_moved(item, number) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def full_arguments(tool: ToolDeclaration) -> Schema:
    """Return a tool's own schema, as an object."""
    return {"type": "object", "properties": {}, **tool.parameters}


# ---------------------------------------------------------------------------------------------------- small models


def mentioned_files(text: str) -> list[str]:
    """Return the words of a text that look like files or folders, in order, each once."""
    words = (word.rstrip(".") for word in _WORD.findall(text))
    return list(
        dict.fromkeys(word for word in words if word.strip("./") and word.lower() not in _ABBREVIATIONS and (_FILE.search(word) or "/" in word))
    )


def search_terms(text: str) -> list[str]:
    """Return what a text may ask to search for: its words, and pairs and triples of neighbours, that neither begin nor end with a common word."""
    words = [word.strip(".:-/\\+") for word in _WORD.findall(text)]
    spans = (words[start : start + length] for length in (1, 2, 3) for start in range(len(words) - length + 1))
    return list(dict.fromkeys(" ".join(span) for span in spans if span[0] and span[-1] and not {span[0].lower(), span[-1].lower()} & _COMMON))


def short_arguments(tool: ToolDeclaration, request: str) -> Schema | None:
    """Return a schema of what is needed of a tool's arguments; files and search terms are limited to those in the request.

    None if the tool cannot do without a file name and none is mentioned.
    """
    files, terms = mentioned_files(request), search_terms(request)
    properties = cast("dict[str, Schema]", tool.parameters.get("properties") or {})
    required = [name for name in tool.parameters.get("required") or () if name in properties]
    chosen: dict[str, Schema] = {}
    for name in required or list(properties)[:1]:
        schema = {key: value for key, value in properties[name].items() if key not in ("description", "title")}
        if name in FILE_ARGUMENTS and required:
            if not files:
                return None
            schema = {"enum": list(files)}
        elif name in FILE_ARGUMENTS:
            schema = {"enum": [*(file for file in files if not _FILE.search(file)), "."]}
        elif name in SEARCH_ARGUMENTS and terms and "glob" not in f"{tool.description} {properties[name].get('description')}".lower():
            schema = {"enum": terms}
        chosen[name] = schema
    return {"type": "object", "properties": chosen, "required": list(chosen), "additionalProperties": False} | _definitions(tool.parameters)


def needs_file(tool: ToolDeclaration) -> bool:
    """Whether the tool has a required argument that names a file."""
    return not FILE_ARGUMENTS.isdisjoint(tool.parameters.get("required") or ())


def _definitions(schema: Schema) -> Schema:
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}
