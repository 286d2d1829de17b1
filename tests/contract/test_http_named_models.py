"""Named models: two providers, their prices, fallbacks and limits."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from caseworker.settings.models import ModelsSettings
from caseworker.settings.tools import RetrySettings
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_requests import fields
from tests.support.tenants import OPERATOR_KEY, Tenants, open_tenants

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.req("cw/14.named")]

OPERATOR = {"Authorization": f"Bearer {OPERATOR_KEY}"}
BUSY = Step(status=503, text="overloaded")
ANSWER = Step(text="done", tokens_in=100, tokens_out=10)


@dataclass(frozen=True)
class NamedModels:
    """A service with named models of two providers that use different protocols."""

    tenants: Tenants
    openai: FakeProvider
    anthropic: FakeProvider

    async def run(self, body: dict[str, Any], tenant: str = "a") -> dict[str, Any]:
        """Run an agent, or the request in ``body``, to its end."""
        sent = {"kind": "agent", "input": "hello", **body}
        answer = await self.tenants.ask(tenant, "POST", "/runs", sent, prefer="wait=30")
        assert answer.status_code == 200, answer.text
        run: dict[str, Any] = answer.json()
        return run

    async def calls(self, run: dict[str, Any], tenant: str = "a") -> list[dict[str, Any]]:
        """Return the calls of models in the trace of a run."""
        path = f"/runs/{run['run_id']}/trace"
        trace = (await self.tenants.ask(tenant, "GET", path)).json()
        nodes = trace["snapshot"]["nodes"].values()
        return [node for node in nodes if node["kind"] == "llm"]

    async def refused(self, body: dict[str, Any], path: str = "/runs") -> list[dict[str, str]]:
        """Return the errors of a body that is refused."""
        answer = await self.tenants.ask("a", "POST", path, body)
        assert answer.status_code == 422, answer.text
        errors: list[dict[str, str]] = answer.json()["errors"]
        return errors


def settings(openai: str, anthropic: str) -> ModelsSettings:
    """Return models of both providers; the small tier is an alias of one of them."""
    fast = {"provider": "openai", "base_url": openai, "api_key": "k-fast", "model": "fake-fast"}
    dear = {"provider": "anthropic", "base_url": anthropic, "api_key": "k-dear"}
    return ModelsSettings.model_validate(
        {
            "small": {"use": "fast"},
            "named": {
                "fast": {**fast, **price(1, 2), "fallbacks": ["dear", "unpriced"]},
                "dear": {**dear, **price(10, 20), "model": "fake-dear", "capabilities": ["image"]},
                "unpriced": {**fast, "model": "fake-unpriced"},
                "sure": {**fast, **price(1, 2), "model": "fake-sure", "fallbacks": ["unpriced"]},
            },
        }
    )


def price(usd_in: int, usd_out: int) -> dict[str, int]:
    return {"price_per_million_in_usd": usd_in, "price_per_million_out_usd": usd_out}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[NamedModels]:
    async with FakeProvider() as other:
        models = settings(running_provider.openai_url, other.url)
        retry = RetrySettings(max_retries=1, base_seconds=0.0)
        async with open_tenants(
            module_database_url, executes=True, models=models, retry=retry
        ) as tenants:
            yield NamedModels(tenants, running_provider, other)


@pytest_asyncio.fixture(loop_scope="module")
async def named_models(started: NamedModels) -> NamedModels:
    """Run the service with providers that have no recorded requests."""
    for provider in (started.openai, started.anthropic):
        await provider.reset()
        await provider.answer_by_default(ANSWER)
    return started


def agent(**model: Any) -> dict[str, Any]:
    return {"name": "a", "prompt": {"system": "?"}, "model": {"stream": False, **model}}


@pytest.mark.parametrize(
    ("name", "provider", "model", "dollars"),
    [("dear", "anthropic", "fake-dear", 0.0012), ("fast", "openai", "fake-fast", 0.00012)],
)
@pytest.mark.req("cw/14.priced")
async def test_a_named_model_answers_at_its_own_price(
    named_models: NamedModels, name: str, provider: str, model: str, dollars: float
) -> None:
    """Trace, usage and result name the model that answered, in either protocol."""
    run = await named_models.run({"agent": agent(name=name)})

    [call] = await named_models.calls(run)
    assert run["status"] == "completed", run
    assert (call["model"], call["metadata"]["provider"], call["metadata"]["alias"]) == (
        *(model, provider, name),
    )
    assert call["cost_usd"] == run["usage"]["cost_usd"] == pytest.approx(dollars)
    assert run["result"]["models"] == [{"provider": provider, "model": model, "calls": 1}]
    asked = await (
        named_models.openai if provider == "openai" else named_models.anthropic
    ).arrivals()
    assert [arrival.model for arrival in asked] == [model]


@pytest.mark.parametrize(
    ("model", "small"),
    [({}, 1), ({"name": "small"}, 1), ({"name": "fast"}, 1), ({"name": "dear"}, 0)],
)
@pytest.mark.req("cw/14.priced")
async def test_a_named_model_counts_for_the_tier_that_uses_it(
    named_models: NamedModels, model: dict[str, Any], small: int
) -> None:
    """Another model counts only towards the total of all models."""
    run = await named_models.run({"agent": agent(**model)})

    usage = run["usage"]
    counted = [usage.get(name, 0) for name in ("llm_calls", "llm_calls_small", "llm_calls_big")]
    assert counted == [1, small, 0]


@pytest.mark.req("cw/14.priced")
async def test_max_llm_calls_limits_all_models_together(named_models: NamedModels) -> None:
    """A graph with two models is halted after one call."""
    steps = [
        {"id": "one", "type": "llm", "data": {"prompt": "1?", "model": {"name": "dear"}}},
        {"id": "two", "type": "llm", "data": {"prompt": "2?", "model": {"name": "sure"}}},
    ]
    edges = [{"source": "one", "target": "two", "data": {"channel": "flow"}}]
    body = {"kind": "graph", "graph": {"steps": steps, "edges": edges}, "input": None}

    run = await named_models.run({**body, "budget": {"max_llm_calls": 1}})
    enough = await named_models.run(
        {**body, "budget": {"max_llm_calls": 2, "max_llm_calls_small": 0}}
    )

    assert (run["status"], run["stop"]["dimension"]) == ("halted", "llm_calls"), run
    assert enough["status"] == "completed"


async def test_options_stand_in_their_own_object(named_models: NamedModels) -> None:
    """Options from an agent, a step or a request reach the provider."""
    model = {"name": "sure", "options": {"temperature": 0.5, "max_output_tokens": 77}}
    step = {"id": "s", "type": "llm", "data": {"prompt": "?", "model": model}}
    graph = {"kind": "graph", "graph": {"steps": [step], "edges": []}, "input": None}

    for body in ({"agent": agent(**model)}, {"agent": agent(), "model": model}, graph):
        await named_models.run(body)

    sent = [arrival.body or {} for arrival in await named_models.openai.arrivals(bodies=True)]
    assert [(one["model"], one["temperature"]) for one in sent] == [("fake-sure", 0.5)] * 3
    assert [one.get("max_tokens", one.get("max_completion_tokens")) for one in sent] == [77] * 3


STEP = {"id": "s", "type": "llm", "data": {"prompt": "?", "model": {"name": "nope"}}}
TIER = {"id": "s", "type": "llm", "data": {"prompt": "?", "tier": "big"}}
TIER_OF_MODEL = {"id": "s", "type": "llm", "data": {"prompt": "?", "model": {"tier": "big"}}}


def graph_of(step: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "graph", "graph": {"steps": [step], "edges": []}}


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"agent": agent(name="nope")}, "agent.model.name", "fast"),
        ({"agent": agent(fallbacks=["dear", "x"])}, "agent.model.fallbacks.1", "dear"),
        ({"agent": agent(), "model": {"name": "nope"}}, "model.name", "unpriced"),
        ({"agent": agent(tier="big")}, "agent.model.tier", "models.big"),
        (graph_of(STEP), "graph.steps.0.data.model.name", "fast"),
        (graph_of(TIER), "graph.steps.0.data.tier", "models.big"),
        (graph_of(TIER_OF_MODEL), "graph.steps.0.data.model.tier", "models.big"),
    ],
)
async def test_a_name_or_a_tier_without_a_model_is_422(
    named_models: NamedModels, body: dict[str, Any], field: str, said: str
) -> None:
    """The error names the field and says which configuration is missing or allowed."""
    [error] = await named_models.refused({"kind": "agent", "input": "?", **body})

    assert error["field"] == field
    assert said in error["message"]


async def test_the_model_of_a_request_replaces_one_that_is_not_configured(
    named_models: NamedModels,
) -> None:
    """Only the model that is used must exist."""
    run = await named_models.run({"agent": agent(name="nope"), "model": {"name": "fast"}})

    assert run["status"] == "completed"


async def test_an_option_in_two_places_is_422(named_models: NamedModels) -> None:
    """The service has no precedence rule for the two places."""
    twice = agent(name="dear", temperature=1, options={"temperature": 0})

    [error] = await named_models.refused({"kind": "agent", "input": "?", "agent": twice})

    assert (error["field"], "temperature" in error["message"]) == ("agent.model", True)


@pytest.mark.parametrize("status", [503, 401])
async def test_a_fallback_answers_when_its_model_cannot(
    named_models: NamedModels, status: int
) -> None:
    """After its retries, or at once where these would not help; each call has its own price."""
    await named_models.openai.answer_by_default(Step(status=status, text="no"))

    run = await named_models.run({"agent": agent(name="fast")})

    failed, answered = await named_models.calls(run)
    attempts = 2 if status == 503 else 1
    assert (run["status"], run["usage"]["llm_calls"]) == ("completed", 1), run
    assert run["usage"]["api_calls"] == attempts + 1
    assert (failed["status"], failed["model"], failed["cost_usd"]) == ("fail", "fake-fast", 0)
    assert (answered["status"], answered["model"]) == ("success", "fake-dear")
    assert (answered["metadata"]["alias"], answered["metadata"]["fallback"]) == ("dear", 1)
    assert answered["cost_usd"] == run["usage"]["cost_usd"] == pytest.approx(0.0012)
    assert run["result"]["models"] == [{"provider": "anthropic", "model": "fake-dear", "calls": 1}]
    path = f"/runs/{run['run_id']}/events"
    events = (await named_models.tenants.ask("a", "GET", path, accept="application/json")).json()
    models = [one["data"]["model"] for one in events["events"] if one["type"] == "call.completed"]
    assert "fake-dear" in models


async def test_a_request_that_every_model_would_refuse_has_no_fallback(
    named_models: NamedModels,
) -> None:
    """A 400 is no reason to ask another provider."""
    await named_models.openai.answer_by_default(Step(status=400, text="bad request"))

    run = await named_models.run({"agent": agent(name="fast")})

    assert (run["status"], len(await named_models.anthropic.arrivals())) == ("failed", 0)


@pytest.mark.req("cw/14.priced")
@pytest.mark.parametrize(
    ("budget", "dimension", "asked"),
    [
        ({"max_api_calls": 2}, "api_calls", 0),
        ({"max_cost_usd": 0.0011}, "cost_usd", 0),
        ({"max_llm_calls": 1, "max_llm_calls_small": 1, "max_api_calls": 3}, None, 1),
    ],
)
async def test_limits_hold_over_fallbacks(
    named_models: NamedModels, budget: dict[str, Any], dimension: str | None, asked: int
) -> None:
    """A fallback is an attempt at its own price, and no further logical call."""
    await named_models.openai.answer_by_default(BUSY)

    run = await named_models.run({"agent": agent(name="fast"), "budget": budget})

    assert (run["stop"] or {}).get("dimension") == dimension, run
    assert len(await named_models.anthropic.arrivals()) == asked


@pytest.mark.req("cw/14.priced")
@pytest.mark.parametrize("name", ["unpriced", "sure"])
async def test_a_run_with_a_limit_of_cost_uses_models_of_known_price_alone(
    named_models: NamedModels, name: str
) -> None:
    """Models without a known price are used neither first nor as a fallback."""
    await named_models.openai.script("", [BUSY], model="fake-sure", repeat_last=True)

    run = await named_models.run({"agent": agent(name=name), "budget": {"max_cost_usd": 5}})
    free = await named_models.run({"agent": agent(name=name)})

    assert (run["status"], run["stop"]["dimension"]) == ("halted", "cost_usd"), run
    assert (free["status"], free["usage"]["cost_usd"]) == ("completed", None)
    asked = [arrival.model for arrival in await named_models.openai.arrivals()]
    assert asked.count("fake-unpriced") == 1


async def test_the_catalogue_lists_models_by_name(named_models: NamedModels) -> None:
    """Each entry shows its capabilities, and a tier without a model is absent."""
    listed = (await named_models.tenants.ask("a", "GET", "/models")).json()["models"]

    assert sorted(listed) == ["dear", "fast", "small", "sure", "unpriced"]
    assert (listed["dear"]["capabilities"], listed["fast"]["capabilities"]) == (["image"], [])
    assert listed["small"] == listed["fast"]
    assert [each["model"] for each in listed["fast"]["fallbacks"]] == ["fake-dear", "fake-unpriced"]
    assert "k-dear" not in str(listed)


async def restrict(named_models: NamedModels, tenant: str, *models: str) -> None:
    body = {"models": list(models)}
    answer = await named_models.tenants.client.put(f"/quotas/{tenant}", json=body, headers=OPERATOR)
    assert (answer.status_code, answer.json().get("models")) == (200, list(models))


async def test_a_quota_restricts_the_models_of_a_tenant(named_models: NamedModels) -> None:
    """Other models are 422 with their place, and fallbacks that are not allowed are skipped."""
    await restrict(named_models, "kept", "small", "unpriced")
    step = {"id": "s", "type": "llm", "data": {"prompt": "?", "model": {"name": "dear"}}}
    for body, field in (
        ({"agent": agent(name="dear")}, "agent.model.name"),
        ({"agent": agent(fallbacks=["dear"])}, "agent.model.fallbacks.0"),
        (graph_of(step), "graph.steps.0.data.model.name"),
    ):
        sent = {"kind": "agent", "input": "?", **body}
        answer = await named_models.tenants.ask("kept", "POST", "/runs", sent)
        assert fields(answer) == [field]
        assert "'fast', 'small', 'unpriced'" in answer.text

    await named_models.openai.script("", [BUSY, BUSY], model="fake-fast")
    run = await named_models.run({"agent": agent(name="fast")}, tenant="kept")

    assert run["status"] == "completed", run
    asked = [arrival.model for arrival in await named_models.openai.arrivals()]
    assert asked == ["fake-fast", "fake-fast", "fake-unpriced"]
    assert await named_models.anthropic.arrivals() == []


async def test_a_schedule_that_names_a_model_that_is_not_allowed_is_refused(
    named_models: NamedModels,
) -> None:
    """The error names the place inside its run, and nothing is stored."""
    await restrict(named_models, "timed", "fast")
    step = {"id": "s", "type": "llm", "data": {"prompt": "?", "model": {"name": "dear"}}}
    for run, field in (
        ({"kind": "agent", "input": "?", "agent": agent(name="dear")}, "run.agent.model.name"),
        (graph_of(step), "run.graph.steps.0.data.model.name"),
    ):
        body = {"cron": "0 0 1 1 *", "run": run}
        answer = await named_models.tenants.ask("timed", "PUT", "/schedules/s", body)
        assert fields(answer) == [field]

    body["run"] = {"kind": "agent", "input": "?", "agent": agent(name="fast")}
    made = await named_models.tenants.ask("timed", "PUT", "/schedules/s", body)
    assert made.status_code == 201  # 200 if one of them had been stored


async def test_a_thread_that_names_a_model_that_is_not_allowed_is_refused(
    named_models: NamedModels,
) -> None:
    """This also covers agents among the tools and agents in a message."""
    await restrict(named_models, "talks", "fast")
    dear, fast = agent(name="dear"), agent(name="fast")
    step = {"id": "s", "type": "llm", "data": {"prompt": "?", "model": {"name": "dear"}}}
    tool = {"agent": {**dear, "description": "Knows."}}
    for body, field in (
        ({"agent": dear}, "agent.model.name"),
        ({"graph": graph_of(step)["graph"]}, "graph.steps.0.data.model.name"),
        ({"agent": fast, "tools": [tool]}, "tools.0.agent.model.name"),
    ):
        answer = await named_models.tenants.ask("talks", "POST", "/threads", body)
        assert fields(answer) == [field]

    made = await named_models.tenants.ask(
        "talks", "POST", "/threads", {"thread_id": "t", "agent": fast}
    )
    body = {"content": "?", "agent": dear}
    refused = await named_models.tenants.ask("talks", "POST", "/threads/t/messages", body)
    assert (made.status_code, fields(refused)) == (201, ["agent.model.name"])


async def test_an_answer_of_a_thread_names_the_model_that_gave_it(
    named_models: NamedModels,
) -> None:
    """The message names the fallback or other agent's model that gave the reply."""
    body = {"thread_id": "named", "agent": agent(name="fast")}
    await named_models.tenants.ask("a", "POST", "/threads", body)
    await named_models.openai.script("", [BUSY, BUSY], model="fake-fast")

    for said in ({"content": "1?"}, {"content": "2?", "agent": agent(name="sure")}):
        path = "/threads/named/messages"
        answer = await named_models.tenants.ask("a", "POST", path, said, prefer="wait=30")
        assert answer.status_code == 200, answer.text
        listed = (await named_models.tenants.ask("a", "GET", path)).json()["messages"]
        assert answer.json()["assistant"]["model"] == listed[-1]["model"]

    models = [message["model"] for message in listed]
    assert models == [None, "fake-dear", None, "fake-sure"]
    whole = (await named_models.tenants.ask("a", "GET", f"{path}?tree=true")).json()["messages"]
    assert [message["model"] for message in whole] == [None] * 4


