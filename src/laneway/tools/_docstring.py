"""Reads what a docstring says of a function and its parameters: Google, NumPy and Sphinx style.

Small on purpose: it only has to find the description and the parameters' texts, and it runs whenever a tool is declared.
What it does not recognise stays part of the description.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_PARAMETERS = {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters"}
_DROPPED = {"returns", "return", "yields", "yield", "raises", "raise", "attributes", "see also", "references", "todo", "methods", "warns"}
_KEPT = {"note", "notes", "example", "examples", "warning", "warnings"}
_HEADINGS = _PARAMETERS | _DROPPED | _KEPT

# Patterns of the module are texts, compiled at their first use: compiling them is a part of what the import costs.
_GOOGLE_ENTRY = r"\*{0,2}(\w+)\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:(?:\s+(.*)|)$"
_NUMPY_ENTRY = r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$"
_SPHINX_FIELD = r":(\w+)(?:\s+([^:]*?))?:(?:\s+(.*)|)$"
_SPHINX_PARAMETER = {"param", "parameter", "arg", "argument", "key", "keyword"}
_SPHINX_OTHER = {"type", "return", "returns", "rtype", "raise", "raises", "except", "exception", "yield", "yields", "ytype", "var", "ivar", "vartype"}


@dataclass(slots=True)
class Docstring:
    """What a docstring says: the description without its sections, and a text per parameter that it names."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict[str, str])


def parse_docstring(text: str | None) -> Docstring:
    """Split a docstring into the description and the parameters' texts; an empty one gives an empty `Docstring`."""
    if not text or not text.strip():
        return Docstring()
    lines = inspect.cleandoc(text).splitlines()
    parameters: dict[str, str] = {}
    kept = list(_without_sphinx(_without_sections(lines, parameters), parameters))
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return Docstring(description=description, parameters=parameters)


def _without_sections(lines: list[str], parameters: dict[str, str]) -> Iterator[str]:
    """Yield the lines outside of Google and NumPy sections; note what the parameter sections say."""
    index = 0
    while index < len(lines):
        heading = lines[index].strip().lower()
        underlined = index + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[index + 1].strip()) is not None
        if underlined and heading in _HEADINGS and _indent(lines[index]) == 0:
            end = _numpy_end(lines, index + 2)
            body = lines[index + 2 : end]
            if heading in _PARAMETERS:
                parameters.update(_numpy_entries(body))
        elif heading.endswith(":") and heading[:-1].strip() in _HEADINGS and _indent(lines[index]) == 0:
            heading = heading[:-1].strip()
            end = _indented_end(lines, index + 1)
            body = lines[index + 1 : end]
            if heading in _PARAMETERS:
                parameters.update(_google_entries(body))
        else:
            yield lines[index]
            index += 1
            continue
        if heading in _KEPT:
            yield from lines[index:end]
        index = end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _indented_end(lines: list[str], start: int) -> int:
    """Return where the block of indented (or blank) lines that begins at `start` ends."""
    end = start
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > 0):
        end += 1
    return end


def _numpy_end(lines: list[str], start: int) -> int:
    """Return where a NumPy section ends: at the next underlined line, or at the end."""
    for index in range(start, len(lines) - 1):
        if lines[index].strip() and _indent(lines[index]) == 0 and re.fullmatch(r"-{3,}", lines[index + 1].strip()):
            return index
    return len(lines)


def _google_entries(body: list[str]) -> dict[str, str]:
    entries: dict[str, list[str]] = {}
    base = min((_indent(line) for line in body if line.strip()), default=0)
    current: list[str] = []
    for line in body:
        match = re.match(_GOOGLE_ENTRY, line.strip()) if line.strip() and _indent(line) == base else None
        if match is not None:
            current = entries[match[1]] = [match[2] or ""]
        else:
            current.append(line)
    return {name: _joined(texts) for name, texts in entries.items()}


def _numpy_entries(body: list[str]) -> dict[str, str]:
    entries: dict[str, list[str]] = {}
    current: list[str] = []
    for line in body:
        match = re.match(_NUMPY_ENTRY, line) if line.strip() and _indent(line) == 0 else None
        if match is not None:
            current = []
            for name in match[1].split(","):
                entries[name.strip().lstrip("*")] = current
        else:
            current.append(line)
    return {name: _joined(texts) for name, texts in entries.items()}


def _without_sphinx(lines: Iterator[str], parameters: dict[str, str]) -> Iterator[str]:
    """Yield the lines outside of Sphinx fields (`:param name: text`, …); note what the parameter fields say."""
    fields: dict[str, list[str]] = {}
    current: list[str] | None = None  # the field whose continuation lines may follow
    for line in lines:
        match = re.match(_SPHINX_FIELD, line.strip()) if _indent(line) == 0 else None
        kind = match[1].lower() if match is not None else ""
        if match is not None and kind in _SPHINX_PARAMETER and match[2]:
            current = fields[match[2].split()[-1].lstrip("*")] = [match[3] or ""]
        elif match is not None and kind in _SPHINX_OTHER:
            current = [match[3] or ""]
        elif current is not None and (_indent(line) > 0 or not line.strip()):
            current.append(line)
        else:
            current = None
            yield line
    parameters.update({name: _joined(texts) for name, texts in fields.items()})


def _joined(lines: list[str]) -> str:
    """Join a parameter's lines into one paragraph each, without the indentation."""
    text = "\n".join(line.strip() for line in lines).strip()
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)
