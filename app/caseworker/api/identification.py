"""Determine the caller of a request from its credential or, for anonymous requests, its address."""

import asyncio
import re
import time

from fastapi import Request

from caseworker.api import problem_types as types
from caseworker.api.problems import ProblemError
from caseworker.api.request_envelope import address_of, host_name
from caseworker.api.services import AnonymousFrom, ApiLimits
from caseworker.features.access.authentication import Authentication
from caseworker.platform.caller import (
    ANYBODY,
    LOCAL,
    Caller,
    CredentialRequiredError,
    InvalidCredentialError,
)

_BEARER = re.compile(rb"bearer +([!-~]+) *", re.IGNORECASE)

_OF_PROXIES = re.compile(
    rb"forwarded|via|x-real-ip|x-(?:original-)?forwarded-.*|x-envoy-.*|cf-.*|.*client-ip"
)


async def identify(request: Request, authentication: Authentication, limits: ApiLimits) -> Caller:
    """Return the caller that sent a request.

    A request with a credential is authenticated by it or rejected; it never counts as anonymous.

    Raises:
        InvalidCredentialError: the credential is invalid.
        CredentialRequiredError: it has no credential, and anonymous access is disabled.
        ProblemError: it has no credential, and anonymous access is not allowed from there.
    """
    shown = shown_credential(request)
    if shown is not None:
        return await authentication.caller_of(shown)
    if not await authentication.is_open():
        raise CredentialRequiredError
    return anonymous_caller(request, limits.anonymous, limits)


def shown_credential(request: Request) -> str | None:
    """Return the bearer credential that a request contains; None if it contains none.

    Raises:
        InvalidCredentialError: the header is malformed, or sent more than once.
    """
    shown = [value for name, value in request.scope["headers"] if name == b"authorization"]
    if not shown:
        return None
    if len(shown) > 1 or (bearer := _BEARER.fullmatch(shown[0])) is None:
        raise InvalidCredentialError
    return bearer[1].decode("ascii")


def anonymous_caller(
    request: Request, anonymous: AnonymousFrom, limits: ApiLimits | None = None
) -> Caller:
    """Return the anonymous caller for a request without a credential.

    Requests from web pages of other origins are always rejected, because a browser sends them with
    the network access of its user. ``limits`` holds the configured origins and host names.

    A peer counts as local if its address is a loopback address and no header shows that a proxy
    forwarded the request. No header makes a caller local, since any client can send it. A peer
    without an address (a Unix socket) counts as remote, because it is usually a proxy.

    Raises:
        ProblemError: anonymous access is not allowed from there.
    """
    _refuse_other_pages(request, frozenset() if limits is None else limits.cors_origins)
    if anonymous == "anywhere":
        return ANYBODY
    forwarded = any(_OF_PROXIES.fullmatch(name) for name, _ in request.headers.raw)
    if request.client is None or forwarded or not is_loopback(request.client.host):
        raise ProblemError(types.ANONYMOUS_REFUSED)
    if limits is not None and not _is_own_host(request, limits.allowed_hosts or frozenset()):
        message = "Use localhost, or add the host name to server.allowed_hosts."
        raise ProblemError(types.ANONYMOUS_REFUSED, message)
    return LOCAL


def _refuse_other_pages(request: Request, origins: frozenset[str]) -> None:
    """Reject a request that a browser sends for a page of another origin."""
    sent = [value.lower() for value in request.headers.getlist("origin")]
    host = request.headers.get("host", "").lower()
    own = {f"http://{host}", f"https://{host}", *origins}
    cross_site = request.headers.get("sec-fetch-site") == "cross-site" and not (
        sent and set(sent) <= origins
    )
    if cross_site or not own.issuperset(sent):
        message = "This origin is not allowed. Add it to server.cors_origins."
        raise ProblemError(types.ANONYMOUS_REFUSED, message)


def _is_own_host(request: Request, names: frozenset[str]) -> bool:
    """Return whether the Host header is a loopback or a configured name."""
    name = host_name(request.headers.get("host", ""))
    if name in ("", "localhost") or is_loopback(name):
        return True
    return name in map(str.lower, names) and name not in ("0.0.0.0", "::")  # noqa: S104


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is a loopback address."""
    address = address_of(host.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    return address is not None and address.is_loopback


async def wait_connected(request: Request, seconds: float) -> None:
    """Sleep for ``seconds``, or until the client disconnects."""
    until, is_gone = time.monotonic() + seconds, request.is_disconnected
    while (left := until - time.monotonic()) > 0 and not await is_gone():  # noqa: ASYNC110
        await asyncio.sleep(min(left, 1.0))
