"""Public list prices, behind the prices that the configuration states."""

from decimal import Decimal

import pytest

from app.adapters.providers.prices import ListPrices
from app.llm.messages import TokenUsage
from app.llm.pricing import FixedPrices, PriceUnknownError, TokenPrice

USAGE = TokenUsage(tokens_in=1_000_000, tokens_out=1_000_000)
STATED = TokenPrice(usd_per_million_in=Decimal(1), usd_per_million_out=Decimal(2))


@pytest.fixture(scope="module")
def prices() -> ListPrices:
    return ListPrices(FixedPrices({("openai", "house-model"): STATED}, free_providers=["offline"]))


@pytest.mark.parametrize(
    ("provider", "model"),
    [("openai", "gpt-5-nano"), ("openai", "gpt-5"), ("anthropic", "claude-haiku-4-5")],
)
def test_the_models_of_the_defaults_have_a_price(
    prices: ListPrices, provider: str, model: str
) -> None:
    """A run with a cost limit works out of the box."""
    cost = prices.cost_usd(provider, model, USAGE)

    assert isinstance(cost, Decimal)
    assert cost > 0


def test_the_big_model_costs_more_than_the_small_one(prices: ListPrices) -> None:
    """The tables were read and not guessed."""
    small, big = (prices.cost_usd("openai", model, USAGE) for model in ("gpt-5-nano", "gpt-5"))

    assert small == Decimal("0.45")
    assert big > 10 * small


def test_cached_input_is_cheaper(prices: ListPrices) -> None:
    """The discount of the provider's cache reaches the bill."""
    cached = TokenUsage(tokens_in=1_000_000, tokens_out=0, tokens_cached=900_000)
    fresh = TokenUsage(tokens_in=1_000_000, tokens_out=0)

    assert prices.cost_usd("openai", "gpt-5", cached) < prices.cost_usd("openai", "gpt-5", fresh)


def test_a_stated_price_wins(prices: ListPrices) -> None:
    """Also over the list price of a model of the same name."""
    own = ListPrices(FixedPrices({("openai", "gpt-5"): STATED}))

    assert prices.cost_usd("openai", "house-model", USAGE) == 3
    assert own.cost_usd("openai", "gpt-5", USAGE) == 3
    assert prices.cost_usd("offline", "offline", USAGE) == 0


@pytest.mark.parametrize(
    ("provider", "model"),
    [("openai", "qwen-of-our-own"), ("nobody", "gpt-5"), ("anthropic", "")],
)
def test_an_unknown_price_is_an_error_and_not_zero(
    prices: ListPrices, provider: str, model: str
) -> None:
    """What nobody has priced cannot be kept under a limit."""
    with pytest.raises(PriceUnknownError):
        prices.cost_usd(provider, model, USAGE)
