"""``POST /gateway/…/reserve`` returns the reservation of a call with the same body."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import count
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.external import start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.pairs import Pair
from tests.support.service import claude_settings
from tests.support.standing import Holder, create_key
from tests.support.stores import eventually
from tests.support.tenants import OPERATOR_KEY

_numbers = count(1)

CHAT, RESPONSES = "/gateway/openai/v1/chat/completions", "/gateway/openai/v1/responses"
EMBEDDINGS, MESSAGES = "/gateway/openai/v1/embeddings", "/gateway/anthropic/v1/messages"
OPERATOR = {"Authorization": f"Bearer {OPERATOR_KEY}"}
PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x04\x00\x00\x00\x04\x00\x08\x02\x00\x00\x00"
).decode()
TOOL = {"name": "add", "description": "Adds numbers.", "parameters": {"type": "object"}}
DAY = {"max_cost_usd": 1, "max_tokens": 100_000, "max_llm_calls": 50, "max_api_calls": 50}
TRIES = 3
"""A process knows the state of accounts for a second after a call. If that second ends between a
reservation and its call, the call is fitted to other amounts."""
TABLES = """
SELECT table_name FROM information_schema.tables
WHERE table_schema = 'public' AND table_type = 'BASE TABLE'
    AND table_name <> 'workers' AND NOT starts_with(table_name, 'procrastinate')
ORDER BY table_name
"""


@dataclass(frozen=True)
class Case:
    """A body, whose text has a marker, and the budgets of the key that sends it."""

    path: str
    fields: Mapping[str, Any]
    day: Mapping[str, Any] | None
    session: Mapping[str, Any] | None = None

    def body(self, marker: str) -> dict[str, Any]:
        """Return the body of a request with this marker."""
        text = f"{marker} Which numbers have both properties? {'and so on ' * 40}"
        model = "claude" if self.path == MESSAGES else "small"
        message = {"role": "user", "content": text}
        content = {"input": text} if self.path in (RESPONSES, EMBEDDINGS) else {}
        messages = {} if content else {"messages": [message, *self.fields.get("more", [])]}
        rest = {name: value for name, value in self.fields.items() if name != "more"}
        return {"model": model, **content, **messages, **rest}


def image(url: str) -> dict[str, Any]:
    """Return a message with an image for chat completions."""
    part = {"type": "image_url", "image_url": {"url": url}}
    return {"role": "user", "content": [part]}


CASES = {
    "chat with a limit": Case(CHAT, {"max_completion_tokens": 500}, DAY),
    "chat without a limit": Case(CHAT, {}, DAY),
    "chat without a limit, little left": Case(CHAT, {}, {"max_cost_usd": 0.04}),
    "chat whose limit is lowered": Case(CHAT, {"max_tokens": 9_000}, {"max_cost_usd": 0.04}),
    "chat by the near bound": Case(CHAT, {"max_tokens": 700}, {"max_tokens": 900}),
    "chat with choices": Case(CHAT, {"max_completion_tokens": 300, "n": 3}, DAY),
    "chat with tools": Case(
        CHAT,
        {"max_tokens": 300, "tools": [{"type": "function", "function": TOOL}]},
        DAY,
    ),
    "chat with an image": Case(
        CHAT, {"max_tokens": 300, "more": [image(f"data:image/png;base64,{PNG}")]}, DAY
    ),
    "chat with an image by URL": Case(
        CHAT, {"max_tokens": 300, "more": [image("https://x.example/a.png")]}, DAY
    ),
    "chat in a limited session": Case(CHAT, {}, DAY, {"max_cost_usd": 0.1}),
    "chat with a limit of calls only": Case(CHAT, {"max_tokens": 300}, {"max_llm_calls": 5}),
    "chat without limits": Case(CHAT, {"max_tokens": 300}, None),
    "a stream": Case(CHAT, {"max_tokens": 300, "stream": True}, DAY),
    "responses": Case(RESPONSES, {"max_output_tokens": 400}, DAY),
    "responses without a limit": Case(RESPONSES, {}, DAY),
    "embeddings": Case(EMBEDDINGS, {}, DAY),
    "messages": Case(MESSAGES, {"max_tokens": 800}, DAY),
    "messages with a cache": Case(
        MESSAGES,
        {
            "max_tokens": 800,
            "system": [
                {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}
            ],
        },
        DAY,
    ),
    "messages with thinking": Case(
        MESSAGES,
        {"max_tokens": 9_000, "thinking": {"type": "enabled", "budget_tokens": 4_000}},
        {"max_cost_usd": 0.09},
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_pair(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[Pair]:
    prices = {"price_per_million_in_usd": 3, "price_per_million_out_usd": 15}
    claude = json.loads(claude_settings(running_provider.url, **prices)["MODELS_NAMED"])
    unpriced = {"provider": "openai", "base_url": running_provider.openai_url, "model": "fake-new"}
    settings = {
        **{f"MODELS_SMALL_{name.upper()}": str(value) for name, value in prices.items()},
        "MODELS_NAMED": json.dumps({**claude, "unpriced": {**unpriced, "api_key": "none"}}),
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
    }
    async with Pair.of(module_database_url, running_provider, settings) as opened:
        yield opened


@pytest.fixture
async def pair(shared_pair: Pair, provider: FakeProvider) -> AsyncIterator[Pair]:
    """Return clients of two processes; the provider has no record yet."""
    async with shared_pair.first.http() as first, shared_pair.second.http() as second:
        yield replace(shared_pair, of_first=first, of_second=second)


async def key(pair: Pair, **fields: Any) -> Holder:
    """Return the holder of a new standing key at the first process."""
    return await create_key(pair.of_first, OPERATOR_KEY, name=f"key {next(_numbers)}", **fields)


async def reserve(holder: Holder, path: str, body: Mapping[str, Any]) -> httpx.Response:
    """Send a body to the path that returns its reservation."""
    return await holder.http.post(f"{path}/reserve", json=body, headers=holder.headers)


async def reserved(holder: Holder, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the reservation that a call with a body would make."""
    reply = await reserve(holder, path, body)
    assert reply.status_code == 200, reply.text
    shown: Mapping[str, Any] = reply.json()
    return shown


