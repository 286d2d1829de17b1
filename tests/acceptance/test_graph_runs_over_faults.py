"""Graphs over real sockets: killed during calls, cancelled under load, at their limits."""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from caseworker.engine.events import (
    LIFECYCLE,
    STEP_CANCELLED,
    STEP_COMPLETED,
    STEP_RESUMED,
    STEP_STARTED,
)
from caseworker.runs.run import RunKey
from tests.support.event_log import require_sound_events, stored_events
from tests.support.fake_provider.arrivals import Arrival
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_documents import flow, llm_step
from tests.support.graph_invariants import violations
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished, model_settings

BEGUN_WITHIN_SECONDS = 0.25
"""Seconds after the answer to a cancel request in which a last call may start (spec, section 5)."""


def asks_each(step_id: str, prompt: str, *, max_parallel: int) -> dict[str, Any]:
    """Return a step that calls the small model for every item of its input."""
    inner = {"type": "llm", "data": {"prompt": prompt}}
    return {"id": step_id, "type": "map", "data": {"step": inner, "max_parallel": max_parallel}}


def wide(count: int, prompt: str) -> dict[str, Any]:
    """Return a graph of parallel steps with model calls, on eight lanes."""
    steps = [llm_step(f"s{number}", f"{prompt} {number}.") for number in range(count)]
    return {"steps": steps, "edges": [], "max_parallel": 8}


def told_of(database_url: str, run_id: str, path: str) -> list[str]:
    _, events = stored_events(database_url)[RunKey("default", run_id)]
    return [event.type for event in events if event.step_id == path and event.type in LIFECYCLE]


async def answered(client: JsonClient, run_id: str, count: int) -> None:
    """Wait until the journal of the run has ``count`` model answers."""
    async with asyncio.timeout(150):
        while True:
            nodes = (await client.trace(run_id))["snapshot"]["nodes"].values()
            if sum(n["kind"] == "llm" and n["status"] == "success" for n in nodes) == count:
                return
            await asyncio.sleep(0.02)


WIDE_AND_MAPPED = {
    "steps": [
        llm_step("alpha", "Say alpha."),
        llm_step("beta", "Say beta."),
        asks_each("each", "Item ${default}, number ${index}.", max_parallel=1),
        llm_step("join", "Join ${alpha}, ${beta} and ${each}."),
    ],
    "edges": [flow(source, "join", source) for source in ("alpha", "beta", "each")],
    "max_parallel": 3,
}


@pytest.mark.req("004/lifecycle", "000/P2", "card/executor", "card/persist")
async def test_a_graph_whose_process_is_killed_goes_on_where_it_was(
    database_url: str, provider: FakeProvider
) -> None:
    """Completed calls are not repeated, calls in flight are, and each step starts once."""
    await provider.script("alpha.", [Step(text="A")])
    await provider.script("beta.", [Step(hang=True), Step(text="B")])
    await provider.script("Item three", [Step(hang=True), Step(text="3")])
    inputs = {"default": ["one", "two", "three", "four"]}
    settings = model_settings(provider.openai_url)
    async with ServiceProcess(database_url, settings=settings) as service:
        async with service.client() as client:
            await client.run_graph(WIDE_AND_MAPPED, inputs=inputs, run_id="wide")
            await provider.wait_for_arrivals(1, "Item three")
            await provider.wait_for_arrivals(1, "beta.")
            await answered(client, "wide", 3)
        before = await provider.arrivals()
        service.child.kill()

        await service.start()
        async with service.client() as client:
            run = await finished(client, "wide")
            snapshot = (await client.trace("wide"))["snapshot"]
    asked = Counter(arrival.prompt.strip() for arrival in await provider.arrivals())

    assert len(before) == 5
    assert (run["status"], run["attempts"]) == ("completed", 2), run
    assert run["result"]["outputs"]["each"]["default"] == ["ok", "ok", "3", "ok"]
    assert run["result"]["outputs"]["join"] == {"default": "ok"}
    assert asked == {
        "Say alpha.": 1,
        "Say beta.": 2,
        "Item one, number 0.": 1,
        "Item two, number 1.": 1,
        "Item three, number 2.": 2,
        "Item four, number 3.": 1,
        'Join A, B and ["ok","ok","3","ok"].': 1,
    }
    assert (run["usage"]["llm_calls_small"], run["usage"]["api_calls"]) == (7, 9)
    assert run["usage"]["steps"] == 8
    assert violations(snapshot) == []
    require_sound_events(database_url)
    again = [STEP_STARTED, STEP_RESUMED, STEP_COMPLETED]
    assert [told_of(database_url, "wide", path) for path in ("beta", "each", "each/2")] == [
        again
    ] * 3
    for path in ("alpha", "each/0", "each/1", "each/3", "join"):
        assert told_of(database_url, "wide", path) == [STEP_STARTED, STEP_COMPLETED]


