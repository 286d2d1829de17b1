"""The Prefer header (RFC 7240): how long a caller would like to wait for the result."""

import re
from collections.abc import Sequence

_WAIT = re.compile(r'(?:^|,)\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(?=[,;]|$)', re.IGNORECASE | re.ASCII)


def wait_seconds(prefer: Sequence[str], *, longest: int) -> int | None:
    """Return how long to wait, at most ``longest``; None if no (readable) wish is given.

    A preference that cannot be read is ignored, as the RFC wants it; the first of several counts.
    """
    found = _WAIT.search(",".join(prefer))
    return min(int(found.group(1)), longest) if found else None
