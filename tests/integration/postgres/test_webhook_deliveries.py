"""Every end of a run stores its deliveries; one process claims each, and none is lost."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from caseworker.features.webhooks.attempts import Deliveries
from caseworker.features.webhooks.delivery import (
    DeliveryNotFoundError,
    DeliveryPendingError,
    DeliveryStatus,
    EndpointAnswer,
)
from caseworker.features.webhooks.feature import delivery_limits
from caseworker.features.webhooks.postgres import NEXT_DUE, PostgresWebhooks
from caseworker.features.webhooks.sender import WebhookSender
from caseworker.features.webhooks.signing_secrets import SecretBox
from caseworker.platform.webhook_addresses import UrlRules
from caseworker.runs.run import END_TYPES, NewRun, Run, RunStatus, Webhook
from caseworker.settings.schema import Settings
from tests.support.runs import run_service
from tests.support.stores import CANCEL_REQUEST, Oracle, Stores, end_of, new_run
from tests.support.webhook_receiver import receiving

HOOK = Webhook("https://example.com/hook?token=t")
FAILED = EndpointAnswer(status_code=500, error="The endpoint returned status 500.")
PENDING, DELIVERED, DEAD = DeliveryStatus.PENDING, DeliveryStatus.DELIVERED, DeliveryStatus.DEAD


def hooked(run_id: str = "case-1", webhook: Webhook | None = HOOK, **more: Any) -> NewRun:
    return replace(new_run(run_id, **more), webhook=webhook)


@pytest.fixture
def webhooks(stores: Stores) -> PostgresWebhooks:
    return PostgresWebhooks(stores.engines, SecretBox())


async def stored(oracle: Oracle) -> list[tuple[str, str, str]]:
    rows = await oracle.rows("SELECT run_id, type, url FROM webhook_deliveries ORDER BY run_id")
    return [(row["run_id"], row["type"], row["url"]) for row in rows]


async def jobs(oracle: Oracle) -> list[dict[str, Any]]:
    return await oracle.rows(
        "SELECT args, scheduled_at FROM procrastinate_jobs WHERE queue_name = 'webhooks'"
    )


async def delivery_id(oracle: Oracle) -> str:
    return str(await oracle.value("SELECT delivery_id FROM webhook_deliveries"))


async def ended(stores: Stores, new: NewRun, status: RunStatus = RunStatus.COMPLETED) -> None:
    run = (await stores.runs.accept(new, worker_id="w1")).run
    await finish(stores, end_of(run, status))


async def finish(stores: Stores, end: Any) -> None:
    assert (await stores.journal.finish(end)).done


@pytest.mark.parametrize(
    "status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.HALTED], ids=str
)
async def test_the_end_of_a_run_stores_its_delivery_and_a_job(
    stores: Stores, oracle: Oracle, status: RunStatus
) -> None:
    """One statement stores all three, so none can exist alone."""
    await ended(stores, hooked(), status)

    assert await stored(oracle) == [("case-1", f"run.{status.value}", HOOK.url)]
    [job] = await jobs(oracle)
    assert job["args"] == {"tenant": "default", "delivery_id": await delivery_id(oracle)}


async def test_a_run_that_is_cancelled_while_queued_is_announced(
    stores: Stores, oracle: Oracle
) -> None:
    """The run had never started."""
    await stores.runs.accept(hooked(), worker_id=None)
    await stores.runs.cancel(hooked().key, CANCEL_REQUEST)

    assert await stored(oracle) == [("case-1", "run.cancelled", HOOK.url)]
    assert len(await jobs(oracle)) == 1


@pytest.mark.parametrize("worker_id", [None, "w1"])
async def test_a_run_that_meets_its_pending_cancel_is_announced(
    stores: Stores, oracle: Oracle, worker_id: str | None
) -> None:
    """The run is accepted and ended in one transaction."""
    await stores.runs.cancel(hooked().key, CANCEL_REQUEST)
    await stores.runs.accept(hooked(), worker_id=worker_id)

    assert await stored(oracle) == [("case-1", "run.cancelled", HOOK.url)]


async def test_a_run_without_a_webhook_stores_nothing(stores: Stores, oracle: Oracle) -> None:
    """A webhook for other statuses stores nothing either."""
    await ended(stores, new_run("case-1"))
    await ended(stores, hooked("case-2", Webhook(HOOK.url, ("run.failed",))))
    await ended(stores, hooked("case-3", Webhook(HOOK.url, END_TYPES)))

    assert [run_id for run_id, _, _ in await stored(oracle)] == ["case-3"]
    assert len(await jobs(oracle)) == 1


async def test_an_end_that_is_written_twice_is_announced_once(
    stores: Stores, oracle: Oracle
) -> None:
    """An end is repeated after its answer was lost."""
    run = (await stores.runs.accept(hooked(), worker_id="w1")).run
    for _ in range(2):
        await finish(stores, end_of(run))

    assert len(await stored(oracle)) == 1


async def test_one_of_many_claims_a_delivery(
    stores: Stores, oracle: Oracle, webhooks: PostgresWebhooks
) -> None:
    """Other claims during this time return nothing."""
    await ended(stores, hooked())
    await webhooks.rotate("default", "whsec_b25l", previous_seconds=0)
    wanted = await delivery_id(oracle)

    async with asyncio.TaskGroup() as tasks:
        claims = [
            tasks.create_task(webhooks.begin("default", wanted, claim_seconds=60)) for _ in range(8)
        ]
    [attempt] = [claim.result() for claim in claims if claim.result() is not None]

    assert attempt is not None
    assert (attempt.delivery.attempts, attempt.secrets) == (1, ["whsec_b25l"])
    assert await webhooks.begin("another", wanted, claim_seconds=60) is None


async def test_a_claim_that_was_lost_is_found_and_made_again(
    stores: Stores, oracle: Oracle, webhooks: PostgresWebhooks
) -> None:
    """Later writes of the first claimer change nothing."""
    await ended(stores, hooked())
    wanted = await delivery_id(oracle)
    first = await webhooks.begin("default", wanted, claim_seconds=0)
    await oracle.rows("DELETE FROM procrastinate_jobs")
    assert -3600 < await oracle.value(NEXT_DUE) < 0
    assert await webhooks.rescue(0) == 1
    assert await webhooks.rescue(0) == 0
    again = await webhooks.begin("default", wanted, claim_seconds=60)
    assert first is not None
    assert again is not None

    await webhooks.end(first.delivery, FAILED, status=DEAD, pause_seconds=0)
    assert (await webhooks.get("default", wanted)).status is PENDING
    await webhooks.end(
        again.delivery, EndpointAnswer(status_code=200), status=DELIVERED, pause_seconds=0
    )

    found = await webhooks.get("default", wanted)
    assert (found.status, found.attempts, found.last_status_code) == (DELIVERED, 2, 200)
    assert found.delivered_at is not None


async def test_a_delivery_whose_job_was_lost_is_found_behind_thousands_that_wait(
    stores: Stores, oracle: Oracle, webhooks: PostgresWebhooks
) -> None:
    """The other deliveries have jobs and wait for a receiver that does not answer."""
    await ended(stores, hooked())
    await oracle.rows(
        "WITH older AS (INSERT INTO webhook_deliveries (tenant_id, run_id, type, url, due_at)"
        " SELECT tenant_id, run_id, type || n, url, due_at - interval '1 hour'"
        " FROM webhook_deliveries, generate_series(1, 3000) n RETURNING delivery_id)"
        " INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock)"
        " SELECT 'webhooks', 'deliver_webhook', 'webhook/' || delivery_id FROM older"
    )
    newest = "SELECT delivery_id FROM webhook_deliveries ORDER BY due_at DESC LIMIT 1"
    lost = f"webhook/{await oracle.value(newest)}"
    await oracle.rows("DELETE FROM procrastinate_jobs WHERE queueing_lock = %s", lost)

    assert await webhooks.rescue(0) == 1

    found = "SELECT queueing_lock FROM procrastinate_jobs ORDER BY id DESC LIMIT 1"
    assert await oracle.value(found) == lost


async def test_a_failed_attempt_is_due_after_its_pause(
    stores: Stores, oracle: Oracle, webhooks: PostgresWebhooks
) -> None:
    """The next attempt's job is stored in the same transaction and becomes due after the pause."""
    await ended(stores, hooked())
    wanted = await delivery_id(oracle)
    await oracle.rows("DELETE FROM procrastinate_jobs")
    attempt = await webhooks.begin("default", wanted, claim_seconds=60)
    assert attempt is not None
    await webhooks.end(attempt.delivery, FAILED, status=PENDING, pause_seconds=300)

    found = await webhooks.get("default", wanted)
    [job] = await jobs(oracle)
    assert job["scheduled_at"] == found.due_at
    assert found.last_error == "The endpoint returned status 500."
    assert await webhooks.begin("default", wanted, claim_seconds=60) is None


