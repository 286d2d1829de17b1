"""A standing key opens external runs, whose calls stay within its budgets on all processes."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from itertools import count
from typing import Any

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio

from bench.budget_race import settings_of
from tests.support.external import ANTHROPIC
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.openapi import RESERVATIONS
from tests.support.pairs import CENT, Pair, counted, has_failed
from tests.support.processes import run_caseworker
from tests.support.service import ServiceProcess, claude_settings
from tests.support.standing import Holder, create_key
from tests.support.stores import eventually
from tests.support.tenants import OPERATOR_KEY

_numbers = count(1)

OPERATOR = {"Authorization": f"Bearer {OPERATOR_KEY}"}


class KeyPair(Pair):
    """Two processes that serve standing keys."""

    async def key(self, **fields: Any) -> Holder:
        """Return the holder of a new standing key."""
        name = f"key {next(_numbers)}"
        return await create_key(self.of_first, OPERATOR_KEY, name=name, **fields)

    async def runs(self, holder: Holder) -> list[Mapping[str, Any]]:
        """Return the runs of a key, oldest first."""
        query = {"agent": holder.key["name"]}
        listed = await self.of_second.get("/runs", params=query, headers=OPERATOR)
        return list(reversed(listed.raise_for_status().json()["runs"]))

    async def get(self, path: str) -> Any:
        """Return a document, as the operator sees it."""
        answer = await self.of_second.get(path, headers={**OPERATOR, "Accept": "application/json"})
        return answer.raise_for_status().json()

    async def ended(self, run_id: str) -> Mapping[str, Any]:
        """Return a run once it has ended; the end of its event stream is the signal."""
        headers = {**OPERATOR, "Accept": "text/event-stream"}
        path = f"/runs/{run_id}"
        async with self.of_second.stream("GET", f"{path}/events", headers=headers) as events:
            async for _ in events.aiter_lines():
                pass
        run: Mapping[str, Any] = await self.get(path)
        assert run["finished_at"] is not None, run
        return run


def settings_of_keys(provider: FakeProvider) -> dict[str, str]:
    """Return the settings of a model for the Anthropic API, and of the operator's key."""
    prices = {"price_per_million_in_usd": 0, "price_per_million_out_usd": 100}
    return {**claude_settings(provider.url, **prices), "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_pair(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[KeyPair]:
    async with KeyPair.of(
        module_database_url, running_provider, settings_of_keys(running_provider)
    ) as opened:
        yield opened


@pytest.fixture
async def pair(shared_pair: KeyPair, provider: FakeProvider) -> AsyncIterator[KeyPair]:
    """Return clients of two processes; the provider has no record yet."""
    async with shared_pair.first.http() as first, shared_pair.second.http() as second:
        yield replace(shared_pair, of_first=first, of_second=second)


def error_of(reply: httpx.Response) -> Mapping[str, Any]:
    """Return the error of a refusal that no client repeats."""
    assert reply.status_code == 400, reply.text
    assert reply.headers["x-should-retry"] == "false"
    error: Mapping[str, Any] = reply.json()["error"]
    return error


async def asked(holders: list[Holder], marker: str, **fields: Any) -> list[int]:
    """Send a request of each holder at the same time; return the statuses."""
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(each.ask_until_owned(marker, **fields)) for each in holders]
    replies = [each.result() for each in calls]
    assert {each.status_code for each in replies} <= {200, 400}, {each.text for each in replies}
    return [each.status_code for each in replies]


@pytest.mark.req("cw/19.key")
async def test_parallel_calls_of_one_session_open_one_run_and_stay_within_the_day(
    pair: KeyPair, provider: FakeProvider
) -> None:
    """40 calls at two processes race for ten calls; both processes find the same run."""
    step = Step(text="short", delay_seconds=0.1, tokens_in=1, tokens_out=100)
    await provider.script("ONE", [step], repeat_last=True)
    holder = await pair.key(budget_per_day={"max_llm_calls": 10})

    statuses = await asked([holder.at(pair.clients[n % 2]) for n in range(40)], "ONE")
    refused = error_of(await holder.ask("ONE"))

    assert statuses.count(200) == await provider.count("ONE") == 10
    assert "LLM call limit exceeded: 10 used, limit 10" in refused["message"]
    assert "budget of the key, day" in refused["message"]
    assert refused["resets_at"].endswith("T00:00:00Z")
    (run,) = await pair.runs(holder)
    assert (run["kind"], run["status"]) == ("external", "halted")


