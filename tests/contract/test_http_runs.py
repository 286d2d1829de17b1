"""POST, GET and the list of runs: one test for each row of the table in section 10 of the spec."""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.errors import QueueFullError
from caseworker.runs.execute.postgres.runs import PostgresRuns
from caseworker.runs.run import FinishRun, RunKey, RunStatus
from tests.support.api import Api, client_of
from tests.support.graph_requests import problem_of
from tests.support.limits import api_limits
from tests.support.stores import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


RUN_KEYS = {
    *("run_id", "kind", "status", "finish_reason", "created_at", "started_at", "finished_at"),
    *(
        "attempts",
        "result",
        "usage",
        "stop",
        "required_action",
        "cancel",
        "from",
        "metadata",
        "links",
        "graph",
        "agent",
        "limits",
        "priority",
        "concurrency_key",
        "start_at",
        "thread_id",
        "input",
        "inputs",
    ),
}


async def finish(api: Api, run_id: str, result: Mapping[str, Any]) -> None:
    """Claim a queued run and finish it as a worker does."""
    run = await api.store.claim(RunKey("default", run_id), "worker")
    assert run is not None
    end = FinishRun(
        key=run.key,
        fence=run.fence,
        status=RunStatus.COMPLETED,
        finish_reason="success",
        result=result,
        usage={"tokens": 0},
        stop=None,
        active_seconds=0.1,
        calls=(),
        snapshot={},
    )
    assert (await api.journal.finish(end)).done


async def exists(client: httpx.AsyncClient, path: str) -> bool:
    return (await client.get(path)).is_success


@pytest.mark.req("card/post")
async def test_a_posted_run_is_accepted_and_can_be_read(client: httpx.AsyncClient) -> None:
    """The answer is 202 with a location, and reading that location returns the same run."""
    posted = await client.post("/runs", json={"input": "2+2?", "metadata": {"ticket": 7}})

    run = posted.json()
    assert posted.status_code == 202
    assert posted.headers["location"] == run["links"]["self"] == f"/runs/{run['run_id']}"
    assert set(run) == RUN_KEYS
    assert (run["kind"], run["status"], run["metadata"]) == ("case", "queued", {"ticket": 7})
    shown = (await client.get(posted.headers["location"])).json()
    assert shown.pop("input")
    assert shown == {name: value for name, value in run.items() if name != "input"}


@pytest.mark.req("card/post", "002/9.1")
async def test_a_case_carries_all_that_it_may_carry(client: httpx.AsyncClient, api: Api) -> None:
    """Every field of the body is stored with the run."""
    body = {
        "run_id": "case-1",
        "kind": "case",
        "input": "2+2?",
        "expected_tools": ["calculator"],
        "gold_answer": "4",
        "mode": "fallback_only",
        "budget": {"max_tokens": 10, "max_cost_usd": 0.5},
        "deadline": "2030-01-01T00:00:00+01:00",
        "seed": 7,
        "timezone": "Europe/Paris",
        "metadata": {"a": [1, {"b": None}]},
    }

    posted = await client.post("/runs", json=body)

    run = await api.stored("case-1")
    assert posted.status_code == 202
    request = run.request
    assert request.options == {
        "expected_tools": ["calculator"],
        "gold_answer": "4",
        "mode": "fallback_only",
    }
    assert (request.seed, request.timezone) == (7, "Europe/Paris")
    assert (request.budget.max_tokens, str(request.budget.max_cost_dollars)) == (10, "0.5")
    assert str(request.deadline) == "2029-12-31 23:00:00+00:00"
    assert "gold_answer" not in posted.text


async def test_the_same_id_and_body_is_the_same_run(client: httpx.AsyncClient) -> None:
    """The answer is always 200, in whatever order the fields are sent."""
    first = await client.post("/runs", json={"run_id": "a", "input": "2+2?", "seed": 1})
    again = await client.post(
        "/runs",
        content=b'{"seed":1, "input":"2+2?",  "run_id":"a"}',
        headers={"content-type": "application/json"},
    )

    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]


@pytest.mark.req("card/s2s")
async def test_the_same_key_and_body_is_the_same_run(client: httpx.AsyncClient) -> None:
    """The same key makes only one run, although the service generates an ID for each request."""
    answers = [
        await client.post("/runs", json={"input": "2+2?"}, headers={"Idempotency-Key": "k"})
        for _ in range(3)
    ]

    assert [answer.status_code for answer in answers] == [202, 200, 200]
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert len((await client.get("/runs")).json()["runs"]) == 1


