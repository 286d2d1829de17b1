"""The HTTP header ``Retry-After``."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_MOST_SECONDS = 1e9


def seconds_asked(retry_after: str) -> float | None:
    """Return the seconds, at least 0, that the header asks to wait; None if it is not readable.

    It holds a number of seconds or a date; a date without a zone is UTC. A larger number than a
    billion counts as a billion.
    """
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            at = parsedate_to_datetime(retry_after)
        except (ValueError, OverflowError, TypeError):
            return None
        return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return min(seconds, _MOST_SECONDS) if seconds >= 0 else None
