"""Limits of external runs and of the process that owns them."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import httpx
import pytest

from tests.support.external import MAX_GATEWAY_KB, NEW, OPENAI, Agent, Api, both, start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, claude_settings, model_settings
from tests.support.stores import eventually


@both
@pytest.mark.req("cw/15.calls")
@pytest.mark.req("cw/15.refusals")
async def test_a_limit_of_three_calls_lets_exactly_three_of_twelve_parallel_calls_through(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The other nine wait for the first three, and are then refused; no client repeats them."""
    await provider.script("PARALLEL", [Step(hang=True)], repeat_last=True)
    agent = await start(http, api=api, budget={"max_llm_calls": 3})
    async with agent.library() as (client, sent):

        async def call(number: int) -> str:
            try:
                await api.create(client, f"PARALLEL {number}", stream=number % 2 == 0)
            except api.refused as error:
                agent.require_final(error.response, "budget")  # type: ignore[attr-defined]
                return "refused"
            return "answered"

        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(call(number)) for number in range(12)]
            await provider.wait_for_arrivals(3, "PARALLEL")
            await provider.release()
    run = await agent.ended()

    assert Counter(each.result() for each in calls) == {"answered": 3, "refused": 9}
    assert sent == {"200": 3, "400": 9}
    assert await provider.count("PARALLEL") == 3
    assert run["status"] == "halted"
    assert run["stop"]["kind"] == "budget"
    assert run["stop"]["dimension"] == "llm_calls"
    assert run["usage"]["llm_calls"] == 3
    agent.require_final(await agent.ask("PARALLEL after the end"), "budget")
    assert await provider.count("PARALLEL") == 3