SESSIONS, PARALLEL = 10, 64


@pytest.mark.req("cw/19.key")
@pytest.mark.parametrize("races", [1, pytest.param(30, marks=pytest.mark.proof)])
@pytest.mark.parametrize(
    ("limit", "of_session", "of_day", "tokens"),
    [
        ("max_llm_calls", 5, 30, 45),
        ("max_api_calls", 5, 100, 45),
        ("max_cost_usd", 0.05, 0.30, 100),
        ("max_cost_usd", 0.05, 0.30, 45),
        ("max_cost_usd", 0.05, 1, 45),
    ],
)
async def test_ten_sessions_at_two_processes_use_exactly_their_budgets(
    pair: KeyPair,
    provider: FakeProvider,
    limit: str,
    of_session: float,
    of_day: float,
    tokens: int,
    races: int,
) -> None:
    """64 calls of each session race for the budgets of the sessions and of the key."""
    step = Step(text="short", tokens_in=1, tokens_out=tokens)
    for race in range(races):
        holder = await pair.key(budget={limit: of_session}, budget_per_day={limit: of_day})
        markers = [f"S{race}-{number}-{limit}-{of_day}-{tokens}." for number in range(SESSIONS)]
        for marker in markers:
            await provider.script(marker, [step], repeat_last=True)
        async with asyncio.TaskGroup() as group:
            for number, marker in enumerate(markers):
                session = holder.named(f"session {number}")
                holders = [session.at(pair.clients[n % 2]) for n in range(PARALLEL)]
                group.create_task(asked(holders, marker, max_completion_tokens=100))

        counts = [await counted(provider, marker) for marker in markers]
        is_cost = limit == "max_cost_usd"
        used = [cost if is_cost else Decimal(calls) for calls, cost in counts]
        most = min(Decimal(str(of_day)), SESSIONS * Decimal(str(of_session)))
        slack = (CENT if is_cost else 0) * (SESSIONS if of_day == 1 else 1)
        assert max(used) <= Decimal(str(of_session)), counts
        assert most - slack <= sum(used) <= most, counts
        await eventually(lambda: pair.oracle.value("SELECT count(*) = 0 FROM account_holds"))
        await provider.reset()


@pytest.mark.req("cw/19.key")
async def test_the_first_header_or_the_metadata_names_the_session(
    pair: KeyPair, provider: FakeProvider
) -> None:
    """The names are those that real clients send; without one, a call is of the unnamed session."""
    holder = await pair.key()
    claude = replace(holder, api=ANTHROPIC)
    user_id = {"user_id": '{"device_id":"d","account_uuid":"","session_id":"of a user"}'}
    older_id = {"user_id": "user_ab_account__session_0f"}
    for sender, headers, fields in (
        (holder, {"x-caseworker-run": "ours", "session-id": "other"}, {}),
        (claude, {"X-Claude-Code-Session-Id": "of claude"}, {}),
        (holder, {"session-id": "of codex"}, {}),
        (holder, {}, {"metadata": {"session_id": "of metadata"}, "stop": ["\0"]}),
        (claude, {}, {"metadata": user_id}),
        (claude, {}, {"metadata": older_id}),
        (holder, {}, {}),
        (holder, {"session-id": "of codex"}, {}),
    ):
        reply = await sender.ask("NAMED", headers={**headers, "user-agent": "mine/1"}, **fields)
        assert reply.status_code == 200, reply.text

    runs = [await pair.get(f"/runs/{run['run_id']}") for run in await pair.runs(holder)]
    key_id = holder.key["key_id"]
    names = ["ours", "of claude", "of codex", "of metadata", "of a user", "0f", None]
    expected = [{"key_id": key_id, "conversation": name, "user_agent": "mine/1"} for name in names]
    assert [run["client"] for run in runs] == expected
    assert [run["usage"]["llm_calls"] for run in runs] == [1, 1, 2, 1, 1, 1, 1]


