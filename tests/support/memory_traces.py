"""What is read of the journals of runs in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any

from app.runs.conversations import beginning_of
from app.runs.ports import SpentSoFar
from app.runs.run import CallRecord, RunKey
from tests.support.memory_rows import Row, journal_of, spent_of


@asynccontextmanager
async def transaction() -> AsyncIterator[None]:
    """Let others run before and after, never in between; a refusal takes its time as well."""
    await asyncio.sleep(0)
    try:
        yield
    finally:
        await asyncio.sleep(0)


class MemoryTraces:
    """The part of the run store that shows what runs did."""

    rows: dict[RunKey, Row]

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        async with transaction():
            return journal_of(self.rows.get(key, Row()))

    async def spent(self, key: RunKey) -> SpentSoFar:
        return spent_of(self.rows[key])

    async def call(self, key: RunKey, node_id: str) -> Sequence[CallRecord]:
        async with transaction():
            return [
                each
                for each in journal_of(self.rows.get(key, Row()))
                if each.node_id in ("n000001", node_id)
                or (each.node["parent_id"], each.node["name"]) == (node_id, "attempt")
            ]

    async def payloads(
        self, key: RunKey, *, max_bytes: int, call_keys: Sequence[str] | None = None
    ) -> Sequence[CallRecord]:
        async with transaction():
            noted = [
                each
                for each in journal_of(self.rows.get(key, Row()))
                if each.call_key and (call_keys is None or each.call_key in call_keys)
            ]
            sizes = accumulate(len(json.dumps([each.request, each.value])) for each in noted)
            return [each for each, size in zip(noted, sizes, strict=True) if size <= max_bytes]

    async def conversation(
        self, key: RunKey, call_key: str, *, until: CallRecord, max_bytes: int
    ) -> Sequence[CallRecord]:
        async with transaction():
            before = [
                each
                for each in journal_of(self.rows.get(key, Row()))
                if each.call_key and each.node_id <= until.node_id
            ]
        asked = [each for each in before if call_key in (each.call_key, beginning_of(each.request))]
        named = {
            message.get("reply_of") or message.get("result_of")
            for each in asked
            for message in (each.request or {}).get("messages", ())
        }
        found = [each for each in before if each in asked or each.call_key in named]
        sizes = accumulate(len(json.dumps([each.request, each.value])) for each in found[::-1])
        fits = sum(size <= max_bytes for size in sizes)
        return found[len(found) - fits :]

    async def nodes(self, key: RunKey) -> Sequence[Mapping[str, Any]]:
        async with transaction():
            return [each.node for each in journal_of(self.rows.get(key, Row()))]
