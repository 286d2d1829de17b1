"""Runs that resume from other runs, on real processes: completed work is not repeated."""

from typing import Any

import pytest

from caseworker.engine.events import RUN_STARTED, STEP_COMPLETED, STEP_RESUMED, STEP_STARTED
from caseworker.runs.journal.replay import MANY_CALLS
from caseworker.runs.run import RunKey
from tests.support.event_log import require_sound_events, stored_events
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_documents import flow, llm_step
from tests.support.graph_invariants import violations
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished, model_settings, two_services
from tests.support.stores import open_oracle
from tests.support.usage_oracle import settings_of_prices

STEPS = ["a", "b", "c", "d"]


def chain() -> dict[str, Any]:
    """Return a graph of four steps, each of which uses the answer of the step before it."""
    first, *others = STEPS
    steps = [llm_step(first, "Begin with ${x}.")]
    steps += [llm_step(step, f"Go on at {step} with ${{before}}.") for step in others]
    edges = [flow(one, other, "before") for one, other in zip(STEPS, others, strict=False)]
    return {"steps": steps, "edges": edges}


async def go_on(
    client: JsonClient, run_id: str, old: str, *, until: str | None = None, **more: Any
) -> dict[str, Any]:
    source = {"run_id": old} if until is None else {"run_id": old, "until": until}
    await client.post_run({"run_id": run_id, "from": source, **more})
    return await finished(client, run_id)


async def begin(client: JsonClient, run_id: str = "old", **more: Any) -> dict[str, Any]:
    body = {"run_id": run_id, "kind": "graph", "graph": chain(), "inputs": {"x": "x"}} | more
    await client.post_run(body)
    return await finished(client, run_id)


async def nodes_of(client: JsonClient, run_id: str) -> dict[str, dict[str, Any]]:
    snapshot = (await client.trace(run_id))["snapshot"]
    assert violations(snapshot) == []
    return dict(snapshot["nodes"])


