"""A Postgres server for the crash tests."""

from storage.pg import postgres as postgres
