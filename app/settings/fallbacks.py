"""The fallbacks of a tier: the one setting that is a list of sections.

Every item has the keys of a tier. What is wrong with one is said of the item and the key, and its
API key comes from a variable of its own, or from the provider's usual one.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from app.settings.keys import keys_of
from app.settings.models import FallbackSettings
from app.settings.problems import SettingsError, bad_value, unknown_key

API_KEY_VARIABLE = re.compile(r"MODELS_(?:SMALL|BIG)_FALLBACKS_[1-9]\d?_API_KEY")
"""Names the key of a fallback, counted from 1."""

_SCHEMA = keys_of(FallbackSettings)


def api_key_variable(tier: str, number: int) -> str:
    """Return the variable that holds the key of a fallback."""
    return f"MODELS_{tier.upper()}_FALLBACKS_{number}_API_KEY"


def refuse_written_keys(written: Any, tier: str, place: str) -> None:
    """Keep the keys of fallbacks out of files.

    Raises:
        SettingsError: one stands there.
    """
    for number, item in enumerate(written if isinstance(written, list) else [], start=1):
        if isinstance(item, Mapping) and item.get("api_key") is not None:
            variable = api_key_variable(tier, number)
            raise SettingsError(
                f"{place} item {number}: api_key: secrets come from the environment only:"
                f" set {variable}"
            )


def check_fallbacks(written: Any, place: str) -> None:
    """Judge every item and every key of it.

    Raises:
        SettingsError: something does not fit; a list that is none is left to others.
    """
    for number, item in enumerate(written if isinstance(written, list) else [], start=1):
        _check(item, f"{place} item {number}")


def _check(item: Any, at: str) -> None:
    if not isinstance(item, Mapping):
        raise SettingsError(f"{at}: must be a section with keys and values, provider first")
    for name in item:
        if name not in _SCHEMA.parts:
            raise unknown_key(f"{at}: {str(name)[:60]}", str(name)[:60], _SCHEMA.parts)
    try:
        fallback = FallbackSettings.model_validate(item)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = next(key for key in _SCHEMA.walk() if key.path[0] == first["loc"][0])
        raise bad_value(f"{at}: {key.dotted}", key, first["input"]) from None
    if found := fallback.problem():
        raise SettingsError(f"{at}: {found[0]}: {found[1]}")
