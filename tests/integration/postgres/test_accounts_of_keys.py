"""The calls of a standing key's sessions reserve in the accounts of the key and of the session."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from caseworker.core.budget.accounts import Hold, HoldAnswer
from caseworker.features.external.key_sessions import (
    UNNAMED,
    SessionRefusedError,
    hash_of_session,
)
from caseworker.features.external.postgres import PostgresStandingKeys
from caseworker.runs.ports import LateResult
from tests.integration.postgres.key_accounts import begun, hold, standing_key, write
from tests.support.stores import Oracle, Stores, end_of, open_stores

pytestmark = pytest.mark.req("cw/19.key")


async def used(oracle: Oracle, column: str) -> Mapping[str, Any]:
    """Return a column of the accounts by the first part of their names."""
    rows = await oracle.rows(
        f"SELECT split_part(account, ':', 1) AS name, sum({column}) AS amount "  # noqa: S608
        "FROM accounts GROUP BY account"
    )
    return {row["name"]: row["amount"] for row in rows}


async def one_day_later(oracle: Oracle) -> None:
    """Move all amounts to the day before; two statements, because days are unique."""
    for table in ("accounts", "account_holds"):
        for days in (1000, -999):
            await oracle.rows(f"UPDATE {table} SET period = period - {days}")  # noqa: S608


@pytest.mark.parametrize(
    ("limit", "most", "request_"),
    [
        ("max_llm_calls", 3, hold(2)),
        ("max_api_calls", 3, hold(2)),
        ("max_tokens", 30, hold(2, tokens=10)),
        ("max_cost_usd", 0.3, hold(2, "0.10")),
    ],
)
@pytest.mark.parametrize("budget", ["budget", "budget_per_day", "budget_per_month"])
async def test_every_budget_of_a_key_holds_for_parallel_calls_of_two_processes(
    pair: tuple[Stores, Stores], budget: str, limit: str, most: float, request_: Hold
) -> None:
    """Of twenty calls, three are granted; a refusal has the scope and the end of the period."""
    key = await standing_key(pair[0], **{budget: {limit: most}})
    runs = [await begun(pair[n % 2], key, "s", f"r{n}") for n in range(20)]

    async with asyncio.TaskGroup() as group:
        writes = [
            group.create_task(write(pair[n % 2], run, request_)) for n, run in enumerate(runs)
        ]
    answers: list[HoldAnswer] = [each.result()[0] for each in writes]

    assert [each.granted for each in answers].count(True) == 3
    (state,) = next(each for each in answers if not each.granted).limits
    scopes = {
        "budget": "budget of the session",
        "budget_per_day": "budget of the key, day",
        "budget_per_month": "budget of the key, month",
    }
    assert (state.scope, state.dimension) == (scopes[budget], limit.removeprefix("max_"))
    assert (state.resets_at is None) == (budget == "budget")


async def test_sessions_have_budgets_of_their_own(stores: Stores) -> None:
    """The budget of a named session is never renewed; the unnamed session has one for each day."""
    key = await standing_key(stores, budget={"max_llm_calls": 1})
    one, two, unnamed = [
        await begun(stores, key, session, f"run {session}") for session in ("1", "2", UNNAMED)
    ]

    for run in (one, two, unnamed):
        first, second = await write(stores, run, hold(2), hold(3))
        assert (first.granted, second.granted) == (True, False)
        (state,) = second.limits
        assert (state.period == "day") == (run is unnamed)


async def test_the_budget_of_a_session_is_not_renewed_by_waiting(
    stores: Stores, oracle: Oracle
) -> None:
    """The day of the key is over the next day, the total of its session is not."""
    key = await standing_key(
        stores, budget={"max_llm_calls": 2}, budget_per_day={"max_llm_calls": 1}
    )
    named, unnamed = [await begun(stores, key, session, f"run{session}") for session in ("1", "")]
    assert [each.granted for each in await write(stores, named, hold(2), hold(3))] == [True, False]
    await one_day_later(oracle)

    assert [each.granted for each in await write(stores, named, hold(3), hold(4))] == [True, False]
    await one_day_later(oracle)
    (refused,) = await write(stores, named, hold(4))
    (granted,) = await write(stores, unnamed, hold(2))

    assert (refused.granted, granted.granted) == (False, True)


async def test_a_settled_call_counts_with_its_actual_amounts(
    stores: Stores, oracle: Oracle
) -> None:
    """Calls that are still held at the end of the run count with their maximum."""
    key = await standing_key(stores, budget={"max_cost_usd": 1})
    run = await begun(stores, key, "s", "r")
    await write(stores, run, hold(2, "0.5"), hold(3, "0.4"))
    await write(stores, run, settled=(hold(2, "0.2"),))
    end = end_of(run, usage={"cost_usd": 0.6})
    await stores.journal.finish(end)
    await stores.runs.late(LateResult(key=run.key, fence=1, calls=(), usage={"cost_usd": 0.7}))

    cost = dict.fromkeys(("tenant", "key", "session"), Decimal("0.7"))
    assert await used(oracle, "used_cost_usd") == cost
    assert await used(oracle, "used_llm_calls") == dict.fromkeys(cost, 2)
    assert set((await used(oracle, "reserved_cost_usd")).values()) == {0}
    assert await oracle.rows("SELECT * FROM account_holds") == []


async def test_the_account_of_a_deleted_key_allows_nothing(stores: Stores, oracle: Oracle) -> None:
    """Its runs could otherwise spend without a limit."""
    key = await standing_key(stores)
    run = await begun(stores, key, "s", "r")
    assert (await write(stores, run, hold(2)))[0].granted
    await oracle.rows("DELETE FROM api_keys")

    assert not (await write(stores, run, hold(3)))[0].granted


async def test_processes_that_open_a_session_reserve_the_same_run(database_url: str) -> None:
    """The ID is reserved before the run is stored, also after a crash between both."""
    async with open_stores(database_url) as one, open_stores(database_url) as other:
        key = await standing_key(one)
        keys = [PostgresStandingKeys(each.engines.work) for each in (one, other)]
        async with asyncio.TaskGroup() as group:
            opened = [group.create_task(keys[n % 2].open(key, "s", f"r{n}")) for n in range(20)]
        states = [each.result() for each in opened]
        first = states[0]
        assert first is not None
        assert first.run_id is not None
        assert {each.run_id for each in states if each is not None} == {first.run_id}
        await begun(one, key, "s", first.run_id)
        again = await keys[1].open(key, "s", "another")

    assert again is not None
    assert (again.run_id, again.is_open) == (first.run_id, True)


@pytest.mark.req("cw/19.sessions")
class InterruptedOpening(PostgresStandingKeys):
    """Stores a reserved run while another process opens the session."""

    store: Callable[[], Awaitable[Any]]

    async def _require_capacity(self, *of_session: Any, **options: Any) -> None:
        await self.store()
        await super()._require_capacity(*of_session, **options)


async def test_a_run_that_is_stored_during_an_opening_is_the_run_of_the_session(
    stores: Stores,
) -> None:
    """The session had no stored run when the other process read it."""
    key = await standing_key(stores)
    opening = InterruptedOpening(stores.engines.work)
    opening.store = partial(begun, stores, key, UNNAMED, "first")
    reserved = await PostgresStandingKeys(stores.engines.work).open(key, UNNAMED, "first")

    opened = await opening.open(key, UNNAMED, "second")

    assert reserved is not None
    assert opened is not None
    assert (reserved.run_id, opened.run_id) == ("first", "first")


async def test_a_session_with_a_spent_budget_opens_no_other_run(stores: Stores) -> None:
    """The refusal has the reason, although the budget of a named session is never renewed."""
    key = await standing_key(stores, budget={"max_llm_calls": 1})
    keys, session = PostgresStandingKeys(stores.engines.work), hash_of_session("one")
    run = await begun(stores, key, session, "first")
    [answer] = await write(stores, run, hold(1))
    await write(stores, run, settled=(hold(1),))

    with pytest.raises(SessionRefusedError, match="LLM call limit exceeded") as refused:
        await keys.open(key, session, "second")

    assert answer.granted
    assert refused.value.resets_at is None
    [limit] = await keys.limits(key.tenant, key.accounts(session))
    assert limit.scope == "budget of the session"
    assert limit.used == limit.limit == 1


async def test_new_sessions_count_for_an_hour(stores: Stores, oracle: Oracle) -> None:
    """The refusal has the time at which the oldest of them is an hour old."""
    key = await standing_key(stores, max_sessions_per_hour=2)
    keys = PostgresStandingKeys(stores.engines.work)
    for name in ("1", "2"):
        await keys.open(key, hash_of_session(name), f"run {name}")

    with pytest.raises(SessionRefusedError, match="may open 2 new sessions in an hour") as refused:
        await keys.open(key, hash_of_session("3"), "run 3")
    await oracle.rows("UPDATE key_sessions SET first_at = first_at - interval '1 hour'")
    state = await keys.open(key, hash_of_session("3"), "run 3")

    assert refused.value.resets_at is not None
    hour = timedelta(hours=1)
    assert timedelta(0) < refused.value.resets_at - datetime.now(UTC) < hour
    assert state is not None
    assert state.run_id == "run 3"
