"""Identifies callers by their credentials, and caches the results.

A result is cached under the credential's SHA-256 for :data:`KEPT_SECONDS`. A revoked key can still
work in another process for that long. Refusals have their own cache, so that guessed credentials do
not evict valid ones. Only one key query runs at a time; it covers all waiting requests. Refused
requests are answered at a limited rate. An attacker who guesses credentials therefore occupies only
one database connection and little event-loop time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Final

from cachetools import TLRUCache, TTLCache

from caseworker.features.access.keys import FORM, ApiKey, sha256_of
from caseworker.features.access.postgres import PostgresKeys
from caseworker.platform.caller import OPERATOR, Caller, InvalidCredentialError
from caseworker.platform.fair_slots import TENANT

KEPT_SECONDS: Final = 5.0
"""Lifetime of a cached result, in seconds. A revoked key can still work in another process for
that long."""
MAX_KEPT: Final = 10_000
"""Maximum number of entries in each of the two caches: accepted and refused credentials."""
REFUSALS_PER_SECOND: Final = 20
"""Maximum rate at which requests without a valid credential are answered. It is also the maximum
burst after a pause."""
MAX_REFUSAL_SECONDS: Final = 20.0
"""Maximum delay, in seconds, before a refused request is answered."""
MAX_CREDENTIAL_CHARS: Final = 8192


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated caller and the time at which its credential expires."""

    caller: Caller
    until: float = float("inf")
    """Expiry time of the credential in seconds since the epoch; infinity if it does not expire."""


def _until(_: bytes, identity: Identity, now: float) -> float:
    return min(now + KEPT_SECONDS, identity.until)


class Authentication:
    """Authenticates the callers of this process and caches the results."""

    def __init__(
        self,
        keys: PostgresKeys,
        *,
        bootstrap_key: str | None = None,
        verify_token: Callable[[str], Awaitable[Identity]] | None = None,
    ) -> None:
        """Accept stored keys, the ``bootstrap_key``, and tokens that ``verify_token`` accepts.

        Either of the last two may be None, which accepts none of that kind.
        """
        self._keys = keys
        self._verify_token = verify_token
        self._bootstrap = None if bootstrap_key is None else sha256_of(bootstrap_key)
        self._identities: TLRUCache[bytes, Identity] = TLRUCache(MAX_KEPT, _until, timer=time.time)
        self._refused: TTLCache[bytes, None] = TTLCache(MAX_KEPT, KEPT_SECONDS, timer=time.time)
        self._pending_look_ups: dict[str, asyncio.Future[tuple[ApiKey, bytes] | None]] = {}
        self._look_up_task: asyncio.Task[None] | None = None
        self._next_refusal = 0.0
        self._closed = bootstrap_key is not None or verify_token is not None
        self._open_until = 0.0
        self._asking_for_any: asyncio.Task[None] | None = None

    async def is_open(self) -> bool:
        """Return whether requests need no credential, because none was ever created or configured.

        Credentials are stored keys, the bootstrap key, and tokens of a configured issuer. Revoked
        keys count, so revoking the last key does not open the service. Concurrent callers share one
        query.

        Raises:
            StoreUnavailableError: the key store is unavailable.
        """
        if self._closed:
            return False
        if time.monotonic() >= self._open_until:
            if self._asking_for_any is None:
                self._asking_for_any = asyncio.create_task(self._ask_for_any())
            await asyncio.shield(self._asking_for_any)
        return not self._closed

    async def caller_of(self, credential: str) -> Caller:
        """Authenticate a credential and return its caller.

        Raises:
            InvalidCredentialError: the credential is unknown, expired or revoked.
            StoreUnavailableError: the key store or the token issuer is unavailable.
        """
        digest = sha256_of(credential)
        cached = self._identities.get(digest)
        if cached is not None:
            return cached.caller
        if digest in self._refused or len(credential) > MAX_CREDENTIAL_CHARS:
            raise InvalidCredentialError
        try:
            identity = await self._identified(credential, digest)
        except InvalidCredentialError:
            self._refused[digest] = None
            raise
        self._identities[digest] = identity
        return identity.caller

    def refusal_delay(self) -> float:
        """Reserve the next slot for answering a refused request; return the delay in seconds."""
        now, step = time.monotonic(), 1 / REFUSALS_PER_SECOND
        earliest, latest = now - 1 + step, now + MAX_REFUSAL_SECONDS
        self._next_refusal = min(max(self._next_refusal + step, earliest), latest)
        return max(0.0, self._next_refusal - now)

    def forget(self) -> None:
        """Clear the cache of accepted credentials; call this after creating or revoking a key."""
        self._identities.clear()
        self._open_until = 0.0

    async def _ask_for_any(self) -> None:
        TENANT.set(None)  # for all callers, not for the one that needs the result first
        try:
            self._closed = await self._keys.any()
            self._open_until = time.monotonic() + KEPT_SECONDS
        finally:
            self._asking_for_any = None

    async def _identified(self, credential: str, digest: bytes) -> Identity:
        if self._bootstrap is not None and compare_digest(digest, self._bootstrap):
            return Identity(OPERATOR)
        if (form := FORM.fullmatch(credential)) is not None:
            return await self._of_key(form[1], digest)
        if self._verify_token is not None:
            return await self._verify_token(credential)
        raise InvalidCredentialError

    async def _of_key(self, key_id: str, digest: bytes) -> Identity:
        if (look_up := self._pending_look_ups.get(key_id)) is None:
            look_up = self._pending_look_ups[key_id] = asyncio.get_running_loop().create_future()
        if self._look_up_task is None:
            self._look_up_task = asyncio.create_task(self._look_up())
        stored = await asyncio.shield(look_up)
        if stored is None:
            raise InvalidCredentialError
        key, sha256 = stored
        works = key.agent is None and key.works_at(datetime.now(UTC))
        if not compare_digest(sha256, digest) or not works:
            raise InvalidCredentialError
        until = float("inf") if key.expires_at is None else key.expires_at.timestamp()
        return Identity(key.caller, until)

    async def _look_up(self) -> None:
        """Look up requested keys in batches until no request is pending."""
        TENANT.set(None)  # as above
        try:
            while self._pending_look_ups:
                look_ups, self._pending_look_ups = self._pending_look_ups, {}
                try:
                    stored_keys = await self._keys.find(look_ups)
                except Exception as error:
                    for each in look_ups.values():
                        each.set_exception(error)
                        each.exception()  # mark as retrieved: the waiting callers may be gone
                else:
                    for key_id, each in look_ups.items():
                        each.set_result(stored_keys.get(key_id))
        finally:
            self._look_up_task = None