@pytest.mark.req("cw/19.key")
@pytest.mark.parametrize("name", ["x" * 201, "a\u00a0b"])
async def test_a_long_or_unprintable_name_is_refused(
    pair: KeyPair, provider: FakeProvider, name: str
) -> None:
    """The message states the rule for names; no run is opened."""
    holder = await pair.key()

    error = error_of(await holder.ask(metadata={"session_id": name}))

    assert "at most 200 printable characters" in error["message"]
    assert await pair.runs(holder) == []
    assert (await holder.named("y" * 200).ask()).status_code == 200


@pytest.mark.req("cw/19.sessions")
async def test_a_session_continues_after_its_idle_time_with_the_rest_of_its_budget(
    pair: KeyPair, provider: FakeProvider
) -> None:
    """Refused calls do not renew the idle time; the run completes, and the next call opens one."""
    holder = (await pair.key(budget={"max_llm_calls": 3}, idle_seconds=10)).named("long")
    assert [(await holder.ask()).status_code for _ in range(2)] == [200, 200]
    (first,) = await pair.runs(holder)
    ending = asyncio.create_task(pair.ended(first["run_id"]))
    while not ending.done():
        refused = await holder.at(pair.of_second).ask(background=True)
        assert refused.status_code == 400
        await asyncio.wait((ending,), timeout=1)
    ended = ending.result()
    # The last refused call may have opened the next run.
    statuses = [(await holder.ask()).status_code for _ in range(2)]

    assert (ended["status"], ended["stop"]) == ("completed", None)
    assert statuses == [200, 400]
    runs = [await pair.get(f"/runs/{run['run_id']}") for run in await pair.runs(holder)]
    assert [run["status"] for run in runs] == ["completed", "halted"]
    assert [run["usage"]["llm_calls"] for run in runs] == [2, 1]
    assert runs[1]["stop"]["scope"] == "budget of the session"


@pytest.mark.req("cw/19.sessions")
async def test_a_halted_session_is_refused_with_its_reason_while_others_continue(
    pair: KeyPair, provider: FakeProvider
) -> None:
    """No further run is opened for it. The unnamed session learns when its budget is renewed."""
    holder = await pair.key(budget={"max_llm_calls": 1})
    messages = {}
    for name in ("one", None):
        session = holder.named(name)
        assert [(await session.ask()).status_code for _ in range(2)] == [200, 400]
        run = (await pair.runs(holder))[-1]
        await pair.ended(run["run_id"])
        refused = [error_of(await session.at(http).ask()) for http in pair.clients]
        assert refused[0] == refused[1]
        messages[name] = refused[0]

    assert messages["one"]["message"] == (
        "The run was halted: LLM call limit exceeded: 1 used, limit 1 (scope budget of the session)"
    )
    assert "resets_at" not in messages["one"]
    assert "budget of the session, day" in messages[None]["message"]
    assert messages[None]["resets_at"].endswith("T00:00:00Z")
    assert (await holder.named("other").ask()).status_code == 200
    assert len(await pair.runs(holder)) == 3


async def used_by_another_tenant(pair: KeyPair, until: asyncio.Task[Any]) -> int:
    """Return how many sessions a key of another tenant opens, alternating the processes.

    It opens at least one, and continues until a task has ended.
    """
    rates = {"max_sessions_per_hour": 1_000_000, "max_open_sessions": 10_000}
    holder, opened = await pair.key(tenant=f"other-{next(_numbers)}", **rates), 0
    while not opened or not until.done():
        session = holder.at(pair.clients[opened % 2]).named(f"other {opened}")
        reply = await session.ask("OTHER")
        assert reply.status_code == 200, reply.text
        opened += 1
        await asyncio.wait((until,), timeout=1)
    return opened


