"""Which IP addresses belong to the public internet."""

import re
from ipaddress import ip_address
from pathlib import Path

import pytest

from caseworker.platform.addresses import is_public

APP = Path(__file__).parents[4] / "app"

PUBLIC = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 52.95.110.1 93.184.215.14 100.63.255.255 100.128.0.0
126.255.255.255 128.0.0.1 168.63.129.15 169.253.255.255 172.15.255.255 172.32.0.0
185.199.108.153 191.255.255.255 192.0.1.0 192.0.3.0 192.88.98.255 192.88.100.0 192.167.255.255
192.169.0.0 198.17.255.255 198.20.0.0 203.0.112.255 203.0.114.0 223.255.255.255 2000::
2001:200::1 2001:4860:4860::8888 2001:db7:ffff::1 2001:db9::1 2003::1 2400:cb00::1
2606:4700::1111 2620:fe::fe 2a00:1450:4001::1 2c0f:fb50::1 3ffe:ffff::1
"""

NOT_PUBLIC = """
0.0.0.0 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255 127.0.0.1
127.255.255.255 168.63.129.16 169.254.0.0 169.254.169.254 172.16.0.0 172.31.255.255 192.0.0.0
192.0.0.9 192.0.0.170 192.0.2.1 192.88.99.1 192.168.0.0 192.168.255.255 198.18.0.0
198.19.255.255 198.51.100.7 203.0.113.255 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 ::
::1 ::7f00:1 ::ffff:8.8.8.8 ::ffff:127.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::8.8.8.8 64:ff9b:1::1
100::1 100:0:0:1::1 200::1 1fff:ffff::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:1::1
2001:2::1 2001:3::1 2001:4:112::1 2001:10::1 2001:20::1 2001:30::1 2001:1ff:ffff::1 2001:db8::1
2002:808:808::1 2002:7f00:1::1 3fff::1 3fff:fff:ffff::1 4000::1 5f00::1 8000::1 fc00::1
fd00:ec2::254 fe80::1 febf::1 fec0::1 ff02::1 ff0e::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
"""
"""The first and last address of each registry block, and addresses that embed another one."""


@pytest.mark.parametrize("address", PUBLIC.split())
def test_an_address_outside_all_special_blocks_is_public(address: str) -> None:
    """Addresses just before and after a special block are public."""
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_an_address_in_a_special_block_is_not_public(address: str) -> None:
    """The answer is the same with every Python release."""
    assert not is_public(ip_address(address))


def test_no_module_asks_the_interpreter_which_addresses_are_public() -> None:
    """The answers of `ipaddress` differ between patch releases of Python."""
    asks = re.compile(r"\.is_(global|private|reserved|multicast|link_local|site_local)\b")
    found = [file.name for file in APP.rglob("*.py") if asks.search(file.read_text("utf-8"))]

    assert next(APP.rglob("*.py"), None) is not None
    assert found == []