@asynccontextmanager
async def held_call(
    holder: Holder, provider: FakeProvider, path: str, body: Mapping[str, Any], marker: str
) -> AsyncIterator[None]:
    """Make a call that the provider holds during the block."""
    await provider.script(marker, [Step(text="short", hang=True)])
    before = await provider.count(marker)
    call = asyncio.create_task(holder.http.post(path, json=body, headers=holder.headers))
    try:
        await provider.wait_for_arrivals(before + 1, containing=marker)
        yield
    finally:
        await provider.release()
        reply = await call
    assert reply.status_code == 200, reply.text


async def holds_of(pair: Pair, holder: Holder) -> list[tuple[Decimal, int]]:
    """Return the cost and the tokens that calls in flight reserve in the account of a key."""
    rows = await pair.oracle.rows(
        "SELECT cost_usd, tokens FROM account_holds WHERE account = %s",
        f"key:{holder.key['key_id']}",
    )
    return [(row["cost_usd"], row["tokens"]) for row in rows]


def numbers_of(shown: Mapping[str, Any]) -> tuple[Any, int]:
    """Return the cost and the tokens of a reservation."""
    return shown["cost_usd"], shown["input_tokens"] + shown["output_tokens"]


@pytest.mark.req("cw/19.key")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_call_reserves_what_was_said_before(
    pair: Pair, provider: FakeProvider, case: Case
) -> None:
    """It holds for the first call of a session, and for calls of its open run at any process."""
    holder = await key(pair, budget=case.session, budget_per_day=case.day)
    for number, asker in enumerate((holder, holder.at(pair.of_second), holder)):
        for _ in range(TRIES if number else 1):
            marker = f"<{next(_numbers)}>"
            body = case.body(marker)
            shown = await reserved(asker, case.path, body)
            async with held_call(holder, provider, case.path, body, marker):
                [(cost_usd, tokens)] = await holds_of(pair, holder)
            assert shown["outcome"] == "admitted", shown
            assert shown["refusal"] is None
            assert (shown["run_id"] is None) is (number == 0)
            await eventually(lambda: pair.oracle.value("SELECT count(*) = 0 FROM account_holds"))
            if numbers_of(shown) == (pytest.approx(float(cost_usd), rel=1e-9), tokens):
                break
        assert numbers_of(shown) == (pytest.approx(float(cost_usd), rel=1e-9), tokens), shown
        assert tokens > 0


