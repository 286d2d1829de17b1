"""What the headers of a POST ask for.

They are read by hand: as parameters of the route they would cost a tenth of the whole request.
"""

import hashlib
import re
from typing import Any

from starlette.datastructures import Headers

from app.api.problem_types import INVALID_REQUEST
from app.api.problems import ProblemError
from app.api.violations import Violation

MAX_KEY_CHARS = 255

_KEY = r"^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$"
_VALID_KEY = re.compile(_KEY[1:-1])
_WAIT = re.compile(r'(?:^|,)\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(?=[,;]|$)', re.IGNORECASE | re.ASCII)

POST_HEADERS: list[dict[str, Any]] = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Makes a POST safe to repeat: the same key never makes two runs.",
        "schema": {"type": "string", "pattern": _KEY, "minLength": 1, "maxLength": MAX_KEY_CHARS},
    },
    {
        "name": "Prefer",
        "in": "header",
        "description": "`wait=N` waits up to N seconds for the result (RFC 7240).",
        "schema": {"type": "string", "examples": ["wait=10"]},
    },
]
"""How the OpenAPI document describes them."""


def idempotency_key(headers: Headers) -> str | None:
    """Return what stands for the key under which the request may be repeated.

    The key itself is not kept: callers put into it what they please, and all that is ever asked of
    it is whether it is the same. What stands for it is its SHA-256.

    Raises:
        ProblemError: it is not 1 to 255 printable ASCII characters.
    """
    key = headers.get("idempotency-key")
    if key is not None and (len(key) > MAX_KEY_CHARS or not _VALID_KEY.fullmatch(key)):
        message = f"An idempotency key is 1 to {MAX_KEY_CHARS} printable ASCII characters."
        raise ProblemError(INVALID_REQUEST, violations=[Violation("Idempotency-Key", message)])
    return None if key is None else hashlib.sha256(key.encode("ascii")).hexdigest()


def wait_seconds(headers: Headers, *, longest: int) -> int | None:
    """Return how long to wait for the result, at most ``longest``; None if that is not preferred.

    A preference that cannot be read is ignored, as RFC 7240 wants it; the first of several counts.
    """
    if "prefer" not in headers:
        return None
    found = _WAIT.search(",".join(headers.getlist("prefer")))
    return min(int(found.group(1)), longest) if found else None
