"""Transcript → request body and address of a Responses request on Azure. Pure: the settings come with the request (`StreamOptions.env`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from laneway.llm.base import Model, ProviderFailure, StreamOptions, Transcript
from laneway.llm.wire.openai_responses import encode as encode_responses

VERSION_SETTING = "AZURE_OPENAI_API_VERSION"
DEPLOYMENT_SETTING = "AZURE_OPENAI_DEPLOYMENT_NAME_MAP"
DEFAULT_VERSION = "v1"
_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")


def encode(model: Model, transcript: Transcript, options: StreamOptions) -> dict[str, Any]:
    """Return the request body, which names the deployment where others name the model.

    Raises:
        ModelError: the model's `compat` is wrong.
    """
    body = encode_responses(model, transcript, options)
    if body["model"] == model.id:
        body["model"] = deployment_of(model, options.env)
    return body


def deployment_of(model: Model, env: Mapping[str, str] | None) -> str:
    """Return the deployment of a model: from `AZURE_OPENAI_DEPLOYMENT_NAME_MAP`, which is `id=deployment,…` or one name for all; else its id."""
    setting = (env or {}).get(DEPLOYMENT_SETTING, "")
    for entry in filter(None, (part.strip() for part in setting.split(","))):
        name, equals, deployment = (part.strip() for part in entry.partition("="))
        if not equals:
            return name
        if name == model.id and deployment:
            return deployment
    return model.id


def responses_url(model: Model, env: Mapping[str, str] | None) -> str:
    """Return where the request goes.

    An address of Azure's own may be the resource alone, or whatever was copied from its portal; others are taken as they are. A version
    that is a date belongs to the API as it was before it had a `v1`.

    Raises:
        ProviderFailure: the model has no address.
    """
    if not model.base_url:
        text = f"{model.spec} has no base URL: set AZURE_OPENAI_BASE_URL or AZURE_OPENAI_RESOURCE_NAME, or `base_url` of the model"
        raise ProviderFailure(text, kind="configuration")
    version = (env or {}).get(VERSION_SETTING, "").strip() or DEFAULT_VERSION
    base = model.base_url.rstrip("/")
    parts = urlsplit(base)
    own = (parts.hostname or "").endswith(_HOSTS) and (parts.path in ("", "/openai") or parts.path.startswith("/openai/"))
    if own:
        base = f"{parts.scheme}://{parts.netloc}/openai{'' if version[:1].isdigit() else '/v1'}"
    return f"{base.removesuffix('/responses')}/responses?api-version={quote(version)}"
