"""JSON as the database takes it."""

import json
from typing import Any


def dump(value: Any) -> str:
    """Return ``value`` as JSON text.

    The database refuses NUL and lone surrogates inside strings. Requests with them are refused at
    the door; what a provider or a tool wrote gets U+FFFD instead.

    Raises:
        ValueError: there is a NaN, an infinity, or an integer that nobody could read back.
        TypeError: it is not JSON.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    if "\\u0000" in text or "\\ud" in text:
        return json.dumps(_storable(value), separators=(",", ":"), allow_nan=False)
    return text


def _storable(value: Any) -> Any:
    match value:
        case str():
            whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return whole.replace("\x00", "\ufffd")
        case dict():
            return {_storable(key): _storable(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_storable(inner) for inner in value]
        case _:
            return value