async def test_a_request_that_is_repeated_is_answered_as_before(named_models: NamedModels) -> None:
    """A repeated request gets its first answer even after the quota has changed."""
    sent = {"kind": "agent", "agent": agent(name="dear"), "input": "?", "run_id": "again"}
    first = await named_models.tenants.ask("narrowed", "POST", "/runs", sent)
    await restrict(named_models, "narrowed", "fast")

    second = await named_models.tenants.ask("narrowed", "POST", "/runs", sent)
    other = await named_models.tenants.ask("narrowed", "POST", "/runs", {**sent, "run_id": "other"})

    assert (first.status_code, second.json()["run_id"]) == (202, "again")
    assert fields(other) == ["agent.model.name"]
    missing = await named_models.tenants.ask("narrowed", "GET", "/runs/other")
    assert missing.status_code == 404


async def test_a_quota_without_the_small_model_allows_no_cases(named_models: NamedModels) -> None:
    """A case needs the small model first."""
    await restrict(named_models, "no-cases", "dear")

    answer = await named_models.tenants.ask("no-cases", "POST", "/runs", {"input": "2+2?"})

    assert fields(answer) == ["kind"]


async def test_a_quota_names_configured_models(named_models: NamedModels) -> None:
    """Another name gets a 422 with its place."""
    body = {"models": ["fast", "nope"]}
    answer = await named_models.tenants.client.put("/quotas/x", json=body, headers=OPERATOR)

    assert fields(answer) == ["models.1"]


async def test_a_case_needs_a_small_model(
    database_url: str, running_provider: FakeProvider
) -> None:
    """The answer is 422 for a run and for a step; the built-in planner does not replace it."""
    named = {"provider": "openai", "base_url": running_provider.openai_url, "model": "m"}
    models = ModelsSettings.model_validate({"named": {"only": named}})
    step = {"id": "s", "type": "case", "data": {}}
    async with open_tenants(database_url, models=models) as tenants:
        run = await tenants.ask("a", "POST", "/runs", {"input": "2+2?"})
        graph = await tenants.ask("a", "POST", "/runs", {"input": None, **graph_of(step)})

    assert fields(run) == ["kind"]
    assert fields(graph) == ["graph.steps.0.data"]
    assert "models.small.use to one of: 'only'" in run.text
