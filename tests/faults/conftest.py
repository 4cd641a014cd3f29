"""Shared by the tests of faults."""

from __future__ import annotations

from cli.conftest import env, work

__all__ = ["env", "work"]