def node_of(nodes: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the last node with a name."""
    return [node for node in nodes.values() if node["name"] == name][-1]


@pytest.mark.parametrize(("limit", "more"), [("max_steps", 4), ("max_api_calls", 4)])
async def test_a_halted_run_goes_on_when_its_limit_is_raised(
    database_url: str, provider: FakeProvider, limit: str, more: int
) -> None:
    """Each call is made once, and the new limit counts only new calls."""
    async with (
        ServiceProcess(database_url, settings=model_settings(provider.openai_url)) as service,
        service.client() as client,
    ):
        halted = await begin(client, budget={limit: 2})
        assert halted["status"] == "halted"
        assert len(await provider.arrivals()) == 2

        run = await go_on(client, "more", "old", budget={limit: more})

        assert run["status"] == "completed", run
        assert len(await provider.arrivals()) == 4
        assert (run["usage"]["steps"], run["usage"]["api_calls"]) == (2, 2)
        before, after = await nodes_of(client, "old"), await nodes_of(client, "more")
        for step in ("a", "b"):
            old, new = node_of(before, step), node_of(after, step)
            assert (old["node_id"], old["status"]) == (new["node_id"], new["status"])
            assert new["metadata"]["taken_over"]["run_id"] == "old"
            assert run["result"]["outputs"][step] == halted["result"]["outputs"][step]
        assert "Imported 2 calls and 2 steps from run old" in await client.explain("more")
    _, events = stored_events(database_url)[RunKey("default", "more")]
    assert (events[0].type, events[0].data) == (
        RUN_STARTED,
        {"attempt": 1, "from": {"run_id": "old", "until": None, "steps": 2, "calls": 2}},
    )
    started = [event.step_id for event in events if event.type == STEP_STARTED]
    assert started == ["c", "d"]
    require_sound_events(database_url)


async def test_a_failed_run_goes_on_from_its_failure(
    database_url: str, provider: FakeProvider
) -> None:
    """The run resumes in the failed step, and its trace names the run behind each import."""
    await provider.script("at c", [Step(status=401)], repeat_last=True)
    async with (
        ServiceProcess(database_url, settings=model_settings(provider.openai_url)) as service,
        service.client() as client,
    ):
        assert (await begin(client))["status"] == "failed"
        assert (await go_on(client, "again", "old"))["status"] == "failed"
        assert len(await provider.arrivals("Begin with")) == 1
        await provider.script("at c", [Step(text="better")], repeat_last=True)
        await provider.script("at d", [Step(status=401), Step(text="good")], repeat_last=True)

        third = await go_on(client, "third", "again")
        fourth = await go_on(client, "fourth", "third")

        assert (third["status"], fourth["status"]) == ("failed", "completed")
        for prompt, count in (("Begin with", 1), ("at b", 1), ("at c", 3), ("at d", 2)):
            assert len(await provider.arrivals(prompt)) == count, prompt
        nodes = await nodes_of(client, "fourth")
        made_by = [node_of(nodes, step)["metadata"]["taken_over"]["run_id"] for step in STEPS[:3]]
        assert made_by == ["old", "old", "third"]
        assert fourth["usage"]["api_calls"] == 1
    require_sound_events(database_url)


async def test_a_what_if_begins_in_the_middle(database_url: str, provider: FakeProvider) -> None:
    """The graph differs from the second step on, and erasing the source changes nothing."""
    async with (
        ServiceProcess(database_url, settings=model_settings(provider.openai_url)) as service,
        service.client() as client,
    ):
        await begin(client)
        before = await nodes_of(client, "old")
        graph = chain()
        graph["steps"][2] = llm_step("c", "What if ${before} and ${y}?")
        until = node_of(before, "b")["node_id"]

        run = await go_on(client, "if", "old", until=until, graph=graph, inputs={"x": "other"})

        assert run["status"] == "failed", "y is not there"
        graph["steps"][2] = llm_step("c", "What if ${before}?")
        run = await go_on(client, "if-2", "old", until=until, graph=graph)
        assert run["status"] == "completed"
        assert len(await provider.arrivals("Begin with")) == 1
        assert len(await provider.arrivals("at b")) == 1
        assert len(await provider.arrivals("What if")) == 1
        assert len(await provider.arrivals("at d")) == 2
        async with open_oracle(database_url) as oracle:
            await oracle.rows("DELETE FROM runs WHERE run_id = 'old'")
        taken_over = (await nodes_of(client, "if-2"))[until]["metadata"]["taken_over"]
        assert (taken_over["run_id"], taken_over["node_id"]) == ("old", until)
        assert (await go_on(client, "if-3", "if-2"))["result"] == run["result"]


async def test_a_what_if_with_other_inputs_begins_in_the_middle(
    database_url: str, provider: FakeProvider
) -> None:
    """Steps after the node run again; the steps before it are neither repeated nor charged."""
    steps = [
        llm_step("plan", "Plan ${topic}."),
        llm_step("price", "Price in ${currency}."),
        llm_step("report", "Report ${plan} at ${price}."),
    ]
    edges = [flow("plan", "report", "plan"), flow("price", "report", "price")]
    texts = {
        "Plan a bridge.": "PLAN",
        "Price in euros.": "EUR 9",
        "Price in yen.": "JPY 1500",
        "Report PLAN at EUR 9.": "A bridge for EUR 9.",
        "Report PLAN at JPY 1500.": "A bridge for JPY 1500.",
    }
    for prompt, text in texts.items():
        await provider.script(prompt, [Step(text=text, tokens_in=100, tokens_out=10)])
    settings = {**model_settings(provider.openai_url), **settings_of_prices("MODELS_SMALL")}
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        service.client() as client,
    ):
        inputs = {"topic": "a bridge", "currency": "euros"}
        old = await begin(client, graph={"steps": steps, "edges": edges}, inputs=inputs)
        before = await nodes_of(client, "old")
        until = node_of(before, "plan")["node_id"]
        other = {"topic": "a tunnel", "currency": "yen"}

        run = await go_on(client, "if", "old", until=until, inputs=other)

        after = await nodes_of(client, "if")
        totals = (await client.trace("if"))["snapshot"]["aggregates"]
    assert (old["status"], run["status"]) == ("completed", "completed"), run
    assert old["result"]["outputs"]["report"]["default"] == "A bridge for EUR 9."
    assert run["result"]["outputs"]["report"]["default"] == "A bridge for JPY 1500."
    assert [len(await provider.arrivals(prompt)) for prompt in texts] == [1, 1, 1, 1, 1]
    assert await provider.arrivals("a tunnel") == [], "the plan counts whatever is asked now"
    cost = old["usage"]["cost_usd"]
    assert cost > 0
    assert (old["usage"]["tokens"], run["usage"]["tokens"]) == (330, 220)
    assert run["usage"]["cost_usd"] == pytest.approx(cost * 2 / 3)
    assert (run["usage"]["api_calls"], run["usage"]["steps"]) == (2, 2)
    assert (totals["total_tokens_in"], totals["total_tokens_out"]) == (200, 20)
    assert totals["total_cost_usd"] == pytest.approx(cost * 2 / 3)
    taken_over = [one for one in after.values() if "taken_over" in one["metadata"]]
    assert {one["cost_usd"] for one in taken_over} == {0}
    assert (
        sum(one["metadata"]["taken_over"]["usage"]["tokens_in"] or 0 for one in taken_over) == 100
    )


async def test_a_case_goes_on_in_the_middle_of_its_only_step(
    database_url: str, provider: FakeProvider
) -> None:
    """The step resumes as the same node, and its first call is not repeated."""
    plan = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 6"}}]}
    right = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
    await provider.script("6 times 7", [Step(plan=plan), Step(plan=right)], repeat_last=True)
    async with (
        ServiceProcess(database_url, settings=model_settings(provider.openai_url)) as service,
        service.client() as client,
    ):
        case = {"run_id": "old", "input": "What is 6 times 7?", "gold_answer": "42"}
        await client.post_run(
            {**case, "budget": {"max_llm_calls_small": 1, "max_llm_calls_big": 0}}
        )
        await finished(client, "old")
        arrived = len(await provider.arrivals("6 times 7"))
        before = await nodes_of(client, "old")

        run = await go_on(client, "more", "old", budget={"max_llm_calls_small": 3})

        assert run["status"] == "completed", run
        assert run["result"]["answer"] == "42"
        assert len(await provider.arrivals("6 times 7")) == arrived + 1
        after = await nodes_of(client, "more")
        assert node_of(after, "case")["node_id"] == node_of(before, "case")["node_id"]
        assert node_of(after, "case")["metadata"]["continues"]["run_id"] == "old"


async def test_a_run_that_goes_on_survives_its_process(
    database_url: str, provider: FakeProvider
) -> None:
    """After a kill in the first new call another process finishes the run with each call once."""
    settings = model_settings(provider.openai_url)
    async with two_services(database_url, settings) as (first, _, client):
        await begin(client, budget={"max_steps": 2})
        await provider.script("at c", [Step(hang=True)])
        async with first.client() as doomed:
            source = {"run_id": "more", "from": {"run_id": "old"}, "budget": {"max_steps": 4}}
            await doomed.post_run(source)
        await provider.wait_for_arrivals(1, "at c")
        await provider.script("at c", [Step(text="late")], repeat_last=True)
        first.child.kill()

        run = await finished(client, "more")

        assert (run["status"], run["attempts"]) == ("completed", 2)
        for prompt, count in (("Begin with", 1), ("at b", 1), ("at c", 2), ("at d", 1)):
            assert len(await provider.arrivals(prompt)) == count, prompt
        await nodes_of(client, "more")
    _, events = stored_events(database_url)[RunKey("default", "more")]
    of_c = [event.type for event in events if event.step_id == "c" and "step" in event.type]
    assert of_c == [STEP_STARTED, STEP_RESUMED, STEP_COMPLETED]
    require_sound_events(database_url)


async def test_a_run_of_many_calls_goes_on(database_url: str) -> None:
    """The state of a run with many calls is restored next to the event loop."""
    step = {"type": "tool", "data": {"tool": "calculator", "args": {"expression": "${default}+1"}}}
    data = {"over": "default", "step": step, "max_items": MANY_CALLS}
    graph = {"steps": [{"id": "each", "type": "map", "data": data}], "edges": []}
    body = {"run_id": "old", "kind": "graph", "graph": graph, "input": list(range(MANY_CALLS))}
    async with ServiceProcess(database_url) as service, service.client() as client:
        await client.post_run(body)
        old = await finished(client, "old")
        assert old["status"] == "completed", old

        run = await go_on(client, "again", "old")

        assert run["status"] == "completed", run
        assert run["result"] == old["result"]
        assert len(await nodes_of(client, "again")) > MANY_CALLS
