"""Who is served without a key."""

import pytest
from fastapi import Request

from caseworker.api.identification import anonymous_caller, is_loopback
from caseworker.api.problems import ProblemError
from caseworker.features.access.caller import ANYBODY, LOCAL


def request(peer: str | None, **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    client = None if peer is None else (peer, 1)
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw, "client": client})


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "::1%lo"])
def test_this_machine_is_loopback(peer: str) -> None:
    """In every way in which a server may write it."""
    assert is_loopback(peer)


@pytest.mark.parametrize(
    "peer",
    ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "fe80::1%lo", "localhost", "", "2130706433"],  # noqa: S104
)
def test_everything_else_is_not(peer: str) -> None:
    """A name is not an address, and a number is not read as one."""
    assert not is_loopback(peer)


def test_a_caller_on_this_machine_is_served() -> None:
    """As the one tenant there is."""
    assert anonymous_caller(request("127.0.0.1"), "loopback") == LOCAL


@pytest.mark.parametrize("peer", ["10.0.0.1", None])
def test_a_caller_elsewhere_is_refused(peer: str | None) -> None:
    """So is one whose address is not known."""
    with pytest.raises(ProblemError) as refused:
        anonymous_caller(request(peer), "loopback")

    assert refused.value.status_code == 403


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "x_real_ip"])
def test_a_header_that_claims_to_be_local_is_not_believed(header: str) -> None:
    """Anybody can write one."""
    with pytest.raises(ProblemError):
        anonymous_caller(request("10.0.0.1", **{header: "127.0.0.1"}), "loopback")


@pytest.mark.parametrize(
    "header",
    [
        *("x_forwarded_for", "forwarded", "x_real_ip", "via", "x_forwarded_host", "x_client_ip"),
        *("x_forwarded_proto", "cf_connecting_ip", "true_client_ip", "x_cluster_client_ip"),
        *("x_original_forwarded_for", "x_envoy_external_address"),
    ],
)
def test_what_a_local_proxy_passes_on_is_not_local(header: str) -> None:
    """Whoever stands in front of the proxy could be anybody."""
    with pytest.raises(ProblemError):
        anonymous_caller(request("127.0.0.1", **{header: "127.0.0.1"}), "loopback")


def test_a_page_of_another_site_is_refused_although_its_browser_runs_here() -> None:
    """A page somewhere could otherwise stop the runs of whoever looks at it."""
    with pytest.raises(ProblemError):
        anonymous_caller(request("127.0.0.1", sec_fetch_site="cross-site"), "loopback")
    assert anonymous_caller(request("127.0.0.1", sec_fetch_site="same-origin"), "loopback") == LOCAL


@pytest.mark.parametrize("peer", ["10.0.0.1", None])
def test_anybody_is_served_where_that_is_configured(peer: str | None) -> None:
    """``auth.anonymous: anywhere``."""
    assert anonymous_caller(request(peer), "anywhere") == ANYBODY
