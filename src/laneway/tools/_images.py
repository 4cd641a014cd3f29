"""Pictures for a model: recognised by content, turned upright, small enough to send.

Resizing needs Pillow, which is imported on first use. Without it a picture that is small enough is passed on as it is, and a larger
one, or a kind that models do not take, becomes a note that says what to do.
"""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from laneway.tools._truncate import format_size

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SIDE = 2000
MAX_BASE64 = int(4.5 * 1024 * 1024)
MAX_FILE = 64 * 1024 * 1024
SNIFF_BYTES = 64 * 1024
_MAX_PIXELS = 100_000_000
_QUALITIES = (80, 85, 70, 55, 40)

ImageType = Literal["image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp"]


@dataclass(kw_only=True, frozen=True, slots=True)
class Picture:
    """A picture ready to send: base64 data, its type, and what was done to it (empty if nothing)."""

    data: str
    mime_type: str
    note: str = ""


def sniff(head: bytes) -> ImageType | None:
    """Return the type of picture that a file's first bytes (up to `SNIFF_BYTES`) show; None if it is none that models take."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return None if _is_animated_png(head) else "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    if head.startswith(b"BM") and len(head) >= 26 and head[6:10] == b"\0\0\0\0" and head[14:18] in _BMP_HEADERS:
        return "image/bmp"
    return None


def prepare(data: bytes, kind: ImageType, check: Callable[[], None] = lambda: None) -> Picture | str:
    """Return the picture within the limits, or a sentence that says why there is none. `check` is called between steps and may raise."""
    size = format_size(len(data))
    small = _base64_size(len(data)) < MAX_BASE64
    try:
        from PIL import Image, ImageOps
    except ImportError:
        if small and kind != "image/bmp":
            return Picture(data=base64.b64encode(data).decode(), mime_type=kind)
        why = "is too large to show" if kind != "image/bmp" else "must be converted to be shown"
        return f"This {kind} picture ({size}) {why}: install Pillow (pip install pillow), which makes it fit"
    try:
        with Image.open(io.BytesIO(data)) as opened:
            width, height = opened.size
            if width * height > _MAX_PIXELS:
                return f"This {kind} picture of {width}x{height} pixels is too large to show: make a smaller copy"
            upright = opened.getexif().get(0x0112, 1) in (0, 1)
            if small and upright and max(width, height) <= MAX_SIDE and kind != "image/bmp":
                return Picture(data=base64.b64encode(data).decode(), mime_type=kind)
            image = ImageOps.exif_transpose(opened)
            return _fit(image, check) or f"This {kind} picture ({size}) could not be made small enough to show: make a smaller copy"
    except (OSError, ValueError, SyntaxError, struct.error, EOFError, Image.DecompressionBombError) as error:
        return f"This {kind} file ({size}) cannot be decoded ({error}): it is damaged or no picture"


_BMP_HEADERS = {struct.pack("<I", size) for size in (12, 40, 52, 56, 64, 108, 124)}


def _fit(image: Image, check: Callable[[], None]) -> Picture | None:
    """Return the picture scaled and compressed until it fits; None if even a tiny one does not."""
    width, height = image.size
    if image.mode not in ("RGB", "RGBA", "L", "LA"):
        image = image.convert("RGBA" if "transparency" in image.info or image.mode in ("PA", "RGBa", "La") else "RGB")
    scale = min(1.0, MAX_SIDE / max(width, height))
    while True:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        check()
        scaled = image if size == image.size else image.resize(size)  # pyright: ignore[reportUnknownMemberType] - Pillow's stub names numpy
        for mime_type, data in _encodings(scaled):
            check()
            if _base64_size(len(data)) < MAX_BASE64:
                note = "" if size == (width, height) else _scale_note((width, height), size)
                return Picture(data=base64.b64encode(data).decode(), mime_type=mime_type, note=note)
        if size == (1, 1):
            return None
        scale *= 0.75


def _encodings(image: Image) -> Iterator[tuple[str, bytes]]:
    """Yield encodings to try: the smaller of PNG and JPEG first, then JPEG of falling quality."""
    plain = image if image.mode in ("RGB", "L") else _on_white(image)
    png, jpeg = _encode(image, "PNG", optimize=True), _encode(plain, "JPEG", quality=_QUALITIES[0])
    yield ("image/png", png) if len(png) <= len(jpeg) else ("image/jpeg", jpeg)
    for quality in _QUALITIES[1:]:
        yield "image/jpeg", _encode(plain, "JPEG", quality=quality)


def _encode(image: Image, kind: str, **options: int) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def _on_white(image: Image) -> Image:
    from PIL import Image as images

    ground = images.new("RGB", image.size, "white")
    ground.paste(image, mask=image.getchannel("A"))
    return ground


def _scale_note(before: tuple[int, int], after: tuple[int, int]) -> str:
    factor = before[0] / after[0]
    return f"Shown at {after[0]}x{after[1]}, the file is {before[0]}x{before[1]}: multiply coordinates by {factor:.2f} to find them in the file"


def _base64_size(size: int) -> int:
    return (size + 2) // 3 * 4


def _is_animated_png(head: bytes) -> bool:
    """Return whether an animation chunk comes before the picture's data."""
    at = 8
    while at + 8 <= len(head):
        length, name = struct.unpack(">I4s", head[at : at + 8])
        if name == b"acTL":
            return True
        if name == b"IDAT":
            return False
        at += 12 + length
    return False
