"""What stops start-up: one line that names the place, the key, and what is allowed."""

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from app.observability.redaction import redact_text
from app.settings.keys import Key

_SHOWN_CHARS = 60


class SettingsError(Exception):
    """The settings cannot be used; the text is one line and shows no secret."""

    def __init__(self, problem: str) -> None:
        super().__init__(" ".join(problem.split()))


def bad_value(place: str, key: Key, value: Any) -> SettingsError:
    """Build the error for a value that its key does not take."""
    return SettingsError(f"{place}: must be {key.expected} ({_got(key, value)})")


def unknown_key(place: str, name: str, known: Iterable[str]) -> SettingsError:
    """Build the error for a name that is not in ``known``."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ";"
    return SettingsError(f"{place}: unknown key{hint} Allowed here: {', '.join(names)}")


def _got(key: Key, value: Any) -> str:
    if key.secret or key.environment_only:
        return "its value is not shown"
    return f"got {redact_text(json.dumps(value, default=str), max_chars=_SHOWN_CHARS)}"
