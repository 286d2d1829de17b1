"""Prices of tokens, and the estimate of how many tokens a request uses at most."""

from decimal import Decimal

import pytest

from caseworker.models.gateway import ChatModel
from caseworker.models.ports import Message, ModelRequest, TokenUsage
from caseworker.models.pricing import (
    Cost,
    PriceUnknownError,
    TokenPrice,
    no_list_price,
)
from tests.unit.models.asking import Asking, asking_after, priced, unpriced

CHEAP = TokenPrice(
    usd_per_million_in=Decimal("0.05"),
    usd_per_million_out=Decimal("0.40"),
    usd_per_million_cached=Decimal("0.005"),
)


def _request(text: str, *, limit: int | None = None) -> ModelRequest:
    return ModelRequest(messages=(Message(role="user", content=text),), max_output_tokens=limit)


def test_tokens_are_priced_per_million_and_exactly() -> None:
    """Cached input has its own price; reasoning is charged as output."""
    usage = TokenUsage(tokens_in=1000, tokens_out=500, tokens_cached=400, tokens_reasoning=300)

    cost = CHEAP.cost_of(usage)

    assert cost.total == Decimal("0.000232")
    assert cost.output == CHEAP.usd_per_million_out * 500 / 1_000_000


def test_cached_tokens_cost_the_full_price_unless_a_discount_is_stated() -> None:
    """Without a configured discount, cached tokens cost the full price."""
    price = TokenPrice(usd_per_million_in=Decimal(2), usd_per_million_out=Decimal(0))

    cost = price.cost_of(TokenUsage(tokens_in=10, tokens_out=0, tokens_cached=10))

    assert cost == Cost(Decimal("0.00002"), Decimal(0))


@pytest.mark.parametrize("wrong", ["-0.01", "NaN", "Infinity"])
def test_a_price_that_is_no_price_is_refused(wrong: str) -> None:
    """A negative price is rejected, because it would add budget."""
    with pytest.raises(ValueError, match="price"):
        TokenPrice(usd_per_million_in=Decimal(wrong), usd_per_million_out=Decimal(1))


def test_an_unknown_price_names_the_model_and_is_never_zero() -> None:
    """The message completes the sentence in which a run is refused."""
    with pytest.raises(PriceUnknownError, match="'gpt-5' of openai is not known"):
        no_list_price("openai", "gpt-5", TokenUsage(tokens_in=1, tokens_out=1))


@pytest.mark.parametrize(("model", "cost_usd"), [(priced("m"), 4), (unpriced("m"), 5)])
def test_a_stated_price_wins_over_the_list(model: ChatModel, cost_usd: int) -> None:
    """The list price is used only for models without a configured price."""
    costs: list[Decimal] = []

    async def story(asking: Asking) -> None:
        costs.append((await asking.ask()).cost_usd or Decimal(0))

    asking_after(story, model, list_price=lambda *_: Cost(Decimal(5), Decimal(1)))
    assert costs == [cost_usd]
