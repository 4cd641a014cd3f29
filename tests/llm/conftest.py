"""Shared by the tests of the model layer: an environment without anybody's keys, and registries that keep nothing outside of the test."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from laneway.llm import MemoryCredentialStore, Models
from laneway.llm.vendors import builtin_providers

settings.register_profile("laneway", deadline=None)  # a busy machine is no failure
settings.load_profile("laneway")


@pytest.fixture
def clean_env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No vendor's variables are set; laneway's own folders are the test's."""
    for provider in builtin_providers().values():
        for name in [
            *provider.key_names,
            *provider.base_url_env,
            *(variable for setting in provider.settings for variable in (setting.name, *setting.env)),
        ]:
            monkeypatch.delenv(name, raising=False)
    for name in ("OLLAMA_HOST", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_BASE_URL", "AZURE_OPENAI_RESOURCE_NAME", "AWS_PROFILE", "AWS_ACCESS_KEY_ID",
                 "GOOGLE_APPLICATION_CREDENTIALS", "LANEWAY_CREDENTIALS", "LANEWAY_LOCAL_MODEL"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LANEWAY_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("LANEWAY_CACHE_DIR", str(tmp_path / "cache"))
    return monkeypatch


@pytest.fixture
def models(clean_env: pytest.MonkeyPatch) -> Models:
    """A registry of every built-in provider, with no keys."""
    return Models(credentials=MemoryCredentialStore())
