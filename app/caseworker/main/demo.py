"""Models that need neither an API key nor a network, for ``serve --demo`` and ``dev``."""

from decimal import Decimal
from pathlib import Path

from caseworker.settings.models import BUILT_IN, STUB, ModelSettings, SmallModelSettings
from caseworker.settings.schema import Settings

MODEL = "qwen2.5-coder-1.5b"
RECORDING = Path(__file__).with_name("demo.jsonl")
"""Path of the recorded replies of Qwen2.5-Coder-1.5B-Instruct to the agents in README.md and in
the tutorial."""


def has_model(settings: Settings) -> bool:
    """Return whether agents that name no model have one."""
    small = settings.models.small
    return small.chosen_provider != BUILT_IN or bool(small.fallbacks or small.use)


def with_stub_model(settings: Settings) -> Settings:
    """Return the settings with the stub as the small tier, unless a model is configured.

    Cases still use the built-in planner.
    """
    if has_model(settings):
        return settings
    return _with_small(settings, SmallModelSettings(provider=STUB))


def _with_small(settings: Settings, tier: SmallModelSettings) -> Settings:
    models = settings.models.model_copy(update={"small": tier})
    return settings.model_copy(update={"models": models})


def with_recorded_model(settings: Settings) -> Settings:
    """Return the settings with the recorded model added, unless a model is configured.

    It is a fallback of the built-in planner: agents select it by name, and cases still use the
    planner. It is priced like a large hosted model, so cost limits apply.
    """
    if has_model(settings):
        return settings
    recorded = ModelSettings(
        provider="recorded",
        recording=str(RECORDING),
        model=MODEL,
        temperature=0.0,
        max_output_tokens=64,
        price_per_million_in_usd=Decimal(3),
        price_per_million_out_usd=Decimal(15),
    )
    small = settings.models.small
    return _with_small(settings, small.model_copy(update={"fallbacks": (recorded,)}))
