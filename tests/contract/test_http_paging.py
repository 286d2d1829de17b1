"""The pages of every list that has a cursor: nothing is lost, doubled or shown to other tenants."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
from psycopg import Connection
from psycopg.sql import SQL, Identifier

from tests.support.api import Api, client_of
from tests.support.graph_requests import problem_of
from tests.support.tenants import OPERATOR_KEY, Tenants
from tests.support.threads import AGENT

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONE, OTHER = "one", "other"
CASE = {"input": "2+2?"}
HOOK = {"url": "https://example.com/hook", "events": ["run.cancelled"]}


@dataclass(frozen=True)
class Listing:
    """A list, and how a tenant adds a row to it whose ID ends in a number."""

    path: str
    rows: str
    id: str
    add: Callable[[Tenants, str, int], Awaitable[None]]
    newest_first: bool = True

    def order(self, numbers: list[int]) -> list[str]:
        """Return IDs in the order of the list, of rows that were added in this order."""
        found = [f"{self.path[1]}{number:02}" for number in numbers]
        return found[::-1] if self.newest_first else sorted(found)


async def send(tenants: Tenants, tenant: str, method: str, path: str, body: Any = None) -> None:
    answer = await tenants.ask(tenant, method, path, body)
    assert answer.is_success, answer.text


async def add_run(tenants: Tenants, tenant: str, number: int) -> None:
    await send(tenants, tenant, "POST", "/runs", {**CASE, "run_id": f"r{number:02}"})


async def add_thread(tenants: Tenants, tenant: str, number: int) -> None:
    body = {"agent": AGENT, "thread_id": f"t{number:02}"}
    await send(tenants, tenant, "POST", "/threads", body)


async def add_agent(tenants: Tenants, tenant: str, number: int) -> None:
    await send(tenants, tenant, "POST", "/agents", {"agent": {**AGENT, "name": f"a{number:02}"}})


async def add_schedule(tenants: Tenants, tenant: str, number: int) -> None:
    body = {"cron": "0 6 * * *", "run": CASE}
    await send(tenants, tenant, "PUT", f"/schedules/s{number:02}", body)


async def add_delivery(tenants: Tenants, tenant: str, number: int) -> None:
    """End a run that has a webhook; the delivery is known by its run."""
    if not (await tenants.ask(tenant, "GET", "/webhooks/secret")).json()["secrets"]:
        await send(tenants, tenant, "POST", "/webhooks/secret")
    body = {**CASE, "run_id": f"w{number:02}", "webhook": HOOK}
    await send(tenants, tenant, "POST", "/runs", body)
    await send(tenants, tenant, "DELETE", f"/runs/w{number:02}")


RUNS = Listing("/runs", "runs", "run_id", add_run)
THREADS = Listing("/threads", "threads", "thread_id", add_thread)
AGENTS = Listing("/agents", "agents", "name", add_agent, newest_first=False)
SCHEDULES = Listing("/schedules", "schedules", "name", add_schedule, newest_first=False)
DELIVERIES = Listing("/webhooks/deliveries", "deliveries", "run_id", add_delivery)
every_list = pytest.mark.parametrize(
    "listing", [RUNS, THREADS, AGENTS, SCHEDULES, DELIVERIES], ids=lambda each: each.rows
)


@pytest_asyncio.fixture(loop_scope="module")
async def tenants(api: Api) -> AsyncIterator[Tenants]:
    app = api.app(bootstrap_key=OPERATOR_KEY)
    async with client_of(app) as client:
        yield Tenants(client, app)


async def page_of(
    tenants: Tenants, tenant: str, listing: Listing, limit: int, cursor: str | None = None
) -> tuple[list[str], str | None]:
    """Return the IDs on a page, and the cursor of the next one."""
    query = f"?limit={limit}" + (f"&cursor={cursor}" if cursor else "")
    answer = await tenants.ask(tenant, "GET", listing.path + query)
    assert answer.status_code == 200, answer.text
    page = answer.json()
    return [row[listing.id] for row in page[listing.rows]], page["next_cursor"]


async def rest_of(
    tenants: Tenants, tenant: str, listing: Listing, limit: int, cursor: str | None
) -> list[str]:
    """Return the IDs on all pages after a cursor; only the last page may be shorter."""
    found: list[str] = []
    while cursor is not None:
        page, cursor = await page_of(tenants, tenant, listing, limit, cursor)
        assert page
        assert len(page) == limit or cursor is None
        found += page
        assert len(found) < 20, "the pages never end"
    return found


@every_list
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
async def test_pages_hold_every_row_once_in_order(
    tenants: Tenants, listing: Listing, limit: int
) -> None:
    """The last page has no cursor, even if it is full."""
    numbers = [4, 2, 6, 8]
    for number in numbers:
        await listing.add(tenants, ONE, number)

    first, cursor = await page_of(tenants, ONE, listing, limit)
    rest = await rest_of(tenants, ONE, listing, limit, cursor)

    assert [*first, *rest] == listing.order(numbers)
    assert len(first) == limit


@every_list
async def test_rows_added_between_two_pages_move_no_other_row(
    tenants: Tenants, listing: Listing
) -> None:
    """A row that sorts before the cursor is not shown, one that sorts after it is shown once."""
    numbers = [2, 4, 6, 8]
    for number in numbers:
        await listing.add(tenants, ONE, number)
    first, cursor = await page_of(tenants, ONE, listing, 2)

    for number in (1, 5, 9):
        await listing.add(tenants, ONE, number)
    rest = await rest_of(tenants, ONE, listing, 2, cursor)

    assert first == listing.order(numbers)[:2]
    expected = numbers if listing.newest_first else [4, 5, 6, 8, 9]
    assert rest == listing.order(expected)[2 if listing.newest_first else 1 :]


@pytest.mark.parametrize(
    ("listing", "table"),
    [(RUNS, "runs"), (THREADS, "threads"), (DELIVERIES, "webhook_deliveries")],
    ids=lambda each: getattr(each, "rows", ""),
)
async def test_rows_of_the_same_instant_are_paged_by_their_id(
    tenants: Tenants, listing: Listing, table: str, module_database: Connection
) -> None:
    """A cursor that held the instant alone would skip or repeat them."""
    for number in range(5):
        await listing.add(tenants, ONE, number)
    same = SQL("UPDATE {} SET created_at = '2026-01-01T00:00:00.123456Z'")
    module_database.execute(same.format(Identifier(table)))

    whole, none = await page_of(tenants, ONE, listing, 200)
    first, cursor = await page_of(tenants, ONE, listing, 2)

    assert none is None
    assert sorted(whole) == sorted(listing.order(list(range(5))))
    assert [*first, *await rest_of(tenants, ONE, listing, 2, cursor)] == whole


@every_list
async def test_a_page_never_holds_rows_of_another_tenant(
    tenants: Tenants, listing: Listing
) -> None:
    """Even the cursor of another tenant shows none of its rows."""
    await listing.add(tenants, OTHER, 0)
    for number in (1, 2, 3):
        await listing.add(tenants, ONE, number)
    await listing.add(tenants, OTHER, 4)
    first, mine = await page_of(tenants, ONE, listing, 1)
    _, theirs = await page_of(tenants, OTHER, listing, 1)

    seen = [*first, *await rest_of(tenants, ONE, listing, 1, mine)]
    with_theirs = await rest_of(tenants, ONE, listing, 1, theirs)

    assert seen == listing.order([1, 2, 3])
    assert with_theirs == seen


def encoded(place: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


AT = "2026-01-01T00:00:00+00:00"
PLACES: list[Any] = [{}, None, 7, "\0", "\ud800", ["x", "y"], [AT, "\0"], [AT, "x", "y"]]
"""Forged cursor contents that a caller could send."""


@every_list
@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=ten",
        "limit=" + "9" * 5000,
        "cursor=nonsense",
        "cursor=%00",
        "cursor=%FF",
        "cursor=" + "a" * 600,
        *(f"cursor={encoded(place)}" for place in PLACES),
    ],
)
async def test_a_limit_or_cursor_that_is_not_valid_is_refused(
    client: httpx.AsyncClient, listing: Listing, query: str
) -> None:
    """The answer is 422 with the parameter; a page has 1 to 200 rows."""
    answer = await client.get(f"{listing.path}?{query}")

    assert (answer.status_code, problem_of(answer)) == (422, "invalid-request")
    assert [error["field"] for error in answer.json()["errors"]] == [query.partition("=")[0]]