@pytest.mark.req("cw/19.sessions")
@pytest.mark.parametrize("headers", [200, pytest.param(10_000, marks=pytest.mark.proof)])
async def test_random_session_names_stay_within_the_day_and_the_rates(
    pair: KeyPair, provider: FakeProvider, headers: int
) -> None:
    """A key opens as many sessions as it may, while another tenant opens runs."""
    await provider.script("RANDOM", [Step(tokens_in=1, tokens_out=100)], repeat_last=True)
    holder = await pair.key(budget_per_day={"max_llm_calls": 5}, max_sessions_per_hour=20)
    names, statuses = iter(range(headers)), list[int]()

    async def attack(http: httpx.AsyncClient) -> None:
        for name in names:
            reply = await holder.at(http).named(f"random {name}").ask_until_owned("RANDOM")
            assert reply.status_code in (200, 400), (reply.status_code, reply.text)
            statuses.append(reply.status_code)

    async def attack_both() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(attack(pair.clients[number % 2]))

    attacking = asyncio.create_task(attack_both())
    opened = await used_by_another_tenant(pair, attacking)
    await attacking
    refused = [error_of(await holder.named("last").ask()) for _ in range(2)]

    assert len(statuses) == headers
    assert statuses.count(200) == await provider.count("RANDOM") == 5
    assert await provider.count("OTHER") == opened
    assert len(await pair.runs(holder)) <= 20
    assert refused[0]["resets_at"]


@pytest.mark.req("cw/19.sessions")
async def test_new_and_open_sessions_of_a_key_are_limited(
    pair: KeyPair, provider: FakeProvider
) -> None:
    """The refusal has the reason, and the time at which the limit is lifted."""
    hourly = await pair.key(max_sessions_per_hour=2)
    opened = await pair.key(max_open_sessions=2)
    for holder in (hourly, opened):
        for name in ("one", "two", "one"):
            assert (await holder.named(name).ask()).status_code == 200

    by_hour = error_of(await hourly.named("three").ask())
    by_number = error_of(await opened.named("three").ask())

    assert by_hour["message"].startswith("The key may open 2 new sessions in an hour. Retry at ")
    assert by_hour["code"] == by_number["code"] == "too_many_sessions"
    assert by_hour["resets_at"] in by_hour["message"]
    assert by_number["message"] == (
        "The key may have 2 open sessions. A session ends after 600 seconds without a call."
    )
    run = (await pair.runs(opened))[0]
    body = {"output": "done"}
    await pair.of_first.post(f"/runs/{run['run_id']}/finish", json=body, headers=OPERATOR)
    assert (await opened.named("three").ask()).status_code == 200


@pytest.mark.req("cw/19.key")
async def test_a_revoked_key_ends_its_runs(pair: KeyPair, provider: FakeProvider) -> None:
    """The call in flight is closed at the provider, and both processes refuse the key."""
    await provider.script("HELD", [Step(hang=True)])
    holder = await pair.key()
    async with asyncio.TaskGroup() as group:
        held = group.create_task(holder.ask("HELD"))
        await provider.wait_for_arrivals(1, "HELD")
        path = f"/keys/{holder.key['key_id']}"
        revoked = await pair.of_second.delete(path, headers=OPERATOR)
    (run,) = await pair.runs(holder)
    ended = await pair.ended(run["run_id"])
    refused = [await holder.at(http).ask() for http in pair.clients]

    assert revoked.json()["revoked_at"] is not None
    assert held.result().status_code == 400
    assert "The key was revoked." in held.result().text
    assert ended["status"] == "cancelled"
    assert [each.status_code for each in refused] == [401, 401]
    assert await provider.count("HELD") == 1