async def stored_rows(pair: Pair) -> Mapping[str, str]:
    """Return a digest of each table of the service; heartbeats and jobs of queues apart."""
    digests = {}
    for row in await pair.oracle.rows(TABLES):
        name = row["table_name"]
        query = f"SELECT md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) FROM {name} t"  # noqa: S608
        digests[name] = await pair.oracle.value(query)
    return digests


@pytest.mark.req("cw/19.key")
async def test_two_hundred_reservations_store_nothing(pair: Pair, provider: FakeProvider) -> None:
    """They open no run, start no call and change no row, with a run in between and without one."""
    limits = {"budget": {"max_cost_usd": 0.2}, "budget_per_day": DAY, "idle_seconds": 86_400}
    holder, body = await key(pair, **limits), CASES["chat with a limit"].body("<none>")
    before = await stored_rows(pair)
    for number in range(200):
        asker = holder.named(f"session {number}").at(pair.clients[number % 2])
        assert (await reserved(asker, CHAT, body))["run_id"] is None
    assert await stored_rows(pair) == before
    assert (await holder.http.post(CHAT, json=body, headers=holder.headers)).status_code == 200
    usage = None
    for number in range(200):
        shown = await reserved(holder.at(pair.clients[number % 2]), CHAT, body)
        if number == 0:
            path = f"/runs/{shown['run_id']}"
            rows = await stored_rows(pair)
            usage = (await pair.of_first.get(path, headers=OPERATOR)).json()["usage"]

    assert await stored_rows(pair) == rows
    assert usage is not None
    after = (await pair.of_second.get(path, headers=OPERATOR)).json()["usage"]
    assert after["llm_calls"] == usage["llm_calls"] == 1
    assert after["cost_usd"] == usage["cost_usd"]
    assert await provider.count("<none>") == 1


@pytest.mark.req("cw/19.key")
@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        (CHAT, {"unheard_of": 1}, 400),
        (CHAT, {"model": "unheard-of"}, 404),
        (CHAT, {"model": "claude"}, 400),
        (CHAT, {"model": "unpriced"}, 400),
        (CHAT, {"background": True}, 400),
        (CHAT, {"messages": "Hello"}, 400),
        (CHAT, {"metadata": {"session_id": "x" * 201}}, 400),
        (RESPONSES, {"previous_response_id": "resp_of_another"}, 400),
        (MESSAGES, {"model": "small"}, 400),
        (MESSAGES, {"tools": [{"type": "code_execution_20250825", "name": "c"}]}, 400),
    ],
)
async def test_a_body_that_a_call_may_not_have_gets_the_same_error(
    pair: Pair, provider: FakeProvider, path: str, fields: Mapping[str, Any], status: int
) -> None:
    """The status, the code and the form are those of the call; only its run is not named."""
    holder = await key(pair, budget_per_day={"max_cost_usd": 1})
    body = {**Case(path, {"max_tokens": 300}, None).body("<form>"), **fields}
    if path == RESPONSES:
        del body["max_tokens"]
    drafted = await reserve(holder, path, body)
    called = await holder.http.post(path, json=body, headers=holder.headers)
    shown = await reserve(holder.at(pair.of_second), path, body)

    assert drafted.status_code == called.status_code == status, (drafted.text, called.text)
    assert drafted.headers["x-should-retry"] == called.headers["x-should-retry"] == "false"
    assert (shown.status_code, shown.json()) == (called.status_code, called.json())
    before, _, after = called.text.partition(" (run ")
    assert drafted.text == before + after.partition(")")[2] if after else drafted.text == before
    assert await provider.count("<form>") == 0


