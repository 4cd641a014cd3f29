"""`Context`: what can cancel a call of the harness, and which span it belongs to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct

from laneway.abort import AbortSignal, abort_scope

P = ParamSpec("P")
T = TypeVar("T")


class Context(Struct, kw_only=True, frozen=True):
    """Where a call comes from. Every async method of the harness, its lanes and its watches takes one; without it, both are ambient.

    `signal` does what cancelling the awaiting task does: it ends this caller's wait, which raises `Aborted`, and nothing else. A commit
    under way is made; an operation goes on and can be driven by anybody (`lane.abort()` is what ends it). If the signal is set
    already, the call raises and does nothing.

    `telemetry` is an OpenTelemetry context (`opentelemetry.context.Context`, such as `propagate.extract(headers)` returns). It is the
    parent of the spans of the pass that the call starts; a call that joins a pass has no say in it.
    """

    signal: AbortSignal | None = None
    telemetry: Any = None


def in_context(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make an async method honour its keyword `context`, of which it sees nothing itself."""

    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        context = kwargs.pop("context", None)
        if context is None:
            return await method(*args, **kwargs)
        if not isinstance(context, Context):
            raise TypeError(f"context must be a laneway.Context, not {type(context).__name__}")
        with _attached(context.telemetry):
            async with abort_scope(context.signal):
                return await method(*args, **kwargs)

    return call


@contextmanager
def _attached(telemetry: Any) -> Generator[None]:
    """Make an OpenTelemetry context the current one for a block, and for the tasks that it starts."""
    if telemetry is None:
        yield
        return
    from opentelemetry import context

    token = context.attach(telemetry)
    try:
        yield
    finally:
        context.detach(token)
