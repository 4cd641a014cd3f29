"""Who holds a lease, and whether that process still lives.

A process is named by its machine (its boot included), its id and its start time: an id alone may have been given to another
process since. Only a process on the same machine, in the same process namespace, can be known to be dead; of any other
nothing is known, and its lease is waited for.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct


class Owner(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A process that holds a lease. `token` tells several leases of one process apart."""

    host: str
    machine: str
    pid: int
    started: str
    token: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def encode(self) -> str:
        """Return the form that is kept beside the lease."""
        return msgspec.json.encode(self).decode()

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to have ended. False if nothing can be known."""
        here = this_process()
        if self.machine != here.machine or not self.started:
            return False
        return _start_time(self.pid) != self.started


def this_process(token: str = "") -> Owner:
    """Name the running process; right in a forked child too."""
    pid = os.getpid()
    return Owner(host=socket.gethostname(), machine=_machine(), pid=pid, started=_start_time(pid) or "", token=token)


def decode_owner(text: str) -> Owner | None:
    """Read what `encode` wrote; None if it is something else."""
    try:
        return msgspec.json.decode(text, type=Owner)
    except msgspec.DecodeError:
        return None


@lru_cache
def _machine() -> str:
    """Name this boot of this machine and its process namespace, as far as the system tells."""
    if not sys.platform.startswith("linux"):
        return socket.gethostname()
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """Return when a process of this machine started, in the system's own terms; None if there is no such process (or only its zombie)."""
    if not sys.platform.startswith("linux"):
        return _alive_elsewhere(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else fields[19]


def _alive_elsewhere(pid: int) -> str | None:
    """Where start times cannot be read: whether the process is there at all. A reused id then counts as alive, and its lease is waited for."""
    if sys.platform == "win32":
        return "" if pid != os.getpid() else "running"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return "running"
