"""Anthropic. The base URL has no version in it; an auth token (`ANTHROPIC_AUTH_TOKEN`) goes out as a bearer header."""

from __future__ import annotations

from laneway.llm._provider import EnvKey, Provider
from laneway.llm.catalog import shard

PROVIDERS = (
    Provider(
        id="anthropic",
        name="Anthropic",
        api="anthropic_messages",
        base_url="https://api.anthropic.com",
        base_url_env=("ANTHROPIC_BASE_URL",),
        keys=(EnvKey(name="ANTHROPIC_AUTH_TOKEN", bearer=True), "ANTHROPIC_OAUTH_TOKEN", "ANTHROPIC_API_KEY"),
        help="a key from console.anthropic.com",
        models=shard("anthropic"),
        default_model="claude-sonnet-5-5",
    ),
)
