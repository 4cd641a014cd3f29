"""Tokens to money, and the one way to make a `Usage` whose parts add up."""

from __future__ import annotations

import math
from typing import Any, cast

from msgspec.structs import replace

from laneway.llm.base import CostTier, Model, ModelCost
from laneway.messages import Cost, Usage

_TIER_MULTIPLIERS = {"flex": 0.5, "priority": 2.0, "fast": 2.0}
_PRIORITY_EXCEPTIONS = {"gpt-5.5": 2.5}


def compute_cost(prices: ModelCost, usage: Usage, *, multiplier: float = 1.0) -> Cost:
    """Return what `usage` costs.

    The tier with the largest threshold that the whole input (cache included) is *above* prices the whole request. Cache writes
    that are kept for an hour cost twice the input price. `multiplier` is the service tier's (see `service_tier_multiplier`).
    """
    rates = _rates(prices, usage.input + usage.cache_read + usage.cache_write)
    long = usage.cache_write_1h or 0
    factor = multiplier / 1_000_000
    cost_in = rates.input * usage.input * factor
    cost_out = rates.output * usage.output * factor
    cost_read = rates.cache_read * usage.cache_read * factor
    cost_write = (rates.cache_write * (usage.cache_write - long) + 2 * rates.input * long) * factor
    return Cost(input=cost_in, output=cost_out, cache_read=cost_read, cache_write=cost_write, total=cost_in + cost_out + cost_read + cost_write)


def _rates(prices: ModelCost, total_input: int) -> ModelCost | CostTier:
    above = [tier for tier in prices.tiers if tier.input_tokens_above < total_input]
    return max(above, key=lambda tier: tier.input_tokens_above) if above else prices


def service_tier_multiplier(tier: str | None, model_id: str) -> float:
    """Return what a service tier ("flex", "priority", "fast", …) multiplies all prices by."""
    if tier == "priority" and model_id in _PRIORITY_EXCEPTIONS:
        return _PRIORITY_EXCEPTIONS[model_id]
    return _TIER_MULTIPLIERS.get(tier or "", 1.0)


def make_usage(
    model: Model,
    *,
    input: int = 0,
    output: int = 0,
    cache_read: int = 0,
    cache_write: int = 0,
    cache_write_1h: int | None = None,
    reasoning: int | None = None,
    total_tokens: int | None = None,
    multiplier: float = 1.0,
) -> Usage:
    """Return the usage with its cost.

    `input` must exclude cache reads and writes (negative counts become 0), `output` must include `reasoning`. `total_tokens` is the
    sum of the four unless the provider has a total of its own.
    """
    input, output, cache_read, cache_write = max(0, input), max(0, output), max(0, cache_read), max(0, cache_write)
    usage = Usage(
        input=input,
        output=output,
        cache_read=cache_read,
        cache_write=cache_write,
        cache_write_1h=cache_write_1h,
        reasoning=reasoning,
        total_tokens=input + output + cache_read + cache_write if total_tokens is None else total_tokens,
    )
    return replace(usage, cost=compute_cost(model.cost, usage, multiplier=multiplier))


def with_billed_cost(usage: Usage, raw: dict[str, Any]) -> Usage:
    """Return the usage with the total that a router billed, if its usage object says so; otherwise unchanged.

    `raw["cost"]` is what the router charges; with `is_byok` the upstream provider's charge comes on top.
    """
    cost = _amount(raw.get("cost"))
    byok = raw.get("is_byok")
    if cost is None or byok not in (True, False, None):
        return usage
    if byok:
        details: Any = raw.get("cost_details")
        upstream = _upstream_cost(cast("dict[str, Any]", details) if isinstance(details, dict) else {})
        if upstream is None:
            return usage
        cost += upstream
    return replace(usage, cost=replace(usage.cost, total=cost, total_from_provider=True))


def _upstream_cost(details: dict[str, Any]) -> float | None:
    total = _amount(details.get("upstream_inference_cost"))
    if total is not None:
        return total
    prompt = _amount(details.get("upstream_inference_prompt_cost"))
    completion = _amount(details.get("upstream_inference_completions_cost"))
    return None if prompt is None and completion is None else (prompt or 0.0) + (completion or 0.0)


def _amount(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def count(value: Any) -> int:
    """Return a provider's token count as an int; 0 for anything that is no sensible count."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return 0
    return int(value)
