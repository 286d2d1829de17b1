"""Retention deletes expired records and nothing else."""

from dataclasses import replace

import pytest

from caseworker.features.retention import postgres as statements
from caseworker.features.retention.postgres import FOR_EVER, PostgresRetention, set_days
from caseworker.main.features import DROPS
from caseworker.runs.run import RunKey, Webhook
from tests.integration.postgres.expiring import RECORDS, ExpiringRuns
from tests.support.stores import CANCEL_REQUEST, Oracle, Stores, end_of, new_run, open_oracle


async def test_everything_is_kept_for_ever_unless_days_are_named(
    expiring: ExpiringRuns,
) -> None:
    """Age makes no difference."""
    await expiring.add("old-1")
    await expiring.age(10_000, "old-%")
    before = await expiring.counts()
    await expiring.sweep()
    assert await expiring.counts() == before


@pytest.mark.parametrize("record", list(RECORDS))
async def test_what_is_older_than_its_days_goes_and_the_rest_stays(
    expiring: ExpiringRuns, stores: Stores, record: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches delete old runs, while younger and running ones stay complete."""
    monkeypatch.setattr(statements, "RUNS_AT_ONCE", 2)
    for number in range(5):
        await expiring.add(f"old-{number}")
    await expiring.add("young")
    await stores.runs.accept(new_run("at-work"), worker_id="w1")
    await expiring.age(31, "old-%")
    before = await expiring.counts()

    await expiring.sweep(**{record: 30})

    after = await expiring.counts()
    gone = {name for name in before if after[name] < before[name]}
    assert gone == (set(before) if record == "runs" else {record})
    young = await stores.runs.get(RunKey("default", "young"))
    assert young is not None
    assert after[record] == (2 if record == "runs" else before[record] // 6)


SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT count(*) > 3 FROM gone) THEN
        RAISE EXCEPTION 'too slow' USING ERRCODE = 'query_canceled';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER slow AFTER DELETE ON events REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION slow()
"""


@pytest.mark.parametrize("record", ["runs", "events"])
async def test_a_batch_that_takes_too_long_is_taken_in_pieces(
    expiring: ExpiringRuns, oracle: Oracle, record: str
) -> None:
    """Otherwise it would fail in every sweep and block all later work."""
    for number in range(5):
        await expiring.add(f"old-{number}")
    await expiring.age(31, "old-%")
    await oracle.rows(SLOW)

    await expiring.sweep(**{record: 30})

    assert await oracle.value("SELECT count(*) FROM events") == 0


async def test_what_stays_of_a_run_is_swept_once(expiring: ExpiringRuns, oracle: Oracle) -> None:
    """A sweep stores its progress, and later sweeps find runs that are due later."""
    await expiring.add("old-1")
    await expiring.add("new-1")
    await expiring.age(40, "old-%")
    await expiring.sweep(events=30)
    await expiring.sweep(events=30)
    assert await oracle.value(RECORDS["events"]) == 1
    await expiring.age(35, "new-%")
    await expiring.sweep(events=30)
    assert await oracle.value(RECORDS["events"]) == 0


async def test_tenants_have_days_of_their_own(
    expiring: ExpiringRuns, stores: Stores, oracle: Oracle
) -> None:
    """A tenant can keep records forever or for its own number of days."""
    for tenant in ("usual", "keeps", "short"):
        await expiring.add(f"old-{tenant}", tenant)
    await expiring.age(31, "old-%")
    await set_days(stores.engines.work, "keeps", "runs", FOR_EVER)
    await set_days(stores.engines.work, "short", "runs", 7)
    await expiring.sweep()
    left = [row["tenant_id"] for row in await oracle.rows("SELECT tenant_id FROM runs ORDER BY 1")]
    assert left == ["keeps", "usual"]
    await expiring.sweep(runs=30)
    assert await oracle.value("SELECT tenant_id FROM runs") == "keeps"


async def test_a_run_that_somebody_has_locked_is_left_to_the_next_sweep(
    expiring: ExpiringRuns, oracle: Oracle, database_url: str
) -> None:
    """The sweep does not wait for it."""
    for number in range(2):
        await expiring.add(f"old-{number}")
    await expiring.age(31, "old-%")
    async with open_oracle(database_url) as other, other.connection.transaction():
        await other.rows("SELECT FROM runs WHERE run_id = 'old-0' FOR UPDATE")
        await expiring.sweep(runs=30)
        assert await oracle.value("SELECT run_id FROM runs") == "old-0"
    await expiring.sweep(runs=30)
    assert await expiring.run_ids() == []


async def end_delivery(oracle: Oracle, run_id: str, status: str) -> None:
    """End the delivery of a run's webhook."""
    await oracle.rows(
        "UPDATE webhook_deliveries SET status = %s, due_at = NULL WHERE run_id = %s", status, run_id
    )


async def test_a_run_whose_end_is_still_to_be_announced_is_kept_until_that_is_done(
    expiring: ExpiringRuns, stores: Stores, oracle: Oracle
) -> None:
    """A pending delivery keeps its run for any time, a dead one does not."""
    webhook = Webhook("https://example.com/hook")
    for run_id in ("old-delivered", "old-dead", "old-pending"):
        accepted = await stores.runs.accept(
            replace(new_run(run_id), webhook=webhook), worker_id="w1"
        )
        await stores.journal.finish(end_of(accepted.run))
    await end_delivery(oracle, "old-delivered", "delivered")
    await end_delivery(oracle, "old-dead", "dead")
    await expiring.age(31, "old-%")

    await expiring.sweep(runs=30)

    assert await expiring.run_ids() == ["old-pending"]
    assert await oracle.value("SELECT run_id FROM webhook_deliveries") == "old-pending"
    await end_delivery(oracle, "old-pending", "delivered")
    await expiring.sweep(runs=30)
    assert await expiring.run_ids() == []


async def test_pending_cancels_that_have_expired_are_cleared_away(
    expiring: ExpiringRuns, stores: Stores, oracle: Oracle
) -> None:
    """Other pending cancels stay, and the IDs of erased runs are deleted a day later."""
    for run_id in ("erased", "erased-lately"):
        await expiring.add(run_id)
        await stores.runs.erase(RunKey("default", run_id))
    for run_id, hours in (("erased", 25), ("erased-lately", 23)):
        await oracle.rows(
            "UPDATE runs SET created_at = created_at - make_interval(hours => %s)"
            " WHERE run_id = %s",
            hours,
            run_id,
        )
    for run_id in ("gone", "waits"):
        await stores.runs.cancel(RunKey("default", run_id), CANCEL_REQUEST)
    await oracle.rows("UPDATE runs SET pending_cancel_expires_at = now() WHERE run_id = 'gone'")
    await expiring.sweep()
    assert await expiring.run_ids() == ["erased-lately", "waits"]

    await stores.runs.cancel(RunKey("default", "erased-lately"), CANCEL_REQUEST)
    await oracle.rows("UPDATE runs SET pending_cancel_expires_at = now()")
    await stores.runs.cancel(RunKey("default", "another"), CANCEL_REQUEST)
    await expiring.sweep()
    assert await expiring.run_ids() == ["another", "erased-lately"]


async def test_one_process_at_a_time_sweeps(stores: Stores, oracle: Oracle) -> None:
    """The first process that finds a due sweep runs it."""
    first, second = (PostgresRetention(stores.engines.work, DROPS) for _ in range(2))
    assert [
        await first.claim_sweep_and_merge_counters(600),
        await second.claim_sweep_and_merge_counters(600),
    ] == [True, False]
    await oracle.rows("UPDATE retention SET swept_until = swept_until - interval '601 s'")
    assert [
        await second.claim_sweep_and_merge_counters(600),
        await first.claim_sweep_and_merge_counters(600),
    ] == [True, False]


async def test_threads_go_with_their_messages_when_nothing_was_said_for_long(
    expiring: ExpiringRuns, stores: Stores, oracle: Oracle
) -> None:
    """A thread with a running answer stays; the runs of its answers stay, or are marked."""
    for name in ("old", "young", "at-work"):
        await oracle.rows(
            """INSERT INTO threads (tenant_id, thread_id, kind, definition, inputs, tools,
                metadata, request_hash, created_at)
            VALUES ('default', %s, 'agent', '{}', '{}', '[]', '{}', '',
                now() - interval '2 mons')""",
            name,
        )
        await oracle.rows(
            """INSERT INTO messages (tenant_id, thread_id, message_id, role, run_id, ends,
                request_hash, created_at)
            VALUES ('default', %s, 'm', 'assistant', %s, '[]', 'h', now() - %s::interval)""",
            name,
            f"run-{name}",
            "1 day" if name == "young" else "40 days",
        )
    await stores.runs.accept(new_run("run-at-work"), worker_id="w1")
    await expiring.add("run-young")
    await expiring.age(31, "run-young")

    await expiring.sweep(threads=30, runs=30)

    left = await oracle.rows("SELECT thread_id, run_erased_at IS NOT NULL AS erased FROM messages")
    assert {row["thread_id"]: row["erased"] for row in left} == {"young": True, "at-work": False}
    assert await oracle.value("SELECT count(*) FROM threads") == 2
