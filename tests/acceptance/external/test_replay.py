"""Later attempts of agents outside of the service get the recorded replies of earlier ones."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.external import OPENAI, QUICK_RECOVERY, Agent, next_attempt, start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, model_settings


@pytest.fixture(scope="module")
def service_settings(service_settings: dict[str, str]) -> dict[str, str]:
    return {**service_settings, **QUICK_RECOVERY}


async def texts(agent: Agent, *asked: str, **headers: str) -> list[str]:
    """Send requests one after the other and return the texts of the answers."""
    replies = [await agent.ask(text, headers=headers) for text in asked]
    return [each.raise_for_status().json()["choices"][0]["message"]["content"] for each in replies]


async def in_parallel(agent: Agent, *asked: str) -> list[str]:
    """Send requests at the same time and return the texts of the answers."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(texts(agent, text)) for text in asked]
    return [text for task in tasks for text in task.result()]


async def events_of(agent: Agent, kind: str) -> list[Mapping[str, Any]]:
    events = (await agent.get("/events")).json()["events"]
    return [each["data"] for each in events if each["type"] == kind]


@pytest.mark.req("cw/15.resume")
async def test_a_later_attempt_gets_each_recorded_reply_once_and_in_order(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Equal requests get the replies in their order; one request more is a new call."""
    await provider.script("ONCE", [Step(text=text) for text in ("a", "b", "c", "d")])
    first = await start(http, run_id="replay-once")
    before = await texts(first, "ONCE", "ONCE", "ONCE")
    second = await next_attempt(http, first)
    after = await texts(second, "ONCE", "ONCE", "ONCE", "ONCE")
    finished = await second.finish({"output": after})
    run = (await second.get()).json()
    trace = (await second.get("/trace")).json()["snapshot"]["nodes"].values()
    replayed = [node["metadata"].get("replayed_in") for node in trace if node["kind"] == "llm"]

    assert replayed == [2, 2, 2, None]
    assert before == ["a", "b", "c"]
    assert after == ["a", "b", "c", "d"]
    assert await provider.count("ONCE") == 4
    assert run["usage"]["llm_calls"] == 4
    assert finished.status_code == 200
    assert run["result"] == {"output": after, "replayed_calls": 3, "unused_calls": 0}
    assert await events_of(second, "replay.diverged") == []


@pytest.mark.req("cw/15.resume")
async def test_a_request_that_is_not_recorded_is_one_event_while_replies_are_unused(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Matching by content continues after it."""
    first = await start(http, run_id="replay-diverges")
    await texts(first, "DIVERGES 1", "DIVERGES 2")
    second = await next_attempt(http, first)
    await texts(second, "DIVERGES 1", "DIVERGES other", "DIVERGES more", "DIVERGES 2")
    await second.finish({"output": None})

    assert await provider.count("DIVERGES") == 4
    assert await events_of(second, "replay.diverged") == [
        {"attempt": 2, "position": 1, "unused": 1, "fields": ["messages[0]"]}
    ]


async def test_a_call_in_flight_at_a_new_attempt_is_made_again_without_an_event(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Its first repetition is not a divergence; a second one is."""
    await provider.script("BROKEN", [Step(hang=True), Step(text="again"), Step(text="more")])
    first = await start(http, run_id="replay-in-flight")
    call = asyncio.create_task(first.ask("BROKEN"))
    await provider.wait_for_arrivals(1, "BROKEN")
    await texts(first, "whole")
    second = await next_attempt(http, first)

    assert await texts(second, "BROKEN") == ["again"]
    assert await events_of(second, "replay.diverged") == []
    assert await texts(second, "BROKEN", "whole") == ["more", "ok"]
    assert len(await events_of(second, "replay.diverged")) == 1
    assert (await call).json()["error"]["code"] == "superseded"


async def test_samples_of_one_prompt_in_parallel_are_replayed_one_each(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Two open requests with equal content are two calls, and two recorded replies."""
    await provider.script("SAMPLE", [Step(text=str(number)) for number in range(6)])
    first = await start(http)
    before = await in_parallel(first, *["SAMPLE"] * 5)
    second = await next_attempt(http, first)
    after = await in_parallel(second, *["SAMPLE"] * 6)

    assert sorted(before) == ["0", "1", "2", "3", "4"]
    assert sorted(after) == ["0", "1", "2", "3", "4", "5"]
    assert await provider.count("SAMPLE") == 6


async def test_parallel_branches_that_were_killed_in_the_middle_continue(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Their requests come in another order. One of them also has a clock in its prompt."""
    await provider.script("BRANCH 2b", [Step(text="late", hang=True), Step(text="2b")])
    first = await start(http)
    assert await in_parallel(first, "BRANCH 1a", "BRANCH 2a", "BRANCH 3a at 12:00") == ["ok"] * 3
    assert await texts(first, "BRANCH 1b") == ["ok"]
    hanging = asyncio.create_task(first.ask("BRANCH 2b"))
    await provider.wait_for_arrivals(1, "BRANCH 2b")
    hanging.cancel()
    await asyncio.wait([hanging])
    second = await next_attempt(http, first)
    await in_parallel(second, "BRANCH 2a", "BRANCH 3a at 12:01", "BRANCH 1a")
    await in_parallel(second, "BRANCH 2b", "BRANCH 1b", "BRANCH 3b")
    await second.finish({"output": 1})
    run = (await second.get()).json()

    counts = {name: await provider.count(f"BRANCH {name}") for name in ("1", "2a", "2b", "3")}
    assert counts == {"1": 2, "2a": 1, "2b": 2, "3": 3}
    assert run["result"]["replayed_calls"] == 3
    assert run["result"]["unused_calls"] == 1
    assert len(await events_of(second, "replay.diverged")) == 1


async def test_a_lane_stops_replaying_when_it_diverges(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Replies belong to the lane that got them; other lanes still replay."""
    x, y = {"x-caseworker-lane": "x"}, {"x-caseworker-lane": "y"}
    first = await start(http, run_id="replay-lanes")
    for lane in (x, y):
        await texts(first, "LANES", "LANES next", **lane)
    second = await next_attempt(http, first)
    await texts(second, "LANES other", "LANES", **x)
    made_in_x = await provider.count("LANES")
    await texts(second, "LANES", "LANES next", **y)
    made_in_y = await provider.count("LANES") - made_in_x
    await texts(second, "LANES", **y)
    await second.finish({"output": None})

    assert made_in_x == 4 + 2
    assert made_in_y == 0
    assert await provider.count("LANES") == made_in_x + 1
    assert await events_of(second, "replay.diverged") == [
        {"attempt": 2, "position": 0, "unused": 4, "lane": "x", "fields": ["messages[0]"]}
    ]


async def converse(agent: Agent, *words: str, **fields: Any) -> list[dict[str, Any]]:
    """Hold a conversation, one message after the other; return its messages."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    async with agent.library() as (client, _):
        patient = client.with_options(max_retries=50)
        for word in words:
            messages.append({"role": "user", "content": word})
            body = OPENAI.body("", messages=messages, **fields)
            reply = await patient.chat.completions.create(**body)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    return messages


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_event_names_the_fields_that_differ(
    database_url: str, provider: FakeProvider, *, restarts: bool
) -> None:
    """The request is compared with the next unused one, also after the process was lost."""
    settings = {**model_settings(provider.openai_url), **QUICK_RECOVERY}
    async with AsyncExitStack() as stack:

        async def opened() -> tuple[ServiceProcess, httpx.AsyncClient]:
            service = await stack.enter_async_context(
                ServiceProcess(database_url, settings=settings)
            )
            http = service.http()
            return service, await stack.enter_async_context(http)

        service, http = await opened()
        agent = await start(http, run_id="names")
        await converse(agent, "NAMES a", "NAMES b", "NAMES c", temperature=0.5)
        if restarts:
            service.child.kill()
            _, http = await opened()
        second = await next_attempt(http, replace(agent, http=http))
        await converse(second, "NAMES a", "NAMES b", temperature=0.5)
        changed = [*await converse(second), {"role": "user", "content": "NAMES a"}]
        changed += [{"role": "assistant", "content": "another"}]
        await second.ask("", messages=changed, temperature=0.7, top_p=0.5)

        assert await provider.count("NAMES") == 4
        fields = ["temperature", "top_p", "messages[2]"]
        assert await events_of(second, "replay.diverged") == [
            {"attempt": 2, "position": 2, "unused": 1, "fields": fields}
        ]


async def test_a_conversation_is_stored_once_and_shown_whole(
    http: httpx.AsyncClient, provider: FakeProvider, module_database_url: str
) -> None:
    """Each call stores the messages that the one before it lacks; branches are stored apart."""
    agent = await start(http)
    words = [f"STORED {number} {'long ' * 50}" for number in range(6)]
    messages = await converse(agent, *words, tools=[])
    branch = [*messages[:3], {"role": "user", "content": "STORED branch"}]
    await agent.ask("", messages=branch)
    await agent.ask("", messages=[*messages, {"role": "user", "content": "STORED end"}])

    nodes = (await agent.get("/trace")).json()["snapshot"]["nodes"].values()
    calls = [node["node_id"] for node in nodes if node["kind"] == "llm"]
    shown = [(await agent.get(f"/calls/{each}")).json()["request"] for each in calls]
    with psycopg.connect(module_database_url) as connection:
        stored = connection.execute(
            "SELECT json_array_length(request -> 'messages') FROM journal"
            " WHERE run_id = %s AND request IS NOT NULL ORDER BY seq",
            (agent.run_id,),
        ).fetchall()

    assert [count for (count,) in stored] == [2, 2, 2, 2, 2, 2, 4, 2]
    whole = [messages[: 2 * at] for at in range(1, 7)]
    whole += [branch, [*messages, {"role": "user", "content": "STORED end"}]]
    for request, expected in zip(shown, whole, strict=True):
        said = [{name: each[name] for name in ("role", "content")} for each in request["messages"]]
        assert said == [{"role": each["role"], "content": each["content"]} for each in expected]
    assert shown[5]["tools"] == []


@pytest.mark.parametrize("how", ["header", "run"])
async def test_replay_can_be_turned_off(
    http: httpx.AsyncClient, provider: FakeProvider, how: str
) -> None:
    """For one request, or for the run."""
    fields: dict[str, Any] = {"replay": False} if how == "run" else {}
    headers = {"x-caseworker-replay": "off"} if how == "header" else {}
    first = await start(http, run_id=f"replay-off-{how}", **fields)
    await texts(first, f"OFF {how}")
    await texts(await next_attempt(http, first, **fields), f"OFF {how}", **headers)

    assert await provider.count(f"OFF {how}") == 2


async def test_a_request_with_the_same_key_joins_the_call_in_flight(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Both get the reply of one call; an equal request without the key is another call."""
    await provider.script("JOINS", [Step(text="one", hang=True), Step(text="two")])
    agent = await start(http)
    key = {"idempotency-key": "k1"}
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(texts(agent, "JOINS", **key)) for _ in range(2)]
        await provider.wait_for_arrivals(1, "JOINS")
        apart = await texts(agent, "JOINS")
        await provider.release()

    assert [each.result() for each in asked] == [["one"], ["one"]]
    assert apart == ["two"]
    assert await provider.count("JOINS") == 2


async def test_a_retry_after_a_lost_connection_gets_the_reply_of_the_first_call(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The call continues when its client disconnects."""
    await provider.script("LOST", [Step(text="first", hang=True)])
    agent = await start(http)
    asked = asyncio.create_task(agent.ask("LOST"))
    await provider.wait_for_arrivals(1, "LOST")
    asked.cancel()
    await asyncio.wait([asked])
    again = asyncio.create_task(texts(agent, "LOST", **{"x-stainless-retry-count": "1"}))
    await texts(agent, "another")
    await provider.release()

    assert await again == ["first"]
    assert await provider.count("LOST") == 1


@pytest.mark.req("cw/15.resume")
async def test_a_killed_owner_loses_no_reply_and_repeats_no_call(
    database_url: str, provider: FakeProvider
) -> None:
    """The attempt that continues makes new calls; the next attempt gets the recorded replies."""
    await provider.script("KILLED", [Step(text=text) for text in ("a", "b", "c", "d")])
    settings = {**model_settings(provider.openai_url), **QUICK_RECOVERY}
    async with ServiceProcess(database_url, settings=settings) as killed:
        async with killed.http() as http:
            agent = await start(http, run_id="killed")
            assert await texts(agent, "KILLED", "KILLED") == ["a", "b"]
        killed.child.kill()
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        service.http() as http,
    ):
        access = {**agent.run["access"], "openai_base_url": f"{service.url}/gateway/openai/v1"}
        agent = Agent(http=http, run={**agent.run, "access": access})
        async with agent.library() as (client, _):
            patient = client.with_options(max_retries=50)
            went_on = await patient.chat.completions.create(**OPENAI.body("KILLED"))
        second = await next_attempt(http, agent)
        replayed = await texts(second, "KILLED", "KILLED", "KILLED", "KILLED")

    assert went_on.choices[0].message.content == "c"
    assert replayed == ["a", "b", "c", "d"]
    assert await provider.count("KILLED") == 4
