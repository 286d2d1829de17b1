"""The programs of docs/call-it.md run as printed, against a real service."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.npm_packages import node
from tests.support.pages import ROOT, blocks_of
from tests.support.processes import ChildFailedError, ChildProcess
from tests.support.service import ServiceProcess, model_settings
from tests.support.stores import eventually

PAGE = ROOT / "docs" / "call-it.md"
UVICORN = ("-m", "uvicorn", "--port", "0")
DJANGO = """
from django.conf import settings

settings.configure(ROOT_URLCONF="views", SECRET_KEY="a-key-for-a-test", ALLOWED_HOSTS=["*"])

from django.core.asgi import get_asgi_application

app = get_asgi_application()
"""
LISTENS = re.compile(r"running on http://127\.0\.0\.1:(\d+)|\"port\":(\d+)")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[ServiceProcess]:
    """Run a service that has the agent and may send webhooks to this machine."""
    settings = model_settings(running_provider.openai_url) | {
        "WEBHOOKS_ALLOW_HTTP": "true",
        "WEBHOOKS_ALLOW_PRIVATE": "true",
        "MODELS_SMALL_PRICE_PER_MILLION_IN_USD": "3",
        "MODELS_SMALL_PRICE_PER_MILLION_OUT_USD": "15",
    }
    async with ServiceProcess(module_database_url, settings=settings) as running:
        agent = {"name": "shop", "prompt": {"system": "Help the customers of a shop."}}
        async with httpx.AsyncClient(base_url=running.url) as http:
            (await http.post("/agents", json={"agent": agent})).raise_for_status()
        yield running


@pytest.fixture(params=["FastAPI", "Django", "Node"])
async def program(
    request: pytest.FixtureRequest, service: ServiceProcess, tmp_path: Path
) -> AsyncIterator[ChildProcess]:
    """Run one of the programs."""
    async with httpx.AsyncClient(base_url=service.url) as http:
        secret = (await http.post("/webhooks/secret", json={})).json()["secret"]
    env = {"CASEWORKER_URL": service.url, "WEBHOOK_SECRET": secret, "PORT": "0"}
    fastapi, django = blocks_of(PAGE, "python")
    [javascript] = blocks_of(PAGE, "js")
    (tmp_path / "main.py").write_text(fastapi.text if request.param == "FastAPI" else DJANGO)
    (tmp_path / "views.py").write_text(django.text)
    (tmp_path / "main.mjs").write_text(javascript.text)
    command = node("main.mjs")[1:] if request.param == "Node" else [*UVICORN, "main:app"]
    with ChildProcess.python(*command, env=env, cwd=tmp_path, name=request.param) as child:
        yield child


async def address_of(program: ChildProcess) -> str:
    while (found := LISTENS.search(program.stdout + program.stderr)) is None:
        if program.exit_code is not None:
            raise ChildFailedError(program.stderr)
        await asyncio.sleep(0.05)
    return f"http://127.0.0.1:{found[1] or found[2]}"


async def test_a_program_streams_cancels_and_receives_webhooks(
    program: ChildProcess, service: ServiceProcess, provider: FakeProvider
) -> None:
    """The events reach the client, a disconnect cancels the run, and only signed webhooks count."""
    url = await address_of(program)
    await provider.script("chairs", [Step(text="They cost 230.86 euros.")], repeat_last=True)
    await provider.script("parcel", [Step(hang=True)])

    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as caller,
        httpx.AsyncClient(base_url=service.url, timeout=60) as caseworker,
    ):
        whole = await caller.post("/answers", params={"question": "What do chairs cost?"})
        assert "event: run.completed" in whole.text, whole.text
        async with caller.stream("POST", "/answers", params={"question": "A parcel?"}) as answer:
            await anext(answer.aiter_lines())
            await provider.wait_for_arrivals(1, "parcel")

        async def cancelled() -> bool:
            listed = await caseworker.get("/runs", params={"agent": "shop", "limit": 1})
            [run] = listed.json()["runs"]
            return bool(run["status"] == "cancelled")

        await eventually(cancelled)
        webhook = {"url": f"{url}/hooks"}
        run = {"kind": "agent", "agent": {"name": "shop"}, "input": "What do chairs cost?"}
        run_id = f"of-{program.pid}"
        body = {"run_id": run_id, **run, "webhook": webhook}
        accepted = await caseworker.post("/runs", json=body)

        async def received() -> bool:
            return f"run.completed {run_id}" in program.stdout

        await eventually(received)
        forged = {"webhook-id": "1", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"}
        refused = await caller.post("/hooks", content=b"{}", headers=forged)

    assert "230.86" in whole.text
    assert accepted.status_code == 202
    assert refused.status_code == 400
