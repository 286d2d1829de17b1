"""What a run has spent, and limits that cannot be kept, over HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.runs.ports import JournalWrite
from app.runs.run import RunKey
from tests.contract.test_http_runs import problem_of
from tests.support.memory_api import client_of, memory_api
from tests.support.memory_runs import MemoryRuns
from tests.support.stores import graph_with_calls, records_of


@pytest.fixture
def store() -> MemoryRuns:
    return MemoryRuns()


@pytest.fixture
async def client(store: MemoryRuns) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(memory_api(store)) as client:
        yield client


async def test_a_run_that_is_worked_on_shows_what_it_has_spent_so_far(
    client: httpx.AsyncClient, store: MemoryRuns
) -> None:
    """Also where another process executes it: its journal says so."""
    posted = (await client.post("/runs", json={"run_id": "busy", "input": "2+2?"})).json()
    assert posted["usage"] is None
    run = await store.claim(RunKey("default", "busy"), "another process")
    assert run is not None
    charge = {"tokens": 50, "tokens_estimated": 20, "cost_usd": "0.5", "llm_calls_small": 2}
    records = records_of(graph_with_calls("busy"), charge=charge)[-1:]
    await store.write(JournalWrite(key=run.key, fence=run.fence, calls=tuple(records)))

    usage = (await client.get("/runs/busy")).json()["usage"]
    assert (usage["tokens"], usage["tokens_estimated"]) == (50, 20)
    assert (usage["cost_usd"], usage["cost_usd_estimated"]) == (0.5, 0.0)
    assert usage["llm_calls_small"] == 2


@pytest.mark.req("003/FR2.1")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": "2+2?", "budget": {"max_turns": 0}}, "budget.max_turns"),
        (
            {
                "kind": "graph",
                "graph": {"steps": [], "edges": []},
                "budget": {"max_turns": 3},
            },
            "budget.max_turns",
        ),
    ],
)
async def test_a_limit_that_nothing_counts_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    """It would be accepted and never kept; null says that there is none."""
    refused = await client.post("/runs", json=body)

    assert (refused.status_code, problem_of(refused)) == (422, "invalid-request")
    [violation] = refused.json()["errors"]
    assert violation["field"] == field
    assert "counts turns" in violation["message"]
    kept = {**body, "budget": {"max_turns": None}}
    if "graph" not in body:
        assert (await client.post("/runs", json=kept)).status_code == 202