@pytest.mark.req("cw/19.key")
@pytest.mark.parametrize(
    ("way", "ended"),
    [
        ("route", "its maker"),
        ("command", "the key"),
        ("command", "its maker"),
        ("command", "all keys"),
    ],
)
async def test_each_end_of_a_key_cancels_its_open_runs(
    pair: KeyPair, provider: FakeProvider, module_database_url: str, way: str, ended: str
) -> None:
    """The call in flight is closed at the provider; runs of other keys continue."""
    await provider.script("HELD", [Step(hang=True)])
    tenant = f"ended-{next(_numbers)}"
    body = {"name": "maker", "scopes": ["admin"], "tenant": tenant}
    maker = (await pair.of_first.post("/keys", json=body, headers=OPERATOR)).json()
    name = f"made {next(_numbers)}"
    holder = await create_key(pair.of_first, maker["key"], name=name)
    kept = await pair.key()
    assert (await kept.ask()).status_code == 200
    key_id = maker["key_id"] if ended == "its maker" else holder.key["key_id"]
    async with asyncio.TaskGroup() as group:
        held = group.create_task(holder.ask("HELD"))
        await provider.wait_for_arrivals(1, "HELD")
        if way == "route":
            (await pair.of_second.delete(f"/keys/{key_id}", headers=OPERATOR)).raise_for_status()
        else:
            all_keys = ("revoke-all", "--before", "now", "--tenant", tenant)
            command = all_keys if ended == "all keys" else ("revoke", key_id)
            env = {"DATABASE_URL": module_database_url}
            done = await asyncio.to_thread(run_caseworker, "keys", *command, env=env)
            assert "Cancelled 1 run" in done.stdout, done.stderr
    run_id = await pair.oracle.value("SELECT run_id FROM runs WHERE tenant_id = %s", tenant)
    await eventually(
        lambda: pair.oracle.value(
            "SELECT status = 'cancelled' FROM runs WHERE tenant_id = %s AND run_id = %s",
            tenant,
            run_id,
        )
    )

    assert held.result().status_code == 400
    assert "The key was revoked." in held.result().text
    assert (await holder.ask()).status_code == 401
    assert [run["status"] for run in await pair.runs(kept)] == ["running"]


@pytest.mark.req("cw/19.key")
async def test_a_key_ends_with_the_key_that_has_made_it(
    pair: KeyPair, provider: FakeProvider
) -> None:
    """A rotation of the maker keeps it; a revocation of the new maker ends it."""
    body = {"name": "maker", "scopes": ["admin"]}
    maker = (await pair.of_first.post("/keys", json=body, headers=OPERATOR)).json()
    holder = await create_key(pair.of_first, maker["key"])
    rotated = await pair.of_first.post(
        f"/keys/{maker['key_id']}/rotate", json={"overlap_seconds": 0}, headers=OPERATOR
    )
    after_rotation = await holder.ask()
    await pair.of_first.delete(f"/keys/{rotated.json()['key_id']}", headers=OPERATOR)

    assert holder.key["made_by"] == maker["key_id"]
    assert after_rotation.status_code == 200
    assert (await holder.ask()).status_code == 401


@pytest.mark.req("cw/19.key")
async def test_a_rotated_key_keeps_its_budgets_and_its_runs(
    pair: KeyPair, provider: FakeProvider
) -> None:
    """Both keys count together, and the end of the old one stops nothing."""
    holder = await pair.key(budget_per_day={"max_llm_calls": 3})
    assert (await holder.ask()).status_code == 200
    path = f"/keys/{holder.key['key_id']}"
    rotated = await pair.of_first.post(f"{path}/rotate", headers=OPERATOR)
    new = replace(holder, key=rotated.json())
    assert [(await each.ask()).status_code for each in (new, holder)] == [200, 200]
    await pair.of_first.delete(path, headers=OPERATOR)

    (run,) = await pair.runs(holder)
    refused = error_of(await new.ask())

    assert run["status"] == "running"
    assert "3 used, limit 3" in refused["message"]
    assert (await holder.ask()).status_code == 401


