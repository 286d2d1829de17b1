"""The option of CLI commands for the models that an agent may call."""

from collections.abc import Iterable
from typing import Final

MODEL_NAMES: Final = (
    "NAME, or NAME=CONFIGURED to call a configured model by another name (* is any other name). "
    "Repeatable (default: all)."
)
"""Help of the values of the option."""


def models_of(values: Iterable[str] | None) -> dict[str, str]:
    """Return the configured models by the names that an agent calls; empty means all models."""
    pairs = (each.partition("=") for each in values or ())
    return {name: configured or name for name, _, configured in pairs}
