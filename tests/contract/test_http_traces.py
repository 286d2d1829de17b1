"""GET /runs/{id}/trace, the tools, the models and the health of the service."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.models.gateway import ModelGateway, Tier
from caseworker.models.ports import ModelReply, ModelRequest
from caseworker.models.pricing import no_list_price
from caseworker.platform.http.health import PartState
from caseworker.runs.ports import JournalWrite
from caseworker.runs.run import CallRecord, RunKey
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from caseworker_cases.tools.calculator import Calculator
from tests.support.api import Api, all_ready, client_of
from tests.support.limits import retry_policy, tier_model, tool_dispatch
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.asyncio(loop_scope="module")


KEY = RunKey("default", "a")


class Work:
    """A run whose calls a test makes, written as a worker writes them."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.clock = ManualClock()
        self.graph = ExecutionGraph("a", now_ms=self.clock)
        self.root = self.graph.create_root("case")
        self.graph.mark_running(self.root)

    def step(self, path: str, parent: str | None = None) -> str:
        node = self.graph.begin_node(
            parent or self.root, "system", path, metadata={"step_type": "case"}
        )
        self.graph.mark_running(node)
        return node

    def call(self, step: str, cost_usd: float = 0.25, tier: str = "small") -> str:
        """Make an LLM call of 100 ms."""
        node = self.graph.begin_node(step, "llm", "plan", f"{tier}-model", {"tier": tier})
        self.clock.advance(100)
        self.graph.mark_success(node, cost_usd, 10, 5)
        return node

    async def written(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """Write the run to the journal; return its trace."""
        await client.post("/runs", json={"run_id": "a", "input": "2+2?"})
        run = await self._api.store.claim(KEY, "worker")
        assert run is not None
        calls = tuple(CallRecord(node=node) for node in self.graph.changed_since(0).nodes)
        await self._api.journal.write(JournalWrite(key=KEY, fence=run.fence, calls=calls))
        return dict((await client.get("/runs/a/trace")).json())


@pytest.fixture
def work(api: Api) -> Work:
    return Work(api)


@pytest.mark.req("card/trace")
async def test_a_trace_shows_every_call_below_its_step(
    client: httpx.AsyncClient, work: Work
) -> None:
    """The snapshot has the format of document 001, with a list of its steps."""
    step = work.step("case")
    work.call(step)

    trace = await work.written(client)

    assert set(trace) == {"run_id", "snapshot", "steps", "analysis", "graph", "events_url"}
    assert trace["snapshot"]["chain_id"] == trace["run_id"] == "a"
    assert trace["events_url"] == "/runs/a/events"
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
async def test_a_step_tells_its_time_its_tries_and_what_was_spent_below_it(
    client: httpx.AsyncClient, work: Work
) -> None:
    """A step counts its own retries, not its fallback and not the retries of its calls.

    Each charge counts once.
    """
    step = work.step("case")
    work.call(work.call(step, 0.1), 0.2)
    for parent in (step, step, step, call := work.call(step, 0.3)):
        work.graph.begin_node(parent, "system", "attempt")
    for retried in (step, call):
        work.graph.increment_retries(retried)
    work.graph.mark_success(step, 0)
    work.graph.begin_node(work.root, "llm", "elsewhere")

    (shown,) = (await work.written(client))["steps"]

    assert (shown["duration_ms"], shown["retries"]) == (300, 1)
    assert (shown["tokens_in"], shown["tokens_out"], shown["cost_usd"]) == (30, 15, 0.6)


@pytest.mark.req("card/trace")
async def test_nested_steps_have_a_path_and_count_in_the_step_around_them(
    client: httpx.AsyncClient, work: Work
) -> None:
    """Top-level steps add up to the run; events name steps by the same path."""
    outer = work.step("outer")
    middle = work.step("outer/middle", outer)
    work.call(work.step("outer/middle/inner", middle), 0.1)
    work.call(outer, 0.2)
    work.step("a/b")

    steps = (await work.written(client))["steps"]

    assert [(s["step_id"], s["path"], s["cost_usd"], s["tokens_in"]) for s in steps] == [
        ("outer", "outer", 0.3, 20),
        ("middle", "outer/middle", 0.1, 10),
        ("inner", "outer/middle/inner", 0.1, 10),
        ("a/b", "a/b", 0.0, 0),
    ]


@pytest.mark.req("card/trace")
async def test_a_trace_is_analysed(client: httpx.AsyncClient, work: Work) -> None:
    """The analysis shows time, cost, the critical path and the call that hit the limit."""
    step = work.step("case")
    work.call(step, 0.1)
    work.call(step, 2.0, "big")
    work.clock.advance(7)
    refused = work.graph.begin_node(step, "llm", "compose", "big-model", {"tier": "big"})
    for node in (refused, step, work.root):
        work.graph.mark_halt(node, "cost_usd: 2.1 of 2 used")

    analysis = (await work.written(client))["analysis"]

    spent = {"tokens_in": 10, "tokens_out": 5, "cost_usd_estimated": 0}
    assert [(s["name"], s["after_ms"], s["duration_ms"]) for s in analysis["critical_path"]] == [
        ("plan", 0, 100),
        ("plan", 100, 100),
        ("case", 200, 7),
    ]
    assert analysis["time"][:2] == [
        {"kind": "llm", "name": "plan", "model": "small-model", "count": 1, "own_ms": 100},
        {"kind": "llm", "name": "plan", "model": "big-model", "count": 1, "own_ms": 100},
    ]
    assert analysis["cost_by_model"] == [
        {"model": "big-model", "tier": "big", "count": 2, "cost_usd": 2.0, **spent},
        {"model": "small-model", "tier": "small", "count": 1, "cost_usd": 0.1, **spent},
    ]
    assert analysis["cost_by_tier"] == [
        {"tier": "big", "count": 2, "cost_usd": 2.0, **spent},
        {"tier": "small", "count": 1, "cost_usd": 0.1, **spent},
    ]
    assert analysis["stopped_at"] == {
        "node_id": refused,
        "kind": "llm",
        "name": "compose",
        "reason": "cost_usd: 2.1 of 2 used",
        "after_ms": 207,
    }


async def test_a_trace_has_the_documented_form(client: httpx.AsyncClient, work: Work) -> None:
    """The check covers the whole trace, with steps and analysis."""
    work.call(work.step("case"))
    await work.written(client)
    document = (await client.get("/openapi.json")).json()
    schema = document["paths"]["/runs/{run_id}/trace"]["get"]["responses"]["200"]["content"]

    assert set(schema) == {"application/json", "text/plain"}
    described = document["components"]["schemas"]
    trace = (await client.get("/runs/a/trace")).json()
    assert set(described["StepView"]["required"]) == set(trace["steps"][0])
    assert set(described["AnalysisView"]["required"]) == set(trace["analysis"])


@pytest.mark.req("card/trace")
async def test_a_trace_can_be_read_as_text(client: httpx.AsyncClient, work: Work) -> None:
    """The text is UTF-8 and contains all sections of the analysis."""
    step = work.step("case")
    work.call(step)
    work.call(step, tier="big")
    for node in (step, work.root):
        work.graph.mark_halt(node, "cancelled: enough")
    await work.written(client)

    answer = await client.get("/runs/a/trace", params={"format": "explain"})

    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    for told in (
        "Stopped at case (n000002) after 200 ms: cancelled: enough",
        "└─ llm plan (big-model)",
        "Where the time went",
        "Critical path",
        "Cost by model",
        "big-model, big tier",
    ):
        assert told in answer.text


async def test_a_cancelled_run_is_explained_as_cancelled(client: httpx.AsyncClient) -> None:
    """The text says cancelled, which callers know, and not halted."""
    await client.delete("/runs/a")
    await client.post("/runs", json={"run_id": "a", "input": "2+2?"})

    answer = await client.get("/runs/a/trace", params={"format": "explain"})

    assert answer.text.startswith("Run a was cancelled after ")


async def test_a_trace_of_a_run_that_has_not_begun_is_its_root(client: httpx.AsyncClient) -> None:
    """A trace exists as soon as its run does."""
    await client.post("/runs", json={"run_id": "a", "input": "2+2?"})

    trace = (await client.get("/runs/a/trace")).json()

    assert (len(trace["snapshot"]["nodes"]), trace["steps"]) == (1, [])
    assert trace["analysis"]["stopped_at"] is None


@pytest.mark.parametrize("query", ["format=html", "format=", "shape=json"])
async def test_an_unknown_format_is_refused(client: httpx.AsyncClient, query: str) -> None:
    """The answer is 422 whether or not the run exists."""
    assert (await client.get(f"/runs/a/trace?{query}")).status_code == 422


async def test_a_trace_of_no_run_is_not_found(client: httpx.AsyncClient) -> None:
    """Both formats return 404."""
    for form in ("json", "explain"):
        answer = await client.get("/runs/a/trace", params={"format": form})
        assert answer.status_code == 404
        assert answer.json()["type"] == "urn:caseworker:problem:run-not-found"


async def test_the_usable_tools_are_listed(client: httpx.AsyncClient) -> None:
    """Each tool has the parameter schema that a planner needs."""
    tools = (await client.get("/tools")).json()["tools"]

    [calculator] = [tool for tool in tools if tool["name"] == "calculator"]
    assert calculator["parameters"]["required"] == ["expression"]


async def test_a_denied_tool_is_not_listed(api: Api) -> None:
    """The list has only the tools that the caller's runs may use."""
    denied = ToolPolicy(deny=frozenset({"calculator"}))
    async with client_of(api.app(tool_dispatch(ToolRegistry([Calculator()]), denied))) as client:
        assert (await client.get("/tools")).json() == {"tools": [], "servers": []}


class SilentProvider:
    """A provider whose models are listed but never called."""

    name = "silent"
    external = True

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        raise AssertionError(f"{model} was asked {len(request.messages)} messages")

    async def aclose(self) -> None:
        return


async def test_the_models_of_both_tiers_are_named(api: Api) -> None:
    """Each tier lists its model and its fallbacks in order."""
    provider = SilentProvider()
    stand_in = tier_model(provider=provider, model="stand-in", timeout_seconds=5)
    tier = tier_model(provider=provider, model="small-model", fallbacks=(stand_in,))
    gateway = ModelGateway({Tier.SMALL: tier, Tier.BIG: tier}, no_list_price, retry_policy())
    async with client_of(api.app(gateway)) as client:
        models = (await client.get("/models")).json()["models"]

    assert set(models) == {"small", "big"}
    small = models["small"]
    assert (small["provider"], small["model"], small["structured_output"]) == (
        "silent",
        "small-model",
        "auto",
    )
    [stand_in] = small["fallbacks"]
    assert (stand_in["model"], stand_in["timeout_seconds"]) == ("stand-in", 5)
    assert "fallbacks" not in stand_in


async def test_the_types_of_step_are_described(client: httpx.AsyncClient) -> None:
    """Each type has its handles by channel and the schema of its data."""
    listed = (await client.get("/node-types")).json()["node_types"]
    router, toolset = (each for each in listed if each["name"] in ("router", "toolset"))

    assert (router["name"], router["executes"]) == ("router", True)
    assert router["data"]["required"] == ["routes"]
    assert (toolset["name"], toolset["executes"]) == ("toolset", False)
    assert toolset["outputs"] == {"flow": [], "link": ["tools"]}


async def test_health_is_answered_to_anybody_and_asks_nobody(api: Api) -> None:
    """Monitoring rarely runs on the same machine and must not depend on the database."""
    readiness = AsyncMock()
    async with client_of(api.app(readiness=readiness), peer="10.0.0.1") as client:
        answer = await client.get("/healthz")

    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})
    readiness.assert_not_called()


async def test_a_service_is_ready_once_all_of_its_parts_are(api: Api) -> None:
    """The answer names each part, also for callers without a credential."""
    async with client_of(api.app(readiness=all_ready), peer="10.0.0.1") as client:
        answer = await client.get("/readyz")

    assert answer.status_code == 200
    assert set(answer.json()["parts"]) == {"database", "migrations", "worker"}


async def test_the_part_that_is_missing_is_named(api: Api) -> None:
    """The answer is a 503 problem document."""
    states = {"database": PartState(True), "worker": PartState(False, "It is draining.")}
    async with client_of(api.app(readiness=AsyncMock(return_value=states))) as client:
        answer = await client.get("/readyz")

    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:caseworker:problem:not-ready"
    assert answer.json()["parts"] == {"database": "ready", "worker": "It is draining."}
    assert int(answer.headers["retry-after"]) > 0


async def test_parts_that_do_not_answer_are_not_ready(api: Api) -> None:
    """A hanging database must not block the probe."""
    app = api.app(readiness=asyncio.Event().wait, readiness_seconds=0.01)
    async with client_of(app) as client:
        answer = await client.get("/readyz")

    assert answer.status_code == 503
    assert "0.01 seconds" in answer.json()["parts"]["check"]
