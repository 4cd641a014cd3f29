"""Vendors that serve models behind a protocol of somebody else's: a URL, a key, a list of models. Their quirks are the wire's `compat` table."""

from __future__ import annotations

from typing import Any

from laneway.llm._provider import Provider
from laneway.llm.catalog import shard


def _hosted(name: str, title: str, base_url: str, key: str, site: str, **more: Any) -> Provider:
    fields: dict[str, Any] = {"models": shard(name), **more}
    return Provider(id=name, name=title, base_url=base_url, keys=(key,), help=f"a key from {site}", **fields)


PROVIDERS = (
    _hosted("groq", "Groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", "console.groq.com", default_model="openai/gpt-oss-120b"),
    _hosted("cerebras", "Cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", "cloud.cerebras.ai", default_model="gpt-oss-120b"),
    _hosted("deepseek", "DeepSeek", "https://api.deepseek.com", "DEEPSEEK_API_KEY", "platform.deepseek.com", default_model="deepseek-v4-pro"),
    _hosted("xai", "xAI", "https://api.x.ai/v1", "XAI_API_KEY", "console.x.ai", api="openai_responses", default_model="grok-4.7"),
    _hosted("together", "Together AI", "https://api.together.ai/v1", "TOGETHER_API_KEY", "api.together.ai", open_ended=True),
    _hosted("fireworks", "Fireworks AI", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", "fireworks.ai", open_ended=True),
    _hosted("moonshot", "Moonshot AI", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", "platform.moonshot.ai", default_model="kimi-k3"),
    _hosted("zai", "Z.ai", "https://api.z.ai/api/coding/paas/v4", "ZAI_API_KEY", "z.ai", default_model="glm-5.3"),
    _hosted(
        "minimax",
        "MiniMax",
        "https://api.minimax.io/anthropic",
        "MINIMAX_API_KEY",
        "platform.minimax.io",
        api="anthropic_messages",
        default_model="MiniMax-M3",
    ),
    _hosted("huggingface", "Hugging Face", "https://router.huggingface.co/v1", "HF_TOKEN", "huggingface.co/settings/tokens", open_ended=True),
    _hosted("nvidia", "NVIDIA NIM", "https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY", "build.nvidia.com", open_ended=True),
)
