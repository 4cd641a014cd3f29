"""Wires: one package per protocol, each split into a pure `encode`, a pure `decode` and a `client` that does the I/O.

A wire's module has `stream(model, transcript, options) -> AssistantStream`; `load_wire` finds it by `Model.api`. Wires do not
know each other (but for `azure` and `google_vertex`, which are `openai_responses` and `google_generate` at another address). What they
share is in `laneway.llm`: `_client` (the life of a request), `_http`, `_sse`, `_errors`, `_transform` (hand-off), `_thinking`, `_usage`,
`_lenient`, `_writer`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

from laneway.errors import ModelError
from laneway.llm.base import AssistantStream, Model, StreamOptions, Transcript

WireStream = Callable[[Model, Transcript, StreamOptions], AssistantStream]

__all__ = ["WireStream", "load_wire", "wire_names"]


def wire_names() -> list[str]:
    """Return the names of all wires, sorted: what `Model.api` may be."""
    return sorted(module.name for module in iter_modules(__path__) if module.ispkg)


def load_wire(api: str) -> WireStream:
    """Return the `stream` function of a wire, importing it on first use.

    Raises:
        ModelError: there is no such wire.
    """
    name = f"laneway.llm.wire.{api}"
    if not api.isidentifier() or api.startswith("_") or find_spec(name) is None:
        raise ModelError(f"laneway does not speak {api!r}; the model's `api` must name one of its wires: {', '.join(wire_names())}")
    return import_module(name).stream
