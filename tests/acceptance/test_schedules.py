"""Delayed and repeated runs with real processes: each instant fires once despite crashes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from tests.support.service import ServiceProcess, finished
from tests.support.stores import Oracle, eventually, open_oracle

HOURLY = {
    "cron": "0 * * * *",
    "catch_up": "all",
    "max_catch_up": 20,
    "overlap": "allow",
    "run": {"input": "What is 6 * 7?"},
}


async def put(service: ServiceProcess, name: str, **changes: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=service.url) as http:
        answer = await http.put(f"/schedules/{name}", json={**HOURLY, **changes})
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


async def missed(oracle: Oracle, hours: int) -> None:
    """Make all schedules overdue by ``hours`` hours."""
    query = "UPDATE schedules SET next_at = date_trunc('hour', now()) - make_interval(hours => %s)"
    await oracle.rows(query, hours - 1)


async def instants(oracle: Oracle) -> list[tuple[str, str]]:
    rows = await oracle.rows("SELECT metadata FROM runs WHERE status = 'completed'")
    found = [(row["metadata"]["schedule"], row["metadata"]["scheduled_at"]) for row in rows]
    return sorted(found)


async def test_a_delayed_run_begins_when_it_is_time(database_url: str) -> None:
    """A delayed run is accepted at once and starts at its time; a cancelled run never starts."""
    body = {"input": "What is 6 * 7?"}
    async with ServiceProcess(database_url) as service, service.client() as client:
        far = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        await client.post_run({**body, "run_id": "never", "start_at": far})
        later = datetime.now(UTC) + timedelta(seconds=5)
        queued = await client.post_run({**body, "run_id": "later", "start_at": later.isoformat()})
        async with httpx.AsyncClient(base_url=service.url) as http:
            assert (await http.delete("/runs/never")).json()["status"] == "cancelled"
        assert (queued["status"], queued["started_at"]) == ("queued", None)
        assert datetime.fromisoformat(queued["start_at"]) == later
        run = await finished(client, "later")
        never = await client.get_run("never")

    assert run["status"] == "completed"
    assert datetime.fromisoformat(run["started_at"]) >= later
    assert (never["status"], never["started_at"]) == ("cancelled", None)


async def test_a_schedule_fires_by_itself(database_url: str) -> None:
    """The process notices that it is due."""
    async with (
        ServiceProcess(database_url) as service,
        open_oracle(database_url) as oracle,
    ):
        await put(service, "every-minute", cron="* * * * *")
        # as if the minute were over already
        await oracle.rows("UPDATE schedules SET next_at = date_trunc('minute', now())")

        async def fired() -> bool:
            return len(await instants(oracle)) >= 1

        await eventually(fired)


async def test_processes_that_are_killed_while_they_fire_lose_and_double_nothing(
    database_url: str,
) -> None:
    """Two processes fire the overdue schedules, and each is repeatedly killed while it does."""
    names = [f"s{number}" for number in range(6)]
    async with open_oracle(database_url) as oracle:
        async with (
            ServiceProcess(database_url, name="first") as first,
            ServiceProcess(database_url, name="second") as second,
        ):
            for name in names:
                await put(first, name)
            expected = set()
            for round_ in range(3):
                await missed(oracle, 6)
                hour = await oracle.value("SELECT date_trunc('hour', now())")
                for hours in range(6):
                    at = hour.astimezone(UTC) - timedelta(hours=hours)
                    expected |= {(name, f"{at:%Y-%m-%dT%H:%M:%SZ}") for name in names}
                (first, second)[round_ % 2].child.kill()
                await (first, second)[round_ % 2].start()

            async def all_fired() -> bool:
                return set(await instants(oracle)) == expected

            await eventually(all_fired)
        found = await instants(oracle)

    assert len(found) == len(set(found)) == len(expected)


async def test_a_thousand_schedules_of_one_hour_survive_a_process_that_is_killed_meanwhile(
    database_url: str,
) -> None:
    """One of two processes is killed while they fire; each schedule has one run."""
    copies = """
        INSERT INTO schedules (tenant_id, name, cron, timezone, catch_up, max_catch_up, overlap,
            paused, sent, request, request_hash, metadata, next_at)
        SELECT tenant_id, 's' || n, '0 * * * *', timezone, 'one', 1, overlap, paused, sent, request,
            request_hash, metadata, date_trunc('hour', now())
        FROM schedules, generate_series(1, 1000) n"""
    started = """
        SELECT count(DISTINCT metadata ->> 'schedule') AS schedules, count(*) AS runs FROM runs"""
    async with (
        open_oracle(database_url) as oracle,
        ServiceProcess(database_url, name="first") as first,
        ServiceProcess(database_url, name="second"),
    ):
        await put(first, "template", cron="0 0 1 1 *")

        async def some_fired() -> bool:
            return bool(await oracle.value("SELECT EXISTS (SELECT FROM runs)"))

        async def all_fired() -> bool:
            due = "SELECT count(*) FROM schedules WHERE next_at <= date_trunc('hour', now())"
            return bool(await oracle.value(due) == 0)

        await oracle.rows(copies)
        await eventually(some_fired)
        first.child.kill()
        await eventually(all_fired)
        [row] = await oracle.rows(started)

    assert row == {"schedules": 1000, "runs": 1000}
