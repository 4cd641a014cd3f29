"""Turns the words of a command line, stdin and `@files` into prompts."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from laneway.cli._exit import CliError
from laneway.messages import ImageContent

_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif"}
_MAX_FILE = 10 * 1024 * 1024


class Prompt(Struct, kw_only=True, frozen=True):
    """One prompt: its text, and the images that go with it."""

    text: str
    images: list[ImageContent]


def build_prompts(words: list[str], *, stdin: TextIO | None) -> list[Prompt]:
    """Return the prompts: stdin, then `@files`, then the first word make the first; each further word is another.

    Raises:
        CliError: there is nothing to do, or a file cannot be used.
    """
    files = [word[1:] for word in words if word.startswith("@") and len(word) > 1]
    texts = [word for word in words if not (word.startswith("@") and len(word) > 1) and word != "-"]
    parts = [_read_stdin(stdin)]
    images: list[ImageContent] = []
    for name in files:
        block, image = _read_file(Path(name).expanduser())
        parts.append(block)
        images += [image] if image is not None else []
    first = "\n\n".join(part for part in [*parts, *texts[:1]] if part.strip())
    if not first and not images:
        raise CliError('there is nothing to do: say it in quotes, as in: laneway run "What does notes.txt say?"')
    return [Prompt(text=first, images=images), *(Prompt(text=text, images=[]) for text in texts[1:] if text.strip())]


def _read_stdin(stdin: TextIO | None) -> str:
    if stdin is None or stdin.closed or stdin.isatty():
        return ""
    try:
        return stdin.buffer.read().decode("utf-8", "replace").strip()
    except OSError:  # detached from any terminal or pipe
        return ""


def _read_file(path: Path) -> tuple[str, ImageContent | None]:
    try:
        if path.stat().st_size > _MAX_FILE:
            raise CliError(f"@{path}: the file is larger than {_MAX_FILE // (1024 * 1024)} MB; let the agent read parts of it instead")
        data = path.read_bytes()
    except OSError as error:
        raise CliError(f"@{path}: {error.strerror or error}") from error
    mime = next((mime for magic, mime in _IMAGES.items() if data.startswith(magic)), None)
    if mime is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        mime = "image/webp"
    if mime is not None:
        return f'<file name="{path.absolute()}"></file>', ImageContent(data=base64.b64encode(data).decode(), mime_type=mime)
    if b"\0" in data[:8192]:
        raise CliError(f"@{path}: this is a binary file; only text and images can be put into a prompt")
    text = data.decode("utf-8", "replace")
    return (f'<file name="{path.absolute()}">\n{text}\n</file>' if text.strip() else ""), None
