"""GET /statistics: counts, durations and failures of runs over time."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.graph_requests import problem_of
from tests.support.tenants import Tenants, open_tenants
from tests.viewer.story import asking, calculate, graph_run

HALTED = {
    **graph_run("halted", [calculate("one", "1 + 1"), calculate("two", "2 + 2")]),
    "budget": {"max_tool_calls": 1},
}
NOTHING = {"queued": 0, "running": 0, "waiting": 0}


@pytest.fixture
async def tenants(database_url: str) -> AsyncIterator[Tenants]:
    """Run a service that executes runs."""
    async with open_tenants(database_url, executes=True) as tenants:
        yield tenants


async def statistics(tenants: Tenants, tenant: str, query: str = "") -> dict[str, Any]:
    answer = await tenants.ask(tenant, "GET", f"/statistics{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_runs_are_counted_by_period_status_and_reason(
    tenants: Tenants, database_url: str
) -> None:
    """Periods without runs are left out, and a tenant's statistics count only its own runs."""
    for body in (
        graph_run("completed", [calculate("one", "1 + 1")]),
        graph_run("failed", [calculate("one", "1 / 0")]),
        HALTED,
    ):
        ended = await tenants.ask("a", "POST", "/runs", body, prefer="wait=30")
        assert ended.json()["status"] == body["run_id"], ended.text
    await tenants.ask("a", "POST", "/runs", asking("waiting"), prefer="wait=2")
    later = graph_run("queued", [calculate("one", "1 + 1")])
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    await tenants.ask("b", "POST", "/runs", {**later, "start_at": soon})
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as database:
        await database.execute(
            "UPDATE runs SET created_at = now() - interval '50 hours', finished_at = started_at +"
            " interval '8 s', started_at = started_at WHERE run_id = 'completed'"
        )

    day, month = await statistics(tenants, "a"), await statistics(tenants, "a", "?period=day")
    other = await statistics(tenants, "b", "?period=day")

    assert [item["runs"] for item in month["items"]] == [1, 3]
    assert month["items"][0]["completed"] == 1
    assert month["items"][0]["p95_seconds"] == 8
    assert day["total"]["runs"] == sum(item["runs"] for item in day["items"]) == 3
    assert day["total"] | {"completed": 0, "failed": 1, "halted": 1} == day["total"]
    assert day["now"] == month["now"] == {**NOTHING, "waiting": 1}
    reasons = [(one["status"], one["kind"], one["detail"], one["runs"]) for one in day["failures"]]
    assert reasons == [
        ("failed", "error", "ToolFailedError", 1),
        ("halted", "budget", "tool_calls", 1),
    ]
    assert (other["total"]["runs"], other["failures"]) == (1, [])
    assert other["now"] == {**NOTHING, "queued": 1}


async def test_a_range_is_bounded_and_empty_at_first(tenants: Tenants) -> None:
    """By default it covers the last 24 hours, or the last 30 days."""
    for query, days in (("", 1), ("?period=day", 30)):
        found = await statistics(tenants, "a", query)
        covered = datetime.fromisoformat(found["before"]) - datetime.fromisoformat(found["after"])
        assert covered == timedelta(days=days)
        assert found["items"] == []
        assert found["total"]["p50_seconds"] is None


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("period=week", "period"),
        ("after=2025-01-01T00:00:00Z&before=2025-02-02T00:00:00Z", "after"),
        ("period=day&after=2024-01-01T00:00:00Z&before=2025-02-02T00:00:00Z", "after"),
        ("after=2999-01-01T00:00:00Z", "after"),
        ("before=0001-01-01T00:00:00Z", "after"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_bad_range_is_refused_by_name(
    client: httpx.AsyncClient, query: str, field: str
) -> None:
    """Long and empty ranges are refused."""
    answer = await client.get(f"/statistics?{query}")

    assert (answer.status_code, problem_of(answer)) == (422, "invalid-request")
    assert [error["field"] for error in answer.json()["errors"]] == [field]