@pytest.mark.req("000/E2", "004/lifecycle")
async def test_an_attempt_that_was_over_is_not_made_again_after_a_kill(
    database_url: str, provider: FakeProvider
) -> None:
    """The first attempt had timed out; the step resumes its second attempt and makes no third."""
    await provider.script("never", [Step(hang=True)], repeat_last=True)
    policy = {
        "on_error": "skip",
        "retry_count": 1,
        "retry_delay_ms": 0,
        "timeout_ms": 2000,
        "fallback_value": "instead",
    }
    inner = {"steps": [llm_step("deep", "You never answer.")], "edges": []}
    step = {"id": "slow", "type": "subgraph", "data": {"graph": inner}, "policy": policy}
    settings = model_settings(provider.openai_url)
    async with ServiceProcess(database_url, settings=settings) as service:
        async with service.client() as client:
            await client.run_graph({"steps": [step], "edges": []}, run_id="late")
        await provider.wait_for_arrivals(2, "never")
        service.child.kill()

        await service.start()
        async with service.client() as client:
            run = await finished(client, "late")

    assert (run["status"], run["attempts"]) == ("completed", 2), run
    assert run["result"]["outputs"] == {"slow": {"default": "instead"}}
    assert run["result"]["steps"]["slow"]["recovered_by"] == "skip"
    assert len(await provider.arrivals("never")) == 3
    require_sound_events(database_url)
    assert told_of(database_url, "late", "slow/deep") == [STEP_STARTED, STEP_CANCELLED]
    assert told_of(database_url, "late", "slow~2/deep") == [
        STEP_STARTED,
        STEP_RESUMED,
        STEP_CANCELLED,
    ]


async def stopped_in_flight(
    client: JsonClient, provider: FakeProvider, quick: list[Step]
) -> tuple[dict[str, Any], float, list[Arrival]]:
    """Cancel a run of eight lanes: four hang, four make one call after another.

    Returns the run, the time of the answer to the cancel request, and all calls.
    """
    await provider.script("Hang", [Step(hang=True)], repeat_last=True)
    await provider.script("Quick", quick, repeat_last=True)
    graph = {
        "steps": [
            *(llm_step(f"hang-{number}", f"Hang {number}.") for number in range(4)),
            asks_each("quick", "Quick ${index}.", max_parallel=8),
            llm_step("after", "Quick at last: ${quick}"),
        ],
        "edges": [flow("quick", "after", "quick")],
        "max_parallel": 8,
    }
    inputs = {"default": list(range(1000))}
    await client.run_graph(graph, inputs=inputs, run_id="flight")
    await provider.wait_for_arrivals(4, "Hang")
    earlier = len(await provider.wait_for_arrivals(40, "Quick"))

    receipt = await client.cancel_run("flight", reason="enough")
    answered_at = time.monotonic()
    run = await finished(client, "flight")
    begun = len(await provider.arrivals())
    arrivals = await provider.wait_for_arrivals(begun, ended=True)
    snapshot = (await client.trace("flight"))["snapshot"]

    assert earlier < 900  # it was in full flight
    assert (run["status"], run["stop"]["reason"]) == ("cancelled", "enough")
    assert {a.outcome for a in arrivals if "Hang" in a.prompt} == {"client_gone"}
    assert {a.outcome for a in arrivals} == {"answered", "client_gone"}
    assert receipt["settled_at"] == run["finished_at"]
    assert sum(call["status"] == "halt" for call in receipt["calls"]) >= 4
    kept = run["result"]["outputs"]["quick"]["default"]
    assert len(kept) == 1000
    assert sum(answer == "quick" for answer in kept) >= 30
    assert run["result"]["steps"] == {
        **{f"hang-{number}": {"status": "cancelled"} for number in range(4)},
        "quick": {"status": "cancelled"},
        "after": {"status": "not_started"},
    }
    assert violations(snapshot) == []
    assert {node["status"] for node in snapshot["nodes"].values()} == {"success", "halt"}
    return run, answered_at, arrivals


