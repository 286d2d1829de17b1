"""The real application on the real stores, called in this process.

No worker executes its runs.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, cast

import httpx
from fastapi import FastAPI

from caseworker.features.access.authentication import Authentication
from caseworker.features.access.postgres import PostgresKeys
from caseworker.features.artifacts.postgres import PostgresArtifacts
from caseworker.features.definitions.definitions import Definitions
from caseworker.features.definitions.postgres import PostgresDefinitions
from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.threads.service import Chats
from caseworker.features.waiting_calls.postgres import PostgresWaitingCalls
from caseworker.main.process import Process
from caseworker.main.server import build_app
from caseworker.platform.fair_threads import PacedThread
from caseworker.platform.http.health import PartState
from caseworker.runs.execute.postgres.runs import PostgresRuns
from caseworker.runs.http.limits import ApiLimits
from caseworker.runs.journal.postgres import PostgresJournal
from caseworker.runs.run import Run, RunKey
from caseworker.settings.schema import Settings
from tests.support.limits import SETTINGS, api_limits


async def all_ready() -> Mapping[str, PartState]:
    """Return the states of a process that is ready."""
    return {part: PartState(True) for part in ("database", "migrations", "worker")}


class Api(Process):
    """A process that serves requests and executes no runs; tests may use its stores directly."""

    def __init__(self, url: str, settings: Settings = SETTINGS) -> None:
        """Build the process; :meth:`opened` connects it to the database at ``url``."""
        super().__init__(settings, url, executes=False)
        self.store: PostgresRuns = self._store
        self.journal: PostgresJournal = self._journal
        self.files: PostgresArtifacts = self._artifacts
        self.keys = PostgresKeys(self._engines.work)
        self.quotas: PostgresQuotas = self.services[PostgresQuotas]
        self.definitions = cast("PostgresDefinitions", self.services[Definitions].store)
        self.threads = self.services[Chats].store
        self.approval_store: PostgresWaitingCalls = self._waiting_calls

    async def stored(self, run_id: str = "r", *, tenant: str = "default") -> Run:
        """Return a run as it is stored."""
        run = await self.store.get(RunKey(tenant, run_id))
        assert run is not None
        return run

    def app(
        self,
        *services: object,
        limits: ApiLimits | None = None,
        bootstrap_key: str | None = None,
        **options: Any,
    ) -> FastAPI:
        """Return the application; ``services`` replace those of the process by their type.

        ``options`` replace those of the application. Each application gets its own authentication,
        so it caches no keys of another test.
        """
        limits = limits or api_limits()
        given: dict[type, object] = {type(each): each for each in (limits, *services)}
        given[Definitions] = Definitions(
            self.definitions, self.catalog, limits.of_graphs, PacedThread()
        )
        if Authentication not in given:
            given[Authentication] = Authentication(self.keys, bootstrap_key=bootstrap_key)
        options = {"version": "0.0.0", "lifespan": None, **options}
        return build_app(self, services=given, **options)


@cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the application, which is expensive to build."""
    return Api("postgresql://localhost/none").app().openapi()


@asynccontextmanager
async def client_of(app: FastAPI, peer: str = "127.0.0.1") -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client that calls the application from the address ``peer``."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(peer, 50000))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
