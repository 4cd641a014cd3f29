"""Exit codes, the one way a command ends with a message, and how the process is left."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn, TextIO

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


def say(text: str, err: TextIO | None = None) -> None:
    """Print a line on stderr (or `err`); one that nobody reads, or whose disk is full, is no reason to fail."""
    with suppress(OSError, ValueError, AttributeError):
        print(text, file=err or sys.stderr, flush=True)


def complain(message: str) -> None:
    """Say on stderr what went wrong."""
    say(f"laneway: {message}")


def drop_output() -> None:
    """Send what is still to be written nowhere: whoever read it has left, and the interpreter must not complain about that at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            try:
                stream.flush()
            except OSError:
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def leave(code: int) -> NoReturn:
    """End the process now: flush, and wait for no thread that is stuck in something (a model that loads, say)."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # of the help: what reads an answer was told already
    except (OSError, ValueError) as error:
        complain(f"cannot write the output: {getattr(error, 'strerror', None) or error}")
        code = code or FAILED
    drop_output()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        leave_at_once(code)
    sys.exit(code)


def leave_at_once(code: int) -> NoReturn:
    """End the process and everything it started, whatever its threads are doing."""
    commands, servers = sys.modules.get("laneway.tools._process"), sys.modules.get("laneway.llm._local.process")
    if commands is not None:
        commands.end_all_commands()
    if servers is not None:
        servers.stop_servers()
    os._exit(code)
