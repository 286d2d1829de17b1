"""Two processes of the service on one database, whose calls cost a cent for 100 output tokens."""

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Self

import httpx

from bench.budget_race import settings_of
from tests.support.external import QUICK_RECOVERY
from tests.support.fake_provider.client import FakeProvider
from tests.support.service import ServiceProcess
from tests.support.stores import Oracle, open_oracle

CENT = Decimal("0.01")
"""Cost of 100 output tokens; the input is free."""

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Pair:
    """Two processes of the service, a client of each, and their database."""

    first: ServiceProcess
    second: ServiceProcess
    of_first: httpx.AsyncClient
    of_second: httpx.AsyncClient
    oracle: Oracle

    @property
    def clients(self) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
        """The clients of both processes."""
        return self.of_first, self.of_second

    @classmethod
    @asynccontextmanager
    async def of(
        cls, database_url: str, provider: FakeProvider, settings: Mapping[str, str] = NO_SETTINGS
    ) -> AsyncIterator[Self]:
        """Start two processes; ``settings`` are added to those of both."""
        settings = {**settings_of(provider), **QUICK_RECOVERY, **settings}
        async with (
            ServiceProcess(database_url, settings=settings, name="first") as first,
            ServiceProcess(database_url, settings=settings, name="second") as second,
            first.http() as of_first,
            second.http() as of_second,
            open_oracle(database_url) as oracle,
        ):
            yield cls(first, second, of_first, of_second, oracle)


async def has_failed(request: Awaitable[httpx.Response]) -> bool:
    """Return whether a request got no answer."""
    try:
        await request
    except httpx.TransportError:
        return True
    return False


async def counted(provider: FakeProvider, marker: str) -> tuple[int, Decimal]:
    """Return the number of calls with a marker and their dollars, as the provider counted them."""
    arrivals = await provider.arrivals(marker)
    tokens = sum(each.charged["tokens_out"] for each in arrivals if each.charged)
    return len(arrivals), tokens * CENT / 100
