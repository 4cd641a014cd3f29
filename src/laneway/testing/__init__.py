"""Doubles for tests: a scripted model, a provider on loopback, stores that crash or remember, and the rules of a store as a suite.

Importing this needs no pytest; only `StorageConformance` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.testing._provider_ready import provider_ready
from laneway.testing._replies import Call, Reply, call, calls, deferred, error, overflow, text, thinking, truncated
from laneway.testing._scripted import Request, Scripted

if TYPE_CHECKING:
    from laneway.testing._serve import WireRequest, WireServer, serve_wire
    from laneway.testing._storage import (
        DurableRewritableConformance,
        DurableStorageConformance,
        EnumerableConformance,
        RewritableConformance,
        StorageConformance,
    )
    from laneway.testing._storage_doubles import Crash, CrashingStorage, RecordingStorage
    from laneway.testing._storage_model import assert_behaves_like_memory

__all__ = [
    "Call",
    "Crash",
    "CrashingStorage",
    "DurableRewritableConformance",
    "DurableStorageConformance",
    "EnumerableConformance",
    "RecordingStorage",
    "Reply",
    "Request",
    "RewritableConformance",
    "Scripted",
    "StorageConformance",
    "WireRequest",
    "WireServer",
    "assert_behaves_like_memory",
    "call",
    "calls",
    "deferred",
    "error",
    "overflow",
    "provider_ready",
    "serve_wire",
    "text",
    "thinking",
    "truncated",
]

_LAZY = {
    "Crash": "_storage_doubles",
    "CrashingStorage": "_storage_doubles",
    "RecordingStorage": "_storage_doubles",
    "DurableRewritableConformance": "_storage",
    "DurableStorageConformance": "_storage",
    "EnumerableConformance": "_storage",
    "RewritableConformance": "_storage",
    "StorageConformance": "_storage",
    "WireRequest": "_serve",
    "WireServer": "_serve",
    "assert_behaves_like_memory": "_storage_model",
    "serve_wire": "_serve",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