@pytest.mark.req("cw/19.key")
async def test_a_standing_key_only_reads_the_runs_of_its_sessions(
    pair: KeyPair, provider: FakeProvider
) -> None:
    """Every other route refuses it; a run of another key looks like one that does not exist."""
    holder, other = await pair.key(), await pair.key()
    assert [(await each.ask()).status_code for each in (holder, other)] == [200, 200]
    (own,), (foreign,) = [await pair.runs(each) for each in (holder, other)]
    paths = (await pair.get("/openapi.json"))["paths"]
    allowed, refused = set[tuple[str, str, bool]](), set[tuple[str, str, bool]]()
    for path, operations in paths.items():
        for method in operations.keys() & {"get", "post", "put", "patch", "delete"}:
            if not operations[method].get("security"):
                continue
            for run in (own, foreign):
                url = path.replace("{run_id}", run["run_id"]).replace("{", "").replace("}", "")
                answer = await holder.http.request(
                    method, url, headers={**holder.headers, "Accept": "application/json"}
                )
                is_own = run is own or "{run_id}" not in path
                (refused if answer.status_code in (401, 403) else allowed).add(
                    (method, path, is_own)
                )

    of_gateway = {("post", each.removeprefix("POST "), True) for each in RESERVATIONS}
    assert allowed == {
        ("get", "/runs/{run_id}", True),
        ("get", "/runs/{run_id}/trace", True),
        ("get", "/gateway/usage", True),
        *of_gateway,
    }
    assert len(refused) > 60
    answers = [
        (await holder.http.get(f"/runs/{run_id}", headers=holder.headers)).json()
        for run_id in (foreign["run_id"], "does-not-exist")
    ]
    varying = {"instance": None, "request_id": None}
    assert answers[0] | varying == answers[1] | varying


@pytest.mark.req("cw/19.key")
async def test_unmodified_clients_need_only_the_base_url_and_the_key(
    pair: KeyPair, provider: FakeProvider
) -> None:
    """Both libraries stream and complete; all their calls are of the unnamed session."""
    await provider.script("CLIENT", [Step(text="It works.")], repeat_last=True)
    holder = await pair.key(budget_per_day={"max_cost_usd": 1})
    url, key = pair.first.url, holder.key["key"]
    messages: Any = [{"role": "user", "content": "CLIENT"}]
    async with openai.AsyncOpenAI(base_url=f"{url}/gateway/openai/v1", api_key=key) as of_openai:
        whole = await of_openai.chat.completions.create(model="small", messages=messages)
        response = await of_openai.responses.create(model="small", input="CLIENT")
        listed = [model.id async for model in of_openai.models.list()]
    async with (
        anthropic.AsyncAnthropic(base_url=f"{url}/gateway/anthropic", api_key=key) as of_anthropic,
        of_anthropic.messages.stream(model="claude", max_tokens=100, messages=messages) as stream,
    ):
        text = await stream.get_final_text()

    assert whole.choices[0].message.content == response.output_text == text == "It works."
    assert "small" in listed
    (run,) = await pair.runs(holder)
    assert run["status"] == "running"


@pytest.mark.req("cw/19.key")
async def test_the_spend_of_a_key_is_the_sum_of_its_sessions(
    pair: KeyPair, provider: FakeProvider
) -> None:
    """The cost equals the count of the provider."""
    await provider.script("SPEND", [Step(tokens_in=1, tokens_out=50)], repeat_last=True)
    holder = await pair.key()
    for name in ("one", "two", "one"):
        await holder.named(name).ask("SPEND")

    items = (await pair.get("/spend?group_by=key"))["items"]

    (own,) = [each for each in items if each["key"] == holder.key["key_id"]]
    assert (own["runs"], own["llm_calls"]) == (2, 3)
    assert own["cost_usd"] == pytest.approx(float((await counted(provider, "SPEND"))[1]))