async def test_a_dead_delivery_is_listed_and_sent_again(
    stores: Stores, oracle: Oracle, webhooks: PostgresWebhooks
) -> None:
    """A dead delivery keeps its ID and restarts its attempts; a pending one is refused."""
    await ended(stores, hooked())
    await ended(stores, hooked("case-2"))
    wanted = str(
        await oracle.value("SELECT delivery_id FROM webhook_deliveries WHERE run_id = 'case-1'")
    )
    with pytest.raises(DeliveryPendingError):
        await webhooks.redeliver("default", wanted)
    attempt = await webhooks.begin("default", wanted, claim_seconds=60)
    assert attempt is not None
    await webhooks.end(attempt.delivery, FAILED, status=DEAD, pause_seconds=0)
    await oracle.rows("DELETE FROM procrastinate_jobs")

    page = await webhooks.find("default", status=DEAD, run_id=None, limit=1, cursor=None)
    assert [each.delivery_id for each in page.items] == [wanted]
    assert page.next_cursor is None
    again = await webhooks.redeliver("default", wanted)

    assert (again.status, again.attempts) == (PENDING, 0)
    assert len(await jobs(oracle)) == 1
    with pytest.raises(DeliveryNotFoundError):
        await webhooks.redeliver("another", wanted)


async def test_pages_hold_every_delivery_once(stores: Stores, webhooks: PostgresWebhooks) -> None:
    """Pages are newest first and contain only deliveries of the tenant."""
    for number in range(5):
        await ended(stores, hooked(f"case-{number}"))
    await ended(stores, hooked("case-9", tenant="another"))

    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await webhooks.find("default", status=None, run_id=None, limit=2, cursor=cursor)
        seen += [each.run_id for each in page.items]
        if (cursor := page.next_cursor) is None:
            break

    assert seen == [f"case-{number}" for number in (4, 3, 2, 1, 0)]


