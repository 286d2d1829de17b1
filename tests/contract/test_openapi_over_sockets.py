"""The OpenAPI document is true of a process on a real database, and of what each key may do.

What schemathesis makes up for an operation is sent with the key of an admin; what the document
allows is sent with a key to run, one to read, and without any as well.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx
import pytest
import pytest_asyncio
import requests
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.openapi import ROUTES, WITHOUT_INPUT, documented_operations
from tests.support.service import ServiceProcess

OPERATOR = "operator-" + "7" * 32
CALLERS = ("admin", "run", "approve", "read", "nobody")
ALLOWED: Mapping[str | None, tuple[str, ...]] = {
    "admin": ("admin",),
    "run": ("admin", "run"),
    "approve": ("admin", "approve"),
    "read": ("admin", "run", "approve", "read"),
    None: CALLERS,
}
"""Who may do what needs a scope; None: it needs none."""
OWN_CREDENTIAL = {"GET /metrics"}
"""What is asked with a credential that is no key."""


class Callers:
    """Sends the same request as different callers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.trust_env = False
        self.keys = {scope: self._key(scope) for scope in CALLERS[:-1]}

    def ask(self, case: Any, caller: str) -> Any:
        """Send a case with the key of a caller."""
        shown = {"Authorization": f"Bearer {self.keys[caller]}"} if caller in self.keys else {}
        return case.call(base_url=self.url, session=self.session, headers=shown)

    def _key(self, scope: str) -> str:
        """Make a key, which belongs to a tenant of its own: one erases what the other reads."""
        answer = httpx.post(
            f"{self.url}/keys",
            json={"name": scope, "scopes": [scope], "tenant": f"tenant-{scope}"},
            headers={"Authorization": f"Bearer {OPERATOR}"},
            trust_env=False,
        )
        return str(answer.json()["key"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(module_database_url: str) -> AsyncIterator[ServiceProcess]:
    """A process that nobody makes wait."""
    chosen = {"AUTH_BOOTSTRAP_KEY": OPERATOR, "SERVER_REQUEST_TIMEOUT_SECONDS": "2"}
    async with ServiceProcess(module_database_url, settings=chosen) as running:
        yield running


@pytest.fixture(scope="module")
def callers(service: ServiceProcess) -> Iterator[Callers]:
    """A caller of each kind."""
    callers = Callers(service.url)
    yield callers
    callers.session.close()


def denial(response: Any) -> str | None:
    """Return for which reason somebody is not let in, as the challenge says; None if they are.

    An answer to HEAD has nothing else that says it. Another tenant's quotas are no such reason.
    """
    [challenge] = response.headers.get("www-authenticate", [""])
    if response.status_code == 401 and challenge == 'Bearer realm="caseworker"':
        return "credential-required"
    if response.status_code == 403 and 'error="insufficient_scope"' in challenge:
        return "scope-missing"
    return None


def wrongly_treated(label: str, denials: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the callers who were not let in, or were, against what the document says."""
    scope = documented_operations()[label].definition.raw.get("x-required-scope")
    expected = {
        caller: None
        if caller in ALLOWED[scope]
        else "credential-required"
        if caller == "nobody"
        else "scope-missing"
        for caller in CALLERS
    }
    return {caller: found for caller, found in denials.items() if found != expected[caller]}


def conform(
    label: str, mode: str, callers: Callers, *, asking: tuple[str, ...], examples: int
) -> set[int]:
    """Send generated requests, check every answer, and return the statuses that the admin got."""
    from schemathesis import GenerationMode, checks

    checked = [
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]
    statuses: set[int] = set()

    @settings(
        max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(case=documented_operations()[label].as_strategy(GenerationMode(mode)))
    def call(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body.pop("webhook", None)  # nobody is called at an address that chance makes up
        case.headers.pop("Authorization", None)  # one that is made up
        denials = {}
        for caller in asking:
            response = callers.ask(case, caller)
            # Of a stream the checker would compare each event with the schema of the whole text.
            is_stream = "text/event-stream" in response.headers.get("Content-Type", "")
            case.validate_response(response, checks=checked[:-1] if is_stream else checked)
            denials[caller] = denial(response)
            if caller == "admin":
                statuses.add(response.status_code)
        if asking == CALLERS and label not in OWN_CREDENTIAL:
            assert wrongly_treated(label, denials) == {}

    call()
    return statuses


RARELY_RIGHT = {"POST /threads", "POST /graphs", "POST /runs/cancel", "GET /metrics"}
"""A whole graph or filter is seldom made up, and metrics have a credential of their own."""


@pytest.mark.req("card/s2s")
@pytest.mark.guarantee(17)
@pytest.mark.parametrize("examples", [2, pytest.param(20, marks=pytest.mark.proof)])
@pytest.mark.parametrize("label", sorted(ROUTES))
def test_what_the_document_allows_is_answered_as_it_says(
    label: str, examples: int, callers: Callers
) -> None:
    """To those whose scope allows it; others are refused, and none gets a 5xx."""
    found = conform(label, "positive", callers, asking=CALLERS, examples=examples)
    assert found & {200, 201, 202, 204, 403, 404} or label in RARELY_RIGHT


@pytest.mark.req("card/s2s")
@pytest.mark.guarantee(17)
@pytest.mark.parametrize("examples", [3, pytest.param(20, marks=pytest.mark.proof)])
@pytest.mark.parametrize("label", sorted(ROUTES - WITHOUT_INPUT))
def test_what_the_document_forbids_is_refused_as_it_says(
    label: str, examples: int, callers: Callers
) -> None:
    """No 5xx, and every refusal is a documented one."""
    found = conform(label, "negative", callers, asking=("admin",), examples=examples)
    assert found & {400, 401, 403, 404, 422}


@pytest.mark.req("card/s2s")
def test_a_scope_that_is_not_asked_for_is_found() -> None:
    """As one that is asked for in vain, or another than the document's."""
    missing = dict.fromkeys(("approve", "read"), "scope-missing")
    right = {"admin": None, "run": None, **missing, "nobody": "credential-required"}

    assert wrongly_treated("POST /runs", right) == {}
    assert wrongly_treated("POST /runs", right | {"read": None}) == {"read": None}
    assert wrongly_treated("POST /runs", right | {"nobody": None}) == {"nobody": None}
    assert wrongly_treated("GET /runs", right) == missing
    assert wrongly_treated("POST /keys", right) == {"run": None}
