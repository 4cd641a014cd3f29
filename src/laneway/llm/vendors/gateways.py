"""Gateways to many vendors' models. OpenRouter's list of models is public and can be fetched."""

from __future__ import annotations

from laneway.llm._provider import Provider, Setting
from laneway.llm.catalog import shard
from laneway.llm.vendors._lists import openai_list, openrouter_list

PROVIDERS = (
    Provider(
        id="openrouter",
        name="OpenRouter",
        base_url="https://openrouter.ai/api/v1",
        base_url_env=("OPENROUTER_BASE_URL",),
        keys=("OPENROUTER_API_KEY",),
        help="a key from openrouter.ai/keys",
        models=shard("openrouter"),
        open_ended=True,
        refresh=openrouter_list,
    ),
    Provider(
        id="vercel",
        name="Vercel AI Gateway",
        base_url="https://ai-gateway.vercel.sh/v1",
        keys=("AI_GATEWAY_API_KEY",),
        help="a key from vercel.com/ai-gateway",
        open_ended=True,
        refresh=openai_list,
    ),
    Provider(
        id="cloudflare",
        name="Cloudflare Workers AI",
        base_url="https://api.cloudflare.com/client/v4/accounts/{CLOUDFLARE_ACCOUNT_ID}/ai/v1",
        keys=("CLOUDFLARE_API_KEY",),
        settings=(Setting(name="CLOUDFLARE_ACCOUNT_ID", env=()),),
        help="CLOUDFLARE_API_KEY and CLOUDFLARE_ACCOUNT_ID from dash.cloudflare.com",
        open_ended=True,
    ),
)
