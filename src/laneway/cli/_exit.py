"""Exit codes, and the one way a command ends with a message."""

from __future__ import annotations

DONE = 0
FAILED = 1
USAGE = 2
ABORTED = 3
LOCKED = 4
SUSPENDED = 75
HANGUP = 129
INTERRUPTED = 130
TERMINATED = 143


class CliError(Exception):
    """Ends the command with one clear message on stderr and an exit code."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code
