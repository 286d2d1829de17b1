"""Who calls. There are no keys yet: everybody is anonymous, and all share one tenant."""

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from fastapi import Request

from app.api.problem_types import ANONYMOUS_REFUSED
from app.api.problems import ProblemError
from app.api.services import AnonymousFrom


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request."""

    tenant: str
    """Owns the runs that the caller makes, and cannot see those of others."""
    name: str
    """What receipts call them."""


ANONYMOUS = Caller(tenant="default", name="anonymous")

_OF_PROXIES = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"})
_USUAL_LOOPBACK = frozenset({"127.0.0.1", "::1"})


def identify(request: Request, anonymous: AnonymousFrom) -> Caller:
    """Return who calls.

    A peer counts as local if its address is, and if no proxy says that it passes on what somebody
    else sent. Nothing that such a header claims makes a caller local: anybody can write one. A peer
    without an address (a Unix socket) counts as remote, because a proxy usually stands behind it.

    Raises:
        ProblemError: anonymous callers are not served from there.
    """
    if anonymous == "loopback":
        if request.client is None or not is_loopback(request.client.host):
            raise ProblemError(ANONYMOUS_REFUSED)
        if any(name in _OF_PROXIES for name, _ in request.headers.raw):
            raise ProblemError(ANONYMOUS_REFUSED)
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A web page somewhere makes the browser of someone on this machine call us.
            raise ProblemError(ANONYMOUS_REFUSED, "Web pages of other sites are not served.")
    return ANONYMOUS


def is_loopback(host: str) -> bool:
    """Tell whether an address belongs to this machine alone."""
    if host in _USUAL_LOOPBACK:
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