@pytest.mark.req("cw/19.key")
async def test_a_reservation_says_whether_the_call_waits_or_is_refused(
    pair: Pair, provider: FakeProvider
) -> None:
    """A call in flight makes it wait. Without a call in flight, it is refused with its reason."""
    holder = await key(pair, budget_per_day={"max_tokens": 1_000})
    case = Case(CHAT, {"max_tokens": 400}, None)
    body, marker = case.body("<held>"), "<held>"
    async with held_call(holder, provider, CHAT, body, marker):
        waiting = await reserved(holder.at(pair.of_second), CHAT, body)
    large = await reserved(holder, CHAT, {**case.body("large " * 900), "max_tokens": 100})

    assert (waiting["outcome"], waiting["refusal"]) == ("waits", None)
    [limit] = [each for each in waiting["limits"] if each["scope"] == "budget of the key, day"]
    assert limit["dimension"] == "tokens"
    assert (limit["limit"], limit["admits"], limit["used"]) == (1_000, False, 0)
    assert limit["used"] + limit["reserved"] + limit["requested"] > limit["limit"]
    assert "token budget" in limit["reason"]
    assert large["outcome"] == "refused"
    called = await holder.http.post(
        CHAT, json={**case.body("large " * 900), "max_tokens": 100}, headers=holder.headers
    )
    assert called.status_code == 400
    error = called.json()["error"]
    refusal = large["refusal"]
    assert (refusal["code"], refusal["message"]) == (error["code"], error["message"])
    assert refusal["resets_at"] == error["resets_at"]
    # The run was halted by that call. The session tells so.
    await eventually(lambda: halted(pair, holder))
    for asker in (holder, holder.at(pair.of_second)):
        ended = await reserved(asker, CHAT, body)
        assert (ended["outcome"], ended["refusal"]) == ("refused", refusal)
        assert ended["run_id"] is None


async def halted(pair: Pair, holder: Holder) -> bool:
    """Return whether the newest run of a key is halted."""
    query = {"agent": holder.key["name"]}
    runs = (await pair.of_first.get("/runs", params=query, headers=OPERATOR)).json()["runs"]
    return bool(runs[0]["status"] == "halted")


@pytest.mark.req("cw/19.key")
async def test_a_key_with_too_many_sessions_is_told_so(pair: Pair, provider: FakeProvider) -> None:
    """The refusal is that of a call."""
    holder = await key(pair, max_sessions_per_hour=1)
    body = CASES["chat without limits"].body("<many>")
    first, second = holder.named("one"), holder.named("two")
    assert (await first.http.post(CHAT, json=body, headers=first.headers)).status_code == 200
    shown = await reserved(second, CHAT, body)
    called = await second.http.post(CHAT, json=body, headers=second.headers)

    error = called.json()["error"]
    assert called.status_code == 400
    assert shown["outcome"] == "refused"
    assert shown["refusal"] == {name: error[name] for name in ("code", "message", "resets_at")}


