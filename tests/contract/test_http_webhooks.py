"""Webhooks over HTTP: what may be asked for, and who sees what."""

from datetime import UTC, datetime
from typing import Any

import pytest

from app.runs.run import Webhook
from app.webhooks.delivery import Delivery, DeliveryStatus
from tests.support.memory_api import client_of, memory_api
from tests.support.memory_runs import MemoryRuns
from tests.support.memory_webhooks import MemoryWebhooks

ID = "0f5e9b0e-0000-4000-8000-000000000001"
HOOKED = {"input": "What is 6 * 7?", "webhook": {"url": "https://example.com/hook"}}
DELIVERY = Delivery(
    tenant="default",
    delivery_id=ID,
    run_id="case-1",
    type="run.completed",
    url="https://example.com/hook?token=t",
    status=DeliveryStatus.DEAD,
    attempts=12,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    due_at=None,
)


@pytest.mark.parametrize(
    ("webhook", "field"),
    [
        ({"url": "https://127.0.0.1/"}, "webhook.url"),
        ({"url": "http://example.com/"}, "webhook.url"),
        ({"url": "https://u:p@example.com/"}, "webhook.url"),
        ({"url": "https://example.com/", "events": []}, "webhook.events"),
        ({"url": "https://example.com/", "events": ["run.started"]}, "webhook.events.0"),
        ({}, "webhook.url"),
        ("https://example.com/", "webhook"),
    ],
)
async def test_a_webhook_that_cannot_be_called_is_refused(webhook: Any, field: str) -> None:
    """By its field, before anything is accepted; nothing of the URL is repeated."""
    webhooks = MemoryWebhooks()
    await webhooks.rotate("default", "whsec_", previous_seconds=0)
    async with client_of(memory_api(webhooks=webhooks)) as client:
        answer = await client.post("/runs", json={**HOOKED, "webhook": webhook})

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert "example.com/" not in answer.text.replace("https://example.com/hook,", "")


async def test_a_webhook_needs_a_secret() -> None:
    """The first one is made on demand, and shown once."""
    async with client_of(memory_api()) as client:
        refused = await client.post("/runs", json=HOOKED)
        made = await client.post("/webhooks/secret")
        accepted = await client.post("/runs", json=HOOKED)
        listed = (await client.get("/webhooks/secret")).json()

    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "webhook")
    assert made.json()["secret"].startswith("whsec_")
    assert accepted.status_code == 202
    assert [set(secret) for secret in listed["secrets"]] == [
        {"version", "created_at", "expires_at"}
    ]
    assert "hook" not in accepted.text


async def test_a_webhook_is_part_of_what_a_request_means() -> None:
    """The same id with another webhook is another request."""
    async with client_of(memory_api()) as client:
        await client.post("/webhooks/secret")
        body = {**HOOKED, "run_id": "case-1"}
        assert (await client.post("/runs", json=body)).status_code == 202
        assert (await client.post("/runs", json=body)).status_code == 200
        other = {**body, "webhook": {"url": "https://example.com/other"}}
        assert (await client.post("/runs", json=other)).status_code == 409


async def test_a_run_keeps_its_webhook() -> None:
    """With the ends that were asked for."""
    store = MemoryRuns()
    accepted: list[Webhook | None] = []
    accept = store.accept

    async def noting(new: Any, *, worker_id: str | None) -> Any:
        accepted.append(new.webhook)
        return await accept(new, worker_id=worker_id)

    store.accept = noting  # type: ignore[method-assign]
    async with client_of(memory_api(store)) as client:
        await client.post("/webhooks/secret")
        some = {"url": "https://example.com/hook", "events": ["run.failed"]}
        await client.post("/runs", json={**HOOKED, "webhook": some})
        await client.post("/runs", json={"input": "2 + 2?"})

    assert accepted == [Webhook("https://example.com/hook", ("run.failed",)), None]


async def test_deliveries_are_listed_and_sent_again() -> None:
    """Without the query of their URL; another tenant's is not there."""
    webhooks = MemoryWebhooks()
    webhooks.deliveries.append(DELIVERY)
    async with client_of(memory_api(webhooks=webhooks)) as client:
        listed = (await client.get("/webhooks/deliveries", params={"status": "dead"})).json()
        none = (await client.get("/webhooks/deliveries", params={"status": "pending"})).json()
        again = await client.post(f"/webhooks/deliveries/{ID}/redeliver")
        pending = await client.post(f"/webhooks/deliveries/{ID}/redeliver")
        absent = await client.get(f"/webhooks/deliveries/{ID[:-1]}2")
        odd = await client.get("/webhooks/deliveries/nothing")

    [found] = listed["deliveries"]
    assert (found["url"], found["attempts"]) == ("https://example.com/hook", 12)
    assert none == {"deliveries": [], "next_cursor": None}
    assert (again.status_code, again.json()["status"]) == (202, "pending")
    assert (pending.status_code, pending.json()["type"][-16:]) == (409, "delivery-pending")
    assert (absent.status_code, odd.status_code) == (404, 422)
