"""Tokens created by another library, and attacks on token verification."""

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey

from caseworker.features.access import tokens as module
from caseworker.features.access.tokens import (
    IssuedTokens,
    IssuerKeys,
    JwksFile,
    JwksUrl,
    TokenRules,
)
from caseworker.platform.caller import InvalidCredentialError, KeyScope
from caseworker.platform.errors import StoreUnavailableError

RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
STRANGER = RSAKey.generate_key(2048, {"kid": "rsa"})
PUBLISHED = json.dumps(KeySet([RSA, EC, ED]).as_dict(private=False)).encode()

RULES = TokenRules(
    issuer="https://issuer.example",
    audience="caseworker",
    algorithms=("RS256", "ES256", "EdDSA"),
    tenant_claim="tenant",
    scope_claim="scope",
    leeway_seconds=30,
)


NOTHING: Mapping[str, Any] = {}


def claims(**changes: Any) -> dict[str, Any]:
    usual = {
        "iss": RULES.issuer,
        "aud": RULES.audience,
        "sub": "batch",
        "exp": int(time.time()) + 300,
        "tenant": "a",
        "scope": "openid caseworker:run",
    }
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


def token(
    key: Any = RSA,
    algorithm: str = "RS256",
    header: Any = None,
    extra: Mapping[str, Any] = NOTHING,
    **changes: Any,
) -> str:
    head = {"alg": algorithm, "kid": key.kid, **(header or {})}
    return jwt.encode(head, {**claims(**changes), **extra}, key, algorithms=[algorithm])


class Issuer:
    """Publishes keys and counts the requests for them."""

    def __init__(self, document: bytes = PUBLISHED) -> None:
        self.document: bytes | Exception = document
        self.asked = 0

    async def __call__(self) -> bytes:
        self.asked += 1
        if isinstance(self.document, Exception):
            raise self.document
        return self.document


def verifier(issuer: Issuer | None = None, **changes: Any) -> IssuedTokens:
    return IssuedTokens(replace(RULES, **changes), IssuerKeys(issuer or Issuer()))


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")  # the library renamed it
@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (EC, "ES256"), (ED, "EdDSA")],
    ids=("RS256", "ES256", "EdDSA"),
)
async def test_a_token_shows_its_tenant_subject_and_scopes(key: Any, algorithm: str) -> None:
    """Tenant, subject and scopes are read from a token of any supported algorithm."""
    identity = await verifier().verify(token(key, algorithm))

    assert (identity.caller.tenant, identity.caller.name) == ("a", "batch")
    assert identity.caller.scopes == {KeyScope.READ, KeyScope.RUN}
    assert not identity.caller.operator
    assert time.time() < identity.until <= time.time() + 300 + RULES.leeway_seconds


@pytest.mark.parametrize(
    ("claim", "scopes"),
    [
        ("admin", set(KeyScope)),
        (["read", "other"], {KeyScope.READ}),
        (["caseworker:read"], {KeyScope.READ}),
        ("", set()),
        (None, set()),
        (7, set()),
        ({"admin": True}, set()),
    ],
)
async def test_scopes_are_words_or_a_list(claim: Any, scopes: set[KeyScope]) -> None:
    """Scopes are a text or a list; a missing or invalid claim grants nothing."""
    assert (await verifier().verify(token(scope=claim))).caller.scopes == scopes


async def test_claims_may_have_other_names() -> None:
    """The claims for tenant and scopes have configurable names."""
    named = verifier(tenant_claim="https://example.com/org", scope_claim="roles")

    found = await named.verify(token(extra={"https://example.com/org": "b", "roles": ["read"]}))

    assert (found.caller.tenant, found.caller.scopes) == ("b", frozenset({KeyScope.READ}))


NOW = int(time.time())


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW - 3600},
        {"exp": None},
        {"exp": "soon"},
        {"exp": 10**400},
        {"nbf": NOW + 3600},
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "another service"},
        {"aud": None},
        {"tenant": None},
        {"tenant": ""},
        {"tenant": "a/b"},
        {"tenant": "a\n"},
        {"tenant": ["a"]},
        {"tenant": "x" * 65},
    ],
    ids=lambda changes: " ".join(changes),
)
async def test_a_token_for_another_time_place_or_nobody_is_refused(changes: Any) -> None:
    """Each required claim is checked; a token without a tenant is rejected."""
    with pytest.raises(InvalidCredentialError):
        await verifier().verify(token(**changes))


