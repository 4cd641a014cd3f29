"""Model specs as people write them: `provider/id`, or `provider/id:level` with a thinking level."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from laneway.errors import ModelNotFound
from laneway.llm.base import THINKING_LEVELS, ThinkingLevel


def split_level(model_id: str) -> tuple[str, ThinkingLevel | None]:
    """Split a thinking level off the end of an id; ids may hold colons of their own (`qwen3:8b`), which stay."""
    head, colon, tail = model_id.rpartition(":")
    if colon and head and tail in THINKING_LEVELS:
        return head, tail
    return model_id, None


def split_provider(spec: str) -> tuple[str, str]:
    """Split `provider/id` at its first slash: ids may hold slashes of their own.

    Raises:
        ModelNotFound: there is nothing on one side of the slash.
    """
    provider, slash, model_id = spec.strip().partition("/")
    if not slash or not provider or not model_id:
        raise ModelNotFound(f"{spec!r} is no model: write provider/model-id, such as anthropic/claude-sonnet-5-5 or ollama/qwen3:8b")
    return provider, model_id


def unknown_provider(spec: str, provider: str, known: Iterable[str]) -> ModelNotFound:
    """Return the error for a provider that nobody registered."""
    names = list(known)
    near = get_close_matches(provider, names, n=3, cutoff=0.5)
    if provider == "scripted":
        hint = "a script answers by itself: pass its stream_fn too, as in Agent(model=script.model, stream_fn=script.stream_fn)"
        return ModelNotFound(f"no model {spec!r} to ask over the network: {hint}")
    hint = f"did you mean {_or(near)}?" if near else f"known providers: {', '.join(names)}"
    return ModelNotFound(f"no model {spec!r}: there is no provider {provider!r}; {hint}")


def unknown_model(spec: str, provider: str, model_id: str, known: Iterable[str]) -> ModelNotFound:
    """Return the error for an id that the provider does not have."""
    names = list(known)
    near = get_close_matches(model_id, names, n=5, cutoff=0.5)
    near += [name for name in names if model_id in name and name not in near][: 5 - len(near)]
    if near:
        hint = f"did you mean {_or([f'{provider}/{name}' for name in near])}?"
    elif names:
        hint = f"`laneway models {provider}` lists the {len(names)} that there are"
    else:
        hint = "it has no models; add yours to models.toml or with Models.add"
    return ModelNotFound(f"no model {spec!r}: {provider} has no {model_id!r}; {hint}")


def _or(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
