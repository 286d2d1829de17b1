"""Fixtures of the tests of the tools."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import pytest_asyncio

from caseworker.tools.ports import ToolContext
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar
from tests.unit.tools.http_support import Api, reply


@pytest.fixture(scope="session")
def calculator() -> Calculator:
    """Return the calculator, which has no state."""
    return Calculator()


@pytest.fixture(scope="session")
def calendar() -> Calendar:
    """Return the calendar, created once because loading its date parser takes time."""
    return Calendar()


@pytest.fixture
def context() -> ToolContext:
    """Return the context of a run in New York at an hour when Greenwich has the next day."""
    return ToolContext(
        run_id="run-1",
        timezone="America/New_York",
        now=datetime(2025, 1, 15, 3, 0, tzinfo=UTC),
    )


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def api_server() -> AsyncIterator[Api]:
    """Yield a server that listens while the tests of one module run."""
    api = Api()
    listening = await asyncio.start_server(api.talk, "127.0.0.1", 0)
    async with listening:
        api.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield api
    await asyncio.sleep(0)  # closed connections end in the next iteration of the loop


@pytest.fixture
def api(api_server: Api) -> Api:
    """Return the server without the requests of earlier tests."""
    api_server.answer = reply(b"{}")
    api_server.requests.clear()
    api_server.arrived.clear()
    return api_server
