"""The quirks table."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from laneway.errors import ModelError
from laneway.llm import Provider
from laneway.llm.base import StreamOptions
from laneway.llm.vendors import builtin_providers
from laneway.llm.wire.openai_chat.compat import PROFILES, ChatCompat, Profile, find_profile, resolve_compat
from laneway.llm.wire.openai_chat.encode import affinity_headers
from llm.chat import chat_model


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_each_row_is_found_by_provider_and_by_host(profile: Profile) -> None:
    """05 §4.2: one test per row; every flag of a row exists and takes effect."""
    for provider in profile.providers:
        assert find_profile(chat_model(provider=provider, base_url="")) is profile
    for host in profile.hosts:
        assert find_profile(chat_model(base_url=f"https://{host}/v1")) is profile
    name = (profile.providers or ("x",))[0]
    compat = resolve_compat(chat_model(provider=name, base_url=f"https://{profile.hosts[0]}/v1" if profile.hosts else ""))
    for flag, value in profile.flags.items():
        assert getattr(compat, flag) == value


def test_the_host_counts_before_the_provider() -> None:
    """A provider id pointed at another known server gets that server's quirks."""
    found = find_profile(chat_model(provider="openai", base_url="https://api.deepseek.com"))
    assert found is not None
    assert found.name == "deepseek"
    assert find_profile(chat_model(base_url="https://notapi.openai.com.example.org/v1")) is None


@pytest.mark.parametrize("vendor", [vendor for vendor in builtin_providers().values() if vendor.api == "openai_chat" and vendor.id != "custom"])
def test_a_vendor_keeps_its_quirks_behind_another_url(vendor: Provider) -> None:
    """A gateway or a proxy in front of a vendor changes where it is, not what it understands; it is known under the id that laneway has for it."""
    home = vendor.model("some-model")
    away = replace(home, base_url="https://gateway.example.com/v1")
    assert find_profile(away) is not None
    assert resolve_compat(away) == resolve_compat(home)


def test_an_unknown_server_has_the_defaults() -> None:
    """Nothing special is assumed (05 §11.17)."""
    assert resolve_compat(chat_model()) == ChatCompat()


def test_the_model_s_own_flags_win_key_by_key() -> None:
    """05 §4.2: explicit keys override per key."""
    model = chat_model(provider="deepseek", base_url="", compat={"max_tokens_field": "max_output", "supports_store": True})
    compat = resolve_compat(model)
    assert (compat.max_tokens_field, compat.supports_store, compat.thinking_format) == ("max_output", True, "deepseek")


@pytest.mark.parametrize("flags", [{"no_such_flag": True}, {"thinking_format": "magic"}, {"supports_store": "yes"}])
def test_a_wrong_flag_is_named(flags: dict[str, object]) -> None:
    """A typo must not be silently without effect."""
    with pytest.raises(ModelError, match=next(iter(flags))):
        resolve_compat(chat_model(compat=flags))


def test_session_affinity_headers() -> None:
    """05 §4.2: three formats; none without a session or without caching."""
    options = StreamOptions(session_id="s")
    headers = {
        fmt: affinity_headers(options, ChatCompat(send_session_affinity_headers=True, session_affinity_format=fmt))
        for fmt in ("openai", "openai-nosession", "openrouter")
    }  # type: ignore[arg-type]  # literals
    assert headers == {
        "openai": {"session_id": "s", "x-client-request-id": "s", "x-session-affinity": "s"},
        "openai-nosession": {"x-client-request-id": "s", "x-session-affinity": "s"},
        "openrouter": {"x-session-id": "s"},
    }
    assert affinity_headers(StreamOptions(session_id="s", cache_retention="none"), ChatCompat(send_session_affinity_headers=True)) == {}
    assert affinity_headers(options, ChatCompat()) == {}
