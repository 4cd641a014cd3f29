"""What a lane shows that no commit holds: the response that streams, and the last progress of running tools."""

from __future__ import annotations

from laneway.messages import AssistantMessage, ToolResult


class Live:
    """In memory only; a snapshot reads it, the drive keeps it."""

    __slots__ = ("progress", "streaming")

    def __init__(self) -> None:
        self.streaming: AssistantMessage | None = None
        self.progress: dict[str, ToolResult] = {}
        """Partial results by result entry id."""

    def clear(self) -> None:
        """Forget everything."""
        self.streaming = None
        self.progress = {}
