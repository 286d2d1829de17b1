"""Set up the service's authentication from the settings."""

from collections.abc import Awaitable, Callable

from caseworker.features.access.authentication import Authentication, TokenVerifier
from caseworker.features.access.keys import KeyStore
from caseworker.settings.schema import AuthSettings, JwtSettings


def authentication_of(settings: AuthSettings, keys: KeyStore) -> Authentication:
    """Return the authentication that accepts API keys, the bootstrap key and JWTs."""
    secret = settings.bootstrap_key
    return Authentication(
        keys,
        bootstrap_key=None if secret is None else secret.get_secret_value(),
        tokens=_tokens(settings.jwt),
    )


def _tokens(jwt: JwtSettings) -> TokenVerifier | None:
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
    return IssuedTokens(rules, IssuerKeys(fetch))