@pytest.mark.req("cw/19.key")
async def test_a_session_survives_the_death_of_its_owner_in_mid_stream(
    database_url: str, provider: FakeProvider
) -> None:
    """The next owner makes no recorded call again, and the lost call is charged once, at most."""
    lost = Step(text="in parts " * 20, after_events=3, then="hold")
    await provider.script("LOST", [lost, Step(tokens_in=1, tokens_out=20)])
    await provider.script("KEPT", [Step(tokens_in=1, tokens_out=100)], repeat_last=True)
    async with KeyPair.of(database_url, provider, settings_of_keys(provider)) as pair:
        holder = await pair.key(budget={"max_cost_usd": 0.05}, budget_per_day={"max_llm_calls": 10})
        assert (await holder.ask("KEPT")).status_code == 200
        stream = asyncio.create_task(
            has_failed(holder.ask("LOST", stream=True, max_completion_tokens=100))
        )
        await provider.wait_for_arrivals(1, "LOST")
        pair.first.child.kill()
        assert await stream
        there = holder.at(pair.of_second)
        answer = await there.ask_until_owned("LOST", max_completion_tokens=100)
        run_id = (await pair.runs(holder))[-1]["run_id"]
        run = await pair.get(f"/runs/{run_id}")
        accounts = await pair.oracle.rows(
            "SELECT account, used_cost_usd, reserved_cost_usd, used_llm_calls, used_api_calls "
            "FROM accounts WHERE account LIKE 'key:%%' OR account LIKE 'session:%%'"
        )

        assert answer.status_code == 200, answer.text
        assert run["usage"]["cost_usd"] == pytest.approx(0.01 + 0.01 + 0.002)
        for row in accounts:
            assert row["used_cost_usd"] == Decimal("0.022"), accounts
            assert (row["reserved_cost_usd"], row["used_api_calls"]) == (0, 3), accounts
        assert [await provider.count(marker) for marker in ("KEPT", "LOST")] == [1, 2]
        assert len(await pair.runs(holder)) == 1


@pytest.mark.req("cw/19.key")
async def test_a_key_from_the_command_line_works_in_a_service_without_keys(
    database_url: str, provider: FakeProvider
) -> None:
    """The command prints two lines to export. The service stays open to other requests.

    Clients may call any name of a model.
    """
    async with ServiceProcess(database_url, settings=settings_of(provider)) as service:
        options = ("--budget-usd", "0.05", "--budget-usd-per-day", "1", "--model", "*=small")
        command = ("keys", "create", "--agent", *options)
        done = await asyncio.to_thread(
            run_caseworker,
            *command,
            env={"DATABASE_URL": database_url, "CASEWORKER_URL": service.url},
        )
        lines = done.stdout.splitlines()
        variables = dict(word.split("=", 1) for word in shlex.split(lines[0])[1:])
        async with (
            service.http() as http,
            openai.AsyncOpenAI(
                base_url=variables["OPENAI_BASE_URL"], api_key=variables["OPENAI_API_KEY"]
            ) as client,
        ):
            messages: Any = [{"role": "user", "content": "Hello"}]
            reply = await client.chat.completions.create(model="gpt-5", messages=messages)
            runs = await http.get("/runs")
            whoami = await http.get("/whoami")

    assert [line.split("=")[0] for line in lines] == [
        "export OPENAI_BASE_URL",
        "export ANTHROPIC_BASE_URL",
    ]
    assert reply.choices[0].message.content
    assert [run["status"] for run in runs.raise_for_status().json()["runs"]] == ["running"]
    assert whoami.json()["anonymous"] is True


@pytest.mark.req("cw/19.key")
async def test_a_list_of_models_opens_no_run(pair: KeyPair, provider: FakeProvider) -> None:
    """It has the models of the key that the quota of its tenant allows."""
    tenant = f"models-{next(_numbers)}"
    holder = await pair.key(tenant=tenant, models={"mine": "small", "other": "claude"})
    path = "/gateway/openai/v1/models"
    listed = [
        await holder.http.get(each, headers=holder.headers)
        for each in (path, f"{path}/mine", f"{path}/small")
    ]
    quota = {"models": ["claude"]}
    (await pair.of_first.put(f"/quotas/{tenant}", json=quota, headers=OPERATOR)).raise_for_status()
    after = await holder.http.get(path, headers=holder.headers)
    runs = await pair.oracle.value("SELECT count(*) FROM runs WHERE tenant_id = %s", tenant)
    refused = await holder.ask(model="mine")

    assert [each["id"] for each in listed[0].json()["data"]] == ["mine"]
    assert [each.status_code for each in listed] == [200, 200, 404]
    assert after.json()["data"] == []
    assert runs == 0
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.req("cw/19.sessions")
async def test_a_ceiling_of_one_run_is_named_and_the_next_call_opens_another(
    database_url: str, provider: FakeProvider
) -> None:
    """The budget of the key is larger; the refusal states that the next call opens another run."""
    settings = {**settings_of_keys(provider), "ADMISSION_MAX_LLM_CALLS": "2"}
    async with KeyPair.of(database_url, provider, settings) as pair:
        holder = await pair.key(budget={"max_llm_calls": 9})
        replies = [await holder.ask() for _ in range(3)]
        await pair.ended((await pair.runs(holder))[0]["run_id"])
        later = await holder.at(pair.of_second).ask_until_owned("again")
        runs = await pair.runs(holder)

    assert [each.status_code for each in replies] == [200, 200, 400]
    message = error_of(replies[2])["message"]
    assert "LLM call limit exceeded: 2 used, limit 2" in message
    assert "a ceiling of the service for one run (admission.max_*)" in message
    assert "The next call of the session opens another run." in message
    assert later.status_code == 200
    assert [run["status"] for run in runs] == ["halted", "running"]


