"""Tokens to money."""

from __future__ import annotations

import pytest

from laneway.llm._usage import compute_cost, count, make_usage, service_tier_multiplier, with_billed_cost
from laneway.llm.base import CostTier, Model, ModelCost
from laneway.messages import Usage

PRICES = ModelCost(
    input=1,
    output=2,
    cache_read=0.1,
    cache_write=1.25,
    tiers=(
        CostTier(input_tokens_above=200, input=100, output=200, cache_read=10, cache_write=125),
        CostTier(input_tokens_above=100, input=10, output=20, cache_read=1, cache_write=12.5),
    ),
)


@pytest.mark.parametrize(("input", "factor"), [(50, 1), (51, 10), (150, 10), (151, 100)])
def test_the_highest_tier_below_the_input_prices_everything(input: int, factor: int) -> None:
    """05 sc. 16, 17: the total input, cache included, must be above the threshold; then all rates are the tier's."""
    cost = compute_cost(PRICES, Usage(input=input, cache_read=50, output=1000))
    assert cost.input == pytest.approx(input * factor / 1e6)
    assert cost.cache_read == pytest.approx(5 * factor / 1e6)
    assert cost.output == pytest.approx(2000 * factor / 1e6)
    assert cost.total == pytest.approx(cost.input + cost.output + cost.cache_read + cost.cache_write)


def test_an_hour_s_cache_write_costs_twice_the_input() -> None:
    """05 sc. 18: 100 written, 40 of them for an hour, rates 1 and 1.25 → 0.000155."""
    assert compute_cost(PRICES, Usage(cache_write=100, cache_write_1h=40)).total == pytest.approx(0.000155)


def test_service_tiers_multiply_all_parts() -> None:
    """05 sc. 27: priority doubles, flex halves; one model's priority is 2.5."""
    usage = Usage(input=100, output=100, cache_read=0, cache_write=0)
    base = compute_cost(PRICES, usage)
    for tier, factor in (("priority", 2), ("flex", 0.5), ("fast", 2), ("default", 1), (None, 1)):
        cost = compute_cost(PRICES, usage, multiplier=service_tier_multiplier(tier, "m"))
        assert (cost.input, cost.output, cost.total) == pytest.approx((base.input * factor, base.output * factor, base.total * factor))
    assert service_tier_multiplier("priority", "gpt-5.5") == 2.5


def test_usage_adds_up() -> None:
    """Negative parts become 0; the total is the sum unless the provider has its own; the cost is there."""
    model = Model(id="m", provider="p", api="openai_chat", cost=PRICES)
    usage = make_usage(model, input=-5, output=20, cache_read=30, cache_write=10, reasoning=5)
    assert (usage.input, usage.total_tokens, usage.reasoning) == (0, 60, 5)
    assert usage.cost.total > 0
    assert make_usage(model, input=1, total_tokens=99).total_tokens == 99


@pytest.mark.parametrize(
    ("raw", "total"),
    [
        ({"cost": 0.01, "is_byok": False}, 0.01),
        ({"cost": 0.01}, 0.01),
        ({"cost": 0.01, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.2}}, 0.21),
        ({"cost": 0.01, "is_byok": True, "cost_details": {"upstream_inference_prompt_cost": 0.1, "upstream_inference_completions_cost": 0.3}}, 0.41),
        ({"cost": 0.01, "is_byok": True}, None),
        ({"cost": -1}, None),
        ({"cost": "0.01"}, None),
        ({"cost": float("nan")}, None),
        ({}, None),
    ],
)
def test_a_router_s_bill_replaces_the_estimate(raw: dict[str, object], total: float | None) -> None:
    """05 sc. 28: a valid bill is the total; anything else keeps the estimate."""
    usage = make_usage(Model(id="m", provider="p", api="openai_chat", cost=PRICES), input=50)
    cost = with_billed_cost(usage, raw).cost
    assert cost.total == pytest.approx(usage.cost.total if total is None else total)
    assert cost.total_from_provider is (total is not None)
    assert (cost + cost).total_from_provider is False


def test_counts_are_sensible_or_zero() -> None:
    """What providers put where a count belongs."""
    assert [count(value) for value in (5, 5.9, -1, None, "7", True, float("nan"))] == [5, 5, 0, 0, 0, 0, 0]
