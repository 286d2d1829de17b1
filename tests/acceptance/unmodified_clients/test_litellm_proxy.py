"""LiteLLM's proxy in front of the gateway, and behind it as a provider."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from bench.environments import peer_environment
from tests.support.agent_clients.processes import CountingProxy
from tests.support.database import TestServer
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.peer_servers import served
from tests.support.service import ServiceProcess, finished, http_client, model_settings
from tests.support.standing import create_key
from tests.support.tenants import OPERATOR_KEY

pytestmark = [pytest.mark.proof, pytest.mark.req("cw/19.key")]

PACKAGE: Final = "litellm[proxy]==1.108.7"
MASTER_KEY: Final = "sk-" + "0123456789abcdef" * 3
CHAT: Final = "/v1/chat/completions"


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    return {**model_settings(running_provider.openai_url), "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY}


@asynccontextmanager
async def litellm_proxy(url: str, key: str, folder: Path) -> AsyncIterator[str]:
    """Run LiteLLM's proxy with the model ``small`` at an endpoint; yield its address."""
    environment = await peer_environment(PACKAGE)
    model = {"model": "openai/small", "api_base": url, "api_key": key}
    config = {
        "model_list": [{"model_name": "small", "litellm_params": model}],
        "router_settings": {"num_retries": 0},
        "general_settings": {"forward_client_headers_to_llm_api": True},
    }
    (folder / "litellm.yaml").write_text(json.dumps(config))
    settings = {
        "CONFIG_FILE_PATH": str(folder / "litellm.yaml"),
        "LITELLM_MASTER_KEY": MASTER_KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "true",
    }
    app, path = "litellm.proxy.proxy_server:app", "/health/liveliness"
    async with served(environment, app, path, settings=settings, folder=folder) as address:
        yield address


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": text}], **fields}


async def test_the_budget_of_a_standing_key_holds_for_clients_of_the_proxy(
    service: ServiceProcess,
    proxy: CountingProxy,
    provider: FakeProvider,
    tmp_path: Path,
) -> None:
    """The header of a client names its session; a refused call is one request with the reason."""
    await provider.script("FRONT", [Step(text="It rains.")], repeat_last=True)
    async with service.http() as http:
        holder = await create_key(
            http, OPERATOR_KEY, models={"*": "small"}, budget={"max_llm_calls": 2}
        )
    url = f"{proxy.url}/gateway/openai/v1"
    async with (
        litellm_proxy(url, holder.key["key"], tmp_path) as address,
        http_client(address, MASTER_KEY, **{"x-session-id": "report-7"}) as client,
    ):
        replies = [
            await client.post(CHAT, json=body("FRONT", stream=stream))
            for stream in (False, True, False, True)
        ]
        other = await client.post(CHAT, json=body("FRONT"), headers={"x-session-id": "report-8"})

    assert [reply.status_code for reply in (*replies, other)] == [200, 200, 400, 400, 200]
    assert "It rains." in replies[0].text
    for refused in replies[2:]:
        assert "The run was halted: LLM call limit exceeded: 2 used, limit 2" in refused.text
    assert (proxy.posts, await provider.count("FRONT")) == (5, 3)


async def test_the_proxy_is_a_provider(
    postgres: TestServer, provider: FakeProvider, tmp_path: Path
) -> None:
    """The usage equals the counts of the model, and a cancel closes the connection to it."""
    await provider.script("BEHIND", [Step(text="It rains.")], repeat_last=True)
    await provider.script("SLOW", [Step(text="It rains in Bergen.", after_events=2)])
    with postgres.database() as database:
        async with litellm_proxy(provider.openai_url, "sk-x", tmp_path) as address:
            keys = {"MODELS_SMALL_API_KEY": MASTER_KEY, "MODELS_SMALL_MODEL": "small"}
            settings = {**model_settings(f"{address}/v1"), **keys}
            async with ServiceProcess(database, settings=settings) as service:
                await _ask_and_cancel(service, provider)


async def _ask_and_cancel(service: ServiceProcess, provider: FakeProvider) -> None:
    async with service.http() as http:
        created = await http.post("/runs", json={"kind": "external", "models": {"*": "small"}})
        run = created.raise_for_status().json()
        key = {"Authorization": f"Bearer {run['access']['key']}"}
        for stream in (False, True):
            asked = body("BEHIND", stream=stream)
            reply = await http.post("/gateway/openai" + CHAT, json=asked, headers=key)
            assert reply.status_code == httpx.codes.OK, reply.text
        used = (await http.get(f"/runs/{run['run_id']}")).json()["usage"]
        slow = http.post("/gateway/openai" + CHAT, json=body("SLOW", stream=True), headers=key)
        async with asyncio.TaskGroup() as group:
            group.create_task(slow)
            await provider.wait_for_arrivals(1, "SLOW")
            await http.delete(f"/runs/{run['run_id']}")
            [cancelled] = await provider.wait_for_arrivals(1, "SLOW", ended=True)
        async with service.client() as client:
            ended = await finished(client, run["run_id"])

    counts = [each.charged or {} for each in await provider.arrivals("BEHIND")]
    assert used["tokens"] == sum(each["tokens_in"] + each["tokens_out"] for each in counts)
    assert used["tokens_estimated"] == 0
    assert cancelled.outcome == "client_gone"
    assert ended["status"] == "cancelled"