@pytest.mark.req("cw/19.key")
async def test_the_use_of_a_key_is_shown_by_session(pair: KeyPair, provider: FakeProvider) -> None:
    """Calls in flight are reserved, and refused calls are counted without a run of their own.

    A name that never had a run leaves no session; its refusals count for the key.
    """
    await provider.script("USED", [Step(tokens_in=1, tokens_out=50)], repeat_last=True)
    await provider.script("HELD", [Step(hang=True)])
    fields: dict[str, Any] = {"max_completion_tokens": 100}
    holder = await pair.key(budget={"max_llm_calls": 2}, max_sessions_per_hour=3)
    path = f"/keys/{holder.key['key_id']}"
    agent = {"user-agent": "mine/1"}
    for name in ("one", "two"):
        reply = await holder.named(name).ask("USED", headers=agent, **fields)
        assert reply.status_code == 200, reply.text
    assert (await holder.ask("USED", **fields)).status_code == 200
    async with asyncio.TaskGroup() as group:
        group.create_task(holder.named("two").ask("HELD", **fields))
        await provider.wait_for_arrivals(1, "HELD")
        in_flight = await pair.get(f"{path}/sessions")
        await provider.release()
    for http, name, times in (
        (pair.of_first, "one", 1),
        (pair.of_second, "two", 3),
        (pair.of_first, "never opened", 2),
    ):
        for _ in range(times):
            refused = await holder.named(name).at(http).ask("USED", model="none", **fields)
            assert refused.status_code in (400, 404), refused.text

    async def all_are_counted() -> bool:
        return bool((await pair.get(path))["day"]["refused"] == 6)

    await eventually(all_are_counted)
    key = await pair.get(path)
    first = await pair.get(f"{path}/sessions?limit=2")
    second = await pair.get(f"{path}/sessions?limit=2&cursor={first['next_cursor']}")
    sessions = [*first["sessions"], *second["sessions"]]

    (held,) = [each for each in in_flight["sessions"] if each["name"] == "two"]
    assert (held["used"]["llm_calls"], held["reserved"]["llm_calls"]) == (1, 1)
    assert held["reserved"]["cost_usd"] == pytest.approx(0.01)
    assert [each["name"] for each in sessions] == [None, "two", "one"]
    assert second["next_cursor"] is None
    assert [each["used"]["llm_calls"] for each in sessions] == [1, 2, 1]
    assert [each["reserved"]["llm_calls"] for each in sessions] == [0, 0, 0]
    assert [each["refused"] for each in sessions] == [0, 3, 1]
    assert [each["user_agent"] for each in sessions[1:]] == ["mine/1", "mine/1"]
    called = [datetime.fromisoformat(each["last_call_at"]) for each in sessions]
    opened = [datetime.fromisoformat(each["opened_at"]) for each in sessions]
    assert all(later > earlier for later, earlier in zip(called, opened, strict=True))
    assert [each["status"] for each in sessions] == ["running"] * 3
    assert (key["day"]["used"], key["day"]["refused"]) == (key["month"]["used"], 6)
    assert key["day"]["used"]["llm_calls"] == 4
    assert key["day"]["used"]["cost_usd"] == pytest.approx(
        sum(each["used"]["cost_usd"] for each in sessions)
    )
    assert "key" not in key