@both
@pytest.mark.req("cw/15.calls", "cw/15.refusals")
async def test_parallel_streams_stay_within_a_limit_on_cost(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The provider counts at most the limit; the rest of it pays no further stream."""
    limit, price_in, price_out = Decimal("0.006"), Decimal("0.000001"), Decimal("0.000002")
    output = 256  # an output limit is not lowered any further
    answered = Step(text="x " * 20, tokens_in=40, tokens_out=output, chunk_seconds=0.002)
    await provider.script("STREAMS", [answered], repeat_last=True)
    agent = await start(http, api=api, budget={"max_cost_usd": float(limit)})
    named = "max_completion_tokens" if api is OPENAI else "max_tokens"

    async def call(number: int) -> bool:
        body = api.body(f"STREAMS {number} {'blah ' * 20}", stream=True, **{named: output})
        headers = {"Authorization": f"Bearer {agent.key}"}
        async with http.stream("POST", api.path, json=body, headers=headers) as reply:
            whole = await reply.aread()
        if reply.status_code != httpx.codes.OK:
            agent.require_final(reply, "budget")
        return whole.rstrip().endswith(api.end) or api.end in whole

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(call(number)) for number in range(40)]
    run = await agent.ended()

    counted = [each.charged or {} for each in await provider.arrivals("STREAMS")]
    cost = sum(
        (each["tokens_in"] * price_in + each["tokens_out"] * price_out for each in counted),
        Decimal(0),
    )
    assert cost <= limit
    assert limit - cost < Decimal("0.001")
    assert len(counted) == sum(each.result() for each in calls) < len(calls)
    assert Decimal(str(run["usage"]["cost_usd"])) == cost
    assert (run["status"], run["stop"]["dimension"]) == ("halted", "cost_usd")


@pytest.mark.req("cw/15.calls")
async def test_a_limit_on_cost_lowers_the_output_and_then_refuses(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The provider gets an output limit that the budget can pay; afterwards no call is sent."""
    await provider.script("MONEY", [Step(tokens_in=100, tokens_out=440)], repeat_last=True)
    agent = await start(http, budget={"max_cost_usd": 0.001})
    first = await agent.ask("MONEY", max_completion_tokens=4000)
    second = await agent.ask("MONEY again")
    run = await agent.ended()
    (arrival,) = await provider.arrivals(bodies=True)

    assert first.status_code == 200, first.text
    assert arrival.body is not None
    assert arrival.body["max_completion_tokens"] < 500
    agent.require_final(second, "budget")
    assert run["stop"]["dimension"] == "cost_usd"
    assert float(run["usage"]["cost_usd"]) == pytest.approx(0.00098)


async def test_a_call_of_a_model_without_a_price_is_refused_under_a_limit_on_cost(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The big model has no price here, so its calls could exceed the limit."""
    agent = await start(http, budget={"max_cost_usd": 1})
    reply = await agent.ask("FREE", model="big")

    agent.require_final(reply, "budget")
    assert await provider.count("FREE") == 0


@both
async def test_a_request_that_is_too_large_is_refused_in_the_form_of_the_api(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The limit is the sum of server.max_body_kb and admission.max_graph_kb."""
    agent = await start(http, api=api)
    reply = await agent.ask("LARGE" + "x" * MAX_GATEWAY_KB * 1024)

    assert reply.status_code == 413, reply.text
    assert reply.headers["x-should-retry"] == "false"
    api.error_of(reply)
    assert await provider.count("LARGE") == 0


async def test_the_deadline_interrupts_a_call_and_refuses_later_ones(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The key expires with the deadline."""
    await provider.script("LATE", [Step(hang=True)], repeat_last=True)
    deadline = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
    agent = await start(http, deadline=deadline)
    reply = await agent.ask("LATE")
    run = await agent.ended()
    (arrival,) = await provider.wait_for_arrivals(1, "LATE", ended=True)

    assert datetime.fromisoformat(agent.run["access"]["expires_at"]) == datetime.fromisoformat(
        deadline
    )
    agent.require_final(reply, "deadline")
    agent.require_final(await agent.ask("LATE"), "deadline")
    assert run["status"] == "halted"
    assert arrival.outcome == "client_gone"


async def test_a_run_can_be_continued_with_a_larger_budget(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The recorded replies are replayed at no cost."""
    agent = await start(http, budget={"max_llm_calls": 1})
    await agent.ask("RECORDED")
    await agent.ask("RECORDED no more")
    await agent.ended()
    posted = await http.post(
        "/runs", json={"from": {"run_id": agent.run_id}, "budget": {"max_llm_calls": 2}}
    )
    assert posted.status_code == NEW, posted.text
    resumed = Agent(http=http, run=posted.json())
    replies = [await resumed.ask("RECORDED"), await resumed.ask("RECORDED no more")]

    assert [each.status_code for each in replies] == [200, 200]
    assert await provider.count("RECORDED") == 2


@both
@pytest.mark.req("cw/15.refusals")
async def test_an_overloaded_process_answers_503_with_retry_after(
    api: Api, database_url: str, provider: FakeProvider
) -> None:
    """The client library repeats the call, which then succeeds."""
    settings = {
        **model_settings(provider.openai_url),
        **claude_settings(provider.url),
        "SERVER_MAX_CONNECTIONS": "2",
    }
    await provider.script("HOLDS", [Step(hang=True)])
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        service.http() as http,
    ):
        agent = await start(http, api=api)
        held = asyncio.create_task(agent.ask("HOLDS"))
        await provider.wait_for_arrivals(1, "HOLDS")
        reply = await agent.ask("REFUSED")
        async with agent.library() as (client, sent):
            call = asyncio.create_task(api.create(client, "REPEATED"))

            async def refused() -> bool:
                return sent["503"] > 0

            await eventually(refused)
            await provider.release()
            await call
        answered = await held

    assert answered.status_code == 200
    assert reply.status_code == 503, reply.text
    assert int(reply.headers["retry-after"]) > 0
    assert "x-should-retry" not in reply.headers
    api.error_of(reply)
    assert sent["200"] == 1


async def test_more_runs_than_the_process_may_own_are_refused(
    database_url: str, running_provider: FakeProvider
) -> None:
    """An external run is never queued, and takes no slot of other runs."""
    settings = {
        **model_settings(running_provider.openai_url),
        "ADMISSION_MAX_EXTERNAL_RUNS": "1",
        "WORKER_MAX_RUNS": "1",
        "SERVER_PUBLIC_URL": "https://agents.example/",
        "SERVER_REQUEST_TIMEOUT_SECONDS": "1",
    }
    await running_provider.script("SLOW", [Step(text="slow", delay_seconds=2)])
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        service.http() as http,
    ):
        agent = await start(http)
        full = await http.post("/runs", json={"kind": "external"})
        data = {"tool": "calculator", "args": {"expression": "1 + 1"}}
        graph = {"steps": [{"id": "a", "type": "tool", "data": data}], "edges": []}
        beside = await http.post(
            "/runs", json={"kind": "graph", "graph": graph}, headers={"Prefer": "wait=100"}
        )
        slow = await http.post(
            OPENAI.path, json=OPENAI.body("SLOW"), headers={"Authorization": f"Bearer {agent.key}"}
        )
        await agent.finish({"output": 1})
        await agent.ended()
        after = await http.post("/runs", json={"kind": "external"})

    assert agent.run["access"]["openai_base_url"] == "https://agents.example/gateway/openai/v1"
    assert full.status_code == 429
    assert full.json()["type"].endswith("external-runs-full")
    assert int(full.headers["retry-after"]) > 0
    assert beside.json()["status"] == "completed", beside.text
    assert slow.status_code == 200, slow.text  # server.request_timeout_seconds does not apply
    assert after.status_code == NEW, after.text
