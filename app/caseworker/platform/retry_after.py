"""Parse the HTTP header ``Retry-After``."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_MAX_SECONDS = 1e9


def retry_after_seconds(retry_after: str) -> float | None:
    """Return the delay that a ``Retry-After`` header asks for, in seconds.

    The header holds a number of seconds, or a date; a date without a zone is UTC. A date in the
    past gives 0; a number is capped at a billion. Returns None for a negative number and for other
    text.
    """
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            at = parsedate_to_datetime(retry_after)
        except (ValueError, OverflowError, TypeError):
            return None
        return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return min(seconds, _MAX_SECONDS) if seconds >= 0 else None