@pytest.mark.req("card/s2s")
async def test_one_key_posted_by_many_at_once_makes_one_run(client: httpx.AsyncClient) -> None:
    """The first request creates the run and all others return it."""
    async with asyncio.TaskGroup() as group:
        posts = [
            group.create_task(
                client.post("/runs", json={"input": "2+2?"}, headers={"Idempotency-Key": "k"})
            )
            for _ in range(20)
        ]

    answers = [post.result() for post in posts]
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [202]
    assert len({answer.json()["run_id"] for answer in answers}) == 1


async def test_the_same_key_with_another_body_is_refused(client: httpx.AsyncClient) -> None:
    """The answer is 422, because the caller has reused the key by mistake."""
    await client.post("/runs", json={"input": "2+2?"}, headers={"Idempotency-Key": "k"})

    other = await client.post("/runs", json={"input": "3+3?"}, headers={"Idempotency-Key": "k"})

    assert (other.status_code, problem_of(other)) == (422, "idempotency-mismatch")


async def test_the_same_id_with_another_body_is_a_conflict(client: httpx.AsyncClient) -> None:
    """The answer is 409, because the ID is already used."""
    await client.post("/runs", json={"run_id": "a", "input": "2+2?"})

    other = await client.post("/runs", json={"run_id": "a", "input": "3+3?"})

    assert (other.status_code, problem_of(other)) == (409, "run-conflict")


async def test_an_id_and_a_key_of_different_runs_are_a_conflict(client: httpx.AsyncClient) -> None:
    """The answer is 409 even if only the key is already used."""
    await client.post("/runs", json={"run_id": "a", "input": "1"}, headers={"Idempotency-Key": "k"})
    await client.post("/runs", json={"run_id": "b", "input": "1"})

    for run_id in ("b", "c"):
        body = {"run_id": run_id, "input": "1"}
        other = await client.post("/runs", json=body, headers={"Idempotency-Key": "k"})
        assert (other.status_code, problem_of(other)) == (409, "run-conflict")


@pytest.mark.req("002/23.5")
@pytest.mark.parametrize("blank", ["", " ", "\t\r\n", "\u00a0\u3000"])
async def test_a_blank_input_is_refused(client: httpx.AsyncClient, blank: str) -> None:
    """The answer is 422 with the field and the remedy."""
    refused = await client.post("/runs", json={"input": blank})

    assert (refused.status_code, problem_of(refused)) == (422, "invalid-request")
    assert refused.json()["errors"] == [
        {"field": "input", "message": "The input must not be blank."}
    ]


@pytest.mark.req("002/9.3", "002/23.4", "002/23.5")
async def test_an_input_beyond_the_limit_is_refused_with_the_limit(api: Api) -> None:
    """The answer is 422; an input of exactly the limit is accepted."""
    async with client_of(api.app(limits=api_limits(max_input_chars=5))) as client:
        fits = await client.post("/runs", json={"input": "é" * 5})
        refused = await client.post("/runs", json={"input": "é" * 6})

    assert fits.status_code == 202
    assert refused.status_code == 422
    assert refused.json()["errors"] == [
        {
            "field": "input",
            "message": "The input must not exceed 5 characters (flags.max_input_chars).",
        }
    ]


@pytest.mark.req("002/23.5")
@pytest.mark.parametrize(
    "field", ["messages", "agent", "graph", "inputs", "webhooks", "budgets", "max_tokens"]
)
async def test_an_unknown_field_is_refused_by_name(client: httpx.AsyncClient, field: str) -> None:
    """This includes fields of later versions, so that none is silently ignored."""
    refused = await client.post("/runs", json={"input": "2+2?", field: {}})

    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == [field]


@pytest.mark.parametrize("kind", ["chat", "Graph", 1, ["graph"], None])
async def test_another_kind_of_run_is_refused(client: httpx.AsyncClient, kind: Any) -> None:
    """This version runs only cases, graphs and agents."""
    refused = await client.post("/runs", json={"input": "2+2?", "kind": kind})

    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["field"] == "kind"
    kinds = "This must be one of: 'case', 'graph', 'agent' or 'external'."
    assert error["message"] in (kinds, f"{kinds} Did you mean 'graph'?")


@pytest.mark.parametrize("value", [-1, -0.5, True, "5", 1.5])
async def test_a_limit_is_zero_or_a_positive_number(client: httpx.AsyncClient, value: Any) -> None:
    """Strings and booleans are refused."""
    refused = await client.post("/runs", json={"input": "2+2?", "budget": {"max_tokens": value}})

    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == ["budget.max_tokens"]