async def test_clocks_may_differ_by_the_leeway() -> None:
    """An expired token is accepted within the leeway only."""
    assert (await verifier().verify(token(exp=int(time.time()) - 10))).caller.tenant == "a"
    with pytest.raises(InvalidCredentialError):
        await verifier(leeway_seconds=0).verify(token(exp=int(time.time()) - 10))


def unsigned(algorithm: str) -> str:
    parts = ({"alg": algorithm, "typ": "JWT", "kid": "rsa"}, claims())
    written = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts)
    return ".".join(part.rstrip("=") for part in written) + "."


def by_shared_secret() -> str:
    """Return a token signed by HMAC with the public key as the shared secret."""
    signed = unsigned("HS256").rstrip(".")
    code = hmac.digest(RSA.as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(code).decode().rstrip('=')}"


FORGED: Mapping[str, Callable[[], str]] = {
    "unsigned": lambda: unsigned("none"),
    "unsigned, spelled differently": lambda: unsigned("nOnE"),
    "no signature": lambda: unsigned("RS256"),
    "shared secret": by_shared_secret,
    "stranger's key": lambda: token(STRANGER),
    "key of another kind": lambda: token(EC, "ES256", {"kid": "rsa"}),
    "unknown key": lambda: token(RSA, "RS256", {"kid": "none"}),
    "key that it brings": lambda: token(
        STRANGER, "RS256", {"jwk": STRANGER.as_dict(private=False), "kid": "mine"}
    ),
    "algorithm that is not listed": lambda: token(RSA, "RS384"),
    "another payload": lambda: ".".join(
        (token().split(".")[0], token(tenant="b").split(".")[1], token().split(".")[2])
    ),
    "text": lambda: "not a token",
    "dots": lambda: "...",
    "header of numbers": lambda: "MTIz.MTIz.MTIz",
}


@pytest.mark.parametrize("forgery", FORGED)
async def test_a_forged_token_is_refused(forgery: str) -> None:
    """A forged token is rejected, whatever its header claims."""
    with pytest.raises(InvalidCredentialError):
        await verifier().verify(FORGED[forgery]())


async def test_a_private_or_shared_key_that_is_published_checks_nothing() -> None:
    """Private and symmetric keys in a published key set are ignored."""
    oct_key = OctKey.generate_key(256, {"kid": "oct"})
    every = [RSA.as_dict(private=True), oct_key.as_dict(private=True)]
    published = json.dumps({"keys": every}).encode()

    with pytest.raises(InvalidCredentialError):
        await verifier(Issuer(published)).verify(token())


async def test_a_key_is_used_for_its_algorithm_alone() -> None:
    """A key with an ``alg`` field verifies only that algorithm."""
    document = {"keys": [{**RSA.as_dict(private=False), "alg": "PS256"}]}

    with pytest.raises(InvalidCredentialError):
        await verifier(Issuer(json.dumps(document).encode())).verify(token())


async def test_keys_are_fetched_once_and_again_when_one_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unknown key ID causes a new fetch, but at most one per interval."""
    now = 1000.0
    monkeypatch.setattr("caseworker.features.access.tokens.time.monotonic", lambda: now)
    issuer = Issuer()
    tokens = verifier(issuer)
    for _ in range(5):
        await tokens.verify(token())
        with pytest.raises(InvalidCredentialError):
            await tokens.verify(token(RSA, "RS256", {"kid": "new"}))
    assert issuer.asked == 1

    renewed = RSAKey.generate_key(2048, {"kid": "new"})
    issuer.document = json.dumps(KeySet([renewed]).as_dict(private=False)).encode()
    now += module.REFETCH_SECONDS + 1
    assert (await tokens.verify(token(renewed))).caller.tenant == "a"
    with pytest.raises(InvalidCredentialError):
        await tokens.verify(token(RSA))

    assert issuer.asked == 2


@pytest.mark.parametrize(
    "broken", [httpx.ConnectError("away"), TimeoutError(), b"<html>", b"[]", b"{}" + b" " * 300_000]
)
async def test_known_keys_count_while_the_issuer_is_away(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known keys stay valid for a day without the issuer; then verification is unavailable."""
    now = 1000.0
    monkeypatch.setattr("caseworker.features.access.tokens.time.monotonic", lambda: now)
    issuer = Issuer()
    tokens = verifier(issuer)
    await tokens.verify(token())
    issuer.document = broken

    now += module.KEPT_SECONDS + 1
    assert (await tokens.verify(token())).caller.tenant == "a"
    await asyncio.sleep(0)
    assert issuer.asked == 2
    now += module.STALE_SECONDS
    with pytest.raises(StoreUnavailableError):
        await tokens.verify(token())


