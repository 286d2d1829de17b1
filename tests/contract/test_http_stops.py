"""DELETE cancels: one test for each guarantee about cancelling, as a caller sees it."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.runs.ports import JournalWrite
from caseworker.runs.run import CallRecord, FinishRun, RunKey, RunStatus
from tests.support.api import Api, client_of
from tests.support.limits import store_limits
from tests.support.runs import run_service

pytestmark = pytest.mark.asyncio(loop_scope="module")


KEY = RunKey("default", "a")
RECEIPT_KEYS = {
    *("run_id", "status", "already_finished", "requested_at", "delivered_at", "settled_at"),
    *("requested_by", "reason", "calls"),
}


async def post(client: httpx.AsyncClient, run_id: str = "a", **headers: str) -> httpx.Response:
    return await client.post("/runs", json={"run_id": run_id, "input": "2+2?"}, headers=headers)


@pytest.mark.req("card/delete")
async def test_a_queued_run_is_cancelled_at_once(client: httpx.AsyncClient) -> None:
    """The answer is 202 with a receipt, and the run records who cancelled it and why."""
    await post(client)

    answer = await client.delete("/runs/a", params={"reason": "no longer needed"})

    receipt, run = answer.json(), (await client.get("/runs/a")).json()
    assert (answer.status_code, set(receipt)) == (202, RECEIPT_KEYS)
    assert (receipt["status"], receipt["already_finished"]) == ("cancelled", False)
    assert (receipt["requested_by"], receipt["reason"]) == ("anonymous", "no longer needed")
    assert receipt["settled_at"] == run["finished_at"] is not None
    assert (run["status"], run["finish_reason"]) == ("cancelled", None)
    assert (run["stop"]["kind"], run["stop"]["reason"]) == ("cancelled", "no longer needed")
    assert run["cancel"]["requested_at"] == receipt["requested_at"]


@pytest.mark.req("card/delete")
async def test_a_stop_that_comes_before_its_run_waits_for_it_and_wins(
    client: httpx.AsyncClient,
) -> None:
    """The POST returns 202 with a cancelled run, whose trace is a halted root."""
    early = await client.delete("/runs/a", params={"reason": "too late"})

    posted = await post(client)

    assert (early.status_code, early.json()["status"]) == (202, None)
    assert (posted.status_code, posted.json()["status"]) == (202, "cancelled")
    assert posted.json()["cancel"]["reason"] == "too late"
    assert posted.json()["started_at"] is None
    nodes = (await client.get("/runs/a/trace")).json()["snapshot"]["nodes"]
    assert [(node["kind"], node["status"]) for node in nodes.values()] == [("system", "halt")]
    assert (await client.get("/runs?status=queued")).json()["runs"] == []


async def test_an_early_stop_alone_is_in_no_list(client: httpx.AsyncClient) -> None:
    """A pending cancel request is not a run."""
    await client.delete("/runs/a")

    assert (await client.get("/runs")).json()["runs"] == []
    assert (await client.get("/runs/a/trace")).status_code == 404


@pytest.mark.req("card/delete")
@pytest.mark.parametrize(("method", "path"), [("DELETE", "/runs/a"), ("POST", "/runs/a/cancel")])
async def test_both_ways_to_stop_do_the_same(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    """A reason in the body has priority over one in the query."""
    await post(client)

    answer = await client.request(method, path, params={"reason": "query"}, json={"reason": "body"})

    assert (answer.status_code, answer.json()["reason"]) == (202, "body")
    assert (await client.get("/runs/a")).json()["status"] == "cancelled"


async def test_stopping_twice_is_the_same_as_once(client: httpx.AsyncClient) -> None:
    """The first cancel request wins, before the run exists and after it has ended."""
    first = (await client.delete("/runs/a", params={"reason": "first"})).json()
    second = (await client.delete("/runs/a", params={"reason": "second"})).json()
    await post(client)
    third = await client.delete("/runs/a", params={"reason": "third"})

    assert second == first
    assert (third.status_code, third.json()["reason"]) == (200, "first")
    assert third.json()["requested_at"] == first["requested_at"]


async def test_stopping_a_finished_run_changes_nothing_and_says_so(
    client: httpx.AsyncClient, api: Api
) -> None:
    """The answer is 200, and the run keeps its status and its result."""
    await post(client)
    run = await api.store.claim(KEY, "worker")
    assert run is not None
    end: dict[str, Any] = {"finish_reason": "success", "result": {"answer": "4"}, "usage": {}}
    await api.journal.finish(
        FinishRun(
            key=KEY,
            fence=run.fence,
            status=RunStatus.COMPLETED,
            stop=None,
            active_seconds=0.1,
            calls=(),
            snapshot={},
            **end,
        )
    )

    answer = await client.delete("/runs/a")

    assert answer.status_code == 200
    assert answer.json()["already_finished"] is True
    assert (answer.json()["status"], answer.json()["requested_at"]) == ("completed", None)
    assert (await client.get("/runs/a")).json()["result"] == {"answer": "4"}


async def test_a_receipt_names_the_calls_that_had_begun(
    client: httpx.AsyncClient, api: Api
) -> None:
    """The receipt lists completed, running and possibly sent calls, but no steps."""
    await post(client)
    run = await api.store.claim(KEY, "worker")
    assert run is not None
    graph = ExecutionGraph("a")
    root = graph.create_root("case")
    done = graph.begin_node(root, "tool", "calculator")
    graph.mark_success(done, 0)
    flying = graph.begin_node(root, "llm", "plan", "small-model")
    graph.mark_running(flying)
    graph.begin_node(root, "llm", "compose")
    calls = tuple(CallRecord(node=node) for node in graph.changed_since(0).nodes)
    await api.journal.write(JournalWrite(key=KEY, fence=run.fence, calls=calls))

    receipt = (await client.delete("/runs/a")).json()

    assert receipt["status"] == "running"
    assert receipt["settled_at"] is None
    assert [(call["name"], call["status"]) for call in receipt["calls"]] == [
        ("calculator", "success"),
        ("plan", "running"),
        ("compose", "created"),
    ]
    assert receipt["calls"][1] == {
        "node_id": flying,
        "kind": "llm",
        "name": "plan",
        "status": "running",
        "model": "small-model",
        "cost_usd": 0.0,
    }


async def test_only_so_many_stops_wait_for_runs_that_do_not_exist(api: Api) -> None:
    """Further requests get a 429 with Retry-After; a pending one may be repeated."""
    store = replace(api.store, limits=store_limits(max_pending_cancels=2))
    async with client_of(api.app(run_service(store))) as client:
        for run_id in ("a", "b", "a", "b"):
            assert (await client.delete(f"/runs/{run_id}")).status_code == 202

        refused = await client.delete("/runs/c")

    assert refused.status_code == 429
    assert refused.json()["type"] == "urn:caseworker:problem:too-many-pending-cancels"
    assert int(refused.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"json": {"reason": "x" * 501}}, "reason"),
        ({"json": {"reason": 5}}, "reason"),
        ({"json": {"because": "x"}}, "because"),
        ({"json": ["x"]}, ""),
        ({"params": {"reason": "x" * 501}}, "reason"),
        ({"params": {"reason": "\0"}}, "reason"),
        ({"params": {"because": "x"}}, "because"),
    ],
)
async def test_a_bad_reason_is_refused(
    client: httpx.AsyncClient, options: dict[str, Any], field: str
) -> None:
    """The answer is 422 with the field, and no run is cancelled."""
    await post(client)

    answer = await client.request("DELETE", "/runs/a", **options)

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert (await client.get("/runs/a")).json()["status"] == "queued"


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b'{"reason": null}'])
async def test_a_stop_needs_no_reason(client: httpx.AsyncClient, body: bytes) -> None:
    """A missing body, an empty body and a body without a reason give the same answer."""
    await post(client)

    answer = await client.request(
        "DELETE", "/runs/a", content=body, headers={"content-type": "application/json"}
    )

    assert (answer.status_code, answer.json()["reason"]) == (202, None)
