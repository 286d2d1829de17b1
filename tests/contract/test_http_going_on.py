"""POST /runs with ``from``: inherited fields and refused requests (spec, section 10)."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest

from caseworker.core.budget.budget import Budget
from caseworker.runs.run import RunKey, RunRequest, RunSource
from tests.support.api import Api, client_of
from tests.support.graph_documents import flat
from tests.support.graph_requests import field_messages, register
from tests.support.limits import api_limits
from tests.support.stores import CANCEL_REQUEST, new_run

pytestmark = pytest.mark.asyncio(loop_scope="module")


CASE = {
    "run_id": "old",
    "input": "2+2?",
    "gold_answer": "4",
    "expected_tools": ["calculator"],
    "mode": "fallback_only",
    "budget": {"max_tokens": 100, "max_cost_usd": 0.5},
    "deadline": "2030-01-01T00:00:00Z",
    "seed": 7,
    "timezone": "Europe/Paris",
    "metadata": {"ticket": 1},
}


async def ended(client: httpx.AsyncClient, **body: Any) -> None:
    """Store a finished run that was cancelled before it started."""
    await client.post("/runs", json=body)
    await client.delete(f"/runs/{body['run_id']}")


async def go_on(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/runs", json={"run_id": "r", "from": {"run_id": "old"}} | body)


async def test_what_is_left_out_is_as_it_was(client: httpx.AsyncClient, api: Api) -> None:
    """Only the deadline and the metadata are not inherited."""
    await ended(client, **CASE)
    old = (await api.stored("old")).request

    answer = await go_on(client)

    assert answer.status_code == 202
    run = await api.stored()
    assert run.request == replace(old, deadline=None, source=RunSource("old"))
    assert run.metadata == {}


@pytest.mark.parametrize("until", [None, "n000001"])
async def test_a_run_shows_what_it_goes_on_from(
    client: httpx.AsyncClient, api: Api, until: str | None
) -> None:
    """All routes show the source; it is null for a run without one."""
    await ended(client, **CASE)
    source = {"run_id": "old"} if until is None else {"run_id": "old", "until": until}

    answer = await go_on(client, **{"from": source})

    assert answer.status_code == 202, answer.text
    shown = {"run_id": "old", "until": until}
    read = (await client.get("/runs/r")).json()
    listed = (await client.get("/runs")).json()["runs"]
    assert answer.json()["from"] == read["from"] == shown
    assert {run["run_id"]: run["from"] for run in listed} == {"r": shown, "old": None}


async def test_what_is_sent_takes_its_place(client: httpx.AsyncClient, api: Api) -> None:
    """Limits are replaced one by one; null means the limit of the service."""
    await ended(client, **CASE)
    old = (await api.stored("old")).request
    most = api_limits().budget_ceiling.max_tokens

    await go_on(
        client,
        kind="case",
        input="3+3?",
        mode="escalate",
        budget={"max_tokens": None, "max_steps": 9},
        deadline="2031-01-01T00:00:00Z",
        metadata={"again": True},
    )

    run = await api.stored()
    assert run.request == replace(
        old,
        input="3+3?",
        options={**old.options, "mode": "escalate"},
        budget=replace(old.budget, max_tokens=most, max_steps=9),
        deadline=datetime(2031, 1, 1, tzinfo=UTC),
        source=RunSource("old"),
    )
    assert run.metadata == {"again": True}


async def test_no_limit_passes_the_ceiling_of_today(api: Api) -> None:
    """The ceiling applies to sent and inherited limits."""
    async with client_of(api.app()) as client:
        await ended(client, **CASE)
    ceiling = api_limits(budget_ceiling=Budget(max_tokens=50, max_steps=5))
    async with client_of(api.app(limits=ceiling)) as strict:
        await go_on(strict, budget={"max_steps": 9})

    budget = (await api.stored()).request.budget
    assert (budget.max_tokens, budget.max_steps) == (50, 5)
    assert budget.max_cost_dollars == Decimal("0.5")


async def test_a_graph_run_keeps_its_graph_and_its_version(
    client: httpx.AsyncClient, api: Api
) -> None:
    """The graph's version stays after a newer one is registered; inputs can be replaced."""
    (await register(client, "g", flat("a"))).raise_for_status()
    await ended(
        client, run_id="old", kind="graph", graph={"name": "g"}, inputs={"default": 1, "b": 2}
    )
    (await register(client, "g", flat("a", "b"))).raise_for_status()
    old = (await api.stored("old")).request

    await go_on(client)
    await go_on(client, run_id="one", input=5)
    await go_on(client, run_id="all", inputs={"c": 3})
    await go_on(client, run_id="newer", graph={"name": "g"})

    assert (await api.stored()).request == replace(old, source=RunSource("old"))
    assert (await api.stored("one")).request.inputs == {"default": 5, "b": 2}
    assert (await api.stored("all")).request.inputs == {"c": 3}
    newer: RunRequest = (await api.stored("newer")).request
    assert newer.definition_ref is not None
    assert newer.definition_ref.version == 2


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"kind": "graph"}, "kind"),
        ({"kind": "agent"}, "kind"),
        ({"from": {"run_id": "old", "until": "n000099"}}, "from.until"),
        ({"from": {"run_id": "old", "until": "first"}}, "from.until"),
        ({"from": {"run_id": "a b"}}, "from.run_id"),
        ({"from": {}}, "from.run_id"),
        ({"from": None}, "from"),
        ({"from": {"run_id": "old", "x": 1}}, "from.x"),
        ({"graph": flat("a")}, "graph"),
        ({"inputs": {"a": 1}}, "inputs"),
        ({"input": " "}, "input"),
        ({"expected_tools": ["nothing"]}, "expected_tools.0"),
        ({"unknown": 1}, "unknown"),
        ({"budget": {"max_tokens": -1}}, "budget.max_tokens"),
    ],
)
async def test_the_field_at_fault_is_named(
    client: httpx.AsyncClient, sent: dict[str, Any], field: str
) -> None:
    """Errors name fields as for other runs."""
    await ended(client, **CASE)

    assert list(field_messages(await go_on(client, **sent))) == [field]


