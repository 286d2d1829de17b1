"""A conversation between one model provider and the fake provider, for tests of either."""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from caseworker.models.ports import Message, ModelError, ModelProvider, ModelReply, ModelRequest
from caseworker.models.wires.anthropic import anthropic_provider
from caseworker.models.wires.openai import openai_provider
from tests.support.fake_provider import FakeProvider, Step

KEY = "sk-canary-4711"
"""The key that Anthropic's client sends; OpenAI's needs none for a local server."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """One protocol: its provider and one of its models."""

    name: str
    build: Callable[[FakeProvider], ModelProvider]
    model: str
    stop: str = "stop"
    """Its name for the end of an answer."""
    calling: str = "tool_calls"
    """Its name for an answer with tool calls."""


FLAVOURS = (
    Flavour("openai", lambda fake: openai_provider(base_url=fake.openai_url), "gpt-5-nano"),
    Flavour(
        "anthropic",
        lambda fake: anthropic_provider(base_url=fake.url, api_key=KEY),
        "claude-haiku-4-5",
        stop="end_turn",
        calling="tool_use",
    ),
)


class Line:
    """A conversation with one provider under its own marker."""

    def __init__(self, fake: FakeProvider, provider: ModelProvider, flavour: Flavour) -> None:
        self._fake, self._provider, self._flavour = fake, provider, flavour
        self.marker = f"{flavour.name}-{uuid.uuid4()}"

    def request(self, **options: Any) -> ModelRequest:
        document = json.dumps({"question": self.marker})
        messages = (
            Message(role="system", content="Plan."),
            Message(role="user", content=document),
        )
        return ModelRequest(messages=messages, **{"timeout_seconds": 120, **options})

    async def ask(self, step: Step | None = None, **options: Any) -> ModelReply:
        """Make one attempt that the fake provider treats with ``step``."""
        if step is not None:
            await self._fake.script(self.marker, [step], repeat_last=True)
        return await self._provider.complete(self._flavour.model, self.request(**options))

    async def fail(self, step: Step, **options: Any) -> ModelError:
        """Make one attempt that must fail, and check that it sent a single request."""
        with pytest.raises(ModelError) as caught:
            await self.ask(step, **options)
        assert len(await self._fake.arrivals(self.marker)) == 1
        return caught.value

    async def request_body(self) -> dict[str, Any]:
        """Return the body of the only request."""
        (arrival,) = await self._fake.arrivals(self.marker, bodies=True)
        assert arrival.body is not None
        return arrival.body
