"""Classify IP addresses as public or not, independently of the Python version.

The lists follow the IANA IPv4 and IPv6 Special-Purpose Address Registries and the Multicast Address
Space Registries as of October 2025. https://www.iana.org/assignments/iana-ipv4-special-registry
https://www.iana.org/assignments/iana-ipv6-special-registry

An address that embeds another address is not public, because its destination is unknown.
"""

from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final

_NOT_PUBLIC: Final = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network, RFC 791
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),  # private use, RFC 1918
        "100.64.0.0/10",  # shared by the customers of a carrier, RFC 6598
        "127.0.0.0/8",  # loopback, RFC 1122
        "168.63.129.16/32",  # not in the registry: Azure's service for its virtual machines
        "169.254.0.0/16",  # link-local, RFC 3927; metadata services of clouds
        "192.0.0.0/24",  # protocol assignments, RFC 6890
        *("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"),  # documentation, RFC 5737
        "192.88.99.0/24",  # relays of 6to4, RFC 7526
        "198.18.0.0/15",  # benchmarks, RFC 2544
        "224.0.0.0/4",  # multicast, RFC 5771
        "240.0.0.0/4",  # reserved, and broadcast, RFC 1112
        "::/3",  # unspecified, loopback, IPv4-compatible, IPv4-mapped, NAT64 (64:ff9b), discard
        "2001::/23",  # protocol assignments, RFC 2928: Teredo (2001::/32), benchmarks, ORCHID
        *("2001:db8::/32", "3fff::/20"),  # documentation, RFC 3849 and 9637
        "2002::/16",  # 6to4, RFC 3056
        # IANA assigns global unicast addresses in 2000::/3 alone (RFC 4291). Elsewhere are SRv6
        # (5f00::/16), unique local (fc00::/7), link-local (fe80::/10) and multicast (ff00::/8).
        *("4000::/2", "8000::/1"),
    )
)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether ``address`` is a unicast address of the public internet."""
    return not any(address in network for network in _NOT_PUBLIC)
