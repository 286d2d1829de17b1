"""Threads in memory: the port of ``app.chats.thread`` as a database keeps its promises."""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from app.chats.thread import (
    ChatMessage,
    MessageNotFoundError,
    Role,
    Thread,
    ThreadConflictError,
    ThreadFullError,
    ThreadNotFoundError,
    ThreadPage,
)
from app.runs.errors import IdempotencyMismatchError, InvalidRunError, RunConflictError
from app.runs.run import RunKey
from tests.support.memory_runs import MemoryRuns

Key = tuple[str, str]
"""Tenant and thread."""


class MemoryThreads:
    """Implements the store of threads beside a store of runs."""

    def __init__(self, runs: MemoryRuns) -> None:
        self._runs = runs
        self._threads: dict[Key, Thread] = {}
        self._messages: dict[Key, list[ChatMessage]] = {}

    async def create(self, thread: Thread) -> tuple[Thread, bool]:
        await asyncio.sleep(0)
        key = thread.tenant, thread.thread_id
        stored = self._threads.get(key)
        if stored is not None and stored.request_hash != thread.request_hash:
            raise ThreadConflictError
        if stored is None:
            self._threads[key] = replace(thread, created_at=datetime.now(UTC))
            self._messages[key] = []
        return self._threads[key], stored is None

    async def get(self, tenant: str, thread_id: str) -> Thread | None:
        await asyncio.sleep(0)
        return self._threads.get((tenant, thread_id))

    async def find(self, tenant: str, *, limit: int, cursor: str | None) -> ThreadPage:
        await asyncio.sleep(0)
        mine = [thread for (owner, _), thread in self._threads.items() if owner == tenant][::-1]
        after = 0 if cursor is None else _place(cursor)
        page = [replace(one, definition={}, inputs={}, tools=()) for one in mine[after:]]
        following = base64.b64encode(str(after + limit).encode()).decode()
        return ThreadPage(
            threads=page[:limit], next_cursor=following if len(page) > limit else None
        )

    async def delete(self, tenant: str, thread_id: str) -> bool:
        await asyncio.sleep(0)
        self._messages.pop((tenant, thread_id), None)
        return self._threads.pop((tenant, thread_id), None) is not None

    async def add(
        self, tenant: str, thread_id: str, messages: Sequence[ChatMessage], *, most: int
    ) -> bool:
        await asyncio.sleep(0)
        if (tenant, thread_id) not in self._threads:
            raise ThreadNotFoundError(thread_id)
        stored, answer = self._messages[tenant, thread_id], messages[-1]
        for message in stored:
            if message.message_id == answer.message_id:
                if message.request_hash != answer.request_hash:
                    raise IdempotencyMismatchError
                self._runs.erased.discard(RunKey(tenant, message.run_id or ""))
                return False
        of_tenant = (all_ for (owner, _), all_ in self._messages.items() if owner == tenant)
        if any(message.run_id == answer.run_id for all_ in of_tenant for message in all_):
            raise RunConflictError
        row = self._runs.rows.get(RunKey(tenant, answer.run_id or ""))
        if row is not None and row.run is not None:
            raise RunConflictError
        if len(stored) + len(messages) > most:
            raise ThreadFullError
        parent_id = messages[0].parent_id
        if parent_id is not None and all(one.message_id != parent_id for one in stored):
            raise MessageNotFoundError
        stored += [replace(one, created_at=datetime.now(UTC)) for one in messages]
        return True

    async def remove(self, tenant: str, thread_id: str, message_ids: Sequence[str]) -> None:
        await asyncio.sleep(0)
        stored = self._messages.get((tenant, thread_id), [])
        gone = set(message_ids)
        for message in stored:
            if message.parent_id in gone:
                gone.add(message.message_id)
        stored[:] = [one for one in stored if one.message_id not in gone]

    async def messages(self, tenant: str, thread_id: str) -> Sequence[ChatMessage]:
        await asyncio.sleep(0)
        found = []
        for message in self._messages.get((tenant, thread_id), []):
            key = RunKey(tenant, message.run_id or "")
            erased = key in self._runs.erased
            run = None if erased else await self._runs.get(key)
            status = run.status if run else None
            found.append(replace(message, content=None, status=status, erased=erased))
        return found

    async def contents(
        self, tenant: str, thread_id: str, message_ids: Sequence[str]
    ) -> Mapping[str, str]:
        await asyncio.sleep(0)
        said = {}
        for message in self._messages.get((tenant, thread_id), []):
            if message.message_id not in message_ids:
                continue
            if message.role is Role.USER:
                said[message.message_id] = message.content or ""
                continue
            run = await self._runs.get(RunKey(tenant, message.run_id or ""))
            outputs = (run.result or {}).get("outputs", {}) if run else {}
            texts = [outputs[end]["default"] for end in message.ends if end in outputs]
            if texts:
                said[message.message_id] = "\n\n".join(texts)
        return said

    async def that_called(
        self, tenant: str, thread_id: str, message_ids: Sequence[str], *, limit: int
    ) -> Sequence[str]:
        await asyncio.sleep(0)
        found = []
        for message in self._messages.get((tenant, thread_id), []):
            run = await self._runs.get(RunKey(tenant, message.run_id or ""))
            if message.message_id in message_ids and run is not None:
                given = (run.result or {}).get("outputs", {}).get(message.ends[0], {})
                said = given.get("result", {}).get("messages", [])
                if any(one["role"] == "tool" for one in said):
                    found.append(message.message_id)
        return found[::-1][:limit]


def _place(cursor: str) -> int:
    try:
        return int(base64.b64decode(cursor))
    except ValueError:
        raise InvalidRunError("cursor", "This is not a cursor.") from None
