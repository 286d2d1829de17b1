"""Suggests the known name that a caller probably meant."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

_MAX_NAME_CHARS: Final = 64
MAX_NAMES: Final = 200
"""Longer names and further known names are not compared, because that would take too long."""


def suggestion(name: object, known_names: Collection[str]) -> str:
    """Return a "Did you mean" question with the known name that is most similar to ``name``.

    It is empty if no known name is similar. It never repeats ``name``, which may be a secret.
    """
    if not isinstance(name, str) or not 2 < len(name) <= _MAX_NAME_CHARS:
        return ""
    close = get_close_matches(name.lower(), list(known_names)[:MAX_NAMES], n=1, cutoff=0.65)
    return f" Did you mean '{close[0]}'?" if close and close[0] != name else ""
