"""Structured reasoning ("reasoning_details"), which must be sent back exactly as it came."""

from __future__ import annotations

from typing import Any

_TEXT_KEYS = {"reasoning.text": "text", "reasoning.summary": "summary"}


class ReasoningDetails:
    """Collects the streamed entries: pieces of one text or summary are merged, encrypted entries stay as they are."""

    __slots__ = ("_entries", "_pieces")

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._pieces: list[list[str]] = []  # of each entry's text, joined once at the end

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, detail: dict[str, Any]) -> str:
        """Take one entry and return the text that it adds."""
        key = _TEXT_KEYS.get(str(detail.get("type")))
        raw = detail.get(key) if key else None
        text = raw if isinstance(raw, str) else ""
        last = self._entries[-1] if self._entries else None
        if key and last is not None and last.get("type") == detail.get("type") and last.get("index") == detail.get("index"):
            last.update({name: value for name, value in detail.items() if value is not None and name != key})
        else:
            self._entries.append(dict(detail))
            self._pieces.append([])
        self._pieces[-1].append(text)
        return text

    def entries(self) -> list[dict[str, Any]]:
        """Return the merged entries."""
        merged: list[dict[str, Any]] = []
        for entry, pieces in zip(self._entries, self._pieces, strict=True):
            key = _TEXT_KEYS.get(str(entry.get("type")))
            merged.append({**entry, key: "".join(pieces)} if key and key in entry else entry)
        return merged
