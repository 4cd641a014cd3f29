"""Asking a server which models it has: one GET, a few facts of each model. Facts only: what a server does not say stays unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import msgspec

from laneway.errors import ModelError
from laneway.llm._http import merge_headers, safe_url, shared_client
from laneway.llm._provider import RefreshContext
from laneway.llm.base import Modality, Model, ModelCost

LIST_SECONDS = 15.0
LIST_BYTES = 32 * 1024 * 1024


async def openai_list(context: RefreshContext) -> list[Model]:
    """List the models of a server that speaks the OpenAI protocol; vLLM also says how long a context may be."""
    found = _dicts((await _get(context, f"{context.base_url}/models")).get("data"))
    return [_model(context, entry["id"], context_window=_int(entry.get("max_model_len"))) for entry in found if isinstance(entry.get("id"), str)]


async def llama_cpp_list(context: RefreshContext) -> list[Model]:
    """List the one model of a llama.cpp server, with the context that the server was started with."""
    models = await openai_list(context)
    try:
        props = await _get(context, f"{_root(context.base_url)}/props")
    except ModelError:
        return models
    settings: Any = props.get("default_generation_settings")
    window = _int(settings.get("n_ctx")) if isinstance(settings, dict) else 0  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - JSON
    images = bool(_dict(props.get("modalities")).get("vision"))
    return [msgspec.structs.replace(model, context_window=window, input=("text", "image") if images else ("text",)) for model in models]


async def lmstudio_list(context: RefreshContext) -> list[Model]:
    """List LM Studio's models through its own API, which knows context lengths; through the OpenAI one where that is missing."""
    try:
        found = _dicts((await _get(context, f"{_root(context.base_url)}/api/v0/models")).get("data"))
    except ModelError:
        return await openai_list(context)
    chat = (entry for entry in found if entry.get("type") in ("llm", "vlm") and isinstance(entry.get("id"), str))
    return [
        _model(
            context,
            entry["id"],
            context_window=_int(entry.get("loaded_context_length")) or _int(entry.get("max_context_length")),
            input=("text", "image") if entry["type"] == "vlm" else ("text",),
        )
        for entry in chat
    ]


async def ollama_list(context: RefreshContext) -> list[Model]:
    """List the models that Ollama has on disk, those for embeddings left out."""
    found = _dicts((await _get(context, f"{_root(context.base_url)}/api/tags")).get("models"))
    names = (entry.get("name") for entry in found if not _only_embeds(entry))
    return [_model(context, name) for name in names if isinstance(name, str)]


def _only_embeds(entry: dict[str, Any]) -> bool:
    families = _dict(entry.get("details")).get("families")
    return isinstance(families, list) and families != [] and all("bert" in str(family) for family in cast("list[Any]", families))


async def openrouter_list(context: RefreshContext) -> list[Model]:
    """List OpenRouter's models that can call tools, with limits, prices and modalities."""
    found = _dicts((await _get(context, f"{context.base_url}/models")).get("data"))
    return [_openrouter_model(context, entry) for entry in found if _calls_tools(entry)]


def _calls_tools(entry: dict[str, Any]) -> bool:
    supported = entry.get("supported_parameters")
    return isinstance(entry.get("id"), str) and isinstance(supported, list) and "tools" in supported


def _openrouter_model(context: RefreshContext, entry: dict[str, Any]) -> Model:
    prices, top, architecture = _dict(entry.get("pricing")), _dict(entry.get("top_provider")), _dict(entry.get("architecture"))
    return _model(
        context,
        entry["id"],
        name=str(entry.get("name") or entry["id"]),
        reasoning="reasoning" in entry["supported_parameters"],
        input=_modalities(architecture.get("input_modalities")),
        context_window=_int(top.get("context_length")) or _int(entry.get("context_length")),
        max_tokens=_int(top.get("max_completion_tokens")),
        cost=ModelCost(
            input=_per_million(prices.get("prompt")),
            output=_per_million(prices.get("completion")),
            cache_read=_per_million(prices.get("input_cache_read")),
            cache_write=_per_million(prices.get("input_cache_write")),
        ),
    )


def _modalities(value: Any) -> tuple[Modality, ...]:
    return ("text", "image") if isinstance(value, list) and "image" in value else ("text",)


def _per_million(value: Any) -> float:
    """OpenRouter writes prices as text, in dollars per token; a router's "-1" means that it depends."""
    try:
        price = float(value)
    except (TypeError, ValueError):
        return 0.0
    return round(price * 1_000_000, 6) if 0 < price < 1 else 0.0


def _model(context: RefreshContext, model_id: str, **facts: Any) -> Model:
    """What the registry adds (wire, URL, compat) it adds itself."""
    known: dict[str, Any] = {"name": model_id, **facts}
    return Model(id=model_id, provider=context.provider, api="", **known)


async def _get(context: RefreshContext, url: str) -> dict[str, Any]:
    """Fetch a JSON object.

    Raises:
        ModelError: there is no answer, or not such a one.
    """
    headers = merge_headers(
        {"accept": "application/json"}, {"authorization": f"Bearer {context.api_key}"} if context.api_key else None, context.headers
    )
    try:
        async with asyncio.timeout(LIST_SECONDS):
            client = await shared_client(url)
            response = await client.get(url, headers=headers)
        if response.status_code != 200:
            raise ModelError(f"{context.provider}: {safe_url(url)} answered {response.status_code} instead of a list of models")
        if len(response.content) > LIST_BYTES:
            raise ModelError(f"{context.provider}: the list of models at {safe_url(url)} is larger than {LIST_BYTES >> 20} MiB")
        return msgspec.json.decode(response.content, type=dict[str, Any])
    except ModelError:
        raise
    except msgspec.DecodeError:
        raise ModelError(f"{context.provider}: {safe_url(url)} did not answer with JSON; check the base URL") from None
    except TimeoutError:
        raise ModelError(f"{context.provider}: {safe_url(url)} did not answer within {LIST_SECONDS:.0f} s") from None
    except Exception as error:
        raise ModelError(f"{context.provider}: {safe_url(url)} cannot be reached ({type(error).__name__}); is the server running?") from None


def _root(base_url: str) -> str:
    """The server without the path of its OpenAI protocol."""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/").removesuffix("/v1"), "", ""))


def _dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _dicts(value: Any) -> Iterable[dict[str, Any]]:
    return (cast("dict[str, Any]", item) for item in cast("list[Any]", value) if isinstance(item, dict)) if isinstance(value, list) else ()


def _int(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
