"""The address at which a client reaches the service, behind proxies and without them."""

from ipaddress import ip_network

import pytest
from fastapi import Request

from caseworker.platform.http.request import base_url_of

HERE = "http://10.1.2.3:8080"


@pytest.mark.parametrize(
    ("client", "sent", "expected"),
    [
        ("10.0.0.9", {"proto": "https", "host": "a.example"}, "https://a.example"),
        ("10.0.0.9", {"proto": "https"}, "https://10.1.2.3:8080"),
        ("10.0.0.9", {"host": "[::1]:80"}, "http://[::1]:80"),
        ("10.0.0.9", {"proto": "https, http", "host": "a, b"}, HERE),
        ("192.0.2.1", {"proto": "https", "host": "evil.example"}, HERE),
        ("127.0.0.1", {"proto": "https", "host": "evil.example"}, HERE),
        ("testclient", {"proto": "https", "host": "evil.example"}, HERE),
        (None, {"proto": "https", "host": "evil.example"}, HERE),
    ],
)
def test_only_a_trusted_proxy_chooses_the_base_url(
    client: str | None, sent: dict[str, str], expected: str
) -> None:
    headers = [(f"x-forwarded-{name}".encode(), value.encode()) for name, value in sent.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": "/runs",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"10.1.2.3:8080"), *headers],
        "client": client and (client, 1234),
        "server": ("10.1.2.3", 8080),
    }
    assert base_url_of(Request(scope), [ip_network("10.0.0.0/8")]) == expected
