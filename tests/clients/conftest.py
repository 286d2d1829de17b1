"""Clients of both kinds, a fake provider, and a service."""

from collections.abc import AsyncIterator

import pytest

from tests.acceptance.conftest import provider, running_provider, service, service_settings
from tests.clients.callers import Callers

__all__ = ["callers", "provider", "running_provider", "service", "service_settings"]


@pytest.fixture(params=["sync", "async"])
async def callers(request: pytest.FixtureRequest) -> AsyncIterator[Callers]:
    """Open blocking or asynchronous clients."""
    opened = Callers(request.param)
    yield opened
    await opened.close()
