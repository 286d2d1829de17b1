"""The key of a request decides whether ``/v1`` reaches an agent or a model, in two processes."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import SETTLED, ServiceProcess, model_settings
from tests.support.standing import create_key

OPERATOR = "operator-key-of-this-test-0123456789"
HELLO: Any = [{"role": "user", "content": "Hello (key)"}]


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    """Return settings of a service that needs keys."""
    settings = model_settings(running_provider.openai_url) | SETTLED
    return {**settings, "AUTH_BOOTSTRAP_KEY": OPERATOR}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second(
    service: ServiceProcess, module_database_url: str, service_settings: dict[str, str]
) -> AsyncIterator[ServiceProcess]:
    """Run another process on the same database."""
    async with ServiceProcess(
        module_database_url, settings=service_settings, name="second"
    ) as running:
        yield running


async def key_of(http: httpx.AsyncClient, tenant: str) -> str:
    """Create a key with the scope run, and register the agent of its tenant."""
    body = {"name": tenant, "tenant": tenant, "scopes": ["run"]}
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    created = await http.post("/keys", json=body, headers=headers)
    key: str = created.raise_for_status().json()["key"]
    agent = {"name": f"agent-{tenant}", "prompt": "You help."}
    registered = await http.post(
        "/agents", json={"agent": agent}, headers={"Authorization": f"Bearer {key}"}
    )
    registered.raise_for_status()
    return key


def client_of(service: ServiceProcess, key: str, path: str = "/v1") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=service.url + path, api_key=key, max_retries=0)


@pytest.mark.req("cw/16.openai")
async def test_an_api_key_reaches_the_agents_of_its_tenant_only(
    service: ServiceProcess, second: ServiceProcess, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Agents and responses of other tenants do not exist; other processes know the response."""
    await provider.script("(key)", [Step(text="Hello.")])
    first_key, other_key = await key_of(http, "first"), await key_of(http, "other")

    async with client_of(service, first_key) as first, client_of(second, other_key) as other:
        listed = [[each.id async for each in ai.models.list()] for ai in (first, other)]
        response = await first.responses.create(model="agent-first", input="Hello (key)")
        async with client_of(second, first_key) as elsewhere:
            read = await elsewhere.responses.retrieve(response.id)
        for call in (
            other.responses.retrieve(response.id),
            other.responses.cancel(response.id),
            other.chat.completions.create(model="agent-first", messages=HELLO),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        with pytest.raises(openai.BadRequestError) as follow_up:
            await other.responses.create(
                model="agent-other", input="Hello", previous_response_id=response.id
            )

    assert listed == [["agent-first"], ["agent-other"]]
    assert read.output_text == response.output_text == "Hello."
    assert follow_up.value.param == "previous_response_id"


async def test_a_wrong_key_is_401_in_the_shape_of_the_api(
    service: ServiceProcess, provider: FakeProvider
) -> None:
    """A placeholder is no key once the service has one."""
    for key in ("unused", "cwk_unknown_0", "cwa_unknown_0", "cwr_unknown"):
        async with client_of(service, key) as ai:
            with pytest.raises(openai.AuthenticationError) as refused:
                await ai.chat.completions.create(model="agent-first", messages=HELLO)
        assert isinstance(refused.value.body, dict)
        assert {"message", "type", "param", "code"} <= refused.value.body.keys()
        assert refused.value.code in ("credential-refused", "invalid_api_key")


@pytest.mark.req("cw/16.openai")
async def test_a_standing_key_reaches_models_through_any_process(
    service: ServiceProcess, second: ServiceProcess, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The process that does not own the run of the session forwards the request to its owner.

    Owners of the previous release know only the path below ``/gateway``.
    """
    await provider.script("(key)", [Step(text="From a model.")] * 2)
    holder = await create_key(http, OPERATOR, name="standing")
    key = holder.key["key"]

    async with client_of(service, key) as here, client_of(second, key) as there:
        replies = [
            await ai.chat.completions.create(model="small", messages=HELLO) for ai in (here, there)
        ]
        upgrade = {
            "Authorization": f"Bearer {key}",
            "Connection": "Upgrade",
            "Upgrade": "websocket",
        }
        websocket = await http.get("/v1/responses", headers=upgrade)
        with pytest.raises(openai.NotFoundError) as unknown:
            await here.chat.completions.create(model="agent-first", messages=HELLO)

    assert [each.choices[0].message.content for each in replies] == ["From a model."] * 2
    assert unknown.value.code == "model_not_found"
    assert websocket.status_code == 426  # Codex then sends its request with POST
    metrics = (await http.get("/metrics")).text
    assert 'route="/gateway/openai/v1/chat/completions"' in metrics
    runs = await http.get("/runs?kind=external", headers={"Authorization": f"Bearer {OPERATOR}"})
    assert len(runs.json()["runs"]) == 1


async def test_an_api_key_at_the_gateway_is_told_the_right_url(
    service: ServiceProcess, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The message names the base URL for keys of this kind."""
    key = await key_of(http, "lost")
    async with client_of(service, key, "/gateway/openai/v1") as ai:
        with pytest.raises(openai.AuthenticationError) as refused:
            await ai.chat.completions.create(model="agent-lost", messages=HELLO)

    assert "ends with /v1" in str(refused.value)


async def test_the_end_of_a_key_ends_its_stream(
    service: ServiceProcess, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """A stream of a revoked key ends with an error."""
    await provider.script("(revoked)", [Step(text="One two three four", after_events=2)])
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    key = await key_of(http, "revoked")
    async with client_of(service, key) as ai:
        stream = await ai.chat.completions.create(
            model="agent-revoked",
            messages=[{"role": "user", "content": "Count. (revoked)"}],
            stream=True,
        )
        await anext(aiter(stream))
        deleted = await http.delete(f"/keys/{key.split('_')[1]}", headers=headers)
        await provider.release()
        with pytest.raises(openai.APIError) as ended:
            await read(aiter(stream))

    assert deleted.is_success
    assert ended.value.code is not None


async def read(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass
