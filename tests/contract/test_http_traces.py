"""GET /runs/{id}/trace, the tools, the models and the health of the service."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import httpx
import pytest

from app.api.services import ApiLimits, PartState
from app.runs.ports import JournalWrite
from app.runs.run import CallRecord, RunKey
from app.tools.policy import ToolPolicy
from app.trace.execution_graph import ExecutionGraph
from tests.support.memory_api import FixedReadiness, client_of, memory_api
from tests.support.memory_runs import MemoryRuns

KEY = RunKey("default", "a")


@pytest.fixture
def store() -> MemoryRuns:
    return MemoryRuns()


@pytest.fixture
async def client(store: MemoryRuns) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(memory_api(store)) as client:
        yield client


async def begin(client: httpx.AsyncClient, store: MemoryRuns) -> str:
    """Have a run with one step and one call below it; return the step's node."""
    await client.post("/runs", json={"run_id": "a", "input": "2+2?"})
    run = await store.claim(KEY, "worker")
    assert run is not None
    graph = ExecutionGraph("a")
    root = graph.create_root("case")
    graph.mark_running(root)
    step = graph.begin_node(root, "system", "case", metadata={"step_type": "case"})
    graph.mark_running(step)
    call = graph.begin_node(step, "llm", "plan", "small-model")
    graph.mark_success(call, 0.25, 10, 5)
    calls = tuple(CallRecord(node=node) for node in graph.changed_since(0).nodes)
    await store.write(JournalWrite(key=KEY, fence=run.fence, calls=calls))
    return step


@pytest.mark.req("card/trace")
async def test_a_trace_shows_every_call_below_its_step(
    client: httpx.AsyncClient, store: MemoryRuns
) -> None:
    """The snapshot is document 001's; the steps are found without searching it."""
    step = await begin(client, store)

    trace = (await client.get("/runs/a/trace")).json()

    assert set(trace) == {"run_id", "snapshot", "steps"}
    assert trace["snapshot"]["chain_id"] == trace["run_id"] == "a"
    assert [node["name"] for node in trace["snapshot"]["nodes"].values()] == [
        "case",
        "case",
        "plan",
    ]
    assert trace["snapshot"]["aggregates"]["total_cost_usd"] == 0.25
    assert [
        (one["step_id"], one["type"], one["node_id"], one["status"]) for one in trace["steps"]
    ] == [("case", "case", step, "running")]
    assert trace["steps"][0]["started_at"].endswith("Z")
    assert trace["steps"][0]["finished_at"] is None


@pytest.mark.req("card/trace")
async def test_a_trace_can_be_read_as_text(client: httpx.AsyncClient, store: MemoryRuns) -> None:
    """For people, in UTF-8."""
    await begin(client, store)

    answer = await client.get("/runs/a/trace", params={"format": "explain"})

    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "plan" in answer.text


async def test_a_trace_of_a_run_that_has_not_begun_is_its_root(client: httpx.AsyncClient) -> None:
    """There is a trace as soon as there is a run."""
    await client.post("/runs", json={"run_id": "a", "input": "2+2?"})

    trace = (await client.get("/runs/a/trace")).json()

    assert (len(trace["snapshot"]["nodes"]), trace["steps"]) == (1, [])


@pytest.mark.parametrize("query", ["format=html", "format=", "shape=json"])
async def test_an_unknown_format_is_refused(client: httpx.AsyncClient, query: str) -> None:
    """422, whether or not there is such a run."""
    assert (await client.get(f"/runs/a/trace?{query}")).status_code == 422


async def test_a_trace_of_no_run_is_not_found(client: httpx.AsyncClient) -> None:
    """In either form."""
    for form in ("json", "explain"):
        answer = await client.get("/runs/a/trace", params={"format": form})
        assert answer.status_code == 404
        assert answer.json()["type"] == "urn:caseworker:problem:run-not-found"


async def test_the_usable_tools_are_listed(client: httpx.AsyncClient) -> None:
    """With what a planner needs to call them."""
    tools = (await client.get("/tools")).json()["tools"]

    assert [tool["name"] for tool in tools] == ["calculator"]
    assert tools[0]["parameters"]["required"] == ["expression"]


async def test_a_denied_tool_is_not_listed() -> None:
    """A caller sees what its runs may use."""
    denied = ToolPolicy(deny=frozenset({"calculator"}))
    async with client_of(memory_api(tools=denied)) as client:
        assert (await client.get("/tools")).json() == {"tools": []}


async def test_the_models_of_both_tiers_are_named(client: httpx.AsyncClient) -> None:
    """Who answers stands in the open."""
    models = (await client.get("/models")).json()["models"]

    assert set(models) == {"small", "big"}
    assert (models["small"]["provider"], models["small"]["model"]) == ("silent", "small-model")


async def test_health_is_answered_to_anybody_and_asks_nobody() -> None:
    """Whatever watches over the process is seldom on the same machine."""

    class Broken(FixedReadiness):
        async def check(self) -> Mapping[str, PartState]:
            raise AssertionError("a check of life must not ask for readiness")

    async with client_of(memory_api(readiness=Broken()), peer="10.0.0.1") as client:
        answer = await client.get("/healthz")

    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})


async def test_a_service_is_ready_once_all_of_its_parts_are() -> None:
    """Each part is named, to anybody who asks."""
    async with client_of(memory_api(), peer="10.0.0.1") as client:
        answer = await client.get("/readyz")

    assert answer.status_code == 200
    assert set(answer.json()["parts"]) == {"database", "migrations", "worker"}


async def test_the_part_that_is_missing_is_named() -> None:
    """503, as a problem document."""
    states = {"database": PartState(True), "worker": PartState(False, "It is draining.")}
    async with client_of(memory_api(readiness=FixedReadiness(states))) as client:
        answer = await client.get("/readyz")

    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:caseworker:problem:not-ready"
    assert answer.json()["parts"] == {"database": "ready", "worker": "It is draining."}
    assert int(answer.headers["retry-after"]) > 0


async def test_parts_that_do_not_answer_are_not_ready() -> None:
    """A database that hangs must not hang the probe."""

    class Hanging(FixedReadiness):
        async def check(self) -> Mapping[str, PartState]:
            await asyncio.Event().wait()
            raise AssertionError

    limits = ApiLimits(readiness_seconds=0.01)
    async with client_of(memory_api(limits=limits, readiness=Hanging())) as client:
        answer = await client.get("/readyz")

    assert answer.status_code == 503
    assert "0.01 seconds" in answer.json()["parts"]["check"]
