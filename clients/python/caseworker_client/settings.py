"""Where the service is, how long to wait for it, and how often to ask again."""

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
    """How often a request is made before its failure is raised.

    Asked again is after lost connections and the answers 429, 502, 503 and 504, and only what does
    the same when it is done twice: everything but the deletion of definitions.
    """

    attempts: int = 4
    """Including the first one; 1 asks once."""
    pause_factor: float = 1.0
    """Of the pauses between attempts, which grow from about 0.25 to 5 seconds; 0 makes none."""
    longest_wait_seconds: float = 30.0
    """A service that asks for more time by ``Retry-After`` is not asked again."""
    reconnect_seconds: float = 60.0
    """How long the service may be gone during a wait, or from a stream of events that has begun."""


class Patience:
    """Counts failures in a row, and says how long to pause before the next attempt."""

    def __init__(self, policy: RetryPolicy, *, begun: bool = False) -> None:
        """Count attempts until the service has answered, unless something has ``begun``."""
        self._policy = policy
        self._failures = 0
        self._gone_since: float | None = None
        self._begun = begun

    def restored(self) -> None:
        """Begin anew: the service has answered."""
        self._begun, self._gone_since = True, None

    def progressed(self) -> None:
        """Pause shortly again: something new has come."""
        self._failures = 0

    def pause(self) -> float:
        """Return the seconds to pause after one more failure."""
        grown = _FIRST_PAUSE_SECONDS * _GROWTH ** min(self._failures, 16)
        self._failures += 1
        jitter = random.uniform(0.5, 1)
        return self._policy.pause_factor * min(grown, _LONGEST_GROWN_SECONDS) * jitter

    def pause_until_next(self, asked_seconds: float | None) -> float | None:
        """Return the seconds to pause after a request has failed; None if it was the last.

        ``asked_seconds`` is what the service asked for.
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
    """What a client was opened with."""

    base_url: str
    headers: Mapping[str, str] = field(repr=False)
    """They hold the API key."""
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
        """Return settings; what is None comes from the environment, else it is the default."""
        url = base_url or os.environ.get("CASEWORKER_URL") or DEFAULT_URL
        key = (api_key or os.environ.get("CASEWORKER_API_KEY") or "").strip()
        if not (key.isascii() and key.isprintable()):  # or what fails later would show it
            raise CaseworkerError("The API key holds characters that no key has.")
        return cls(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout_seconds=timeout_seconds,
            retry=retry or RetryPolicy(),
        )