@pytest.mark.req("cw/19.key")
async def test_the_limits_of_a_run_of_its_parent_and_of_the_quota_are_shown(
    pair: Pair, provider: FakeProvider
) -> None:
    """The keys of runs work as well, at each process."""
    tenant = f"of-quota-{next(_numbers)}"
    quota = {"max_cost_usd_per_day": 2, "max_cost_usd_per_month": 3}
    put = await pair.of_first.put(f"/quotas/{tenant}", json=quota, headers=OPERATOR)
    assert put.is_success, put.text
    made = {"name": "robot", "scopes": ["run"], "tenant": tenant}
    robot = (await pair.of_first.post("/keys", json=made, headers=OPERATOR)).json()["key"]
    async with pair.first.http(robot) as http:
        parent = await start(http, budget={"max_cost_usd": 0.5})
        child = await start(http, parent={"run_id": parent.run_id}, budget={"max_tokens": 9_000})
        body = CASES["chat with a limit"].body("<child>")
        sender = Holder(http=pair.of_second, key=child.run["access"])
        shown = await reserved(sender, CHAT, body)
        async with held_call(sender, provider, CHAT, body, "<child>"):
            usage = (await http.get(f"/runs/{child.run_id}")).json()["usage"]

    assert shown["run_id"] == child.run_id
    assert shown["outcome"] == "admitted"
    scopes = {(each["scope"], each["dimension"]): each for each in shown["limits"]}
    assert scopes["run/child", "tokens"]["limit"] == 9_000
    assert scopes["run", "cost_usd"]["limit"] == 0.5
    assert scopes["quota of the tenant, day", "cost_usd"]["limit"] == 2
    assert scopes["quota of the tenant, month", "cost_usd"]["limit"] == 3
    assert all(each["admits"] and each["reason"] is None for each in shown["limits"])
    assert numbers_of(shown) == (pytest.approx(usage["cost_usd"]), usage["tokens"])


@pytest.mark.req("cw/19.key")
async def test_an_unknown_key_and_an_ended_run_are_refused_as_for_a_call(
    pair: Pair, provider: FakeProvider
) -> None:
    """A reservation needs the key that a call needs."""
    body = CASES["chat with a limit"].body("<ended>")
    unknown = await pair.of_first.post(f"{CHAT}/reserve", json=body)
    agent = await start(pair.of_first, headers=OPERATOR)
    holder = Holder(http=pair.of_second, key=agent.run["access"])
    finish = f"/runs/{agent.run_id}/finish"
    finished = await pair.of_first.post(finish, json={"output": 1}, headers=OPERATOR)
    ended = await reserve(holder, CHAT, body)

    assert (unknown.status_code, unknown.json()["error"]["code"]) == (401, "invalid_api_key")
    assert finished.is_success
    assert (ended.status_code, ended.json()["error"]["code"]) == (400, "finished")


@pytest.mark.req("cw/19.key")
async def test_a_reservation_that_would_wait_leaves_no_place_in_the_queue(
    pair: Pair, provider: FakeProvider
) -> None:
    """The budget of a run is free again after the call in flight, and the next call gets it."""
    agent = await start(pair.of_first, headers=OPERATOR, budget={"max_tokens": 1_000})
    holder = Holder(http=pair.of_second, key=agent.run["access"])
    body = Case(CHAT, {"max_tokens": 400}, None).body("<queue>")
    await provider.script("<queue>", [Step(text="short", tokens_in=1, tokens_out=1, hang=True)])
    call = asyncio.create_task(holder.http.post(CHAT, json=body, headers=holder.headers))
    await provider.wait_for_arrivals(1, containing="<queue>")
    waiting = [await reserved(holder, CHAT, body) for _ in range(3)]
    await provider.release()
    answered = (await call).status_code
    after = await reserved(holder, CHAT, body)
    again = await holder.http.post(CHAT, json=body, headers=holder.headers)

    assert {each["outcome"] for each in waiting} == {"waits"}
    assert all(each["limits"] == waiting[0]["limits"] for each in waiting)
    assert after["outcome"] == "admitted"
    own = [each for each in after["limits"] if each["scope"] == "run"]
    assert {each["reserved"] for each in own} == {0}
    assert (answered, again.status_code) == (200, 200)
