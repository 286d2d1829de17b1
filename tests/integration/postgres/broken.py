"""A database behind a proxy that breaks connections, and an oracle that connects directly."""

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from caseworker.platform.postgres.engines import PoolSizes
from caseworker.runs.execute.postgres.runs import StoreLimits
from caseworker.runs.run import Run, RunKey
from tests.support.database import proxied, upstream_of
from tests.support.fault_proxy import FaultProxy
from tests.support.stores import Oracle, Stores, new_run, open_oracle, open_stores

KEY = RunKey("default", "case-1")
TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@dataclass(frozen=True)
class ProxiedStores:
    stores: Stores
    proxy: FaultProxy
    oracle: Oracle

    async def claimed(self, run_id: str = "case-1") -> Run:
        return (await self.stores.runs.accept(new_run(run_id), worker_id="w1")).run

    async def count(self, table: str) -> int:
        return int(await self.oracle.value(f"SELECT count(*) FROM {table}"))  # noqa: S608


@asynccontextmanager
async def open_world(
    url: str, limits: StoreLimits | None = None, *, sizes: PoolSizes | None = None
) -> AsyncIterator[ProxiedStores]:
    async with FaultProxy(upstream_of(url)) as proxy, open_oracle(url) as oracle:
        through = proxied(url, proxy)
        async with open_stores(through, limits, sizes=sizes) as stores:
            yield ProxiedStores(stores, proxy, oracle)


async def refusal(call: Coroutine[Any, Any, object]) -> Exception | None:
    try:
        await call
    except Exception as error:
        return error
    return None