@pytest.mark.parametrize("error", [QueueFullError, StoreUnavailableError])
async def test_overload_is_refused_with_the_time_to_come_back(
    client: httpx.AsyncClient, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is 429 or 503 with Retry-After."""
    monkeypatch.setattr(PostgresRuns, "accept", AsyncMock(side_effect=error))
    refused = await client.post("/runs", json={"input": "2+2?"})

    assert refused.status_code == (429 if error is QueueFullError else 503)
    assert int(refused.headers["retry-after"]) > 0
    assert problem_of(refused) in ("queue-full", "store-unavailable")


async def test_a_run_that_ends_while_it_is_waited_for_is_answered_with_its_result(
    client: httpx.AsyncClient, api: Api
) -> None:
    """The answer is 200 with the applied preference."""
    body, wait = {"run_id": "a", "input": "2+2?"}, {"Prefer": "wait=30"}
    async with asyncio.TaskGroup() as group:
        posted = group.create_task(client.post("/runs", json=body, headers=wait))
        await eventually(partial(exists, client, "/runs/a"))
        await finish(api, "a", {"answer": "4"})
    answer = posted.result()

    assert (answer.status_code, answer.headers["preference-applied"]) == (200, "wait=30")
    assert (answer.json()["status"], answer.json()["result"]) == ("completed", {"answer": "4"})


async def test_a_run_that_does_not_end_in_time_is_accepted_all_the_same(api: Api) -> None:
    """The answer is 202 after the waiting time, which the service caps."""
    async with client_of(api.app(limits=api_limits(max_wait_seconds=0))) as client:
        answer = await client.post(
            "/runs", json={"input": "2+2?"}, headers={"Prefer": "wait=86400"}
        )

    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "wait=0")


async def test_a_database_that_goes_away_while_a_run_is_waited_for_costs_no_answer(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is stored, so the caller still gets a 202 with its status."""
    monkeypatch.setattr(PostgresRuns, "get", AsyncMock(side_effect=StoreUnavailableError))
    answer = await client.post("/runs", json={"input": "2+2?"}, headers={"Prefer": "wait=5"})

    assert (answer.status_code, answer.json()["status"]) == (202, "queued")


async def test_without_the_preference_nobody_waits(client: httpx.AsyncClient) -> None:
    """The answer is 202 at once, without the header for applied preferences."""
    answer = await client.post("/runs", json={"input": "2+2?"}, headers={"Prefer": "respond-async"})

    assert answer.status_code == 202
    assert "preference-applied" not in answer.headers


async def test_a_run_that_does_not_exist_is_not_found(client: httpx.AsyncClient) -> None:
    """The answer is 404, also after an early cancel."""
    await client.delete("/runs/early")

    for run_id in ("nothing", "early"):
        answer = await client.get(f"/runs/{run_id}")
        assert (answer.status_code, problem_of(answer)) == (404, "run-not-found")


@pytest.mark.parametrize("run_id", ["%00", "a%20b", "x" * 65, "%E2%82%AC", "%ED%A0%80", "a%0A"])
async def test_an_id_that_no_run_can_have_is_refused(
    client: httpx.AsyncClient, run_id: str
) -> None:
    """The answer is 422 on every route with a run ID, without a query to the database."""
    for method, path in (
        ("GET", f"/runs/{run_id}"),
        ("DELETE", f"/runs/{run_id}"),
        ("POST", f"/runs/{run_id}/cancel"),
        ("GET", f"/runs/{run_id}/trace"),
    ):
        answer = await client.request(method, path)
        assert (answer.status_code, problem_of(answer)) == (422, "invalid-request")
        assert [error["field"] for error in answer.json()["errors"]] == ["run_id"]


async def test_links_stand_below_the_path_of_a_proxy(api: Api) -> None:
    """Links include the path prefix of the service."""
    transport = httpx.ASGITransport(api.app(), root_path="/cases")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        posted = await client.post("/cases/runs", json={"run_id": "a", "input": "2+2?"})

    assert posted.headers["location"] == "/cases/runs/a"
    assert posted.json()["links"]["trace"] == "/cases/runs/a/trace"


async def test_text_of_any_language_comes_back_as_it_was(client: httpx.AsyncClient) -> None:
    """Text is UTF-8 in both directions."""
    metadata = {"text": "ß 漢字 😀 \u2028 \ufeff \ufffd"}

    posted = await client.post("/runs", json={"input": "二加二", "metadata": metadata})

    assert json.loads(posted.content.decode())["metadata"] == metadata
