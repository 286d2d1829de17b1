"""A reply that breaks off after its first byte was sent to a client: the call is never repeated."""

import json
from typing import Any

import httpx
import pytest

from tests.support.external import Agent, start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, model_settings

pytestmark = pytest.mark.req("cw/15.refusals")

MESSAGES = [{"role": "user", "content": "BROKEN"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/gateway/openai/v1/chat/completions": {"model": "small", "messages": MESSAGES},
    "/gateway/openai/v1/responses": {"model": "small", "input": "BROKEN"},
    "/gateway/anthropic/v1/messages": {"model": "claude", "max_tokens": 99, "messages": MESSAGES},
}
TEXT = "one two three four"
ENDS = ("cut", "end", "fail", "hold")
"""The connection is lost, or the stream ends early, has an error, or stays silent for too long."""


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    """Return the settings of a process whose models have a short timeout."""
    claude = {
        "provider": "anthropic",
        "base_url": running_provider.url,
        "model": "fake",
        "api_key": "sk-x",
        "timeout_seconds": 2.0,
    }
    return {
        **model_settings(running_provider.openai_url),
        "MODELS_SMALL_TIMEOUT_SECONDS": "2",
        "MODELS_NAMED": json.dumps({"claude": claude}),
    }


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("then", ENDS)
@pytest.mark.parametrize("path", REQUESTS)
async def test_a_reply_that_breaks_off_is_repeated_only_while_no_byte_was_sent(
    service: ServiceProcess, provider: FakeProvider, path: str, then: Any, stream: bool
) -> None:
    """A stream ends with an error event. A whole reply has not been sent, so it may be repeated."""
    broken = Step(text=TEXT, chunk_chars=4, after_events=4, then=then)
    await provider.script("BROKEN", [broken, Step(text=TEXT, chunk_chars=4)], repeat_last=True)
    async with service.http() as http:
        agent = await start(http)
        reply = await _sent(agent, path, stream)

    text = reply.text
    if stream:
        assert await provider.count("BROKEN") == 1
        assert reply.status_code == 200
        assert text.count("one") == 1, text
        assert "four" not in text
        assert '"error"' in text.strip().splitlines()[-1], text
        assert "[DONE]" not in text
    else:
        assert reply.status_code == 200
        assert TEXT in text


async def _sent(agent: Agent, path: str, stream: bool) -> httpx.Response:
    headers = {"Authorization": f"Bearer {agent.key}"}
    return await agent.http.post(path, json={**REQUESTS[path], "stream": stream}, headers=headers)
