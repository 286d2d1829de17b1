"""Verifies JSON Web Tokens from the configured issuer with its published keys (JWKS).

Only public-key signatures with a configured algorithm are accepted. The header of a token selects
one of the issuer's keys, and has no other influence on the verification.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import jwt
import structlog

from caseworker.features.access.authentication import Identity
from caseworker.platform.caller import (
    MAX_NAME_CHARS,
    Caller,
    InvalidCredentialError,
    KeyScope,
    is_tenant,
    with_implied,
)
from caseworker.platform.errors import StoreUnavailableError

log = structlog.get_logger(__name__)

MAX_JWKS_BYTES: Final = 256 * 1024
FETCH_SECONDS: Final = 5.0
"""Timeout, in seconds, for a request to the issuer."""
KEPT_SECONDS: Final = 600.0
"""Seconds for which fetched keys are used before they are fetched again."""
REFETCH_SECONDS: Final = 30.0
"""Minimum number of seconds between two fetches, however many tokens refer to an unknown key."""
STALE_SECONDS: Final = 86_400.0
"""Maximum age, in seconds, of cached keys that are used while the issuer is unavailable."""

_SCOPE_PREFIX = "caseworker:"
_KINDS: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""Key type of an algorithm, by the first letters of its name."""
_REQUIRED = ("exp", "iss", "aud")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """Rules for accepting tokens, and the names of the claims with the tenant and the scopes."""

    issuer: str
    audience: str
    algorithms: Sequence[str]
    tenant_claim: str
    scope_claim: str
    leeway_seconds: float


class JwksFile:
    """Reads an issuer's keys from a file, which may be replaced while the service runs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self) -> bytes:
        """Return the JWKS document.

        Raises:
            OSError: the file cannot be read.
        """
        return await asyncio.to_thread(self._read)

    def _read(self) -> bytes:
        with self._path.open("rb") as file:
            return file.read(MAX_JWKS_BYTES + 1)


class JwksUrl:
    """Reads an issuer's keys from a URL, without following redirects."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __call__(self) -> bytes:
        """Return the JWKS document.

        Raises:
            httpx.HTTPError, TimeoutError: the issuer does not return an uncompressed 200 in time.
        """
        plain = {"Accept": "application/json", "Accept-Encoding": "identity"}
        content = bytearray()
        async with (
            asyncio.timeout(FETCH_SECONDS),
            httpx.AsyncClient(headers=plain) as client,
            client.stream("GET", self._url, follow_redirects=False) as answer,
        ):
            if answer.status_code != httpx.codes.OK or "content-encoding" in answer.headers:
                raise httpx.HTTPError("no plain 200")
            async for piece in answer.aiter_raw():
                content += piece
                if len(content) > MAX_JWKS_BYTES:
                    break
        return bytes(content)


class IssuerKeys:
    """Fetches and caches an issuer's public keys."""

    def __init__(self, fetch: Callable[[], Awaitable[bytes]]) -> None:
        self._fetch = fetch
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._fetched = self._tried = float("-inf")
        self._fetching = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def key(self, key_id: str | None) -> jwt.PyJWK:
        """Return the key with an ID; None returns the issuer's only key.

        Raises:
            InvalidCredentialError: the key does not exist.
            StoreUnavailableError: no current keys are known, and the issuer does not respond.
        """
        if self._must_ask(key_id):
            await self._refresh_if(lambda: self._must_ask(key_id))
        elif self._is_old() and self._may_try() and not self._fetching.locked():
            # Refresh in the background: a token with a known key need not wait for a slow issuer.
            self._renewing = asyncio.create_task(self._refresh_if(self._is_old), name="jwks")
        if time.monotonic() - self._fetched > STALE_SECONDS:
            raise StoreUnavailableError
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if (jwk := self._keys.get(key_id)) is None:
            raise InvalidCredentialError
        return jwk

    def _is_old(self) -> bool:
        return time.monotonic() - self._fetched > KEPT_SECONDS

    def _must_ask(self, key_id: str | None) -> bool:
        """Return whether the key is unknown, or the last attempt to fetch keys is long ago."""
        unlooked = time.monotonic() - self._tried > 2 * KEPT_SECONDS
        return unlooked or not self._keys or (key_id is not None and key_id not in self._keys)

    async def _refresh_if(self, needed: Callable[[], bool]) -> None:
        """Fetch the keys, unless another task has just fetched them."""
        async with self._fetching:
            if needed() and self._may_try():
                await self._refresh()

    def _may_try(self) -> bool:
        return time.monotonic() - self._tried > REFETCH_SECONDS

    async def _refresh(self) -> None:
        began = time.monotonic()
        try:
            self._keys = _read(await self._fetch())
            self._fetched = began
        except (OSError, httpx.HTTPError, ValueError, RecursionError) as error:
            log.warning("jwks.unavailable", error=type(error).__name__)
        finally:
            self._tried = began


