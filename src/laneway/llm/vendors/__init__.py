"""Vendors: the providers that laneway knows by name, as data. A vendor's own file says where it is, what its key is called, and its quirks.

Vendors do not know each other. `builtin_providers` collects them; the models of each are in `laneway.llm.catalog`.
"""

from __future__ import annotations

from laneway.llm._provider import Provider

__all__ = ["builtin_providers"]

_MODULES = ("anthropic", "openai", "google", "amazon", "mistral", "hosted", "gateways", "servers", "local")


def builtin_providers() -> dict[str, Provider]:
    """Return the providers that laneway knows, by id, in the order in which they are listed to a person."""
    from importlib import import_module

    found = (provider for name in _MODULES for provider in import_module(f"{__name__}.{name}").PROVIDERS)
    return {provider.id: provider for provider in found}
