"""Address, timeouts and retry policy of a client."""

import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from caseworker_client.errors import CaseworkerError

DEFAULT_URL: Final = "http://127.0.0.1:8080"
_FIRST_PAUSE_SECONDS: Final = 0.25
_GROWTH: Final = 2.0
_LONGEST_GROWN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a failed request is retried before its error is raised.

    Requests are retried after connection errors and the statuses 429, 502, 503 and 504. Requests
    that are not idempotent, such as deleting a definition, are retried only if the service did not
    receive or execute them.
    """

    attempts: int = 4
    """Number of attempts, including the first; 1 disables retries."""
    pause_factor: float = 1.0
    """Factor for the pauses between attempts, which grow from about 0.25 to 5 seconds; 0 disables
    them."""
    longest_wait_seconds: float = 30.0
    """If ``Retry-After`` exceeds this, the request is not retried."""
    reconnect_seconds: float = 60.0
    """How long the service may be unreachable during a wait or an event stream that has started."""


class Patience:
    """Counts consecutive failures and computes the pause before the next attempt."""

    def __init__(self, policy: RetryPolicy, *, begun: bool = False) -> None:
        """Limit the number of attempts until the first response; with ``begun``, only the time."""
        self._policy = policy
        self._failures = 0
        self._gone_since: float | None = None
        self._begun = begun

    def restored(self) -> None:
        """Record a response. From then on, only the time without a response is limited."""
        self._begun, self._gone_since = True, None

    def progressed(self) -> None:
        """Reset the pause to its minimum, because new data has arrived."""
        self._failures = 0

    def pause(self) -> float:
        """Return the seconds to pause after another failure."""
        grown = _FIRST_PAUSE_SECONDS * _GROWTH ** min(self._failures, 16)
        self._failures += 1
        jitter = random.uniform(0.5, 1)
        return self._policy.pause_factor * min(grown, _LONGEST_GROWN_SECONDS) * jitter

    def pause_until_next(self, asked_seconds: float | None) -> float | None:
        """Return the seconds to pause after a failed request; None if it must not be retried.

        ``asked_seconds`` is the value of ``Retry-After``.
        """
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        if (asked_seconds or 0) > self._policy.longest_wait_seconds:
            return None
        pause = max(self.pause(), asked_seconds or 0)
        if self._begun:
            gone = now + pause - self._gone_since
            return pause if gone <= self._policy.reconnect_seconds else None
        return pause if self._failures < self._policy.attempts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Resolved settings of a client."""

    base_url: str
    headers: Mapping[str, str] = field(repr=False)
    """Request headers, including the API key."""
    timeout_seconds: float
    retry: RetryPolicy

    @classmethod
    def of(
        cls,
        base_url: str | None,
        api_key: str | None,
        timeout_seconds: float,
        retry: RetryPolicy | None,
    ) -> Self:
        """Resolve settings: None falls back to the environment variable, then to the default."""
        url = base_url or os.environ.get("CASEWORKER_URL") or DEFAULT_URL
        key = (os.environ.get("CASEWORKER_API_KEY", "") if api_key is None else api_key).strip()
        if not (key.isascii() and key.isprintable()):  # a later error would reveal the key
            raise CaseworkerError("The API key holds characters that no key has.")
        return cls(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout_seconds=timeout_seconds,
            retry=retry or RetryPolicy(),
        )
