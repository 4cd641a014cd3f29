"""Reading what a strict JSON decoder refuses but model servers send: lone halves of surrogate pairs, raw control characters, bad escapes."""

from __future__ import annotations

import json
import re
from typing import Any

from laneway.llm._errors import redact
from laneway.llm._partial_json import repair
from laneway.llm.base import ProviderFailure
from laneway.messages import clean_text

_SURROGATE = re.compile("[\ud800-\udfff]")


def lenient_json(data: bytes, *, provider: str) -> Any:
    """Decode the JSON of one event. Strings may hold lone surrogates afterwards: pass deltas through `HalfPairs`.

    Raises:
        ProviderFailure: it is not JSON even so (kind "protocol").
    """
    text = data.decode("utf-8", "replace").lstrip("\ufeff")
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(repair(text), strict=False)
    except (ValueError, RecursionError) as error:
        shown = redact(text[:200] + ("…" if len(text) > 200 else ""))
        raise ProviderFailure(f"{provider} sent an event that is not JSON ({error}): {shown}", kind="protocol") from None


class HalfPairs:
    """Joins characters that a server cut in two: the first half of a surrogate pair waits for the next delta of the same block.

    `key` names the block. Only deltas that came through `lenient_json` can have halves; call `pending` first and skip all of
    this where nothing waits.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, str] = {}

    @property
    def pending(self) -> bool:
        """Whether any half waits."""
        return bool(self._held)

    def join(self, key: int, delta: str) -> str:
        """Return what can be said now of `delta` and the half that waited for it."""
        held = self._held.pop(key, "")
        if not held and not _SURROGATE.search(delta):
            return delta
        delta = held + delta
        if delta and "\ud800" <= delta[-1] <= "\udbff":
            self._held[key] = delta[-1]
            delta = delta[:-1]
        return clean_text(delta)

    def flush(self) -> dict[int, str]:
        """Return U+FFFD for each half that waited in vain, by key."""
        flushed = {key: clean_text(half) for key, half in self._held.items()}
        self._held.clear()
        return flushed
