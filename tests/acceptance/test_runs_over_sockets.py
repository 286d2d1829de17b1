"""A caller, the service and a model provider: three processes, real sockets."""

import asyncio

import pytest
from caseworker_client import ApiError

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_invariants import violations
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished

PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "0.17 * 2340"}}]}


@pytest.mark.req("card/post", "card/trace", "card/executor", "001/wiring")
async def test_a_case_is_answered_and_its_trace_shows_every_call(
    client: JsonClient, provider: FakeProvider
) -> None:
    """Post, wait, read the answer, then the trace."""
    await provider.script("17%", [Step(plan=PLAN)])

    run = await client.post_run({"input": "What is 17% of 2,340?"}, wait_seconds=120)

    trace = await client.trace(run["run_id"])
    nodes = list(trace["snapshot"]["nodes"].values())
    assert run["status"] == "completed"
    assert run["result"]["answer"] == "397.8"
    assert run["result"]["finish_reason"] == "success"
    assert run["usage"]["llm_calls_small"] == run["usage"]["tool_calls"] == 1
    assert [(n["kind"], n["name"]) for n in nodes][2:] == [("llm", "plan"), ("tool", "calculator")]
    assert {n["status"] for n in nodes} == {"success"}
    assert nodes[2]["tokens_in"] > 0
    assert violations(trace["snapshot"]) == []
    assert "calculator" in await client.explain(run["run_id"])
    assert len(await provider.arrivals("17%")) == 1


@pytest.mark.req("card/delete")
async def test_a_run_cancelled_before_it_exists_never_calls_a_model(
    client: JsonClient, provider: FakeProvider
) -> None:
    """The wish waits for the run and wins."""
    receipt = await client.cancel_run("case-7", reason="changed our mind")

    run = await client.post_run({"run_id": "case-7", "input": "2+2?"}, wait_seconds=120)
    trace = await client.trace("case-7")
    assert receipt["status"] is None
    assert run["status"] == "cancelled"
    assert run["stop"]["reason"] == "changed our mind"
    assert [n["status"] for n in trace["snapshot"]["nodes"].values()] == ["halt"]
    assert await provider.arrivals() == []


@pytest.mark.req("card/delete", "000/C3")
async def test_a_run_cancelled_while_its_model_thinks_ends_the_call_in_flight(
    client: JsonClient, provider: FakeProvider
) -> None:
    """The provider sees its client hang up, and no other call starts."""
    await provider.script("slow", [Step(hang=True)])
    await client.post_run({"run_id": "slow-1", "input": "A slow question?"})
    await provider.wait_for_arrivals(1, "slow")

    receipt = await client.cancel_run("slow-1")
    run = await finished(client, "slow-1")
    arrivals = await provider.wait_for_arrivals(1, "slow", ended=True)
    trace = await client.trace("slow-1")
    assert receipt["status"] == "running"
    assert [call["kind"] for call in receipt["calls"]] == ["llm"]
    assert run["status"] == "cancelled"
    assert run["finish_reason"] is None
    assert run["cancel"]["delivered_at"] is not None
    assert [a.outcome for a in arrivals] == ["client_gone"]
    assert len(await provider.arrivals("slow")) == 1
    assert violations(trace["snapshot"]) == []
    assert all(n["status"] == "halt" for n in trace["snapshot"]["nodes"].values())


@pytest.mark.req("card/delete")
async def test_cancelling_a_finished_run_changes_nothing_and_says_so(
    client: JsonClient, provider: FakeProvider
) -> None:
    """The run keeps its status, its answer and its trace."""
    question = {"run_id": "done", "input": "What is it?", "gold_answer": "42"}
    before = await client.post_run(question, wait_seconds=120)

    receipt = await client.cancel_run("done")
    assert before["status"] == "completed"
    assert receipt["already_finished"] is True
    assert receipt["status"] == "completed"
    assert await client.get_run("done") == before


