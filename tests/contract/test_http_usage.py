"""Usage of a run and limits that cannot be enforced, over HTTP."""

import httpx
import pytest

from caseworker.runs.ports import JournalWrite
from caseworker.runs.run import RunKey
from tests.support.api import Api
from tests.support.stores import graph_with_calls, records_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_run_that_is_worked_on_shows_what_it_has_spent_so_far(
    client: httpx.AsyncClient, api: Api
) -> None:
    """The usage comes from the journal, so it is shown while another process executes the run."""
    body = {"run_id": "busy", "input": "2+2?"}
    posted = (await client.post("/runs", json=body)).json()
    assert posted["usage"] is None
    run = await api.store.claim(RunKey("default", "busy"), "another process")
    assert run is not None
    charge = {"tokens": 50, "tokens_estimated": 20, "cost_usd": "0.5", "llm_calls_small": 2}
    records = records_of(graph_with_calls("busy"), charge=charge)[-1:]
    await api.journal.write(JournalWrite(key=run.key, fence=run.fence, calls=tuple(records)))

    usage = (await client.get("/runs/busy")).json()["usage"]
    assert (usage["tokens"], usage["tokens_estimated"]) == (50, 20)
    assert (usage["cost_usd"], usage["cost_usd_estimated"]) == (0.5, 0.0)
    assert usage["llm_calls_small"] == 2
    again = (await client.post("/runs", json=body)).json()["usage"]
    assert {**again, "seconds": 0} == {**usage, "seconds": 0}


@pytest.mark.req("003/FR2.1")
@pytest.mark.parametrize(("limit", "status"), [(0, 202), (3, 202), (-1, 422), (2.5, 422)])
async def test_a_limit_of_turns_is_read_like_every_other(
    client: httpx.AsyncClient, limit: float, status: int
) -> None:
    """The limit applies to all agents that the run executes."""
    answer = await client.post("/runs", json={"input": "2+2?", "budget": {"max_turns": limit}})

    assert answer.status_code == status
    if status == 422:
        assert answer.json()["errors"][0]["field"] == "budget.max_turns"
