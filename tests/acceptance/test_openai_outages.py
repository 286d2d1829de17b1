"""Agents behind OpenAI's API while the database is unavailable."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.database import proxied, upstream_of
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.fault_proxy import FaultProxy
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.stores import eventually

AGENT: dict[str, Any] = {"name": "support", "prompt": {"system": "You are support."}}
BODY: dict[str, Any] = {
    "model": "support",
    "messages": [{"role": "user", "content": "Wait. (outage)"}],
}


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[FaultProxy]:
    """Run a proxy in front of the database."""
    async with FaultProxy(upstream_of(database_url)) as proxy:
        yield proxy


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_leaves_during_an_outage_cancels_its_run(
    database_url: str, proxy: FaultProxy, provider: FakeProvider, *, streams: bool
) -> None:
    """The cancel request is retried until the database is back."""
    await provider.script("(outage)", [Step(hang=True)])
    settings = model_settings(provider.openai_url)
    body = {**BODY, "stream": streams}
    async with (
        ServiceProcess(proxied(database_url, proxy), settings=settings) as service,
        service.client() as client,
        service.http() as http,
    ):
        (await http.post("/agents", json={"agent": AGENT})).raise_for_status()
        asking = asyncio.create_task(_read(service, body))
        await provider.wait_for_arrivals(1, containing="(outage)")
        proxy.refuse()
        proxy.cut()
        asking.cancel()
        await asyncio.wait({asking})

        async def retried() -> bool:
            return service.child.stderr.count("run.cancel_delayed") > 1

        await eventually(retried)
        proxy.refuse(False)
        [arrival] = await provider.wait_for_arrivals(1, containing="(outage)", ended=True)
        [run] = (await http.get("/runs")).json()["runs"]
        ended = await finished(client, run["run_id"])

    assert arrival.outcome == "client_gone"
    assert (ended["status"], ended["stop"]["reason"]) == ("cancelled", "The client disconnected.")


async def test_a_client_that_waits_through_an_outage_gets_its_answer(
    database_url: str, proxy: FaultProxy, provider: FakeProvider
) -> None:
    """The run ends during the outage. A client would repeat a failed request as another run."""
    await provider.script("(outage)", [Step(text="It is 42.", hang=True)] * 2)
    settings = model_settings(provider.openai_url)
    serving = {**settings, "WORKER_ENABLED": "false"}
    async with (
        ServiceProcess(database_url, settings=settings) as executing,
        ServiceProcess(proxied(database_url, proxy), settings=serving) as service,
        executing.client() as client,
        executing.http() as http,
    ):
        (await http.post("/agents", json={"agent": AGENT})).raise_for_status()
        async with asyncio.TaskGroup() as requests:
            whole, streamed = (
                requests.create_task(_read(service, {**BODY, "stream": streams}))
                for streams in (False, True)
            )
            await provider.wait_for_arrivals(2, containing="(outage)")
            proxy.refuse()
            proxy.cut()
            await provider.release()
            for run in (await http.get("/runs")).json()["runs"]:
                await finished(client, run["run_id"])
            proxy.refuse(False)
        runs = (await http.get("/runs")).json()["runs"]

    assert "It is 42." in whole.result()
    assert "".join(re.findall('"content": "([^"]*)"', streamed.result())) == "It is 42."
    assert streamed.result().endswith("data: [DONE]\n\n")
    assert len(runs) == 2


async def _read(service: ServiceProcess, body: dict[str, Any]) -> str:
    async with service.http() as http:
        return (await http.post("/v1/chat/completions", json=body)).text
