"""Retention deletes the sessions of standing keys once no call can need their budgets."""

from collections.abc import Sequence

import pytest

from caseworker.features.access.postgres import PostgresKeys
from caseworker.features.external.key_sessions import StandingKey, hash_of_session
from caseworker.features.external.postgres import PostgresStandingKeys
from caseworker.platform.caller import OPERATOR, KeyScope
from caseworker.runs.run import RunKey
from tests.integration.postgres.expiring import ExpiringRuns
from tests.integration.postgres.key_accounts import begun, hold, standing_key, write
from tests.support.stores import Oracle, Stores, end_of

pytestmark = pytest.mark.req("cw/19.sessions")

DAYS = 30


async def used_session(stores: Stores, key: StandingKey, name: str | None, run_id: str) -> None:
    """Let a session make one call in a run that has ended."""
    session = hash_of_session(name)
    opened = await PostgresStandingKeys(stores.engines.work).open(key, session, run_id)
    assert opened is not None
    assert opened.run_id == run_id
    run = await begun(stores, key, session, run_id)
    assert (await write(stores, run, hold(2)))[0].granted
    await stores.journal.finish(end_of(run))


async def a_year_later(oracle: Oracle, *, key: bool = False) -> None:
    """Let runs have ended, and sessions have opened, a year earlier; the key as well if ``key``."""
    await oracle.rows("UPDATE runs SET finished_at = finished_at - interval '1 year'")
    await oracle.rows("UPDATE key_sessions SET opened_at = opened_at - interval '1 year'")
    await oracle.rows("UPDATE accounts SET period = '2000-01-01' WHERE account <> 'tenant'")
    if key:
        await oracle.rows("UPDATE api_keys SET revoked_at = revoked_at - interval '1 year'")


async def stored(oracle: Oracle) -> tuple[int, Sequence[str]]:
    """Return the number of sessions, and the kinds of the accounts of keys."""
    rows = await oracle.rows(
        "SELECT split_part(account, ':', 1) || (CASE split_part(account, ':', 3) WHEN '' THEN ''"
        " ELSE ' named' END) AS kind FROM accounts WHERE account <> 'tenant' ORDER BY 1"
    )
    return await oracle.value("SELECT count(*) FROM key_sessions"), [row["kind"] for row in rows]


async def test_the_accounts_of_an_ended_key_are_deleted(
    expiring: ExpiringRuns, stores: Stores, oracle: Oracle
) -> None:
    """They are kept while the key works, for the period after its end, and while a run is stored.

    There are more sessions than one batch has.
    """
    key, other = [await standing_key(stores, budget={"max_llm_calls": 1}) for _ in range(2)]
    await used_session(stores, key, "s", "r")
    await used_session(stores, key, None, "unnamed")
    await used_session(stores, other, "s", "of other")
    await oracle.rows(
        "INSERT INTO key_sessions (tenant_id, account, session, run_id)"
        " SELECT 'default', %s, 'more' || n, 'none' || n FROM generate_series(1, 250) n",
        key.account,
    )
    await oracle.rows(
        "INSERT INTO accounts (tenant_id, account, period)"
        " SELECT 'default', 'session:' || %s || ':' || n, now() FROM generate_series(1, 250) n",
        key.account,
    )
    await a_year_later(oracle)
    await expiring.sweep(runs=DAYS)
    while_it_works = await stored(oracle)
    await PostgresKeys(stores.engines.work).revoke(OPERATOR, key.key_id)
    await expiring.sweep(runs=DAYS)
    after_its_end = await stored(oracle)
    await begun(stores, key, hash_of_session("more1"), "none1")
    await a_year_later(oracle, key=True)
    await expiring.sweep(runs=DAYS)
    with_a_run = await stored(oracle)
    await oracle.rows("DELETE FROM runs")
    await expiring.sweep(runs=DAYS)

    accounts = ["key", "key", "session", *["session named"] * 252]
    assert while_it_works == after_its_end == (250, accounts)
    assert with_a_run == (1, accounts)
    assert await stored(oracle) == (0, ["key", "session named"])


async def test_a_halted_session_of_a_working_key_stays_halted_after_its_run_is_deleted(
    expiring: ExpiringRuns, stores: Stores, oracle: Oracle
) -> None:
    """Waiting does not renew its budget, however short the period is."""
    key = await standing_key(stores, budget={"max_llm_calls": 1})
    await used_session(stores, key, "s", "first")
    await a_year_later(oracle)
    await expiring.sweep(runs=1)
    session = hash_of_session("s")
    assert await stores.runs.get(RunKey("default", "first")) is None

    run = await begun(stores, key, session, "second")
    assert not (await write(stores, run, hold(2)))[0].granted


async def test_the_accounts_of_a_rotated_key_are_kept_while_one_of_the_keys_works(
    expiring: ExpiringRuns, stores: Stores, oracle: Oracle
) -> None:
    """A key ends with the key that has made it, so both count."""
    keys = PostgresKeys(stores.engines.work)
    maker = (await keys.create(OPERATOR, name="m", scopes=frozenset({KeyScope.ADMIN}))).key
    key = await standing_key(stores)
    await used_session(stores, key, "s", "r")
    await oracle.rows("UPDATE api_keys SET made_by = %s WHERE agent IS NOT NULL", maker.key_id)
    await keys.rotate(OPERATOR, key.key_id)
    await keys.revoke(OPERATOR, key.key_id)
    await a_year_later(oracle, key=True)
    await expiring.sweep(runs=DAYS)
    rotated = await stored(oracle)
    await oracle.rows(
        "UPDATE api_keys SET expires_at = now() - interval '1 year' WHERE key_id = %s", maker.key_id
    )
    await expiring.sweep(runs=DAYS)

    assert rotated == (0, ["key", "session named"])
    assert await stored(oracle) == (0, [])


async def test_days_of_a_working_key_are_deleted_after_their_month(
    expiring: ExpiringRuns, stores: Stores, oracle: Oracle
) -> None:
    """Those of this month count for the budget of the month; the newest one is kept."""
    key = await standing_key(stores, budget_per_month={"max_llm_calls": 5})
    await used_session(stores, key, None, "r")
    await oracle.rows(
        "INSERT INTO accounts (tenant_id, account, period)"
        " SELECT tenant_id, account, period - n FROM accounts, generate_series(60, 400) n"
        " WHERE account <> 'tenant'"
    )
    await expiring.sweep(runs=1)
    this_month = await stored(oracle)
    await a_year_later(oracle)
    await expiring.sweep(runs=1)

    assert this_month == (1, ["key", "session"])
    assert await stored(oracle) == (0, ["key", "session"])
