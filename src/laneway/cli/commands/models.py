"""`laneway models`: what can be asked."""

from __future__ import annotations

import argparse
import asyncio

from laneway.cli._exit import DONE, FAILED, CliError, complain
from laneway.cli.render._terminal import printable
from laneway.llm import Model, Models, default_models
from laneway.llm.base import encode_json


def models(arguments: argparse.Namespace) -> int:
    """List models, narrowed by words, provider and availability. Exit code 1 if nothing matches or a list could not be fetched.

    Raises:
        CliError: there is no such provider.
    """
    registry = default_models()
    known = [provider.id for provider in registry.providers()]
    if arguments.provider and arguments.provider not in known:
        raise CliError(f"there is no provider {arguments.provider!r}; choose from {', '.join(known)}")
    fine = not arguments.refresh or _refresh(registry, arguments.provider)
    listed = registry.get_available() if arguments.available else registry.list(arguments.provider)
    words = [word.lower() for word in arguments.filter]
    matching = [
        model
        for model in listed
        if (not arguments.provider or model.provider == arguments.provider) and all(word in f"{model.spec} {model.name}".lower() for word in words)
    ]
    for model in matching:
        print(encode_json(_record(model)).decode() if arguments.json else printable(_line(model)))
    if not matching and fine:  # why a list could not be fetched has been said
        complain(_nothing(arguments, known))
    return DONE if matching and fine else FAILED


def _refresh(registry: Models, provider: str | None) -> bool:
    result = asyncio.run(registry.refresh(provider))
    for name, error in result.errors.items():
        complain(f"the list of {name} could not be fetched: {error}")
    return not result.errors


def _nothing(arguments: argparse.Namespace, known: list[str]) -> str:
    if arguments.available and not arguments.filter:
        return "no model can be used now: set a provider's key, run a server, or install the embedded model (see laneway doctor)"
    if arguments.provider and not arguments.filter and arguments.refresh:
        return f"{arguments.provider} has no models now"
    if arguments.provider and not arguments.filter:
        return f"laneway has no list for {arguments.provider}; ask it with --refresh, or name a model: {arguments.provider}/MODEL"
    return f"no model matches; the providers are {', '.join(known)}"


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
