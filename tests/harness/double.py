"""The public scripted model, with the few words that these tests say often."""

from __future__ import annotations

import dataclasses
from typing import Any

from laneway.llm.base import Model
from laneway.messages import Usage
from laneway.testing import Reply, Request, call, deferred, error, overflow
from laneway.testing import Scripted as PublicScripted
from laneway.testing import calls as public_calls
from laneway.testing import text as public_text
from laneway.testing import truncated as public_truncated
from laneway.testing._replies import as_reply

__all__ = ["USED", "Reply", "Request", "Scripted", "call", "calls", "deferred", "error", "overflow", "text", "texts", "truncated"]

MODEL = Model(id="scripted", provider="test", api="scripted", context_window=200_000, max_tokens=8_192)
USED = Usage(input=10, output=5, total_tokens=15)


def text(content: str, **options: Any) -> Reply:
    """Say something; reports 15 tokens unless told otherwise."""
    return _with_stop(public_text, content, **options)


def calls(*several: Any, **options: Any) -> Reply:
    """Call several tools; reports 15 tokens unless told otherwise."""
    return _with_stop(public_calls, *several, **options)


def truncated(reply: Any) -> Reply:
    """As the public one; reports 15 tokens."""
    return public_truncated(reply, usage=USED)


def _with_stop(make: Any, *args: Any, stop: Any = None, **options: Any) -> Reply:
    reply = make(*args, **{"usage": USED, **options})
    return reply if stop is None else dataclasses.replace(reply, stop_reason=stop)


class Scripted(PublicScripted):
    """A scripted model with a window of 200,000 tokens, whose replies report 15 tokens."""

    def __init__(self, replies: list[Any]) -> None:
        super().__init__([self._counted_reply(reply) for reply in replies], model=MODEL)

    @staticmethod
    def _counted_reply(reply: Any) -> Any:
        if callable(reply):
            return reply
        reply = as_reply(reply)
        return reply if reply.usage is not None or reply.failure is not None else dataclasses.replace(reply, usage=USED)


def texts(request: Request) -> list[str]:
    """A request's messages as role:text, without the system message."""
    return [f"{m.role}:{_text(m)}" for m in request.messages if m.role != "system"]


def _text(message: Any) -> str:
    content = message.content
    return content if isinstance(content, str) else "".join(getattr(block, "text", "") for block in content)
