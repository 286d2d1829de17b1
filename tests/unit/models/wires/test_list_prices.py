"""Public list prices."""

from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

import pytest
from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot

from caseworker.models.ports import TokenUsage
from caseworker.models.prices import list_price
from caseworker.models.pricing import PriceUnknownError

USAGE = TokenUsage(tokens_in=1_000_000, tokens_out=1_000_000)


@pytest.mark.parametrize(
    ("provider", "model"),
    [("openai", "gpt-5-nano"), ("openai", "gpt-5"), ("anthropic", "claude-haiku-4-5")],
)
def test_the_models_of_the_defaults_have_a_price(provider: str, model: str) -> None:
    """A run with a cost limit works out of the box."""
    cost = list_price(provider, model, USAGE)

    assert isinstance(cost.total, Decimal)
    assert cost.total > cost.output > 0


def test_the_big_model_costs_more_than_the_small_one() -> None:
    """The table has a higher price for the big model than for the small one."""
    small, big = (list_price("openai", model, USAGE).total for model in ("gpt-5-nano", "gpt-5"))

    assert small == Decimal("0.45")
    assert big > 10 * small


def test_cached_input_is_cheaper() -> None:
    """The provider's cache discount lowers the cost."""
    cached = TokenUsage(tokens_in=1_000_000, tokens_out=0, tokens_cached=900_000)
    fresh = TokenUsage(tokens_in=1_000_000, tokens_out=0)

    cheap, dear = (list_price("openai", "gpt-5", usage) for usage in (cached, fresh))

    assert cheap.total < dear.total
    assert cheap.output == dear.output == 0


def test_writing_to_the_cache_costs_more_than_input_and_more_for_an_hour() -> None:
    """Anthropic's prices are 1.25 and 2 times that of an input token."""
    usual = TokenUsage(tokens_in=1_000_000, tokens_out=0)
    written = replace(usual, tokens_cache_written=1_000_000)
    kept = replace(written, tokens_cache_written_1h=1_000_000)

    costs = [list_price("anthropic", "claude-haiku-4-5", each).total for each in (written, kept)]

    assert costs == [Decimal("1.25"), Decimal(2)]


@pytest.mark.parametrize(
    ("provider", "model"),
    [("openai", "qwen-of-our-own"), ("nobody", "gpt-5"), ("anthropic", "")],
)
def test_an_unknown_price_is_an_error_and_not_zero(provider: str, model: str) -> None:
    """A model without a price cannot be kept within a cost limit."""
    with pytest.raises(PriceUnknownError):
        list_price(provider, model, USAGE)


@pytest.mark.parametrize(
    "usage",
    [
        TokenUsage(tokens_in=1000, tokens_out=100),
        TokenUsage(tokens_in=300_001, tokens_out=7, tokens_cached=300),
        TokenUsage(
            tokens_in=1234,
            tokens_out=77,
            tokens_cached=300,
            tokens_cache_written=500,
            tokens_cache_written_1h=200,
        ),
        TokenUsage(tokens_in=0, tokens_out=0),
    ],
)
def test_costs_from_rates_equal_those_from_the_tables(usage: TokenUsage) -> None:
    """Fees per request, tiers by input tokens and cheaper nights are included."""
    tokens = Usage(
        input_tokens=usage.tokens_in,
        cache_read_tokens=usage.tokens_cached,
        cache_write_tokens=usage.tokens_cache_written,
        cache_write_1h_tokens=usage.tokens_cache_written_1h,
        output_tokens=usage.tokens_out,
    )
    different: list[str] = []
    listed = 0
    for provider in get_snapshot().providers:
        for model in provider.models[::3]:
            with suppress(LookupError):  # some IDs are no model names
                found = calc_price(tokens, model.id, provider_id=provider.id)
                cost = list_price(provider.id, model.id, usage)
                listed += 1
                if (cost.total, cost.output) != (found.total_price, found.output_price):
                    different.append(f"{provider.id}/{model.id}")

    assert different == []
    assert listed > 500
