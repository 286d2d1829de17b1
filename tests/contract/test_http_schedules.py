"""Schedules over HTTP: valid requests, and which field an error names."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from psycopg import Connection

from caseworker.features.schedules.postgres import PostgresSchedules
from caseworker.platform.caller import OPERATOR, KeyScope
from tests.support.api import Api, client_of
from tests.support.tenants import OPERATOR_KEY, Tenants

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUN = {"input": "What is 6 * 7?", "budget": {"max_seconds": 5}, "metadata": {"team": "blue"}}
SCHEDULE = {"cron": "30 6 * * 1-5", "timezone": "Europe/Paris", "run": RUN}
FIELDS = [
    ({"cron": "every day"}, "cron"),
    ({"cron": "0 0 31 2 *"}, "cron"),
    ({"timezone": "Mars/Olympus"}, "timezone"),
    ({"overlap": "queue"}, "overlap"),
    ({"catch_up": "most"}, "catch_up"),
    ({"max_catch_up": 101}, "max_catch_up"),
    ({"run": {"input": " "}}, "run.input"),
    ({"run": {**RUN, "expected_tools": ["none"]}}, "run.expected_tools.0"),
    ({"run": {**RUN, "run_id": "mine"}}, "run.run_id"),
    ({"run": {**RUN, "start_at": "2030-01-01T00:00:00Z"}}, "run.start_at"),
    ({"run": {**RUN, "deadline": "2030-01-01T00:00:00Z"}}, "run.deadline"),
    ({"run": {"from": {"run_id": "other"}}}, "run"),
    ({"run": {**RUN, "webhook": {"url": "https://127.0.0.1/"}}}, "run.webhook.url"),
    ({"run": {"kind": "graph", "graph": {"name": "x", "version": 0}}}, "run.graph"),
    ({"when": "now"}, "when"),
]


async def put(client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    return await client.put("/schedules/daily", json={**SCHEDULE, **changes})


@pytest.mark.parametrize(("changes", "field"), FIELDS, ids=[field for _, field in FIELDS])
async def test_what_is_wrong_is_named(
    client: httpx.AsyncClient, changes: dict[str, Any], field: str
) -> None:
    """Errors in the schedule and in its run are reported before anything is stored."""
    await client.post("/webhooks/secret")
    answer = await put(client, **changes)
    listed = (await client.get("/schedules")).json()

    assert answer.status_code == 422, answer.text
    assert any(error["field"].startswith(field) for error in answer.json()["errors"]), answer.text
    assert listed["schedules"] == []


async def test_a_schedule_is_made_changed_and_deleted(client: httpx.AsyncClient) -> None:
    """The schedule is returned as it was sent."""
    made, again = await put(client), await put(client, overlap="allow", paused=True)
    found = (await client.get("/schedules/daily")).json()
    deleted = await client.delete("/schedules/daily")
    gone = await client.delete("/schedules/daily")

    assert (made.status_code, again.status_code) == (201, 200)
    assert made.json()["run"] == RUN
    assert (made.json()["overlap"], made.json()["catch_up"]) == ("skip", "one")
    assert found == again.json()
    assert (found["paused"], found["next_at"]) == (True, None)
    assert (deleted.status_code, gone.status_code) == (204, 404)


async def test_a_schedule_that_is_due_stays_due_when_it_is_changed(
    client: httpx.AsyncClient, module_database: Connection
) -> None:
    """A due run is neither lost nor moved, unless the time changes or the schedule is paused."""
    await put(client)
    due = "2026-01-01T06:30:00Z"
    module_database.execute("UPDATE schedules SET next_at = %s", (due,))

    changed = (await put(client, overlap="allow")).json()
    resumed = (await client.post("/schedules/daily/resume")).json()
    moved = (await put(client, cron="45 6 * * 1-5")).json()
    paused = (await client.post("/schedules/daily/pause")).json()

    assert (changed["next_at"], resumed["next_at"], paused["next_at"]) == (due, due, None)
    assert moved["next_at"] > due


async def test_the_limit_of_schedules_counts_those_of_the_tenant_alone(api: Api) -> None:
    """A schedule that exists can still be changed."""
    schedules = replace(api.services[PostgresSchedules], max_schedules=1)
    body = {"cron": "0 6 * * *", "run": RUN}
    app = api.app(schedules, bootstrap_key=OPERATOR_KEY)
    async with client_of(app) as client:
        tenants = Tenants(client, app)
        statuses = [
            (await tenants.ask(tenant, "PUT", f"/schedules/{name}", body)).status_code
            for tenant, name in (("a", "x"), ("a", "y"), ("b", "x"), ("a", "x"))
        ]

    assert statuses == [201, 429, 201, 200]


async def test_who_may_only_look_does_not_see_what_no_run_shows(api: Api) -> None:
    """The gold answer and the webhook URL, which may contain a secret, are hidden."""
    scopes = KeyScope.RUN, KeyScope.READ, KeyScope.ADMIN
    url = "https://example.com/hook?token=t"
    run = {**RUN, "gold_answer": "42", "webhook": {"url": url}}
    made = [await api.keys.create(OPERATOR, name="k", scopes=frozenset([s])) for s in scopes]
    async with client_of(api.app()) as client:
        runner, reader, admin = ({"Authorization": f"Bearer {each.secret}"} for each in made)
        await client.post("/webhooks/secret", headers=admin)
        client.headers.update(runner)
        assert (await put(client, run=run)).json()["run"] == run
        one = (await client.get("/schedules/daily", headers=reader)).json()
        many = (await client.get("/schedules", headers=reader)).json()["schedules"]

    assert one["run"] == RUN
    assert many == [one]


async def test_a_run_by_hand_repeats_nothing(client: httpx.AsyncClient) -> None:
    """One idempotency key makes one run, with the metadata and limits of the schedule."""
    await put(client)
    headers = {"Idempotency-Key": "once"}
    first = await client.post("/schedules/daily/run", headers=headers)
    again = await client.post("/schedules/daily/run", headers=headers)
    absent = await client.post("/schedules/weekly/run")

    assert (first.status_code, again.status_code, absent.status_code) == (202, 200, 404)
    assert first.json()["run_id"] == again.json()["run_id"]
    assert first.json()["metadata"] == {"schedule": "daily", "team": "blue"}
    assert first.json()["limits"]["max_seconds"] == 5


@pytest.mark.parametrize(
    ("days", "deadline_days", "status"),
    [(1, None, 202), (-1, None, 202), (89, 90, 202), (91, None, 422), (2, 1, 422), (2, 2, 422)],
)
async def test_a_run_may_begin_later(
    client: httpx.AsyncClient, days: int, deadline_days: int | None, status: int
) -> None:
    """A start time must be within the allowed days and before the deadline."""
    now = datetime.now(UTC)
    body: dict[str, Any] = {"input": "2 + 2?", "start_at": (now + timedelta(days)).isoformat()}
    if deadline_days is not None:
        body["deadline"] = (now + timedelta(deadline_days)).isoformat()
    if days == deadline_days:
        body["deadline"] = body["start_at"]
    answer = await client.post("/runs", json=body)

    assert answer.status_code == status, answer.text
    if status == 202:
        shown = datetime.fromisoformat(answer.json()["start_at"])
        assert shown == datetime.fromisoformat(body["start_at"])
    else:
        assert answer.json()["errors"][0]["field"] == "start_at"
