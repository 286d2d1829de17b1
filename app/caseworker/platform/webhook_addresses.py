"""Validation of webhook URLs, which prevents server-side request forgery (SSRF).

A caller supplies the URL, and must not use this service to reach hosts that only the service can
reach. The accepted syntax is narrow, so that no two parsers understand it differently: a host is a
name, a dotted quad, or an IPv6 address in brackets. The resolved address is checked at each
request, and the connection uses the checked address.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from caseworker.platform.addresses import is_public

MAX_URL_CHARS = 2000

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_URL = re.compile(
    rf"(?P<scheme>https?)://(?P<host>{_LABEL}(?:\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<target>[/?][!-~]*)?",
    re.ASCII,
)
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?", re.ASCII)
"""Names that resolvers parse as IPv4 addresses in unusual notations, such as 2130706433."""


class AddressRefusedError(ValueError):
    """The webhook URL or address is not allowed; the message gives the reason but not the URL."""


@dataclass(frozen=True, slots=True)
class WebhookUrl:
    """A parsed and validated webhook URL."""

    scheme: str
    host: str
    """Host name, or IP address without brackets."""
    port: int
    target: str
    """Path and query, as sent in the request line."""

    @property
    def origin(self) -> str:
        """Value of the Host header: the host, with the port unless it is the scheme's default.

        This is the only part of the URL that may be displayed.
        """
        name = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return name if self.port == usual else f"{name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlRules:
    """The operator's restrictions on webhook URLs, and the checks that enforce them."""

    allow_http: bool = False
    allow_private: bool = False
    """Whether private and loopback addresses are allowed as targets."""

    def read(self, url: str) -> WebhookUrl:
        """Parse and validate a URL.

        Raises:
            AddressRefusedError: the URL is malformed or not allowed.
        """
        match = _URL.fullmatch(url) if len(url) <= MAX_URL_CHARS else None
        if match is None:
            raise AddressRefusedError(
                "This must be a URL such as https://example.com/hook, with at most "
                f"{MAX_URL_CHARS} printable ASCII characters, without user name, password or "
                "fragment."
            )
        scheme, host = match["scheme"], match["host"].strip("[]")
        if scheme == "http" and not self.allow_http:
            raise AddressRefusedError(
                "This must start with https://, unless the service sets webhooks.allow_http."
            )
        port = int(match["port"] or {"http": 80, "https": 443}[scheme])
        if not 0 < port < 1 << 16 or "#" in (match["target"] or ""):
            raise AddressRefusedError("This must have a port from 1 to 65535 and no fragment.")
        self._require_plain(host)
        target = match["target"] or "/"
        return WebhookUrl(scheme, host, port, target if target[0] == "/" else f"/{target}")

    def require_public(self, addresses: Sequence[str]) -> None:
        """Check the resolved addresses of a host, all of which must be allowed.

        Raises:
            AddressRefusedError: the host has no address, or one that is not public.
        """
        if not addresses:
            raise AddressRefusedError("The host has no address.")
        if self.allow_private:
            return
        if not all(is_public(ip_address(each.partition("%")[0])) for each in addresses):
            raise AddressRefusedError(
                "The host has an address that is not public; webhooks.allow_private would allow it."
            )

    def _require_plain(self, host: str) -> None:
        """Reject addresses in an unusual notation and addresses that are not public."""
        try:
            address = ip_address(host)
        except ValueError:
            if ":" in host or _ENDS_IN_NUMBER.fullmatch(host):
                raise AddressRefusedError("The IP address must be in standard notation.") from None
            return
        self.require_public([str(address)])
