"""What every request asks of its transcript, at the cost of what is new since the last request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from laneway.messages import AgentMessage

Answer = TypeVar("Answer", covariant=True)


class Fold(Protocol[Answer]):
    """Reads a transcript message after message, and can go on where it stopped."""

    def take(self, messages: Sequence[AgentMessage], start: int) -> Answer:
        """Read `messages[start:]`, all before having been read, and return the answer for the whole list."""
        ...


class Grown(Generic[Answer]):
    """Remembers the folds of the last few transcripts; one that begins with a transcript read before costs only what it has more.

    Safe to use from several threads: a fold belongs to one caller while it reads.
    """

    __slots__ = ("_entries", "_make", "_size")

    def __init__(self, make: Callable[[], Fold[Answer]], *, size: int = 16) -> None:
        self._make = make
        self._size = size
        self._entries: list[tuple[list[AgentMessage], Fold[Answer]]] = []

    def of(self, messages: Sequence[AgentMessage]) -> Answer:
        """Return the fold's answer for a transcript."""
        taken = list(messages)
        seen, fold = self._begun(taken) or ([], self._make())
        answer = fold.take(taken, len(seen))
        self._entries.append((taken, fold))
        del self._entries[: -self._size]
        return answer

    def _begun(self, messages: list[AgentMessage]) -> tuple[list[AgentMessage], Fold[Answer]] | None:
        for entry in reversed(list(self._entries)):
            seen = entry[0]
            if len(seen) <= len(messages) and messages[: len(seen)] == seen:
                try:
                    self._entries.remove(entry)
                except ValueError:  # another thread took it
                    continue
                return entry
        return None
