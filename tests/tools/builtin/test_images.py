"""Pictures for a model."""

from __future__ import annotations

import base64
import io
import random
import struct
import sys
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from laneway.messages import ImageContent, TextContent
from laneway.tools import _images, read_tool
from laneway.tools._images import Picture, prepare, sniff

Run = Callable[..., Awaitable[Any]]


def picture(kind: str, size: tuple[int, int] = (4, 3), **options: Any) -> bytes:
    """Return an encoded picture."""
    out = io.BytesIO()
    Image.new("RGB", size, "red").save(out, kind, **options)
    return out.getvalue()


def noise(size: tuple[int, int]) -> Image.Image:
    """Return a picture that does not compress."""
    return Image.frombytes("RGB", size, random.Random(1).randbytes(size[0] * size[1] * 3))


def animated_png() -> bytes:
    """Return a PNG with an animation chunk."""
    plain = picture("PNG")
    body = struct.pack(">II", 2, 0)
    chunk = struct.pack(">I", len(body)) + b"acTL" + body + struct.pack(">I", zlib.crc32(b"acTL" + body))
    return plain[:33] + chunk + plain[33:]


def decoded(result: Picture | str) -> Image.Image:
    """Return the picture that would be sent."""
    assert isinstance(result, Picture)
    return Image.open(io.BytesIO(base64.b64decode(result.data)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_pictures_are_known_by_their_content(kind: str):
    """1.10: not by their names."""
    assert sniff(picture(kind)) == f"image/{kind.lower()}"


@pytest.mark.parametrize(
    "data", [b"", b"GIF", b"GIF is a format", b"GIF88a", b"BM is my name", b"RIFFxxxxWAVE", b"\x89PNG", b"hello", animated_png()]
)
def test_what_is_no_picture_for_a_model_is_not_taken_for_one(data: bytes):
    """Regression 54: a text that begins with GIF; an animated PNG."""
    assert sniff(data) is None


def test_a_small_upright_picture_is_sent_as_it_is():
    """Byte by byte."""
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        data = picture(kind)
        result = prepare(data, f"image/{kind.lower()}")  # type: ignore[arg-type] - the four are valid
        assert isinstance(result, Picture)
        assert (base64.b64decode(result.data), result.mime_type, result.note) == (data, f"image/{kind.lower()}", "")


def test_a_large_picture_is_scaled_with_a_note():
    """Fits 2000 by 2000; coordinates can be mapped back."""
    result = prepare(picture("PNG", (4000, 1000)), "image/png")
    assert decoded(result).size == (2000, 500)
    assert isinstance(result, Picture)
    assert result.note == "Shown at 2000x500, the file is 4000x1000: multiply coordinates by 2.00 to find them in the file"


def test_a_picture_lying_on_its_side_is_turned():
    """EXIF orientation is applied."""
    image = Image.new("RGB", (8, 4), "red")
    exif = image.getexif()
    exif[0x0112] = 6
    out = io.BytesIO()
    image.save(out, "JPEG", exif=exif)
    assert decoded(prepare(out.getvalue(), "image/jpeg")).size == (4, 8)


def test_a_bitmap_is_converted():
    """Models do not take BMP."""
    result = prepare(picture("BMP"), "image/bmp")
    assert isinstance(result, Picture)
    assert result.mime_type == "image/png"


def test_a_picture_that_does_not_compress_is_made_smaller_until_it_fits(monkeypatch: pytest.MonkeyPatch):
    """Quality first, then size."""
    monkeypatch.setattr(_images, "MAX_BASE64", 60_000)
    out = io.BytesIO()
    noise((600, 400)).save(out, "PNG")
    result = prepare(out.getvalue(), "image/png")
    assert isinstance(result, Picture)
    assert len(result.data) < 60_000
    assert result.mime_type == "image/jpeg"
    assert decoded(result).size[0] < 600
    assert "the file is 600x400" in result.note


def test_transparency_and_odd_modes_survive():
    """Palettes, grey with alpha, sixteen bits."""
    for mode in ("RGBA", "LA", "P", "1", "I;16", "CMYK"):
        out = io.BytesIO()
        Image.new(mode, (2100, 10)).save(out, "TIFF" if mode == "CMYK" else "PNG")
        data = out.getvalue()
        assert decoded(prepare(data, "image/png")).size[0] == 2000


def test_what_cannot_be_shown_becomes_a_sentence(monkeypatch: pytest.MonkeyPatch):
    """Damaged, or impossible to make small."""
    assert "cannot be decoded" in str(prepare(picture("PNG")[:40], "image/png"))
    assert "cannot be decoded" in str(prepare(b"GIF89a is a format", "image/gif"))
    monkeypatch.setattr(_images, "MAX_BASE64", 4)
    assert "could not be made small enough" in str(prepare(picture("PNG"), "image/png"))
    monkeypatch.setattr(_images, "_MAX_PIXELS", 3)
    assert "too large to show" in str(prepare(picture("PNG"), "image/png"))


class TestWithoutPillow:
    """Pillow is optional."""

    @pytest.fixture
    def pictures(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
        """Pictures, made before importing Pillow begins to fail."""
        made = {kind: picture(kind) for kind in ("JPEG", "PNG", "BMP")}
        monkeypatch.setitem(sys.modules, "PIL", None)
        return made

    def test_a_picture_that_is_small_enough_is_passed_on(self, pictures: dict[str, bytes]):
        """As it is."""
        result = prepare(pictures["JPEG"], "image/jpeg")
        assert isinstance(result, Picture)
        assert base64.b64decode(result.data) == pictures["JPEG"]

    def test_another_one_becomes_a_note_that_says_what_to_install(self, pictures: dict[str, bytes], monkeypatch: pytest.MonkeyPatch):
        """Too large, or to be converted."""
        assert "install Pillow" in str(prepare(pictures["BMP"], "image/bmp"))
        monkeypatch.setattr(_images, "MAX_BASE64", 8)
        assert "too large to show: install Pillow" in str(prepare(pictures["PNG"], "image/png"))


async def test_reading_a_picture_gives_a_note_and_the_picture(tmp_path: Path, call: Run):
    """Whatever the file is called."""
    (tmp_path / "shot.txt").write_bytes(picture("PNG", (3000, 10)))
    result = await call(read_tool(tmp_path), path="shot.txt")
    note, image = result.content
    assert isinstance(note, TextContent)
    assert note.text.startswith("Read image shot.txt [image/png]\n[Shown at 2000x7, the file is 3000x10")
    assert isinstance(image, ImageContent)
    assert image.mime_type == "image/png"


async def test_a_text_called_like_a_picture_is_text(tmp_path: Path, ask: Run):
    """Regression 54."""
    (tmp_path / "a.gif").write_text("GIF stands for…\n")
    assert await ask(read_tool(tmp_path), path="a.gif") == "GIF stands for…\n"


async def test_a_picture_that_cannot_be_shown_is_a_note(tmp_path: Path, ask: Run, monkeypatch: pytest.MonkeyPatch):
    """Damaged, huge, or not wanted; none is an error."""
    (tmp_path / "bad.png").write_bytes(picture("PNG")[:40])
    assert "bad.png: This image/png file" in await ask(read_tool(tmp_path), path="bad.png")
    assert "pictures are turned off" in await ask(read_tool(tmp_path, images=False), path="bad.png")
    monkeypatch.setattr(_images, "MAX_FILE", 10)
    assert "too large to show" in await ask(read_tool(tmp_path), path="bad.png")
