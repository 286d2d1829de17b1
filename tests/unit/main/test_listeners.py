"""The address at which a process receives forwarded requests."""

import socket

import pytest

from caseworker.main.listeners import forwarding_address
from caseworker.settings.schema import Settings


@pytest.mark.parametrize(
    ("url", "number", "expected"),
    [
        (None, None, None),
        (None, 2, None),
        ("http://10.0.0.5:9000", None, "http://10.0.0.5:9000"),
        ("http://10.0.0.5:9000", 0, "http://10.0.0.5:9000"),
        ("http://10.0.0.5:9000", 2, "http://10.0.0.5:9002"),
        ("https://one.example", 1, "https://one.example:444"),
        ("http://{host}:9000", 0, f"http://{socket.gethostname()}:9000"),
    ],
)
def test_a_process_advertises_the_port_on_which_it_listens(
    url: str | None, number: int | None, expected: str | None
) -> None:
    settings = Settings.model_validate({"server": {"advertise_url": url}})
    assert forwarding_address(settings, number).url == expected


def test_addresses_have_secrets_of_their_own_that_no_log_shows() -> None:
    one, other = (forwarding_address(Settings(), None) for _ in range(2))
    assert one.secret != other.secret
    assert one.socket != other.socket
    assert one.secret not in repr(one)
