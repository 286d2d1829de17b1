"""A service configured by the environment that a test sets, and its cases."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from caseworker.main.process import Process
from caseworker.main.server import build_app
from caseworker.settings.loader import load_settings
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.planning import prompt_document
from tests.support.service import model_settings


def plan(tool: str, *arguments: Any) -> Step:
    """Return a reply that plans one tool call for each of the arguments."""
    return Step(plan={"actions": [{"tool": tool, "args": args} for args in arguments]})


def calculation(*expressions: str) -> Step:
    """Return a reply that plans calculations."""
    return plan("calculator", *({"expression": expression} for expression in expressions))


RIGHT, WRONG, FAILING = calculation("6 * 7"), calculation("7 * 7"), calculation("1 / 0")
"""Replies to the default question."""

QUESTION = {"input": "What is 6 times 7?"}


@dataclass(frozen=True, slots=True)
class Configured:
    """Runs cases on a service with its own settings."""

    provider: FakeProvider
    database_url: str
    folder: Path

    @asynccontextmanager
    async def serving(self, **environment: str) -> AsyncIterator[JsonClient]:
        """Open a service with these environment variables; return a client of it."""
        patient = {"SERVER_REQUEST_TIMEOUT_SECONDS": "150"}
        environ = {**model_settings(self.provider.openai_url), **patient, **environment}
        process = Process(
            load_settings(environ, self.folder).settings, self.database_url, executes=True
        )
        transport = httpx.ASGITransport(build_app(process))
        client = JsonClient("http://localhost", transport=transport)
        async with process.opened(), client:
            yield client

    async def script(self, small: Sequence[Step], big: Sequence[Step] = (FAILING,)) -> None:
        """Set the replies of the two models; the last reply is repeated."""
        await self.provider.script("", small, model="fake-small", repeat_last=True)
        await self.provider.script("", big, model="fake-big", repeat_last=True)

    async def run(
        self, small: Sequence[Step], big: Sequence[Step] = (FAILING,), /, **settings: Any
    ) -> dict[str, Any]:
        """Run one case; lower-case names are request fields, upper-case names are settings."""
        await self.script(small, big)
        fields = {name: value for name, value in settings.items() if name.islower()}
        environment = {name: value for name, value in settings.items() if name.isupper()}
        async with self.serving(**environment) as client:
            return await client.post_run({**QUESTION, **fields}, wait_seconds=120)

    async def call_counts(self) -> dict[str, int]:
        """Return the number of calls of each model."""
        models = [arrival.model for arrival in await self.provider.arrivals()]
        return {tier: models.count(f"fake-{tier}") for tier in ("small", "big")}

    async def document(self, place: int = 0) -> dict[str, Any]:
        """Return the document that a planner received, in the order of the requests."""
        body = await self.body(place)
        return prompt_document(
            (message["role"], message["content"]) for message in body["messages"]
        )

    async def body(self, place: int = 0) -> dict[str, Any]:
        """Return the body of a request to the provider, in the order of arrival."""
        body = (await self.provider.arrivals(bodies=True))[place].body
        assert body is not None
        return body
