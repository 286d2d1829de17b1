"""The recorded model for ``caseworker serve --demo``; needs neither an API key nor a network."""

from decimal import Decimal
from pathlib import Path

from caseworker.settings.models import ModelSettings
from caseworker.settings.schema import Settings

MODEL = "qwen2.5-coder-1.5b"
RECORDING = Path(__file__).with_name("demo.jsonl")
"""Path of the recorded replies of Qwen2.5-Coder-1.5B-Instruct to the agents in README.md and in
the tutorial."""


def with_recorded_model(settings: Settings) -> Settings:
    """Return the settings with the recorded model added, unless a model is configured.

    It is a fallback of the built-in planner: agents select it by name, and cases still use the
    planner. It is priced like a large hosted model, so cost limits apply.
    """
    small = settings.models.small
    if small.chosen_provider != "offline" or small.fallbacks:
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
    tier = small.model_copy(update={"fallbacks": (recorded,)})
    models = settings.models.model_copy(update={"small": tier})
    return settings.model_copy(update={"models": models})
