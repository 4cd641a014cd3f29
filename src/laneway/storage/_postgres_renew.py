"""Renewing leases from a thread, however busy the event loop is.

A tool that blocks the loop for a minute must not cost its session the lease, so renewals have a connection of their own.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from laneway.storage._strand import Strand

if TYPE_CHECKING:
    from psycopg import Connection

_log = logging.getLogger("laneway.storage")


class Renewals:
    """One connection and one strand of work for all leases of a pool. The connection is made on first use and again when lost."""

    def __init__(self, connect: Callable[[], Connection[Any]]) -> None:
        self._connect = connect
        self._strand = Strand()
        self._connection: Connection[Any] | None = None

    def post(self, work: Callable[[Connection[Any]], None], what: str) -> None:
        """Do `work` with the connection when its turn comes; a failure is logged under `what` and forgotten. Callable from any thread."""
        self._strand.post(lambda: self._do(work, what))

    def _do(self, work: Callable[[Connection[Any]], None], what: str) -> None:
        try:
            if self._connection is None:
                self._connection = self._connect()
            work(self._connection)
        except Exception as error:  # the next beat tries again; commits compare the fence anyway
            _log.warning("%s could not be renewed: %s", what, error)
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    async def close(self) -> None:
        """Close the connection when what was posted is done."""
        await self._strand.run(self._drop)
        self._strand.close()