@pytest.mark.req("card/delete", "000/C3", "000/B3")
async def test_a_stop_reaches_eight_calls_in_flight_and_lets_no_more_begin(
    client: JsonClient, provider: FakeProvider
) -> None:
    """Each lane waits for an answer; completed answers are kept, and no further call is made."""
    quick = [Step(text="quick")] * 36 + [Step(hang=True)]

    run, _, arrivals = await stopped_in_flight(client, provider, quick)

    outcomes = Counter(a.outcome for a in arrivals)
    assert outcomes == {"answered": 36, "client_gone": 8}
    assert run["result"]["outputs"]["quick"]["default"].count("quick") == 36


@pytest.mark.proof
async def test_a_stop_in_full_flight_is_over_as_soon_as_is_promised(
    client: JsonClient, provider: FakeProvider
) -> None:
    """No call starts or continues after the promised bound."""
    quick = [Step(text="quick", delay_seconds=0.02)]

    _, answered_at, _ = await stopped_in_flight(client, provider, quick)

    await asyncio.sleep(max(0.0, answered_at + 2 * BEGUN_WITHIN_SECONDS - time.monotonic()))
    arrivals = await provider.arrivals()
    ends = [a.ended_monotonic for a in arrivals if a.outcome == "client_gone"]
    moments = [a.arrived_monotonic for a in arrivals] + [end for end in ends if end is not None]
    assert max(moments) <= answered_at + BEGUN_WITHIN_SECONDS


@pytest.mark.req("000/B1", "000/B3")
@pytest.mark.parametrize("limited", ["max_api_calls", "max_llm_calls_small"])
@pytest.mark.parametrize(("limit", "at_least"), [(0, 0), (5, 0), (10, 8)])
async def test_eight_lanes_make_no_more_calls_than_are_allowed(
    client: JsonClient, provider: FakeProvider, limited: str, limit: int, at_least: int
) -> None:
    """The provider counts them; the first call beyond the limit halts the run with its answers."""
    await provider.script("Question", [Step(text="yes", delay_seconds=0.2)], repeat_last=True)

    run = await client.run_graph(wide(24, "Question"), budget={limited: limit}, wait_seconds=120)

    arrivals = await provider.arrivals("Question")
    assert at_least <= len(arrivals) <= limit
    assert (run["status"], run["stop"]["kind"]) == ("halted", "budget")
    assert (run["stop"]["dimension"], run["stop"]["limit"]) == (limited.removeprefix("max_"), limit)
    assert len(arrivals) <= run["usage"]["api_calls"] <= limit
    answers = list(run["result"]["outputs"].values())
    assert len(answers) <= len(arrivals)
    assert answers == [{"default": "yes"}] * len(answers)
    assert answers or limit < 8


async def test_without_a_limit_all_of_the_lanes_are_used(
    client: JsonClient, provider: FakeProvider
) -> None:
    """Eight calls are open at once, which shows that the limits above had an effect."""
    hangs = [Step(text="yes", hang=True)] * 8
    await provider.script("Question", [*hangs, Step(text="yes")], repeat_last=True)
    await client.run_graph(wide(12, "Question"), run_id="wide")
    await provider.wait_for_arrivals(8, "Question")

    await provider.release()
    run = await finished(client, "wide")

    arrivals = await provider.arrivals("Question")
    first_end = min(a.ended_monotonic or 0 for a in arrivals)
    assert run["status"] == "completed"
    assert len(arrivals) == 12
    assert sum(a.arrived_monotonic < first_end for a in arrivals) == 8
