"""The fields that a run with a limit on its spending may send through the gateway."""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, model_settings

PATHS = {
    "chat_completions": "/gateway/openai/v1/chat/completions",
    "responses": "/gateway/openai/v1/responses",
    "messages": "/gateway/anthropic/v1/messages",
}
BODIES = Path(__file__).parents[1] / "data/client_bodies"
HELLO: Any = [{"role": "user", "content": "hello"}]
PRICES = {"price_per_million_in_usd": 1, "price_per_million_out_usd": 2}


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the configuration file of the service."""
    file = tmp_path_factory.mktemp("configuration") / "config.yaml"
    file.write_text("gateway: {}\n")
    return file


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider, configuration: Path) -> dict[str, str]:
    """Set a model of each provider, and one without a price for searches."""
    claude = {"provider": "anthropic", "api_key": "sk-provider", "model": "claude-haiku-4-5"}
    named = {
        "claude": {**claude, "base_url": running_provider.url},
        "gpt": {"base_url": running_provider.openai_url, "model": "gpt", **PRICES},
        "plain": {
            "base_url": running_provider.openai_url,
            "model": "plain",
            **PRICES,
            "provider_tools": {"web_search": None},
        },
    }
    return {
        **model_settings(running_provider.openai_url),
        "MODELS_NAMED": json.dumps(named),
        "CASEWORKER_CONFIG": str(configuration),
    }


Call = Callable[..., Awaitable[httpx2.Response]]
Opening = Callable[..., Awaitable[Call]]


@pytest.fixture
async def opened(service: ServiceProcess, provider: FakeProvider) -> AsyncIterator[Opening]:
    """Return a function that opens an external run and returns a function for its calls."""
    await provider.answer_by_default(Step(text="fine"))
    async with service.client() as client, httpx2.AsyncClient(base_url=service.url) as http:

        async def opening(**fields: Any) -> Call:
            run = await client.post_run({"kind": "external", **fields})
            credential = {"authorization": f"Bearer {run['access']['key']}"}

            async def call(dialect: str, body: dict[str, Any]) -> httpx2.Response:
                return await http.post(PATHS[dialect], json=body, headers=credential, timeout=150)

            return call

        yield opening


@pytest.fixture
async def limited(opened: Opening) -> Call:
    """Return a function for the calls of a run with a budget of one dollar."""
    models = {"claude": "claude", "plain": "plain", "claude-sonnet-4-5": "claude", "*": "gpt"}
    return await opened(budget={"max_cost_usd": 1}, models=models)


@pytest.mark.req("cw/3.fields")
async def test_costly_and_unknown_fields_are_refused_and_nothing_is_sent(
    limited: Call, opened: Opening, provider: FakeProvider
) -> None:
    """The refusal names the field and what to do; a run without own limits sends the field."""
    body = {"model": "gpt", "messages": HELLO}
    for field, value, words in (
        ("service_tier", "priority", "service_tier: priority"),
        ("extra_body", {"google": {"tools": [{"google_search": {}}]}}, "extra_body.google.tools"),
        ("foo", 1, 'gateway.free_fields: {chat_completions: ["foo"]}'),
    ):
        reply = await limited("chat_completions", {**body, field: value})
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert (error["code"], words in error["message"]) == ("unsupported_field", True)
    assert await provider.count("hello") == 0

    unlimited = await opened()
    reply = await unlimited("chat_completions", {**body, "foo": 1, "service_tier": "priority"})

    assert reply.status_code == 200
    (arrival,) = await provider.arrivals("hello", bodies=True)
    assert arrival.body is not None
    assert (arrival.body["foo"], arrival.body["service_tier"]) == (1, "priority")


@pytest.mark.req("cw/3.fields")
async def test_an_operator_allows_an_unknown_field_without_a_restart(
    limited: Call, configuration: Path, provider: FakeProvider
) -> None:
    """The next call after a change of the file sees it; an invalid file changes nothing."""
    body = {"model": "gpt", "messages": HELLO, "bar": 1}
    tier = {**body, "service_tier": "priority"}
    statuses = []
    for text in (
        '{chat_completions: ["bar"]}',
        "{chat_completions: [service_tier]}",  # invalid, because a row decides the field
        "{}",
    ):
        written = configuration.with_suffix(".new")
        written.write_text(f"gateway: {{free_fields: {text}}}\n")
        os.replace(written, configuration)
        statuses += [(await limited("chat_completions", each)).status_code for each in (body, tier)]

    assert statuses == [200, 400, 200, 400, 400, 400]
    assert await provider.count("hello") == 2


@pytest.mark.req("cw/3.fields")
async def test_tools_of_the_provider_get_a_limit_of_uses(
    limited: Call, opened: Opening, provider: FakeProvider
) -> None:
    """The body gets the provider's own limit, at most the configured one."""
    search = {"type": "web_search", "search_context_size": "low"}
    mine = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    body = {"model": "gpt", "input": "hello", "tools": [mine, search]}
    messages = {"model": "claude", "max_tokens": 99, "messages": HELLO}
    hosted = {"type": "web_search_20250305", "name": "web_search"}

    for max_tool_calls in (None, 3, 90):
        await limited("responses", {**body, "max_tool_calls": max_tool_calls})
    for tool in (hosted, {**hosted, "max_uses": 3}, {**hosted, "max_uses": 90}):
        await limited("messages", {**messages, "tools": [tool]})
    unlimited = await opened()
    await unlimited("responses", body)

    bodies = [each.body or {} for each in await provider.arrivals("hello", bodies=True)]
    assert [each.get("max_tool_calls") for each in bodies[:3]] == [5, 3, 5]
    assert [each["tools"][0]["max_uses"] for each in bodies[3:6]] == [5, 3, 5]
    assert "max_tool_calls" not in bodies[6]
    assert all(each["tools"] == [mine, search] for each in (*bodies[:3], bodies[6]))


@pytest.mark.req("cw/3.fields")
async def test_a_tool_of_the_provider_without_a_price_is_refused_by_its_name_and_place(
    limited: Call, opened: Opening, provider: FakeProvider
) -> None:
    """The message has the setting that prices the tool."""
    search = {"type": "web_search"}
    body = {"model": "plain", "input": "hello", "tools": [{"type": "local_shell"}, search]}

    reply = await limited("responses", body)

    message = reply.json()["error"]["message"]
    assert reply.status_code == 400
    for words in ("tools[1]: web_search", "provider_tools of the model plain", "switch it off"):
        assert words in message
    assert await provider.count("hello") == 0
    assert (await (await opened())("responses", body)).status_code == 200


@pytest.mark.req("cw/3.fields")
@pytest.mark.parametrize("client", ["codex", "claude_code", "aider", "crewai", "smolagents"])
async def test_the_requests_of_coding_agents_pass_in_a_run_with_a_budget(
    opened: Opening, client: str
) -> None:
    """They run as they come, with the tools that their providers execute."""
    models = {"*": "claude" if client == "claude_code" else "gpt"}
    for line in (BODIES / f"{client}.jsonl").read_text().splitlines():
        captured = json.loads(line)
        call = await opened(budget={"max_cost_usd": 1}, models=models)
        if captured["dialect"] == "messages":
            call = await opened(budget={"max_cost_usd": 1}, models={"*": "claude"})

        reply = await call(captured["dialect"], captured["body"])

        assert reply.status_code == 200, reply.text