@pytest.mark.parametrize(
    ("steps", "retries"),
    [
        ([Step(status=500), Step(plan=PLAN)], 1),
        ([Step(status=429, headers={"retry-after": "1"}), Step(plan=PLAN)], 1),
        ([Step(cut="before"), Step(cut="middle"), Step(plan=PLAN)], 2),
        ([Step(raw_body="{not json"), Step(plan=PLAN)], 1),
        ([Step(dribble_seconds=0.0001, plan=PLAN)], 0),
    ],
    ids=["500", "429", "cut", "malformed", "dribble"],
)
@pytest.mark.req("002/13.2", "002/13.4", "001/aggregates")
async def test_a_provider_that_fails_is_asked_again_inside_the_limits(
    client: JsonClient, provider: FakeProvider, steps: list[Step], retries: int
) -> None:
    """The call succeeds in the end, and its attempts are its children in the trace."""
    await provider.script("17%", steps)

    run = await client.post_run({"input": "What is 17% of 2,340?"}, wait_seconds=120)

    arrivals = await provider.arrivals("17%")
    snapshot = (await client.trace(run["run_id"]))["snapshot"]
    attempts = [n for n in snapshot["nodes"].values() if n["name"] == "attempt"]
    assert run["status"] == "completed"
    assert len(arrivals) == retries + 1 == run["usage"]["api_calls"]
    assert snapshot["aggregates"]["total_retries"] == retries
    assert len(attempts) == (retries + 1 if retries else 0)
    assert run["usage"]["llm_calls_small"] == 1
    assert violations(snapshot) == []


@pytest.mark.req("002/13.5", "002/3.4")
async def test_a_provider_that_stays_down_ends_the_run_with_a_reason(
    client: JsonClient, provider: FakeProvider
) -> None:
    """Both tiers give up, and the run says so instead of hanging."""
    await provider.answer_by_default(Step(status=503, headers={"retry-after": "0"}))

    run = await client.post_run({"input": "Is anybody there?"}, wait_seconds=120)
    assert run["status"] == "failed"
    assert run["finish_reason"] == "big_fail"
    assert run["result"]["verified"] is False
    assert run["stop"]["kind"] == "error"


@pytest.mark.req("000/B1", "000/B3")
async def test_a_limit_halts_the_run_before_the_call_that_would_pass_it(
    client: JsonClient, provider: FakeProvider
) -> None:
    """Zero means none: the model is never asked, and the trace shows the refused call."""
    run = await client.post_run(
        {"input": "What is it?", "budget": {"max_api_calls": 0}}, wait_seconds=120
    )
    snapshot = (await client.trace(run["run_id"]))["snapshot"]
    refused = [n for n in snapshot["nodes"].values() if n["kind"] == "llm"]
    assert run["status"] == "halted"
    assert run["finish_reason"] == "budget"
    assert run["stop"]["kind"] == "budget"
    assert run["stop"]["dimension"] == "api_calls"
    assert [n["status"] for n in refused] == ["halt"]
    assert await provider.arrivals() == []


@pytest.mark.req("000/B1", "000/C3")
async def test_time_interrupts_a_call_in_flight(client: JsonClient, provider: FakeProvider) -> None:
    """The provider sees its client hang up when the run's seconds are over."""
    await provider.script("slow", [Step(hang=True)])

    run = await client.post_run(
        {"input": "A slow question?", "budget": {"max_seconds": 2}}, wait_seconds=120
    )
    arrivals = await provider.wait_for_arrivals(1, "slow", ended=True)
    assert run["status"] == "halted"
    assert run["stop"]["dimension"] == "seconds"
    assert [a.outcome for a in arrivals] == ["client_gone"]


@pytest.mark.req("card/s2s")
async def test_the_same_id_or_key_never_makes_two_runs(
    client: JsonClient, provider: FakeProvider
) -> None:
    """Twenty posts at once under one key are one run and one model call."""
    body = {"input": "Only once, please?", "gold_answer": "42"}

    async def post() -> str:
        posted = await client.post_run(body, wait_seconds=120, idempotency_key="order-17")
        return str(posted["run_id"])

    async with asyncio.TaskGroup() as posts:
        posted = [posts.create_task(post()) for _ in range(20)]
    assert len({task.result() for task in posted}) == 1
    assert len(await provider.arrivals("Only once")) == 1
    with pytest.raises(ApiError) as refused:
        await client.post_run({"input": "Another body?"}, idempotency_key="order-17")
    assert refused.value.status == 422


@pytest.mark.req("card/s2s")
async def test_a_secret_in_a_question_reaches_no_log(
    client: JsonClient, service: ServiceProcess, provider: FakeProvider
) -> None:
    """Neither the question nor what the provider wrote about it is logged."""
    canary = "sk-canary0123456789abcdef"
    await provider.script(
        canary, [Step(status=400, raw_body=f"bad key {canary}")], repeat_last=True
    )

    run = await client.post_run({"input": f"Use {canary} please"}, wait_seconds=120)
    assert run["status"] == "failed"
    assert canary not in service.child.stderr + service.child.stdout
    assert canary not in await client.explain(run["run_id"])
