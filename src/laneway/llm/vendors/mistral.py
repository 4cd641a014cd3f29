"""Mistral. The base URL has no version in it."""

from __future__ import annotations

from laneway.llm._provider import Provider
from laneway.llm.catalog import shard

PROVIDERS = (
    Provider(
        id="mistral",
        name="Mistral",
        api="mistral",
        base_url="https://api.mistral.ai",
        base_url_env=("MISTRAL_BASE_URL",),
        keys=("MISTRAL_API_KEY",),
        help="a key from console.mistral.ai",
        models=shard("mistral"),
        default_model="mistral-medium-latest",
    ),
)