async def test_a_known_key_does_not_wait_for_an_issuer_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys are refreshed in the background; only a token with an unknown key waits."""
    now = 1000.0
    monkeypatch.setattr("caseworker.features.access.tokens.time.monotonic", lambda: now)
    hangs, asked = asyncio.Event(), list[float]()

    async def fetch() -> bytes:
        asked.append(now)
        if len(asked) > 1:
            await hangs.wait()
        return PUBLISHED

    tokens = IssuedTokens(RULES, IssuerKeys(fetch))
    await tokens.verify(token())
    now += module.KEPT_SECONDS + 1
    for _ in range(3):
        assert (await tokens.verify(token())).caller.tenant == "a"
        await asyncio.sleep(0)
    unknown = asyncio.create_task(tokens.verify(token(RSA, "RS256", {"kid": "new"})))
    await asyncio.sleep(0)

    assert (len(asked), unknown.done()) == (2, False)
    hangs.set()
    with pytest.raises(InvalidCredentialError):
        await unknown


@pytest.mark.parametrize("idle_seconds", [3600.0, 2 * module.STALE_SECONDS])
async def test_after_a_quiet_time_the_issuer_is_asked_first(
    idle_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an idle time, keys are fetched first, so a revoked key is not accepted."""
    now = 1000.0
    monkeypatch.setattr("caseworker.features.access.tokens.time.monotonic", lambda: now)
    issuer = Issuer()
    tokens = verifier(issuer)
    await tokens.verify(token())
    issuer.document = json.dumps(KeySet([EC]).as_dict(private=False)).encode()
    now += idle_seconds

    first = asyncio.create_task(tokens.verify(token(EC, "ES256")))
    for _ in range(2):
        with pytest.raises(InvalidCredentialError):
            await tokens.verify(token(RSA))
    assert (await first).caller.tenant == "a"


async def test_a_file_of_keys_may_be_replaced(tmp_path: Path) -> None:
    """Keys can be read from a file."""
    path = tmp_path / "jwks.json"
    path.write_bytes(PUBLISHED)

    assert (await IssuerKeys(JwksFile(path)).key("ec")).key_id == "ec"


class Answers(httpx.AsyncBaseTransport):
    """A transport that returns one fixed response and records the requests."""

    def __init__(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.asked: list[httpx.Request] = []
        self._answer = status, content, dict(headers)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        status, content, headers = self._answer
        return httpx.Response(status, stream=httpx.ByteStream(content), headers=headers)


@pytest.mark.parametrize(
    ("status", "headers", "content", "known"),
    [
        (200, {}, PUBLISHED, True),
        (302, {"location": "https://evil.example"}, PUBLISHED, False),
        (500, {}, PUBLISHED, False),
        (200, {"content-encoding": "gzip"}, PUBLISHED, False),
        (200, {}, PUBLISHED + b" " * 10_000_000, False),
    ],
    ids=("plain", "redirect", "broken", "compressed", "too long"),
)
async def test_a_url_of_keys_is_fetched_plainly(
    status: int,
    headers: Mapping[str, str],
    content: bytes,
    known: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys are fetched without redirects or decompression, and up to a maximum size."""
    transport = Answers(status, content, headers)
    client = httpx.AsyncClient
    monkeypatch.setattr(
        "caseworker.features.access.tokens.httpx.AsyncClient",
        lambda **given: client(**given, transport=transport),
    )
    keys = IssuerKeys(JwksUrl("https://issuer.example/jwks"))

    if known:
        assert (await keys.key("rsa")).key_id == "rsa"
    else:
        with pytest.raises(StoreUnavailableError):
            await keys.key("rsa")
    assert [str(each.url) for each in transport.asked] == ["https://issuer.example/jwks"]
