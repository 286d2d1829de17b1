"""The feature ``access``: API keys, tokens, and the authentication of callers."""

from collections.abc import Awaitable, Callable
from typing import Final

from caseworker.features.access import http
from caseworker.features.access.authentication import Authentication, Identity
from caseworker.features.access.postgres import PostgresKeys
from caseworker.features.feature import Feature, Opened, Parts
from caseworker.settings.schema import JwtSettings


def open_access(parts: Parts) -> Opened:
    """Build the key management, and the authentication that accepts keys and JWTs."""
    keys, settings = PostgresKeys(parts.engines.work), parts.settings.auth
    secret = settings.bootstrap_key
    authentication = Authentication(
        keys,
        bootstrap_key=None if secret is None else secret.get_secret_value(),
        verify_token=_verifier_of(settings.jwt),
    )
    return Opened(services=[keys, authentication])


def _verifier_of(jwt: JwtSettings) -> Callable[[str], Awaitable[Identity]] | None:
    if jwt.issuer is None or jwt.audience is None:
        return None
    # The signature library takes 10 MB; import it only if an issuer is configured.
    from caseworker.features.access.tokens import (
        IssuedTokens,
        IssuerKeys,
        JwksFile,
        JwksUrl,
        TokenRules,
    )

    fetch: Callable[[], Awaitable[bytes]]
    if jwt.jwks_file is not None:
        fetch = JwksFile(jwt.jwks_file)
    elif jwt.jwks_url is not None:
        fetch = JwksUrl(jwt.jwks_url)
    else:
        return None
    rules = TokenRules(
        issuer=jwt.issuer,
        audience=jwt.audience,
        algorithms=jwt.algorithms,
        tenant_claim=jwt.tenant_claim,
        scope_claim=jwt.scope_claim,
        leeway_seconds=jwt.leeway_seconds,
    )
    return IssuedTokens(rules, IssuerKeys(fetch)).verify


ACCESS: Final = Feature(
    name="access",
    routes=[*http.router.routes, *http.callers.routes],
    errors=http.ERRORS,
    tables=["api_keys"],
    open=open_access,
)
