"""Webhooks of real processes: signed, retried, and delivered at least once despite losses."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.npm_packages import installed_packages, node
from tests.support.processes import run_caseworker
from tests.support.service import ServiceProcess, finished, model_settings, two_services
from tests.support.stores import eventually
from tests.support.webhook_receiver import FAILED, OK, Arrival, Receiver, receiving

NPM = Path(__file__).parents[1] / "support" / "npm_webhooks"
TO_THIS_MACHINE = {
    "WEBHOOKS_ALLOW_HTTP": "true",
    "WEBHOOKS_ALLOW_PRIVATE": "true",
    "WEBHOOKS_TIMEOUT_SECONDS": "2",
    "WEBHOOKS_FIRST_RETRY_SECONDS": "0.05",
    "WEBHOOKS_LONGEST_RETRY_SECONDS": "0.2",
}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def case(run_id: str, receiver: Receiver, **webhook: Any) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "input": "What is 6 * 7?",
        "webhook": {"url": receiver.url, **webhook},
    }


async def new_secret(service: ServiceProcess, **body: Any) -> str:
    async with httpx.AsyncClient(base_url=service.url) as http:
        answer = await http.post("/webhooks/secret", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["secret"])


async def deliveries(service: ServiceProcess, **query: str) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(base_url=service.url) as http:
        found = (await http.get("/webhooks/deliveries", params=query)).json()
    listed: list[dict[str, Any]] = found["deliveries"]
    return listed


def verified(arrival: Arrival, secret: str) -> dict[str, Any]:
    message: dict[str, Any] = Webhook(secret).verify(arrival.body, arrival.headers)
    return message


def verified_by_npm(arrival: Arrival, secret: str) -> dict[str, Any]:
    """Verify with the JavaScript implementation."""
    script = node(NPM / "verify.mjs", installed_packages(NPM))
    given = {"secret": secret, "headers": arrival.headers, "body": arrival.body.decode()}
    done = subprocess.run(script, input=json.dumps(given), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    message: dict[str, Any] = json.loads(done.stdout)
    return message


async def test_a_run_is_announced_as_callers_see_it(database_url: str, receiver: Receiver) -> None:
    """Two implementations of the standard verify its signature."""
    async with ServiceProcess(database_url, settings=TO_THIS_MACHINE) as service:
        secret = await new_secret(service)
        async with service.client() as client:
            await client.post_run(case("case-1", receiver))
            [arrival] = await receiver.wait_for(1)
            run = await finished(client, "case-1")

    message = verified(arrival, secret)
    assert verified_by_npm(arrival, secret) == message
    assert (message["type"], message["timestamp"]) == ("run.completed", run["finished_at"])
    assert message["data"] == run
    assert arrival.target == "/hook?token=t"


async def test_both_secrets_sign_while_they_change_over(
    database_url: str, receiver: Receiver
) -> None:
    """A receiver verifies with either secret until the old one is ended."""
    async with ServiceProcess(database_url, settings=TO_THIS_MACHINE) as service:
        old = await new_secret(service)
        new = await new_secret(service)
        async with service.client() as client:
            await client.post_run(case("case-1", receiver))
            [both] = await receiver.wait_for(1)
            last = await new_secret(service, previous_valid_seconds=0)
            await client.post_run(case("case-2", receiver))
            one = (await receiver.wait_for(2))[1]

    assert verified(both, old) == verified(both, new)
    assert verified(one, last)["data"]["run_id"] == "case-2"
    assert len(one.headers["webhook-signature"].split(" ")) == 1


async def test_a_failed_delivery_is_tried_again_then_dead_then_sent_by_hand(
    database_url: str, receiver: Receiver
) -> None:
    """All attempts have the same ID, and each has its own signature."""
    receiver.answer(FAILED)
    settings = {**TO_THIS_MACHINE, "WEBHOOKS_MAX_ATTEMPTS": "3"}
    async with ServiceProcess(database_url, settings=settings) as service:
        secret = await new_secret(service)
        async with service.client() as client:
            await client.post_run(case("case-1", receiver))
        await receiver.wait_for(3)

        async def dead() -> bool:
            return len(await deliveries(service, status="dead")) == 1

        await eventually(dead)
        [found] = await deliveries(service, run_id="case-1")
        assert (found["attempts"], found["last_status_code"]) == (3, 500)
        assert found["url"] == receiver.url.partition("?")[0]
        receiver.answer(OK)
        async with httpx.AsyncClient(base_url=service.url) as http:
            path = f"/webhooks/deliveries/{found['delivery_id']}"
            again = await http.post(f"{path}/redeliver")
            assert (again.status_code, again.json()["status"]) == (202, "pending")
        arrivals = await receiver.wait_for(4)

        async def delivered() -> bool:
            return len(await deliveries(service, status="delivered")) == 1

        await eventually(delivered)

    assert {arrival.webhook_id for arrival in arrivals} == {found["delivery_id"]}
    assert {verified(arrival, secret)["type"] for arrival in arrivals} == {"run.completed"}
    assert len(receiver.arrivals) == 4


async def test_a_receiver_is_tested_from_the_command_line(
    database_url: str, receiver: Receiver
) -> None:
    """The message is signed; a receiver that does not accept it causes exit code 1."""
    receiver.answer(OK, FAILED)

    def caseworker(*arguments: str) -> Awaitable[subprocess.CompletedProcess[str]]:
        env = {"CASEWORKER_URL": service.url}
        return asyncio.to_thread(run_caseworker, "webhooks", *arguments, env=env)

    async with ServiceProcess(database_url, settings=TO_THIS_MACHINE) as service:
        secret = (await caseworker("secret")).stdout.strip()
        accepted = await caseworker("test", receiver.url)
        failed = await caseworker("test", receiver.url)
        listed = await caseworker("list")

    assert (accepted.returncode, failed.returncode, listed.stdout) == (0, 1, "")
    assert "status 500" in failed.stdout
    assert verified(receiver.arrivals[0], secret)["type"] == "webhook.test"
    assert len(receiver.arrivals) == 2


async def test_a_delivery_survives_the_process_that_attempts_it(
    database_url: str, receiver: Receiver
) -> None:
    """The process is killed during an attempt, which another process repeats."""
    receiver.answer(None, OK)
    async with (
        ServiceProcess(database_url, settings=TO_THIS_MACHINE, name="first") as first,
        ServiceProcess(
            database_url,
            settings={**TO_THIS_MACHINE, "WORKER_ENABLED": "false"},
            name="second",
        ) as second,
    ):
        secret = await new_secret(first)
        async with first.client() as client:
            await client.post_run(case("case-1", receiver))
            [lost] = await receiver.wait_for(1)
        first.child.kill()
        assert [each["status"] for each in await deliveries(second)] == ["pending"]

        async with ServiceProcess(database_url, command="worker", settings=TO_THIS_MACHINE):
            again = (await receiver.wait_for(2))[1]

            async def delivered() -> bool:
                return len(await deliveries(second, status="delivered")) == 1

            await eventually(delivered)

    assert verified(again, secret) == verified(lost, secret)
    assert again.webhook_id == lost.webhook_id


async def test_runs_that_are_killed_are_announced_once_they_end(
    database_url: str, receiver: Receiver, provider: FakeProvider
) -> None:
    """Every acknowledged run is announced with one ID."""
    await provider.answer_by_default(Step(hang=True))
    settings = {**model_settings(provider.openai_url), **TO_THIS_MACHINE}
    names = [f"case-{number}" for number in range(8)]
    async with two_services(database_url, settings) as (first, _, client):
        await new_secret(first)
        async with first.client() as posting:
            for name in names:
                await posting.post_run(case(name, receiver))
        await provider.wait_for_arrivals(len(names))
        plan = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
        await provider.answer_by_default(Step(plan=plan))
        first.child.kill()
        for name in names:
            assert (await finished(client, name))["finished_at"]

        async def all_announced() -> bool:
            return {each.message["data"]["run_id"] for each in receiver.arrivals} == set(names)

        await eventually(all_announced)

    ids = {(each.message["data"]["run_id"], each.webhook_id) for each in receiver.arrivals}
    assert len(ids) == len(names)


async def test_receivers_that_are_slow_delay_no_run(database_url: str, receiver: Receiver) -> None:
    """There are more slow receivers than concurrent attempts, slots and connections.

    One attempt of the four stays free for other tenants.
    """
    receiver.answer(None)
    settings = {
        **TO_THIS_MACHINE,
        "WEBHOOKS_TIMEOUT_SECONDS": "60",
        "WEBHOOKS_MAX_PARALLEL": "4",
        "WORKER_MAX_RUNS": "2",
        "DATABASE_POOL_SIZE": "2",
    }
    async with ServiceProcess(database_url, settings=settings) as service:
        await new_secret(service)
        async with service.client() as client:
            for number in range(8):
                await client.post_run(case(f"case-{number}", receiver), wait_seconds=120)
            await receiver.wait_for(3)
            run = await client.post_run({"input": "What is 2 + 2?"}, wait_seconds=120)
        pending = await deliveries(service, status="pending")

    assert run["status"] == "completed"
    assert len(pending) == 8
    assert len(receiver.arrivals) == 3


async def test_addresses_of_this_machine_are_refused_unless_allowed(
    database_url: str, receiver: Receiver
) -> None:
    """A visible address is refused at once, and a name with an internal address is never called."""
    settings = {"WEBHOOKS_ALLOW_HTTP": "true", "WEBHOOKS_MAX_ATTEMPTS": "1"}
    async with ServiceProcess(database_url, settings=settings) as service:
        await new_secret(service)
        async with httpx.AsyncClient(base_url=service.url) as http:
            shown = await http.post("/runs", json=case("case-1", receiver))
            assert shown.status_code == 422
            assert shown.json()["errors"][0]["field"] == "webhook.url"
            named = case("case-2", receiver)
            named["webhook"]["url"] = f"http://localhost:{receiver.port}/"
            assert (await http.post("/runs", json=named)).status_code == 202

        async def dead() -> bool:
            return len(await deliveries(service, status="dead")) == 1

        await eventually(dead)
        [found] = await deliveries(service)

    assert found["last_error"] == (
        "The host has an address that is not public; webhooks.allow_private would allow it."
    )
    assert receiver.arrivals == []
