"""The models that are built from the configuration."""

from decimal import Decimal
from typing import Any

import pytest

from caseworker.main.agents import build_models
from caseworker.main.demo import MODEL, with_recorded_model
from caseworker.models.forms import StructuredOutput
from caseworker.models.gateway import Tier
from caseworker.models.ports import TokenUsage
from caseworker.settings.schema import Settings

OWN = "http://127.0.0.1:1/v1"


def models(**small: Any) -> Settings:
    """Return settings with this configuration of the small tier."""
    return Settings.model_validate({"models": {"small": small}})


async def test_the_stub_has_a_price_and_falls_back_to_the_planner() -> None:
    """Cost limits apply to it, and cases are answered."""
    gateway = build_models(models(provider="stub"))
    stub, planner = gateway.table[Tier.SMALL].chain
    await gateway.aclose()

    assert (stub.provider.name, planner.provider.name) == ("stub", "offline")
    assert stub.price is not None
    usage = TokenUsage(tokens_in=1_000_000, tokens_out=1_000_000)
    assert stub.price.cost_of(usage).total == Decimal(18)


async def test_a_tier_is_its_model_and_those_that_stand_in_for_it() -> None:
    """Each fallback has its own provider, limits, output format and price."""
    gateway = build_models(
        models(
            base_url=OWN,
            model="same",
            price_per_million_in_usd=10,
            price_per_million_out_usd=20,
            fallbacks=[
                {
                    "base_url": OWN,
                    "model": "same",
                    "price_per_million_in_usd": 1,
                    "price_per_million_out_usd": 2,
                    "price_per_million_cached_usd": 0,
                    "structured_output": "text",
                    "max_output_tokens": 7,
                },
                {"provider": "offline"},
            ],
        )
    )
    first, second, third = gateway.table[Tier.SMALL].chain
    await gateway.aclose()

    assert [model.provider.name for model in (first, second, third)] == [
        "openai",
        "openai",
        "offline",
    ]
    assert first.provider is not second.provider
    assert (first.structured_output, second.structured_output) == (
        StructuredOutput.AUTO,
        StructuredOutput.TEXT,
    )
    assert (first.max_output_tokens, second.max_output_tokens) == (4096, 7)
    usage = TokenUsage(tokens_in=1_000_000, tokens_out=1_000_000, tokens_cached=500_000)
    assert first.price is not None
    assert second.price is not None
    assert first.price.cost_of(usage).total == 30
    assert second.price.cost_of(usage).total == Decimal("2.5")
    assert third.price is None


def test_without_configuration_the_built_in_planner_stands_alone() -> None:
    """Without configuration, both tiers use only the built-in planner."""
    gateway = build_models(Settings())

    for tier in Tier:
        (only,) = gateway.table[tier].chain
        assert (only.provider.name, only.model) == ("offline", "offline")


@pytest.mark.parametrize(
    "own", [{"base_url": OWN}, {"fallbacks": [{"base_url": OWN, "model": "x"}]}]
)
def test_the_demo_adds_its_recorded_model_unless_a_model_is_configured(own: Any) -> None:
    """The demo adds its recorded model only if no model is configured."""
    bare = with_recorded_model(Settings()).models
    configured = models(**own)

    assert bare.small.chosen_provider == "offline"
    assert [each.model for each in bare.small.fallbacks] == [MODEL]
    assert bare.big == Settings().models.big
    assert with_recorded_model(configured) is configured
