"""Journal reads for the runs in memory; lists, payloads and erasing need Postgres."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from caseworker.platform.paging import Page
from caseworker.runs.ports import CancelStatus, RunFilter, SpentSoFar
from caseworker.runs.run import CallRecord, CancelRequest, Run, RunKey
from tests.support.memory_rows import Row, journal_of, spent_of


@asynccontextmanager
async def transaction() -> AsyncIterator[None]:
    """Let other tasks run before and after, but not during the operation, even if it is refused."""
    await asyncio.sleep(0)
    try:
        yield
    finally:
        await asyncio.sleep(0)


class MemoryTraces:
    """The part of the run store that reads journals."""

    rows: dict[RunKey, Row]

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        async with transaction():
            return journal_of(self.rows.get(key, Row()))

    async def spent(self, key: RunKey) -> SpentSoFar:
        return spent_of(self.rows[key])

    async def payloads(
        self,
        key: RunKey,
        *,
        max_bytes: int,
        call_keys: Sequence[str] | None = None,
        node_ids: Sequence[str] | None = None,
    ) -> Sequence[CallRecord]:
        async with transaction():
            return [each for each in journal_of(self.rows.get(key, Row())) if each.call_key]

    async def nodes(self, key: RunKey) -> Sequence[Mapping[str, Any]]:
        async with transaction():
            return [each.node for each in journal_of(self.rows.get(key, Row()))]

    async def call(self, key: RunKey, node_id: str) -> Sequence[CallRecord]:
        raise NotImplementedError

    async def conversation(
        self, key: RunKey, call_key: str, *, until: CallRecord, max_bytes: int
    ) -> Sequence[CallRecord]:
        raise NotImplementedError

    async def find(self, tenant: str, run_filter: RunFilter) -> Page[Run]:
        raise NotImplementedError

    async def stoppable(self, tenant: str, run_filter: RunFilter) -> Sequence[RunKey]:
        raise NotImplementedError

    async def cancel_matching(
        self, key: RunKey, cancel_request: CancelRequest, run_filter: RunFilter
    ) -> CancelStatus | None:
        raise NotImplementedError

    async def erase(self, key: RunKey) -> None:
        raise NotImplementedError
