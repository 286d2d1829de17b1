"""The JSON test suite and the big list of naughty strings, against the service on a real Postgres.

Each document is posted as a run and to two other places; each string is sent in two of its many
places, so that every string and every place occurs. The proofs send every one to every place, in
about 50,000 requests.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from tests.support.hostile_places import ASKING, GRAPH, asks_of, places
from tests.support.hostile_texts import json_documents, naughty_strings
from tests.support.raw_client import Answer, Ask, RawClient
from tests.support.service import ServiceProcess

KEY = "operator-" + "7" * 32
EVERYWHERE = 10_000
"""A number larger than the count of places."""
PLACES = pytest.mark.parametrize("count", [2, pytest.param(EVERYWHERE, marks=pytest.mark.proof)])
"""The number of places that get each text."""
EXPECTED = {"n": {400}, "y": {422}, "i": {400, 422}}
"""Statuses for a document that is not JSON, is JSON but not a run, or could be either."""
OWN_WAY = {
    "n_structure_no_data.json": {422},
    "y_object_duplicated_key.json": {400},
    "y_object_duplicated_key_and_value.json": {400},
}
"""Expected statuses that differ: an empty body is missing, and a duplicate key is refused."""
BROKEN = ("Traceback", "http.request_broke", '"level": "error"')
"""Log texts that reveal an unhandled failure."""

Each = TypeVar("Each")


class ServiceResources:
    """A service with one resource of each type, and the faults found in its answers."""

    def __init__(self, service: ServiceProcess, client: RawClient) -> None:
        self.service = service
        self.client = client
        self.approval = ""
        self.statuses: Counter[int] = Counter()
        self.faults: list[tuple[str, Ask, bytes]] = []

    async def ask(self, request: Ask) -> Answer:
        """Send a request and judge its answer."""
        answer = await self.client.ask(request)
        self.statuses[answer.status] += 1
        if (fault := answer.fault()) is not None:
            self.faults.append((fault, request, answer.body[:300]))
        return answer

    async def furnish(self) -> None:
        """Create one resource of every type that the texts refer to."""
        waiting = {"Prefer": b"wait=20"}
        known = {"run_id": "known", "kind": "graph", "graph": GRAPH}
        asking = {"run_id": "asking", "kind": "graph", "graph": ASKING}
        asked = [
            Ask("POST", "/webhooks/secret"),
            Ask("POST", "/runs", json.dumps(known).encode(), waiting),
            Ask("POST", "/runs", json.dumps(asking).encode()),
            Ask("POST", "/graphs", json.dumps({"name": "g", "graph": GRAPH}).encode()),
            Ask("POST", "/threads", json.dumps({"thread_id": "t", "graph": GRAPH}).encode()),
        ]
        for each in asked:
            assert (await self.ask(each)).status < 300, each
        while not self.approval:
            found = (await self.ask(Ask("GET", "/runs/asking/approvals"))).json()["approvals"]
            self.approval = found[0]["approval_id"] if found else ""
            await asyncio.sleep(0.02)

    async def read_everything(self) -> int:
        """Read all stored resources, and return the number of runs."""
        pages = ("graphs", "agents", "threads", "approvals", "schedules", "keys", "quotas")
        for path in (*pages, "webhooks/deliveries", "threads/t/messages"):
            assert (await self.ask(Ask("GET", f"/{path}"))).status == 200, path
        runs, cursor = [], "?limit=100"
        while cursor:
            page = await self.ask(Ask("GET", f"/runs{cursor}"))
            assert page.status == 200, page.body
            runs += page.json()["runs"]
            following = page.json()["next_cursor"]
            cursor = following and f"?limit=100&cursor={following}"
        for run in some(runs, 60, 7):
            for below in ("", "/trace"):
                answer = await self.ask(Ask("GET", f"/runs/{run['run_id']}{below}"))
                assert answer.status == 200, (run, answer.body)
        return len(runs)

    def require_no_fault(self) -> None:
        """Fail if a fault was recorded or the service logged an unhandled failure."""
        sys.stdout.write(f"{self.statuses.total()} requests: {dict(self.statuses)}\n")
        found = Counter((fault, each.method, each.path[:60]) for fault, each, _ in self.faults)
        assert found == {}, self.faults[:20]
        assert self.service.child.exit_code is None
        logged = self.service.child.stderr.splitlines()
        assert [line for line in logged if any(each in line for each in BROKEN)] == []


@pytest.fixture
async def service_resources(database_url: str) -> AsyncIterator[ServiceResources]:
    """Run a service with a resource of every kind."""
    settings = {"AUTH_BOOTSTRAP_KEY": KEY, "ADMISSION_MAX_QUEUED": "100000"}
    async with opened(database_url, settings) as service_resources:
        await service_resources.furnish()
        yield service_resources


@asynccontextmanager
async def opened(database_url: str, settings: dict[str, str]) -> AsyncIterator[ServiceResources]:
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        RawClient(service.url, {"Authorization": f"Bearer {KEY}"}) as client,
    ):
        yield ServiceResources(service, client)


def some(each: Sequence[Each], count: int, turn: int) -> Iterable[Each]:
    """Return ``count`` items of a sequence, the next ones in each turn."""
    if count >= len(each):
        return each
    return [each[(turn * count + place) % len(each)] for place in range(count)]


@pytest.mark.req("card/s2s")
@pytest.mark.guarantee(17)
@PLACES
async def test_no_json_document_makes_the_service_fail(
    service_resources: ServiceResources, count: int
) -> None:
    """Malformed JSON gets a 400 and JSON that is no run gets a 422, on every route."""
    wrong = []
    for turn, (name, document) in enumerate(json_documents().items()):
        answer = await service_resources.ask(Ask("POST", "/runs", document))
        expected = OWN_WAY.get(name, EXPECTED[name[0]])
        if answer.status not in expected:
            wrong.append((name, answer.status, answer.body))
        for request in some(asks_of(document, service_resources.approval), count, turn):
            await service_resources.ask(request)

    service_resources.require_no_fault()
    assert [each[:2] for each in wrong] == []
    assert await service_resources.read_everything() >= 2
    assert service_resources.statuses.total() > 600
    service_resources.require_no_fault()


@pytest.mark.req("card/s2s")
@pytest.mark.guarantee(17)
@PLACES
async def test_no_naughty_string_makes_the_service_fail(
    service_resources: ServiceResources, count: int
) -> None:
    """Strings in a body, path, query or header do no harm, and accepted ones can be read again."""
    strings = naughty_strings()
    seen: set[int] = set()
    for turn, text in enumerate(strings):
        asked = places(text, service_resources.approval)
        for place, request in some(list(enumerate(asked)), count, turn):
            seen.add(place)
            await service_resources.ask(request)
    assert seen == set(range(len(places("", ""))))

    service_resources.require_no_fault()
    assert await service_resources.read_everything() > 20
    assert {200, 202, 400, 401, 404, 415, 421, 422} <= set(service_resources.statuses)
    service_resources.require_no_fault()