async def test_secrets_are_stored_encrypted(stores: Stores, oracle: Oracle) -> None:
    """Older secrets keep signing; encrypted ones need the same key to sign."""
    readable, encrypted, other = (
        PostgresWebhooks(stores.engines, SecretBox(key)) for key in (None, "k" * 32, "o" * 32)
    )
    await readable.rotate("default", "whsec_1", previous_seconds=100)
    await encrypted.rotate("default", "whsec_2", previous_seconds=100)
    await ended(stores, hooked())
    where = "default", await delivery_id(oracle)

    signing = []
    for store in (encrypted, readable, other):
        attempt = await store.begin(*where, claim_seconds=0)
        assert attempt is not None
        signing.append(list(attempt.secrets))

    assert signing == [["whsec_2", "whsec_1"], ["whsec_1"], ["whsec_1"]]
    stored = await oracle.rows("SELECT secret FROM webhook_secrets ORDER BY version")
    assert stored[0]["secret"] == "whsec_1"
    assert "whsec" not in stored[1]["secret"]


async def test_a_message_that_nothing_signs_is_not_sent(stores: Stores, oracle: Oracle) -> None:
    """The delivery stays pending, and its error names the setting of the encryption key."""
    encrypted, other = (PostgresWebhooks(stores.engines, SecretBox(key * 32)) for key in "ko")
    await encrypted.rotate("default", "whsec_b25l", previous_seconds=0)
    sender = WebhookSender(UrlRules(allow_http=True, allow_private=True), timeout_seconds=100)

    async def view(_: Run) -> dict[str, Any]:
        return {"finished_at": None}

    def deliveries(store: PostgresWebhooks) -> Deliveries:
        runs, limits = (
            run_service(stores.runs),
            delivery_limits(Settings().webhooks),
        )
        return Deliveries(store, sender, runs, view, limits)

    async with receiving() as receiver, aclosing(sender):
        await ended(stores, hooked(webhook=Webhook(receiver.url)))
        wanted = await delivery_id(oracle)
        await deliveries(other).deliver("default", wanted)

        unsigned = await encrypted.get("default", wanted)
        assert (receiver.arrivals, unsigned.status) == ([], PENDING)
        assert "encryption_key" in (unsigned.last_error or "")
        await oracle.rows("UPDATE webhook_deliveries SET due_at = now()")
        await deliveries(encrypted).deliver("default", wanted)

    assert (await encrypted.get("default", wanted)).status is DELIVERED
    assert len(receiver.arrivals) == 1


async def test_at_most_two_secrets_sign(webhooks: PostgresWebhooks, oracle: Oracle) -> None:
    """A rotation keeps the previous secret for the given time and removes the one before it."""
    for number, seconds in enumerate((100, 100, 100), 1):
        info = await webhooks.rotate("default", f"whsec_{number}", previous_seconds=seconds)
        assert (info.version, info.expires_at) == (number, None)
    assert [each.version for each in await webhooks.secrets("default")] == [3, 2]
    assert await webhooks.secrets("another") == []

    await webhooks.rotate("default", "whsec_4", previous_seconds=0)

    assert [each.version for each in await webhooks.secrets("default")] == [4]
    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(webhooks.rotate("default", f"whsec_{number}", previous_seconds=100))
    current = "SELECT count(*) FROM webhook_secrets WHERE expires_at IS NULL"
    assert await oracle.value(current) == 1
