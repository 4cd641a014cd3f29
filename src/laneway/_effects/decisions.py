"""What tool hooks may answer, and how any hook is called."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from msgspec import Struct

from laneway.abort import being_cancelled
from laneway.messages import ImageContent, TextContent, Usage

T = TypeVar("T")


class Block(Struct, frozen=True):
    """Answer of a before-tool hook: do not run the call. `reason` is what the model reads; `terminate` counts as the tool's hint."""

    reason: str | None = None
    terminate: bool = False


class ReplaceArgs(Struct, frozen=True):
    """Answer of a before-tool hook: run the call with these arguments; they are validated again."""

    args: Any


class PatchResult(Struct, kw_only=True, frozen=True):
    """Answer of an after-tool hook: replace the fields that are not None."""

    content: list[TextContent | ImageContent] | None = None
    details: Any = None
    is_error: bool | None = None
    terminate: bool | None = None
    usage: Usage | None = None


async def call_hook(hook: Callable[..., T | Awaitable[T]], *args: Any) -> T:
    """Call a hook that may be sync or async.

    Raises:
        Exception: what the hook raises. That something it awaited was cancelled is its fault like any other, a RuntimeError.
        asyncio.CancelledError: the calling task was cancelled.
    """
    try:
        answer = hook(*args)
        if hasattr(answer, "__await__"):
            return await cast("Awaitable[T]", answer)
        return cast(T, answer)
    except asyncio.CancelledError as error:
        if being_cancelled():
            raise
        raise RuntimeError("the hook's own work was cancelled") from error
