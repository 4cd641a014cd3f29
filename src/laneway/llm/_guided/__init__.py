"""Guided tool calling: tools for a model whose chat template knows none, through any wire that can hold a response to a JSON schema.

A request asks for an object that is either one of the tools with its arguments or an answer; the response is turned back into a tool call
or text as it streams. A model gets this with `compat={"guided_tools": True}`; see `GuidedPolicy` for the rest.

`schema` says what may be answered, `dialogue` and `small` how the conversation is told to the model, `decode` reads the response: all
pure. `stream` puts them together.
"""

from __future__ import annotations

from laneway.llm._guided.policy import GuidedPolicy
from laneway.llm.base import Model, StreamFn

__all__ = ["GuidedPolicy", "with_guidance"]


def with_guidance(stream_fn: StreamFn, model: Model) -> StreamFn:
    """Return `stream_fn`, with guided tool calling around it if the model's `compat` asks for that.

    Raises:
        ModelError: a `guided_…` value in `compat` is wrong.
    """
    if not model.compat.get("guided_tools"):
        return stream_fn
    from laneway.llm._guided.stream import guided

    return guided(stream_fn, GuidedPolicy.of(model))
