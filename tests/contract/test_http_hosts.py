"""Host names that the service accepts: a foreign page could point its own name here."""

from typing import Any

import httpx
import pytest

from caseworker.main.limits import api_limits as limits_of
from caseworker.settings.schema import AuthSettings, ServerSettings, Settings
from tests.support.api import Api, all_ready, client_of
from tests.support.limits import api_limits

pytestmark = pytest.mark.asyncio(loop_scope="module")


OWN = ("localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1:8080", "[::1]:8080")
FOREIGN = ("evil.example:8701", "localhost.evil.example", "127.0.0.1.evil.example", "[evil]", "a,b")


async def asked(api: Api, path: str, host: str, **limits: Any) -> httpx.Response:
    async with client_of(api.app(limits=api_limits(**limits), readiness=all_ready)) as client:
        request = client.build_request("GET", path)
        request.headers["host"] = host
        return await client.send(request)


@pytest.mark.parametrize("host", OWN)
async def test_an_address_of_this_machine_and_localhost_are_served(api: Api, host: str) -> None:
    """DNS rebinding needs a host name of its own, so these hosts are safe."""
    assert (await asked(api, "/runs", host)).status_code == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_a_name_that_nobody_has_allowed_is_refused(api: Api, host: str) -> None:
    """The request is refused first, also for documents and pictures."""
    for path in ("/runs", "/docs", "/openapi.json", "/nothing"):
        answer = await asked(api, path, host)
        assert answer.status_code == 421
        assert answer.json()["type"] == "urn:caseworker:problem:host-refused"
        assert answer.headers["x-request-id"] == answer.json()["request_id"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_are_answered_under_any_name(api: Api, path: str) -> None:
    """A container platform may use any host name for its probes."""
    assert (await asked(api, path, "caseworker.internal")).status_code == 200


async def test_names_are_allowed_by_the_configuration(api: Api) -> None:
    """Only configured host names are accepted."""
    names = frozenset({"Caseworker.example"})

    assert (await asked(api, "/runs", "caseworker.EXAMPLE:443", allowed_hosts=names)).is_success
    assert (await asked(api, "/runs", "evil.example", allowed_hosts=names)).status_code == 421


async def test_what_is_allowed_follows_from_who_is_served() -> None:
    """A service open to anonymous callers from anywhere accepts any host unless some are listed."""
    anywhere = AuthSettings(anonymous="anywhere")
    named = ServerSettings(host="api.example", allowed_hosts=("caseworker.example",))

    assert limits_of(Settings()).allowed_hosts == frozenset({"127.0.0.1"})
    assert limits_of(Settings(auth=anywhere)).allowed_hosts is None
    assert limits_of(Settings(auth=anywhere, server=named)).allowed_hosts == frozenset(
        {"api.example", "caseworker.example"}
    )


@pytest.mark.parametrize(
    "name", ["http://a.example", "a.example:80", "*.example", "bücher.example"]
)
async def test_only_a_plain_name_can_be_allowed(name: str) -> None:
    """The configuration refuses any other value, because it could never match."""
    with pytest.raises(ValueError, match="must be host names"):
        ServerSettings(allowed_hosts=(name,))


@pytest.mark.parametrize("host", ["10.2.3.4:80", "0.0.0.0:8080", "192.168.1.5"])
async def test_anonymous_callers_call_this_machine_by_loopback_or_a_configured_name(
    api: Api, host: str
) -> None:
    """Loopback mode needs a loopback or configured name; a key or mode anywhere lifts this."""
    assert (await asked(api, "/runs", host)).status_code == 403
    assert (await asked(api, "/runs", host, anonymous="anywhere")).status_code == 200
    named = frozenset({host.partition(":")[0]})
    status = (await asked(api, "/runs", host, allowed_hosts=named)).status_code
    assert status == (403 if host.startswith("0.") else 200)


OTHER_PAGES = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site"},
]
OWN_PAGES: list[dict[str, str]] = [
    {},
    {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
    {"Origin": "HTTPS://LOCALHOST"},
    {"Origin": "https://app.example.com", "Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "none"},
]


@pytest.mark.parametrize("anonymous", ["loopback", "anywhere"])
@pytest.mark.parametrize(
    ("headers", "served"),
    [*((one, False) for one in OTHER_PAGES), *((one, True) for one in OWN_PAGES)],
)
async def test_pages_of_other_origins_are_refused_without_a_credential(
    api: Api, headers: dict[str, str], served: bool, anonymous: str
) -> None:
    """This includes requests without a body, which a browser sends without a preflight."""
    limits = api_limits(anonymous=anonymous, cors_origins=frozenset({"https://app.example.com"}))
    async with client_of(api.app(limits=limits)) as client:
        for method, path in (
            ("POST", "/runs/x/cancel"),
            ("POST", "/webhooks/secret"),
            ("GET", "/runs"),
        ):
            answer = await client.request(method, path, headers=headers)
            refused = "anonymous-refused" in answer.text
            assert refused is not served, (method, path, answer.text)
