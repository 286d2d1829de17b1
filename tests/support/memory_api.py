"""The HTTP layer over runs in memory, for tests that need no database."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI

from app.access.authentication import Authentication
from app.access.keys import KeyStore
from app.api.application import build_api
from app.api.services import ApiLimits, ApiServices, PartState
from app.llm.gateway import ModelGateway, Tier
from app.llm.ports import ModelReply, ModelRequest
from app.llm.pricing import no_list_price
from app.nodes.catalog import NodeCatalog
from app.nodes.router import router_type
from app.nodes.toolset import toolset_type
from app.runs.approvals import RunApprovals
from app.runs.artifacts import ArtifactReading, ArtifactStore
from app.runs.graphs import DefinitionStore, GraphChecks
from app.runs.payloads import PayloadReading
from app.runs.service import RunService
from app.tools.calculator import Calculator
from app.tools.registry import ToolPolicy, ToolRegistry
from tests.support.graph_checks import ShapeChecks
from tests.support.limits import api_limits, retry_policy, tier_model, tool_dispatch
from tests.support.memory_approvals import MemoryApprovals
from tests.support.memory_artifacts import MemoryArtifacts
from tests.support.memory_definitions import MemoryDefinitions
from tests.support.memory_keys import MemoryKeys
from tests.support.memory_quotas import MemoryQuotas
from tests.support.memory_runs import MemoryRuns
from tests.support.memory_schedules import MemorySchedules
from tests.support.memory_threads import MemoryThreads
from tests.support.memory_webhooks import MemoryWebhooks

ALL_READY = {"database": PartState(True), "migrations": PartState(True), "worker": PartState(True)}


@dataclass
class FixedReadiness:
    """Answers what a test wants to see."""

    states: Mapping[str, PartState] = field(default_factory=lambda: ALL_READY)

    async def check(self) -> Mapping[str, PartState]:
        return self.states


class SilentProvider:
    """A model that these tests name but never ask."""

    name = "silent"
    external = True

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        raise AssertionError(f"{model} was asked {len(request.messages)} messages")

    async def aclose(self) -> None:
        return


def memory_api(
    store: MemoryRuns | None = None,
    limits: ApiLimits | None = None,
    *,
    runs: RunService | None = None,
    payloads: PayloadReading | None = None,
    artifacts: ArtifactStore | None = None,
    readiness: FixedReadiness | None = None,
    tools: ToolPolicy | None = None,
    graphs: DefinitionStore | None = None,
    graph_checks: GraphChecks | None = None,
    keys: KeyStore | None = None,
    authentication: Authentication | None = None,
    webhooks: MemoryWebhooks | None = None,
) -> FastAPI:
    """Build the real application over runs in memory that nobody executes."""
    store = store or MemoryRuns()
    provider = SilentProvider()
    stand_in = tier_model(provider=provider, model="stand-in", timeout_seconds=5)
    tier = tier_model(provider=provider, model="small-model", fallbacks=(stand_in,))
    keys = keys or MemoryKeys()
    services = ApiServices(
        keys=keys,
        authentication=authentication or Authentication(keys),
        runs=runs or RunService(store, executor=None),
        payloads=payloads or PayloadReading(store, max_shown_bytes=2_000_000),
        artifacts=ArtifactReading(artifacts or MemoryArtifacts(store)),
        approvals=RunApprovals(MemoryApprovals(store)),
        tools=tool_dispatch(ToolRegistry([Calculator()]), tools or ToolPolicy()),
        models=ModelGateway({Tier.SMALL: tier, Tier.BIG: tier}, no_list_price, retry_policy()),
        readiness=readiness or FixedReadiness(),
        definitions=graphs or MemoryDefinitions(),
        graph_checks=graph_checks or ShapeChecks(),
        node_types=NodeCatalog((router_type(), toolset_type(["calculator"]))),
        threads=MemoryThreads(store),
        quotas=MemoryQuotas(),
        webhooks=webhooks or MemoryWebhooks(),
        schedules=MemorySchedules(),
    )
    return build_api(services, limits or api_limits(), version="0.0.0")


@cache
def openapi_document() -> dict[str, Any]:
    """The OpenAPI document of :func:`memory_api`; to make it takes half a second."""
    return memory_api().openapi()


@asynccontextmanager
async def client_of(app: FastAPI, peer: str = "127.0.0.1") -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client that calls the application from an address."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(peer, 50000))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
