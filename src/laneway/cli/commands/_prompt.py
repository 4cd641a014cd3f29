"""Turns the words of a command line, stdin and `@files` into prompts."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from msgspec import Struct

from laneway.cli._exit import CliError
from laneway.errors import ToolError
from laneway.messages import ImageContent, clean_text
from laneway.tools._images import SNIFF_BYTES, Picture, prepare, sniff
from laneway.tools._paths import Workspace

MAX_BYTES = 10 * 1024 * 1024
_SILENCE = 3.0
"""Seconds after which a stdin that says nothing and does not end is worth a word."""


class Prompt(Struct, kw_only=True, frozen=True):
    """One prompt: its text, and the images that go with it."""

    text: str
    images: list[ImageContent]


def build_prompts(words: list[str], *, stdin: TextIO | None, note: Callable[[str], None]) -> list[Prompt]:
    """Return the prompts: stdin, then `@files`, then the first word make the first; each further word is another.

    Raises:
        CliError: there is nothing to do, or a file cannot be used.
    """
    files = [word[1:] for word in words if _is_file(word)]
    texts = [clean_text(word) for word in words if not _is_file(word) and word != "-"]
    blocks: list[str] = []
    images: list[ImageContent] = []
    for name in files:
        block, image = _read_file(name)
        blocks.append(block)
        images += [image] if image is not None else []
    parts = [_read_stdin(stdin, note), *blocks, *texts[:1]]
    first = "\n\n".join(part for part in parts if part.strip())
    if not first and not images:
        raise CliError('there is nothing to do: say it in quotes, as in: laneway run "What does notes.txt say?"')
    return [Prompt(text=first, images=images), *(Prompt(text=text, images=[]) for text in texts[1:] if text.strip())]


def _is_file(word: str) -> bool:
    return word.startswith("@") and len(word) > 1


# ---------------------------------------------------------------------------------------------------- stdin


def _read_stdin(stdin: TextIO | None, note: Callable[[str], None]) -> str:
    if stdin is None or stdin.closed or stdin.isatty():
        return ""
    try:
        if not select.select([stdin.fileno()], [], [], _SILENCE)[0]:
            note("reading the task from stdin until it ends; add </dev/null if nothing comes from there")
        return _decoded(_read_up_to(stdin.buffer, "stdin")).strip()
    except (OSError, ValueError):  # detached from any terminal or pipe
        return ""


def _read_up_to(stream: BinaryIO, name: str) -> bytes:
    data = b""
    while len(data) <= MAX_BYTES:
        more = cast("bytes | None", stream.read(MAX_BYTES + 1 - len(data)))
        if more == b"":
            break
        if more is None:  # whoever shares this pipe has made it non-blocking: nothing has come yet, which is not its end
            select.select([stream], [], [])
        else:
            data += more
    if len(data) > MAX_BYTES:
        raise CliError(f"{name} has more than {MAX_BYTES // (1024 * 1024)} MB: put it into a file and let the agent read parts of it")
    return data


def _decoded(data: bytes) -> str:
    return data.decode("utf-8-sig", "replace").replace("\r\n", "\n")


# ---------------------------------------------------------------------------------------------------- files


def _read_file(name: str) -> tuple[str, ImageContent | None]:
    path = _find(name)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):  # a pipe is what a shell's <(command) gives
                raise CliError(f"@{name}: this is {'a folder' if stat.S_ISDIR(mode) else 'no file'}; only text and images can be put into a prompt")
            data = _read_up_to(file, f"@{name}")
    except IsADirectoryError:
        raise CliError(f"@{name}: this is a folder; name a file, or let the agent look into it") from None
    except OSError as error:
        raise CliError(f"@{name}: {error.strerror or error}") from error
    shown = clean_text(str(path))
    kind = sniff(data[:SNIFF_BYTES])
    if kind is not None:
        picture = prepare(data, kind)
        if not isinstance(picture, Picture):
            raise CliError(f"@{name}: {picture}")
        return f'<file name="{shown}">{picture.note}</file>', ImageContent(data=picture.data, mime_type=picture.mime_type)
    if b"\0" in data[:8192]:
        raise CliError(f"@{name}: this is a binary file; only text and images can be put into a prompt")
    text = _decoded(data)
    return (f'<file name="{shown}">\n{text}\n</file>' if text.strip() else ""), None


def _find(name: str) -> Path:
    """Return the file, also one whose name differs only in ways that nobody can see."""
    try:
        return Path(Workspace(".").existing(name).path)
    except ToolError:
        raise CliError(f"@{name}: there is no such file") from None
    except OSError as error:
        raise CliError(f"@{name}: {error}") from error