async def test_a_run_that_is_not_there_is_named(client: httpx.AsyncClient) -> None:
    """A pending cancel does not count as a run."""
    await client.delete("/runs/early")
    for run_id in ("nobody", "early"):
        answer = await go_on(client, **{"from": {"run_id": run_id}})
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (
            404,
            "urn:caseworker:problem:run-not-found",
        )
        assert problem["errors"][0]["field"] == "from.run_id"


async def test_a_run_that_has_not_ended_is_named(client: httpx.AsyncClient) -> None:
    """The error names the source run; once that run has ended, the request is accepted."""
    await client.post("/runs", json=CASE)
    answer = await go_on(client)
    problem = answer.json()

    assert (answer.status_code, problem["type"]) == (409, "urn:caseworker:problem:run-not-ended")
    assert problem["errors"][0]["field"] == "from.run_id"
    await client.delete("/runs/old")
    assert (await go_on(client)).status_code == 202


async def test_the_same_request_is_the_same_run_whatever_became_of_the_other(
    client: httpx.AsyncClient, api: Api
) -> None:
    """Another source or another node is another request."""
    await ended(client, **CASE)
    first = await go_on(client)
    await client.delete("/runs/old/record")
    again = await go_on(client)
    other = await go_on(client, **{"from": {"run_id": "old", "until": "n000001"}})

    assert (first.status_code, again.status_code) == (202, 200)
    assert other.status_code in (404, 409)


async def test_the_source_is_part_of_what_is_asked(client: httpx.AsyncClient) -> None:
    """Reusing the key for another node is refused."""
    await ended(client, **CASE)
    headers = {"Idempotency-Key": "k"}
    body: dict[str, Any] = {"from": {"run_id": "old"}}
    first = await client.post("/runs", json=body, headers=headers)
    again = await client.post("/runs", json=body, headers=headers)
    body["from"]["until"] = "n000001"
    other = await client.post("/runs", json=body, headers=headers)

    assert (first.status_code, again.status_code, other.status_code) == (202, 200, 422)
    assert first.json()["run_id"] == again.json()["run_id"]


async def test_runs_of_other_tenants_are_not_there(client: httpx.AsyncClient, api: Api) -> None:
    """Runs of other tenants are not found under any ID."""
    await api.store.accept(new_run("old", tenant="other"), worker_id=None)
    await api.store.cancel(RunKey("other", "old"), CANCEL_REQUEST)

    assert (await go_on(client)).status_code == 404
