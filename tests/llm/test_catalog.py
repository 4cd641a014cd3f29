"""The catalogue: its shards are what their schema says, agree with the rules they were built by, and cost little to read."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import time
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

import laneway.llm.catalog as catalog
from laneway.errors import ModelError
from laneway.llm import THINKING_LEVELS, Models, supported_thinking_levels
from laneway.llm.catalog import load_shard, shard_names, user_models
from laneway.llm.vendors import builtin_providers

FOLDER = Path(catalog.__file__).parent
WIRES = {"openai_chat", "openai_responses", "anthropic_messages", "google_generate", "google_vertex", "bedrock_converse", "mistral", "azure"}
STANDS_ON = {"azure": "openai_responses", "google_vertex": "google_generate"}


def builder() -> Any:
    """The build script, as a module."""
    path = Path(__file__).parents[2] / "tools" / "build_catalog.py"
    spec = importlib.util.spec_from_file_location("build_catalog", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------------------------------------- the shards


@pytest.mark.parametrize("name", shard_names())
def test_a_shard_holds_models_with_facts_that_can_be(name: str) -> None:
    """Ids are unique, limits and prices plausible, thinking levels known; the wire accepts the quirks."""
    provider = builtin_providers()[name]
    models = load_shard(name)
    assert models
    assert len({model.id for model in models}) == len(models)
    for model in models:
        assert model.id == model.id.strip()
        assert model.name
        assert model.context_window >= 2048, model.id
        assert 0 <= model.max_tokens <= model.context_window, model.id
        assert 0 <= model.cost.input < 1000, model.id
        assert 0 <= model.cost.output < 2000, model.id
        assert model.cost.cache_read <= model.cost.input or model.cost.input == 0, model.id
        assert [tier.input_tokens_above for tier in model.cost.tiers] == sorted(tier.input_tokens_above for tier in model.cost.tiers)
        assert set(model.thinking_levels) <= set(THINKING_LEVELS)
        assert not model.thinking_levels or model.reasoning
        assert supported_thinking_levels(model)
    resolve_compat = import_module(f"laneway.llm.wire.{STANDS_ON.get(provider.api, provider.api)}").resolve_compat
    for model in Models(builtin=True).list(name):
        resolve_compat(model)


def test_every_wire_that_a_vendor_names_is_one_of_ours() -> None:
    """A vendor's `api` is a wire's name."""
    assert {provider.api for provider in builtin_providers().values()} <= WIRES


def test_the_manifest_describes_the_shards() -> None:
    """Sources are pinned by version and hash, and each shard's hash is its own."""
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    assert manifest["schema"] == 1
    assert all(set(source) == {"name", "version", "sha256"} for source in manifest["sources"])
    assert sorted(manifest["shards"]) == sorted(f"{name}.json" for name in shard_names())
    for name, entry in manifest["shards"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == entry["sha256"], f"{name} was edited by hand: run tools/build_catalog.py"
        assert entry["models"] == len(load_shard(name.removesuffix(".json")))


def test_the_shards_are_small_and_read_in_milliseconds() -> None:
    """A shard holds only what a model has; decoding the largest is far below what a person or a start-up notices."""
    largest = max(shard_names(), key=lambda name: (FOLDER / f"{name}.json").stat().st_size)
    assert (FOLDER / f"{largest}.json").stat().st_size < 100_000
    load_shard.cache_clear()
    best = min(_seconds(largest) for _ in range(5))
    assert best < 0.1, f"{largest} took {best * 1000:.0f} ms"  # about 1 ms where nothing else runs


def _seconds(name: str) -> float:
    load_shard.cache_clear()
    begun = time.perf_counter()
    load_shard(name)
    return time.perf_counter() - begun


@pytest.mark.parametrize(
    ("spec", "levels"),
    [
        ("anthropic/claude-haiku-4-5", "off minimal low medium high"),
        ("anthropic/claude-opus-4-6", "off minimal low medium high max"),
        ("anthropic/claude-opus-5", "off minimal low medium high xhigh max"),
        ("anthropic/claude-fable-5", "minimal low medium high xhigh max"),
        ("anthropic/claude-sonnet-5-5", "low medium high xhigh max"),
        ("anthropic/claude-haiku-5-5", "off low medium high xhigh max"),
        ("openai/o3", "low medium high"),
        ("openai/gpt-5", "minimal low medium high"),
        ("openai/gpt-5.1", "off low medium high"),
        ("openai/gpt-5.4", "off low medium high xhigh"),
        ("openai/gpt-5.6", "off low medium high xhigh max"),
        ("google/gemini-2.5-pro", "off minimal low medium high"),
        ("google/gemini-3.5-flash", "minimal low medium high"),
        ("google/gemini-3.1-pro-preview", "low medium high"),
        ("deepseek/deepseek-v4-pro", "off low high max"),
        ("zai/glm-5", "off high max"),
        ("zai/glm-5.3", "off low high max"),
        ("moonshot/kimi-k3", "low high max"),
        ("xai/grok-4.7", "off low medium high xhigh"),
        ("groq/openai/gpt-oss-120b", "low medium high"),
        ("mistral/magistral-medium-latest", "off high"),
    ],
)
def test_each_family_has_its_thinking_levels(models: Models, spec: str, levels: str) -> None:
    """Appendix B of the model layer, one row of it per case."""
    assert supported_thinking_levels(models.model(spec)) == levels.split()


IN_PLACE = ("supports_mid_convo_system_messages", "supports_additional_tools", "supports_tool_search")


@pytest.mark.parametrize(
    ("spec", "flags"),
    [
        ("openai/gpt-4.1", ()),
        ("openai/o3", ()),
        ("openai/gpt-5", ("supports_grammar_tools",)),
        ("openai/gpt-5.4-nano", ("supports_grammar_tools",)),
        ("openai/gpt-5.4", ("supports_grammar_tools", *IN_PLACE)),
        ("openai/gpt-5.6-sol", ("supports_grammar_tools", *IN_PLACE, "supports_explicit_prompt_cache_mode")),
        ("azure/gpt-5.6", ("supports_grammar_tools",)),
        ("anthropic/claude-opus-4-6", ("force_adaptive_thinking",)),
        ("anthropic/claude-opus-5", ("force_adaptive_thinking", "supports_mid_convo_system_messages")),
        ("anthropic/claude-sonnet-5", ("force_adaptive_thinking",)),
        ("anthropic/claude-sonnet-5-5", ("force_adaptive_thinking", "supports_mid_convo_system_messages")),
    ],
)
def test_each_model_has_its_quirks(models: Models, spec: str, flags: tuple[str, ...]) -> None:
    """Appendix A of the model layer: what is on, model by model."""
    assert {flag for flag, value in models.model(spec).compat.items() if value is True} == set(flags)


def test_each_vendors_default_model_exists(models: Models) -> None:
    """What is proposed to a person can be found."""
    for provider in models.providers():
        if provider.default_model:
            assert models.get(provider.id, provider.default_model) is not None, provider.id


def test_a_price_follows_its_source(models: Models) -> None:
    """Spot checks of what the sources say on the day of the manifest."""
    sonnet = models.model("anthropic/claude-sonnet-5-5").cost
    assert (sonnet.input, sonnet.output, sonnet.cache_read, sonnet.cache_write) == (2, 10, 0.1, 2.5)
    tier = models.model("xai/grok-4.7").cost.tiers[0]
    assert (tier.input_tokens_above, tier.input, tier.output) == (199_999, 4, 12)


def test_a_damaged_shard_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It names the file; a missing one is only an empty list."""
    monkeypatch.setattr(catalog, "_FOLDER", tmp_path)
    (tmp_path / "bad.json").write_text('[{"id": 3}]')
    with pytest.raises(ModelError, match=r"bad\.json"):
        load_shard("bad")
    assert load_shard("nothing-here") == ()


def test_no_models_toml_is_no_models(tmp_path: Path) -> None:
    """The file is optional."""
    found = user_models(tmp_path / "models.toml")
    assert (found.models, found.providers) == ([], [])


# ---------------------------------------------------------------------------------------------------- the build


def test_the_build_merges_two_lists_and_the_rules() -> None:
    """Limits from one list, prices from the other (or from the first, where it is preferred), levels from the rules; retired models are left out."""
    build = builder()
    prices = build.read_prices(
        """
providers: list[Provider] = [
    Provider(id='p', models=[
        ModelInfo(id='m1', match=ClauseStartsWith(starts_with='m1'), name='Model One', prices=[
            ConditionalPrice(prices=ModelPrice(input_mtok=Decimal('9'), output_mtok=Decimal('9'))),
            ConditionalPrice(constraint=StartDateConstraint(start_date=datetime.date(2026, 1, 1)), prices=ModelPrice(
                input_mtok=TieredPrices(base=Decimal('1'), tiers=[Tier(start=1000, price=Decimal('2'))]), output_mtok=Decimal('3'))),
            ConditionalPrice(constraint=StartDateConstraint(start_date=datetime.date(2027, 1, 1)), prices=ModelPrice(input_mtok=Decimal('7'))),
        ]),
        ModelInfo(id='x/m2', match=ClauseEquals(equals='x/m2'), prices=ModelPrice(input_mtok=Decimal('5'))),
    ]),
]
"""
    )
    fact = {"litellm_provider": "l", "mode": "chat", "supports_function_calling": True, "max_input_tokens": 100, "max_output_tokens": 10}
    limits = {
        "l/m1": {**fact, "supports_reasoning": True, "supports_vision": True, "input_cost_per_token": 1e-6, "output_cost_per_token": 4e-6},
        "l/m2": {**fact, "input_cost_per_token": 2e-6, "input_cost_per_token_above_5k_tokens": 4e-6},
        "l/old": {**fact, "deprecation_date": "2026-01-01"},
        "l/embed": {**fact, "mode": "embedding"},
        "other/m3": {**fact, "litellm_provider": "o"},
    }
    sources = {
        "as_of": "2026-11-30",
        "shard": [{"id": "l", "limits": ["l"], "strip": "l/", "prices": ["p"]}, {"id": "g", "prices": ["p"], "join": ["l"]}],
    }
    rules = [
        {"id": "^m1$", "thinking": {"off": False, "high": "very", "xhigh": True}},
        {"id": "^m2$", "compat": {"flag": 1}, "thinking": {"off": False}},
    ]
    made = build.Builder(prices, limits, sources, rules)
    shards = made.build()
    assert shards["l"] == [
        {
            "id": "m1", "name": "Model One", "reasoning": True, "input": ["text", "image"], "context_window": 100, "max_tokens": 10,
            "cost": {"input": 1, "output": 3, "tiers": [{"input_tokens_above": 1000, "input": 2, "output": 3}]},
            "thinking_levels": {"off": None, "high": "very", "xhigh": "xhigh"},
        },
        {
            "id": "m2", "name": "m2", "context_window": 100, "max_tokens": 10, "compat": {"flag": 1},
            "cost": {"input": 2, "tiers": [{"input_tokens_above": 5000, "input": 4}]},
        },
    ]  # fmt: skip
    assert [(model["id"], model["cost"]["input"]) for model in shards["g"]] == [("m1", 1), ("x/m2", 5)]
    assert made.notes == ["l/m1: 1/3 against 1/4"]
    assert set(build.render(shards, {**sources, "wheel": []})) == {"l.json", "g.json", "manifest.json"}


def test_a_wheel_with_another_hash_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build stops before it looks inside."""
    build = builder()
    (tmp_path / "evil-1.0-py3-none-any.whl").write_bytes(b"not what was pinned")
    monkeypatch.setattr(build.subprocess, "run", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="do not use it"):
        build.fetch({"name": "evil", "version": "1.0", "sha256": "0" * 64, "file": "x"}, tmp_path)


def test_the_overlays_are_well_formed() -> None:
    """Every rule names what it is for, with levels that exist; every shard has a source of limits."""
    rules = tomllib.loads((FOLDER / "overlays" / "rules.toml").read_text())["rule"]
    assert all(set(rule) <= {"id", "provider", "thinking", "compat"} for rule in rules)
    assert all(set(rule.get("thinking", {})) <= set(THINKING_LEVELS) for rule in rules)
    sources = tomllib.loads((FOLDER / "overlays" / "sources.toml").read_text())
    assert sorted(shard["id"] for shard in sources["shard"]) == shard_names()
    assert all("join" in shard or "limits" in shard for shard in sources["shard"])
    assert not [wheel for wheel in sources["wheel"] if wheel["version"] == "1.107.0"]


def test_a_shard_is_written_one_model_a_line() -> None:
    """So that a change of one model is a change of one line."""
    text = (FOLDER / "anthropic.json").read_text()
    assert len(text.splitlines()) == len(load_shard("anthropic")) + 2
    assert msgspec.json.decode(text)
