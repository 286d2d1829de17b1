"""POST /runs/cancel: cancels all runs that match a filter and no others."""

from typing import Any

import httpx
import pytest

from caseworker.runs.http import query as run_query
from caseworker.runs.run import RunKey
from tests.support.api import Api

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def post(client: httpx.AsyncClient, run_id: str, **fields: Any) -> None:
    answer = await client.post("/runs", json={"run_id": run_id, "input": "2+2?", **fields})
    assert answer.status_code == 202


async def cancel(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/runs/cancel", json=body)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def status_of(client: httpx.AsyncClient, run_id: str) -> str:
    return str((await client.get(f"/runs/{run_id}")).json()["status"])


async def test_the_runs_that_fit_are_stopped_and_the_others_are_not(
    client: httpx.AsyncClient, api: Api
) -> None:
    """Queued runs end at once, running ones are asked to stop, and a second request finds none."""
    await post(client, "waits", metadata={"batch": 7})
    await post(client, "works", metadata={"batch": 7})
    await post(client, "other", metadata={"batch": 8})
    await api.store.claim(RunKey("default", "works"), "worker")

    first = await cancel(client, metadata={"batch": 7}, reason="wrong batch")
    second = await cancel(client, metadata={"batch": 7})

    assert first == {"ended": 1, "requested": 1, "more": False}
    assert second == {"ended": 0, "requested": 0, "more": False}
    assert await status_of(client, "waits") == "cancelled"
    assert await status_of(client, "other") == "queued"
    works = (await client.get("/runs/works")).json()
    assert (works["status"], works["cancel"]["reason"]) == ("running", "wrong batch")
    assert works["cancel"]["requested_by"] == "anonymous"


async def test_runs_of_a_status_are_stopped_only_while_they_have_it(
    client: httpx.AsyncClient, api: Api
) -> None:
    """A run that a worker claimed in the meantime is no longer queued and keeps running."""
    await post(client, "a")
    await post(client, "b")
    await api.store.claim(RunKey("default", "a"), "worker")

    assert (await cancel(client, status="queued"))["ended"] == 1
    assert await status_of(client, "a") == "running"
    assert await status_of(client, "b") == "cancelled"


async def test_more_runs_than_one_request_stops_take_several(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request cancels the oldest runs first; the last answer says that none are left."""
    monkeypatch.setattr(run_query, "MAX_CANCELLED_AT_ONCE", 2)
    for number in range(5):
        await post(client, f"run-{number}")

    answers = [await cancel(client, kind="case") for _ in range(3)]

    assert [answer["ended"] for answer in answers] == [2, 2, 1]
    assert [answer["more"] for answer in answers] == [True, True, False]


async def test_runs_of_another_tenant_and_pending_cancels_are_left_alone(
    client: httpx.AsyncClient,
) -> None:
    """A pending cancel is not a run."""
    await client.delete("/runs/early")
    answer = await cancel(client, created_before="2999-01-01T00:00:00Z")
    assert answer == {"ended": 0, "requested": 0, "more": False}


@pytest.mark.parametrize(
    "body", [{}, {"reason": "all of them"}, {"status": "gone"}, {"metadata": {"a": [1]}}]
)
async def test_a_request_that_names_no_runs_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    """An empty object would otherwise cancel every run by accident."""
    await post(client, "a")
    answer = await client.post("/runs/cancel", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"]
    assert await status_of(client, "a") == "queued"
