"""What goes to a terminal: text that cannot steer it, and one line that says what is being waited for."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
import unicodedata
from contextlib import suppress
from typing import TextIO

_STEERING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (ESC and its one-character forms above all), overrides of the writing direction, halves of surrogate pairs."""
_TICK = 0.25
_PATIENCE = 0.75
"""Seconds of waiting after which it is worth a line."""
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def printable(text: str) -> str:
    """Make text safe to print: a model or a tool must not steer the terminal. Line breaks and tabs stay, carriage returns go."""
    return _STEERING.sub("\ufffd", text.replace("\r", ""))


def one_line(text: str, width: int) -> str:
    """Return text as one safe line of at most `width` characters."""
    if len(text) > width:
        text = text[: width - 1] + "…"
    return printable(text.replace("\n", "⏎").replace("\t", " "))


def fitting(text: str, columns: int) -> str:
    """Return one safe line that a terminal shows in at most `columns` columns; many characters take two, some none."""
    text = one_line(text, max(columns, 1))
    used = 0
    for at, char in enumerate(text):
        used += _columns(char)
        if used > columns:
            return f"{text[: at - 1]}…" if at else ""
    return text


def _columns(char: str) -> int:
    if unicodedata.combining(char) or char in "\u200b\u200d\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class StatusLine:
    """One line at the bottom of a terminal that says what is waited for, for how long; gone as soon as there is something to read.

    `say` starts or changes it, `clear` takes it away; whoever prints calls `clear` first. Does nothing where `stream` is None.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._text = ""
        self._since = 0.0
        self._shown = False
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None

    def say(self, text: str, *, restart: bool = True) -> None:
        """Show `text` from now on; the clock starts again unless `restart` is off."""
        if self._stream is None:
            return
        if restart or not self._text:
            self._since = time.monotonic()
        self._text = text
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK, self._tick)

    def clear(self) -> None:
        """Take the line away until the next `say`."""
        self._text = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.hide()

    def hide(self) -> None:
        """Take the line away until its next tick, to print something above it."""
        if self._shown and self._stream is not None:
            self._shown = False
            with suppress(OSError, ValueError):
                self._stream.write("\r\033[K")
                self._stream.flush()

    def _tick(self) -> None:
        assert self._stream is not None
        seconds = time.monotonic() - self._since
        if seconds >= _PATIENCE:
            self._ticks += 1
            line = f"{_FRAMES[self._ticks % len(_FRAMES)]} {self._text} · {seconds:.0f} s"
            self._shown = True
            with suppress(OSError, ValueError):
                self._stream.write(f"\r\033[K{fitting(line, _width(self._stream) - 1)}")
                self._stream.flush()
        self._timer = asyncio.get_running_loop().call_later(_TICK, self._tick)


def _width(stream: TextIO) -> int:
    """Return the columns of the terminal that `stream` is, whatever stdout is."""
    with suppress(OSError, ValueError):
        if columns := os.get_terminal_size(stream.fileno()).columns:
            return columns
    return shutil.get_terminal_size((80, 24)).columns
