"""What is JSON, and what is refused because it is not: strictly, with the path of the first thing that is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import msgspec
from msgspec import Raw, Struct

from laneway.errors import StorageCorruption
from laneway.messages import clean_json, clean_text

MAX_DEPTH: Final = 300
"""How deeply a payload may be nested: what every supported Python can decode, from wherever it is called."""


def _plain(value: Any) -> Any:
    """Encode subclasses of JSON's scalars as what they are; what is not JSON becomes null and is found by the comparison."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else None


json_encoder = msgspec.json.Encoder(enc_hook=_plain)
_decode_any = msgspec.json.Decoder[Any]().decode
_skip = msgspec.json.Decoder(Raw).decode


def encode_plain(value: Any) -> bytes | None:
    """Encode a JSON value that comes back as it was given, as nearly all do; None leaves it to `encode_json`. See there for `Raw`."""
    try:
        data = json_encoder.encode(value)
        if type(value) is Raw:
            if not data.isascii():
                data.decode()
            _skip(data)
        elif type(value) is not str and _decode_any(data) != value:  # of a plain text, the encoder has seen all that can be wrong
            return None
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    return None if may_be_deep(data) else data


def encode_json(value: Any, where: str) -> bytes:
    """Encode a JSON value as compact UTF-8; lone surrogates become U+FFFD. A `Raw` that is JSON is taken as it is.

    Raises:
        TypeError: it is not JSON-safe (NaN, bytes, a set, a key that is not text …); the text is `where` and the path.
    """
    data = encode_plain(value)
    if data is not None:
        return data
    data = encode_any(value, where, typed=False)
    try:
        same = _decode_any(data) == value
    except (msgspec.DecodeError, RecursionError):
        same = False
    if not same:
        refuse_unsafe(value, where, typed=False)
    refuse_deep(data, where)
    return data


def encode_any(value: Any, where: str, *, typed: bool) -> bytes:
    """Encode a value or (`typed`) a message; the caller compares what comes out. `TypeError` as for `encode_json`."""
    try:
        return json_encoder.encode(value)
    except UnicodeEncodeError:
        refuse_unsafe(value, where, typed=typed)
        return json_encoder.encode(clean_json(msgspec.to_builtins(value, enc_hook=_plain)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        refuse_unsafe(value, where, typed=typed)
        raise TypeError(f"{where} is not JSON-safe: {error}") from error


def decode_json(data: bytes, where: str) -> Any:
    """Decode a stored cell or list element; `StorageCorruption` names it (`where`) if it is not JSON."""
    try:
        return _decode_any(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageCorruption(f"{where} cannot be decoded: {error}") from error


# ---------------------------------------------------------------------------------------------------- what is not JSON


def refuse_unsafe(value: Any, where: str, *, typed: bool = True) -> None:
    """Raise the `TypeError` that names the first thing in `value` that is not JSON; return if there is none."""
    try:
        found = _find_unsafe(value, "$", structs=typed, depth=0)
    except RecursionError:
        found = "$", f"nested more than {MAX_DEPTH} deep, or contains itself"
    if found is not None:
        raise TypeError(f"{where} is not JSON-safe at {clean_text(found[0])}: {found[1]} (nothing was written)")


def may_be_deep(data: bytes) -> bool:
    """Whether there are brackets enough in JSON for nesting more than `MAX_DEPTH` deep."""
    size = len(data)
    if size <= MAX_DEPTH:
        return False
    # What is gone without them is how many there are. `bytes.count` looks at each byte by itself and takes 20 times as long.
    return 2 * size - len(data.replace(b"[", b"")) - len(data.replace(b"{", b"")) > MAX_DEPTH


def refuse_deep(data: bytes, where: str) -> None:
    """Raise the `TypeError` for JSON nested more than `MAX_DEPTH` deep."""
    if not may_be_deep(data):
        return
    level = _containers([_decode_any(data)])
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [inner for outer in level for inner in _containers(outer.values() if isinstance(outer, dict) else outer)]
    raise TypeError(f"{where} is nested more than {MAX_DEPTH} deep (nothing was written)")


def _find_unsafe(value: Any, path: str, *, structs: bool, depth: int) -> tuple[str, str] | None:
    """Return the path and description of the first unsafe thing. `structs`: typed objects may stand here."""
    if depth > MAX_DEPTH:
        return path, f"nested more than {MAX_DEPTH} deep, or contains itself"
    match value:
        case None | bool() | str() | int():
            return None
        case float():
            return None if math.isfinite(value) else (path, f"{value} is not a JSON number")
        case dict():
            return _find_in_dict(cast("dict[Any, Any]", value), path, depth)
        case list() | tuple():
            items = enumerate(cast("Sequence[Any]", value))
            found = (_find_unsafe(item, f"{path}[{i}]", structs=structs, depth=depth + 1) for i, item in items)
            return next((f for f in found if f is not None), None)
        case Struct() if structs:
            return _find_in_struct(value, path, depth)
        case _:
            return path, f"{type(value).__name__} is not JSON"


def _find_in_dict(value: dict[Any, Any], path: str, depth: int) -> tuple[str, str] | None:
    for key, item in value.items():
        if not isinstance(key, str):
            return path, f"the key {key!r} is {type(key).__name__}, not text"
        found = _find_unsafe(item, f"{path}.{key}", structs=False, depth=depth + 1)
        if found is not None:
            return found
    return None


def _find_in_struct(value: Struct, path: str, depth: int) -> tuple[str, str] | None:
    open_fields = _any_fields(type(value))
    for name in value.__struct_fields__:
        found = _find_unsafe(getattr(value, name), f"{path}.{name}", structs=name not in open_fields, depth=depth + 1)
        if found is not None:
            return found
    return None


@lru_cache(maxsize=256)
def _any_fields(cls: type[Struct]) -> frozenset[str]:
    """Return the fields of a struct that hold plain JSON (declared `Any`), where no typed object may stand."""
    return frozenset(field.name for field in msgspec.structs.fields(cls) if field.type is Any)


def _containers(items: Iterable[Any]) -> list[dict[str, Any] | list[Any]]:
    return [item for item in items if type(item) is dict or type(item) is list]
