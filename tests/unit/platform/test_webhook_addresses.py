"""URLs and addresses that webhooks may be sent to."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.platform.addresses import is_public
from caseworker.platform.webhook_addresses import AddressRefusedError, UrlRules

RULES = UrlRules()


@pytest.mark.parametrize(
    "url",
    [
        "https://2130706433/",
        "https://16843009/",
        "https://0177.0.0.1/",
        "https://0x7f000001/",
        "https://0x7f.1/",
        "https://127.1/",
        "https://127.0.0.1/",
        "https://127.0.0.1./",
        "https://10.1.2.3/",
        "https://100.64.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://168.63.129.16/",
        "https://0.0.0.0/",
        "https://224.0.0.1/",
        "https://255.255.255.255/",
        "https://1.2.3.4.5/",
        "https://[::1]/",
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:1.1.1.1]/",
        "https://[::127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[64:ff9b::808:808]/",
        "https://[64:ff9b:1::1]/",
        "https://[2002:7f00:1::]/",
        "https://[2001:0:1::1]/",
        "https://[fe80::1]/",
        "https://[fd00:ec2::254]/",
        "https://[fec0::1]/",
        "https://[ff02::1]/",
        "https://[::1%25eth0]/",
    ],
)
def test_addresses_that_are_not_public_or_oddly_written_are_refused(url: str) -> None:
    """Private addresses are rejected in every notation, such as decimal, octal or mapped."""
    with pytest.raises(AddressRefusedError):
        RULES.read(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "https://user@example.com/",
        "https://user:pw@example.com/",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com/#here",
        "https://example.com\\@10.0.0.1/",
        "https://exa mple.com/",
        "https://example.com/\r\nX: 1",
        "https://exämple.com/",
        "https:///path",
        "https://-.com",
        "//example.com/",
        "example.com",
        "",
        "https://example.com/" + "a" * 2000,
    ],
)
def test_urls_in_another_form_are_refused(url: str) -> None:
    """Ambiguous or unsupported URLs are rejected, because parsers could disagree about them."""
    with pytest.raises(AddressRefusedError):
        RULES.read(url)


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("https://example.com", "example.com", "/"),
        ("https://Example.com:8443/a?b=%20c", "Example.com:8443", "/a?b=%20c"),
        ("https://example.com?x=1", "example.com", "/?x=1"),
        ("https://1.1.1.1/", "1.1.1.1", "/"),
        ("https://[2606:4700::1111]:444/x", "[2606:4700::1111]:444", "/x"),
        ("https://my_hook.example.com./", "my_hook.example.com.", "/"),
    ],
)
def test_public_urls_are_read(url: str, origin: str, target: str) -> None:
    """A public URL is split into the origin for the Host header and the request target."""
    read = RULES.read(url)

    assert (read.origin, read.target) == (origin, target)


def test_one_private_address_among_public_ones_refuses_the_host() -> None:
    """A host is rejected if any of its addresses is private."""
    with pytest.raises(AddressRefusedError):
        RULES.require_public(["1.1.1.1", "10.0.0.1"])
    with pytest.raises(AddressRefusedError):
        RULES.require_public(["fe80::1%eth0"])
    with pytest.raises(AddressRefusedError):
        RULES.require_public([])
    RULES.require_public(["1.1.1.1", "2606:4700::1111"])


@given(st.ip_addresses(v=4))
def test_no_ipv6_form_of_an_ipv4_address_is_public(address: IPv4Address) -> None:
    """IPv6 forms of an IPv4 address are rejected, because their destination is unknown."""
    inside = int(address)
    for prefix in ("::ffff:0:0", "::", "64:ff9b::", "64:ff9b:1::"):
        assert not is_public(IPv6Address(int(ip_address(prefix)) + inside))
    assert not is_public(IPv6Address((0x2002 << 112) + (inside << 80) + 1))


@given(st.one_of(st.ip_addresses(network="10.0.0.0/8"), st.ip_addresses(network="fc00::/7")))
def test_no_private_address_is_public(address: IPv4Address | IPv6Address) -> None:
    """Private addresses are rejected in both IP versions, unless they are allowed."""
    assert not is_public(address)
    UrlRules(allow_private=True).require_public([str(address)])
