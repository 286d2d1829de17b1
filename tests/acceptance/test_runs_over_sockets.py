"""A caller, the service and a model provider: three processes with real sockets."""

import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_invariants import violations
from tests.support.json_client import JsonClient
from tests.support.service import finished

PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "0.17 * 2340"}}]}


@pytest.mark.req("card/post", "card/trace", "card/executor", "001/wiring")
async def test_a_case_is_answered_and_its_trace_shows_every_call(
    client: JsonClient, provider: FakeProvider
) -> None:
    """The caller posts, waits, and reads the answer and the trace."""
    await provider.script("17%", [Step(plan=PLAN)])

    run = await client.post_run({"input": "What is 17% of 2,340?"}, wait_seconds=120)

    trace = await client.trace(run["run_id"])
    nodes = list(trace["snapshot"]["nodes"].values())
    assert run["status"] == "completed"
    assert run["result"]["answer"] == "397.8"
    assert run["result"]["finish_reason"] == "success"
    assert run["usage"]["llm_calls_small"] == run["usage"]["tool_calls"] == 1
    assert [(n["kind"], n["name"]) for n in nodes][2:] == [("llm", "plan"), ("tool", "calculator")]
    assert nodes[3]["parent_id"] == nodes[2]["node_id"]
    assert {n["status"] for n in nodes} == {"success"}
    assert nodes[2]["tokens_in"] > 0
    assert violations(trace["snapshot"]) == []
    assert "calculator" in await client.explain(run["run_id"])
    assert len(await provider.arrivals("17%")) == 1


@pytest.mark.req("card/delete", "000/C3")
async def test_a_run_cancelled_while_its_model_thinks_ends_the_call_in_flight(
    client: JsonClient, provider: FakeProvider
) -> None:
    """The provider sees its client disconnect, and no other call starts."""
    await provider.script("slow", [Step(hang=True)])
    await client.post_run({"run_id": "slow-1", "input": "A slow question?"})
    await provider.wait_for_arrivals(1, "slow")

    receipt = await client.cancel_run("slow-1")
    run = await finished(client, "slow-1")
    arrivals = await provider.wait_for_arrivals(1, "slow", ended=True)
    trace = await client.trace("slow-1")
    assert receipt["settled_at"] == run["finished_at"]
    assert [(call["kind"], call["status"]) for call in receipt["calls"]] == [("llm", "halt")]
    assert receipt["status"] == "cancelled"
    assert run["status"] == "cancelled"
    assert run["finish_reason"] is None
    assert run["cancel"]["delivered_at"] is not None
    assert [a.outcome for a in arrivals] == ["client_gone"]
    assert len(await provider.arrivals("slow")) == 1
    assert violations(trace["snapshot"]) == []
    assert all(n["status"] == "halt" for n in trace["snapshot"]["nodes"].values())


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
    """The call succeeds in the end, and the trace shows its attempts as children."""
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
