"""One process is drained: it stays up, claims no runs, and its runs end or move elsewhere."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.support.external import start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.processes import run_caseworker
from tests.support.service import QUICK, ServiceProcess, finished, model_settings
from tests.support.stores import eventually

PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
QUESTION = {"run_id": "survivor", "input": "What is 6 times 7?", "gold_answer": "42"}


def _workers(database_url: str) -> list[dict[str, Any]]:
    listed = run_caseworker("workers", "--json", env={**QUICK, "DATABASE_URL": database_url})
    assert listed.returncode == 0, listed.stderr
    found: list[dict[str, Any]] = json.loads(listed.stdout)
    return found


def _drain(database_url: str, worker_id: str) -> int:
    env = {**QUICK, "DATABASE_URL": database_url}
    return run_caseworker("drain", worker_id, env=env).returncode


async def _not_ready(service: ServiceProcess) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:

        async def said() -> bool:
            ready = await client.get(f"{service.url}/readyz")
            return ready.status_code == 503 and "draining" in ready.json()["parts"]["worker"]

        await eventually(said)


async def test_a_drained_process_hands_over_and_queues_what_it_accepts(
    database_url: str, provider: FakeProvider
) -> None:
    """Another process finishes its run without a counted attempt; it answers but is not ready."""
    settings = {**model_settings(provider.openai_url), "WORKER_DRAIN_SECONDS": "0.3"}
    await provider.script("6 times 7", [Step(hang=True)])
    async with ServiceProcess(database_url, settings=settings, name="first") as first:
        async with first.client() as client:
            await client.post_run(QUESTION)
        await provider.wait_for_arrivals(1, "6 times 7")
        (worker,) = _workers(database_url)
        assert (worker["pid"], worker["runs"]) == (first.child.worker_pid, 1)
        assert worker["drain_requested_at"] is None

        assert _drain(database_url, worker["worker_id"]) == 0
        await _not_ready(first)
        async with first.client() as client:
            queued = await client.post_run({"run_id": "later", "input": "6 times 7 again?"})
            assert queued["status"] == "queued"
            assert _workers(database_url)[0]["drain_requested_at"] is not None

            await provider.script("6 times 7", [Step(plan=PLAN)], repeat_last=True)
            async with ServiceProcess(database_url, settings=settings, name="second"):
                survivor = await finished(client, "survivor")
                later = await finished(client, "later")
        assert (survivor["status"], survivor["attempts"]) == ("completed", 1)
        assert later["attempts"] == 1
        assert await first.child.terminate() == 0


@pytest.mark.req("cw/5.release")
async def test_calls_of_a_drained_process_end_there(
    database_url: str, provider: FakeProvider
) -> None:
    """The process starts no further call of the run, and another one makes those that are left."""
    settings = {**model_settings(provider.openai_url), "WORKER_DRAIN_SECONDS": "60"}
    await provider.script("6 times 7", [Step(plan=PLAN, hang=True)])
    async with (
        ServiceProcess(database_url, settings=settings, name="first") as first,
        first.client() as client,
    ):
        await client.post_run(QUESTION)
        await provider.wait_for_arrivals(1, "6 times 7")
        _drain(database_url, _workers(database_url)[0]["worker_id"])
        await _not_ready(first)
        await provider.release()

        async def released() -> bool:
            return bool((await client.get_run("survivor"))["status"] == "queued")

        await eventually(released)
        async with ServiceProcess(database_url, settings=settings, name="second"):
            run = await finished(client, "survivor")
        assert (run["status"], run["attempts"]) == ("completed", 1)
        assert len(await provider.arrivals("6 times 7")) == 1


@pytest.mark.req("cw/5.release")
async def test_a_client_finishes_its_run_on_a_drained_process_with_a_call_in_flight(
    database_url: str, provider: FakeProvider
) -> None:
    """The end of the run cancels the call, and the run is not released because of that."""
    settings = {**model_settings(provider.openai_url), "WORKER_DRAIN_SECONDS": "60"}
    await provider.script("HANGS", [Step(text="late", hang=True)])
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        service.http() as http,
    ):
        agent = await start(http, run_id="finished")
        call = asyncio.create_task(agent.ask("HANGS"))
        await provider.wait_for_arrivals(1, "HANGS")
        _drain(database_url, _workers(database_url)[0]["worker_id"])
        await _not_ready(service)
        ended = await agent.finish({"output": "done"})
        assert (ended.status_code, ended.json()["status"]) == (200, "completed"), ended.text
        assert (await call).json()["error"]["code"] == "finished"


async def test_a_replica_is_not_ready_beside_nothing_but_a_drained_worker(
    database_url: str,
) -> None:
    """The runs that it accepts would have no worker to execute them."""
    async with (
        ServiceProcess(database_url, command="worker", name="worker"),
        ServiceProcess(database_url, "--no-worker") as replica,
    ):
        await replica.child.ready(f"{replica.url}/readyz")
        _drain(database_url, _workers(database_url)[0]["worker_id"])

        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{replica.url}/readyz")).status_code == 503


def test_a_worker_that_is_unknown_is_named(database_url: str) -> None:
    """The error names the command that lists the known workers."""
    ended = run_caseworker("drain", "nobody", env={**QUICK, "DATABASE_URL": database_url})
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines()[-1] == (
        "No worker has the ID nobody. `caseworker workers` lists all workers."
    )
