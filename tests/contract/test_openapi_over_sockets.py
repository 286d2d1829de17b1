"""The OpenAPI document is true of a process on a real database, and of what each key may do.

What schemathesis makes up for an operation is sent with the key of an admin; what the document
allows is sent with a key to run, one to read, and without any as well.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from typing import Any

import httpx
import pytest
import pytest_asyncio
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from schemathesis.schemas import APIOperation

from tests.support.api import openapi_document
from tests.support.service import ServiceProcess

OPERATOR = "operator-" + "7" * 32
CALLERS = ("admin", "run", "read", "nobody")
ALLOWED: Mapping[str | None, tuple[str, ...]] = {
    "admin": ("admin",),
    "run": ("admin", "run"),
    "read": ("admin", "run", "read"),
    None: CALLERS,
}
"""Who may do what needs a scope; None: it needs none."""
OWN_CREDENTIAL = {"GET /metrics"}
"""What is asked with a credential that is no key."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@cache
def operations() -> Mapping[str, APIOperation[Any, Any, Any, Any]]:
    """Every operation of the document, by its method and path."""
    found = schemathesis.openapi.from_dict(openapi_document()).get_all_operations()
    return {each.ok().label: each.ok() for each in found if isinstance(each, Ok)}


class Callers:
    """Sends the same request as different callers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.trust_env = False
        self.keys = {scope: self._key(scope) for scope in CALLERS[:-1]}

    def ask(self, case: schemathesis.Case[Any], caller: str) -> Response:
        """Send a case with the key of a caller."""
        shown = {"Authorization": f"Bearer {self.keys[caller]}"} if caller in self.keys else {}
        response: Response = case.call(base_url=self.url, session=self.session, headers=shown)
        return response

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


def denial(response: Response) -> str | None:
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
    scope = operations()[label].definition.raw.get("x-required-scope")
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
    label: str, mode: GenerationMode, callers: Callers, asking: tuple[str, ...]
) -> set[int]:
    """Send what schemathesis makes up, check every answer, and return those to the admin."""
    statuses: set[int] = set()

    @settings(
        max_examples=2,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operations()[label].as_strategy(mode))
    def call(case: schemathesis.Case[Any]) -> None:
        if isinstance(case.body, dict):
            case.body.pop("webhook", None)  # nobody is called at an address that chance makes up
        case.headers.pop("Authorization", None)  # one that is made up
        denials = {}
        for caller in asking:
            response = callers.ask(case, caller)
            case.validate_response(response, checks=CHECKS)
            denials[caller] = denial(response)
            if caller == "admin":
                statuses.add(response.status_code)
        if asking == CALLERS and label not in OWN_CREDENTIAL:
            assert wrongly_treated(label, denials) == {}

    call()
    return statuses


TAKING = {
    label
    for label, operation in operations().items()
    if operation.body or operation.definition.raw.get("parameters")
}
RARELY_RIGHT = {"POST /threads", "POST /graphs", "POST /runs/cancel", "GET /metrics"}
"""A whole graph or filter is seldom made up, and metrics have a credential of their own."""


@pytest.mark.req("card/s2s")
@pytest.mark.proof
@pytest.mark.parametrize("label", sorted(operations()))
def test_what_the_document_allows_is_answered_as_it_says(label: str, callers: Callers) -> None:
    """To those whose scope allows it; others are refused, and none gets a 5xx."""
    found = conform(label, GenerationMode.POSITIVE, callers, CALLERS)
    assert found & {200, 201, 202, 204, 403, 404} or label in RARELY_RIGHT


@pytest.mark.req("card/s2s")
@pytest.mark.proof
@pytest.mark.parametrize("label", sorted(TAKING))
def test_what_the_document_forbids_is_refused_as_it_says(label: str, callers: Callers) -> None:
    """No 5xx, and every refusal is a documented one."""
    assert conform(label, GenerationMode.NEGATIVE, callers, ("admin",)) & {400, 401, 403, 404, 422}


@pytest.mark.req("card/s2s")
def test_a_scope_that_is_not_asked_for_is_found() -> None:
    """As one that is asked for in vain, or another than the document's."""
    right = {"admin": None, "run": None, "read": "scope-missing", "nobody": "credential-required"}

    assert wrongly_treated("POST /runs", right) == {}
    assert wrongly_treated("POST /runs", right | {"read": None}) == {"read": None}
    assert wrongly_treated("POST /runs", right | {"nobody": None}) == {"nobody": None}
    assert wrongly_treated("GET /runs", right) == {"read": "scope-missing"}
    assert wrongly_treated("POST /keys", right) == {"run": None}
