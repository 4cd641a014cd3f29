"""Reads a guided response as it streams: from the text of one JSON object to the events of an answer or of a tool call. Pure."""

from __future__ import annotations

import re
from typing import Literal

from laneway.llm._writer import StreamWriter

_SPACE = " \t\r\n"
_ARGUMENTS = re.compile(r'[\s,]*"arguments"\s*:\s*')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_STRETCH = re.compile(r'[^"\\]+')
_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
State = Literal["opening", "text", "answer", "name", "between", "arguments", "over"]


class GuidedDecoder:
    """Feeds what arrives to a `StreamWriter`. A response that is no such object (the server ignored the schema) becomes text as it is.

    Each character is looked at once; only a few are ever held back. With `plain` all of it is text. `called` says whether it is a tool call.
    """

    def __init__(self, writer: StreamWriter, call_id: str, *, plain: bool = False) -> None:
        self._writer, self._call_id = writer, call_id
        self._state: State = "text" if plain else "opening"
        self.called = False
        self._held = ""
        self._index = -1
        self._depth = 0
        self._in_string = False

    def feed(self, text: str) -> None:
        """Take the next piece of the response."""
        self._held += text
        while self._held and self._step():
            pass

    def finish(self) -> None:
        """Take the end of the response; what was held back is text, or the name of a call without arguments."""
        if self._state == "opening" and self._held:
            self._begin_text()
            self._step()
        elif self._state == "between":
            self._writer.arguments(self._index, "{}")

    def _step(self) -> bool:
        """Handle some of what is held; False if more must arrive first."""
        if self._state == "opening":
            return self._open()
        if self._state == "text":
            if self._index < 0:
                self._begin_text()
            self._writer.text(self._index, self._held)
            self._held = ""
        elif self._state == "answer":
            return self._read_answer()
        elif self._state == "name":
            return self._read_name()
        elif self._state == "between":
            return self._find_arguments()
        elif self._state == "arguments":
            self._read_arguments()
        else:
            self._held = ""
        return False

    # -- which of the two

    def _open(self) -> bool:
        text = self._held.lstrip(_SPACE)
        for expected in ("{", '"'):
            if text and text[0] != expected:
                return self._begin_text()
            text = text[1:].lstrip(_SPACE) if expected == "{" else text[1:]
        key, quote, rest = text.partition('"')
        if not quote:
            return False if "answer".startswith(key) or "tool".startswith(key) else self._begin_text()
        rest = rest.lstrip(_SPACE)
        if key not in ("answer", "tool") or (rest and rest[0] != ":"):
            return self._begin_text()
        rest = rest[1:].lstrip(_SPACE)
        if not rest:
            return False
        if rest[0] != '"':
            return self._begin_text()
        self._held = rest[1:]
        if key == "tool":
            self._state = "name"
        else:
            self._state, self._index = "answer", self._writer.open_text()
        return True

    def _begin_text(self) -> bool:
        self._state, self._index = "text", self._writer.open_text()
        return True

    # -- an answer: the inside of a JSON string

    def _read_answer(self) -> bool:
        pieces: list[str] = []
        position = 0
        while position < len(self._held):
            stretch = _STRETCH.match(self._held, position)
            if stretch is not None:
                pieces.append(stretch.group())
                position = stretch.end()
            elif self._held[position] == '"':
                self._state, position = "over", len(self._held)
            else:
                character, length = _unescape(self._held, position)
                if not length:
                    break
                pieces.append(character)
                position += length
        self._held = self._held[position:]
        if pieces:
            self._writer.text(self._index, "".join(pieces))
        return False

    # -- a call

    def _read_name(self) -> bool:
        name, quote, rest = self._held.partition('"')
        if not quote:
            return False
        self._held = rest
        self._state, self.called, self._index = "between", True, self._writer.open_call(self._call_id, name)
        return True

    def _find_arguments(self) -> bool:
        found = _ARGUMENTS.match(self._held)
        if found is None or found.end() == len(self._held):
            return False
        self._held = self._held[found.end() :]
        self._state = "arguments"
        return True

    def _read_arguments(self) -> None:
        """Hand on the text of the arguments up to the brace that closes them."""
        position, text = 0, self._held
        while position < len(text):
            found = (_IN_STRING if self._in_string else _STRUCTURE).search(text, position)
            if found is None:
                break
            mark, position = found.group(), found.end()
            if mark == "\\":
                if position == len(text):  # the escaped character is in the next piece
                    self._hand_on(text[:-1], rest="\\")
                    return
                position += 1
            elif mark == '"':
                self._in_string = not self._in_string
            elif mark in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    self._state = "over"
                    self._hand_on(text[: position if self._depth == 0 else position - 1], rest="")
                    return
        self._hand_on(text, rest="")

    def _hand_on(self, text: str, *, rest: str) -> None:
        self._held = rest
        if text:
            self._writer.arguments(self._index, text)


def _unescape(text: str, position: int) -> tuple[str, int]:
    """Return the character that an escape stands for and how long the escape is; length 0 if it is not complete yet."""
    kind = text[position + 1 : position + 2]
    if not kind:
        return "", 0
    if kind != "u":
        return _ESCAPES.get(kind, kind), 2
    digits = text[position + 2 : position + 6]
    if len(digits) < 4:
        return "", 0
    code = _code(digits)
    if 0xD800 <= code < 0xDC00:  # the first half of a pair: the other must follow
        if len(text) < position + 12 and "\\u".startswith(text[position + 6 : position + 8]):
            return "", 0
        low = _code(text[position + 8 : position + 12]) if text[position + 6 : position + 8] == "\\u" else -1
        if 0xDC00 <= low < 0xE000:
            return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), 12
    return ("\ufffd" if code < 0 or 0xD800 <= code < 0xE000 else chr(code)), 6


def _code(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:
        return -1
