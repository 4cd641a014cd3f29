"""`laneway models`: what can be asked."""

from __future__ import annotations

import argparse
import json

from laneway.cli._exit import DONE, FAILED
from laneway.llm import Model, default_models


def models(arguments: argparse.Namespace) -> int:
    """List models, narrowed by words, provider and availability. Exit code 1 if nothing matches."""
    registry = default_models()
    listed = registry.get_available() if arguments.available else registry.list(arguments.provider)
    if arguments.provider:
        listed = [model for model in listed if model.provider == arguments.provider]
    words = [word.lower() for word in arguments.filter]
    matching = [model for model in listed if all(word in f"{model.spec} {model.name}".lower() for word in words)]
    for model in matching:
        print(json.dumps(_record(model)) if arguments.json else _line(model))
    if not matching and not arguments.json:
        known = ", ".join(provider.id for provider in registry.providers())
        print(f"no model matches; providers: {known}")
    return DONE if matching else FAILED


def _record(model: Model) -> dict[str, object]:
    return {
        "model": model.spec,
        "name": model.name,
        "api": model.api,
        "context_window": model.context_window,
        "max_tokens": model.max_tokens,
        "input": list(model.input),
        "reasoning": model.reasoning,
        "cost": {"input": model.cost.input, "output": model.cost.output},
    }


def _line(model: Model) -> str:
    price = f"${model.cost.input:g} / ${model.cost.output:g} per M" if model.cost.input or model.cost.output else ""
    window = f"{model.context_window // 1000}k" if model.context_window else ""
    marks = " ".join(mark for mark in ("images" if "image" in model.input else "", "thinking" if model.reasoning else "") if mark)
    return f"{model.spec:<58} {window:>6}  {price:<24} {marks}".rstrip()
