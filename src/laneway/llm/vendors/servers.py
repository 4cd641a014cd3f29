"""Servers that people run themselves, and `custom`: any URL that speaks one of laneway's wires. No key is needed unless the server wants one."""

from __future__ import annotations

from typing import Any

from laneway.llm._auth import Auth, AuthRequest, env_value
from laneway.llm._provider import Provider
from laneway.llm.vendors._lists import llama_cpp_list, lmstudio_list, ollama_list, openai_list


def _ollama(request: AuthRequest) -> Auth:
    """Ollama's own variable names a host and port, and 0.0.0.0 there means "listen everywhere", which cannot be connected to."""
    url = env_value(request.env, "OLLAMA_BASE_URL")
    host = env_value(request.env, "OLLAMA_HOST")
    if url is None and host is not None:
        root = host if "://" in host else f"http://{host}"
        if root.count(":") < 2:
            root += ":11434"
        url = root.replace("//0.0.0.0", "//127.0.0.1").rstrip("/") + "/v1"
    key = request.api_key or (request.credential.key if request.credential else None) or env_value(request.env, "OLLAMA_API_KEY")
    return Auth(api_key=key, base_url=url or "", source="no key needed" if key is None else "OLLAMA_API_KEY")


def _custom(request: AuthRequest) -> Auth:
    key = request.api_key or (request.credential.key if request.credential else None) or env_value(request.env, "LANEWAY_CUSTOM_API_KEY")
    url = env_value(request.env, "LANEWAY_CUSTOM_BASE_URL") or ""
    if url and "://" not in url:  # localhost:8080
        url = f"http://{url}"
    return Auth(api_key=key, base_url=url, source="LANEWAY_CUSTOM_BASE_URL")


def _server(name: str, title: str, base_url: str, variable: str, **more: Any) -> Provider:
    """A server on this machine: key optional, any model id, listed by asking it."""
    fields: dict[str, Any] = {"refresh": openai_list, "base_url_env": (variable,), **more}
    return Provider(id=name, name=title, base_url=base_url, key_optional=True, open_ended=True, **fields)


PROVIDERS = (
    _server("ollama", "Ollama", "http://127.0.0.1:11434/v1", "OLLAMA_BASE_URL", auth=_ollama, refresh=ollama_list),
    _server("lmstudio", "LM Studio", "http://127.0.0.1:1234/v1", "LMSTUDIO_BASE_URL", keys=("LMSTUDIO_API_KEY",), refresh=lmstudio_list),
    _server("vllm", "vLLM", "http://127.0.0.1:8000/v1", "VLLM_BASE_URL", keys=("VLLM_API_KEY",)),
    _server("llama.cpp", "llama.cpp server", "http://127.0.0.1:8080/v1", "LLAMA_CPP_BASE_URL", keys=("LLAMA_API_KEY",), refresh=llama_cpp_list),
    _server("custom", "any compatible server", "", "LANEWAY_CUSTOM_BASE_URL", auth=_custom, keys=("LANEWAY_CUSTOM_API_KEY",)),
)
