"""Anonymous access, without an API key."""

import pytest
from fastapi import Request

from caseworker.platform.caller import LOCAL, REMOTE
from caseworker.platform.http.problems import ProblemError
from caseworker.platform.http.request import anonymous_caller, is_loopback


def request(peer: str | None, **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    client = None if peer is None else (peer, 1)
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw, "client": client})


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "::1%lo"])
def test_this_machine_is_loopback(peer: str) -> None:
    """Every notation of a loopback address is recognised."""
    assert is_loopback(peer)


@pytest.mark.parametrize(
    "peer",
    ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "fe80::1%lo", "localhost", "", "2130706433"],  # noqa: S104
)
def test_everything_else_is_not(peer: str) -> None:
    """Other addresses, host names and plain numbers are not loopback."""
    assert not is_loopback(peer)


def test_a_caller_on_this_machine_is_served() -> None:
    """An anonymous client on this machine is served as the local tenant."""
    assert anonymous_caller(request("127.0.0.1"), "loopback") == LOCAL


@pytest.mark.parametrize("peer", ["10.0.0.1", None])
def test_a_caller_elsewhere_is_refused(peer: str | None) -> None:
    """An anonymous client with a remote or unknown address gets status 403."""
    with pytest.raises(ProblemError) as refused:
        anonymous_caller(request(peer), "loopback")

    assert refused.value.status_code == 403


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "x_real_ip"])
def test_a_header_that_claims_to_be_local_is_not_believed(header: str) -> None:
    """A forwarding header from a remote address does not make the client local."""
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
    """A request forwarded by a local proxy is not local, because its origin is unknown."""
    with pytest.raises(ProblemError):
        anonymous_caller(request("127.0.0.1", **{header: "127.0.0.1"}), "loopback")


def test_a_page_of_another_site_is_refused_although_its_browser_runs_here() -> None:
    """A cross-site request is rejected, because any web page could send it through the browser."""
    with pytest.raises(ProblemError):
        anonymous_caller(request("127.0.0.1", sec_fetch_site="cross-site"), "loopback")
    assert anonymous_caller(request("127.0.0.1", sec_fetch_site="same-origin"), "loopback") == LOCAL


@pytest.mark.parametrize("peer", ["10.0.0.1", None])
def test_anybody_is_served_where_that_is_configured(peer: str | None) -> None:
    """With ``auth.anonymous: anywhere``, clients of any address are served."""
    assert anonymous_caller(request(peer), "anywhere") == REMOTE