def _read(document: bytes) -> Mapping[str | None, jwt.PyJWK]:
    """Return the public signature keys in a JWKS; other keys are skipped.

    Raises:
        ValueError: the document is too long, or not a JWKS.
    """
    if len(document) > MAX_JWKS_BYTES:
        raise ValueError("too long")
    written = json.loads(document)
    listed = written.get("keys") if isinstance(written, dict) else None
    if not isinstance(listed, list):
        raise ValueError("no JWKS")
    signing_keys: dict[str | None, jwt.PyJWK] = {}
    for each in listed:
        is_public = isinstance(each, dict) and each.get("kty") in ("RSA", "EC", "OKP")
        if is_public and "d" not in each and each.get("use", "sig") == "sig":
            try:
                signing_keys[each.get("kid")] = jwt.PyJWK(each)
            except (jwt.PyJWTError, ValueError, TypeError):
                log.warning("jwks.key_not_understood")
    return signing_keys


class IssuedTokens:
    """Verifies tokens from the configured issuer."""

    def __init__(self, rules: TokenRules, keys: IssuerKeys) -> None:
        self._rules = rules
        self._keys = keys

    async def verify(self, token: str) -> Identity:
        """Validate a JWT and return its identity.

        Raises:
            InvalidCredentialError: the token is not valid.
            StoreUnavailableError: the keys of the issuer are not available.
        """
        rules = self._rules
        try:
            header = jwt.get_unverified_header(token)
            algorithm: str | None = header.get("alg")
            if algorithm is None or algorithm not in rules.algorithms:
                raise InvalidCredentialError
            key = await self._keys.key(header.get("kid"))
            if not _suits(key, algorithm):
                raise InvalidCredentialError
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                issuer=rules.issuer,
                audience=rules.audience,
                leeway=rules.leeway_seconds,
                options={"require": list(_REQUIRED)},
            )
            return self._identity(claims)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise InvalidCredentialError from None

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        tenant = claims.get(self._rules.tenant_claim)
        if not isinstance(tenant, str) or not is_tenant(tenant):
            raise InvalidCredentialError
        subject = next(
            (claims[name] for name in ("sub", "client_id", "azp") if claims.get(name)), ""
        )
        name = subject if isinstance(subject, str) and subject.isprintable() else ""
        scopes = _scopes_in(claims.get(self._rules.scope_claim))
        caller = Caller(tenant, name[:MAX_NAME_CHARS] or "token", with_implied(scopes))
        return Identity(caller, float(claims["exp"]) + self._rules.leeway_seconds)


def _suits(key: jwt.PyJWK, algorithm: str) -> bool:
    """Return whether a key fits an algorithm: by its ``alg``, or by its key type without one."""
    written = key._jwk_data
    if written.get("alg") is not None:
        return bool(written["alg"] == algorithm)
    return bool(_KINDS[algorithm[:2]] == written.get("kty"))


def _scopes_in(claim: Any) -> list[KeyScope]:
    """Return the known scopes in a claim: a string of words (RFC 8693), or a list of strings."""
    words = claim.split() if isinstance(claim, str) else claim
    if not isinstance(words, list):
        return []
    scope_names = {str(word).removeprefix(_SCOPE_PREFIX) for word in words}
    return [scope for scope in KeyScope if scope.value in scope_names]
