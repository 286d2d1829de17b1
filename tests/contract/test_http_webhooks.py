"""Webhooks over HTTP: valid requests, and which tenant sees which deliveries."""

from typing import Any
from uuid import UUID

import httpx
import pytest
from psycopg import Connection

pytestmark = pytest.mark.asyncio(loop_scope="module")


HOOKED = {"input": "What is 6 * 7?", "webhook": {"url": "https://example.com/hook"}}


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
async def test_a_webhook_that_cannot_be_called_is_refused(
    client: httpx.AsyncClient, webhook: Any, field: str
) -> None:
    """The error names the field before anything is accepted and does not repeat the URL."""
    await client.post("/webhooks/secret")
    answer = await client.post("/runs", json={**HOOKED, "webhook": webhook})

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert "example.com/" not in answer.text.replace("https://example.com/hook,", "")


async def test_a_webhook_needs_a_secret(client: httpx.AsyncClient) -> None:
    """The first secret is created on request, and shown once."""
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


async def test_a_test_message_follows_the_rules_for_destinations(client: httpx.AsyncClient) -> None:
    """It needs a secret, and does not reach an address that webhooks must not reach."""
    body = {"url": "https://127.0.0.1/hook"}
    unsigned = await client.post("/webhooks/test", json=body)
    await client.post("/webhooks/secret")
    refused = (await client.post("/webhooks/test", json=body)).json()

    assert (unsigned.status_code, unsigned.json()["errors"][0]["field"]) == (422, "webhook")
    assert (refused["delivered"], refused["status_code"]) == (False, None)
    assert "not public" in refused["error"]


async def test_a_webhook_is_part_of_what_a_request_means(client: httpx.AsyncClient) -> None:
    """Another webhook under the same ID is another request."""
    await client.post("/webhooks/secret")
    body = {**HOOKED, "run_id": "case-1"}
    assert (await client.post("/runs", json=body)).status_code == 202
    assert (await client.post("/runs", json=body)).status_code == 200
    other = {**body, "webhook": {"url": "https://example.com/other"}}
    assert (await client.post("/runs", json=other)).status_code == 409


async def test_a_run_keeps_its_webhook(
    client: httpx.AsyncClient, module_database: Connection
) -> None:
    """The run stores it with the requested statuses."""
    await client.post("/webhooks/secret")
    some = {"url": "https://example.com/hook", "events": ["run.failed"]}
    await client.post("/runs", json={**HOOKED, "webhook": some})
    await client.post("/runs", json={"input": "2 + 2?"})

    stored = module_database.execute("SELECT webhook FROM runs ORDER BY created_at").fetchall()
    assert stored == [(some,), (None,)]


async def test_deliveries_are_listed_and_sent_again(
    client: httpx.AsyncClient, module_database: Connection
) -> None:
    """The URL is shown without its query, and pending deliveries cannot be sent again."""
    await client.post("/webhooks/secret")
    hook = {"url": "https://example.com/hook?token=t"}
    await client.post("/runs", json={**HOOKED, "webhook": hook, "run_id": "case-1"})
    await client.delete("/runs/case-1")
    module_database.execute(
        "UPDATE webhook_deliveries SET status = 'dead', attempts = 12, due_at = NULL"
    )

    listed = (await client.get("/webhooks/deliveries", params={"status": "dead"})).json()
    none = (await client.get("/webhooks/deliveries", params={"status": "pending"})).json()
    path = f"/webhooks/deliveries/{listed['deliveries'][0]['delivery_id']}"
    again = await client.post(f"{path}/redeliver")
    pending = await client.post(f"{path}/redeliver")
    absent = await client.get(f"/webhooks/deliveries/{UUID(int=1)}")
    odd = await client.get("/webhooks/deliveries/nothing")

    [found] = listed["deliveries"]
    assert (found["url"], found["attempts"]) == ("https://example.com/hook", 12)
    assert none == {"deliveries": [], "next_cursor": None}
    assert (again.status_code, again.json()["status"]) == (202, "pending")
    assert (pending.status_code, pending.json()["type"][-16:]) == (409, "delivery-pending")
    assert (absent.status_code, odd.status_code) == (404, 422)
