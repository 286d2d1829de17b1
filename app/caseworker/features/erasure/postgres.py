"""Deletes all data of a tenant, or all data with certain metadata, from Postgres.

Runs are deleted in batches, each in its own transaction, together with the runs that were forked
from them, the children of external runs, and the later answers in their threads: those contain
copies of their data. Such a group is deleted only when all of its runs have ended, because a
deleted run no longer leads to the rest of its group.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Select,
    Table,
    Text,
    delete,
    exists,
    literal_column,
    or_,
    select,
    true,
    union,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.platform.postgres.locks import LOCK_COSTS
from caseworker.runs.errors import InvalidRunError
from caseworker.runs.ports import RunFilter, json_of_text
from caseworker.runs.postgres.erasure import KEEP_FENCE, delete_runs
from caseworker.runs.postgres.tables import metadata, runs
from caseworker.runs.read.postgres.run_listing import with_metadata
from caseworker.runs.run import TERMINAL

STATEMENT_MS = 30_000
"""Time limit of each statement, in milliseconds. Threads with certain metadata are found without an
index."""
ERASED_TEXT = "(erased)"
"""Content of a user's message whose answer was erased, if its thread stays."""

_ORIGIN = """coalesce(request #>> '{source,run_id}',
    request #>> '{graph,steps,0,data,external,parent}')"""
_FORKS = f"""
SELECT run_id, {_ORIGIN} FROM runs WHERE tenant_id = %(tenant)s
    AND (request #>> '{{source,run_id}}' IS NOT NULL OR kind = 'external')
    AND {_ORIGIN} = ANY(%(run_ids)s)
"""  # noqa: S608 - nothing of a caller's is in it
"""Forks and children with the runs that they come from."""
_THREAD = "runs.request #>> '{chat,thread_id}'"
_ANSWERS = """
SELECT copy.run_id, m.run_id FROM messages m
JOIN messages asked USING (tenant_id, thread_id)
JOIN messages copy USING (tenant_id, thread_id)
WHERE tenant_id = %(tenant)s AND m.run_id = ANY(%(run_ids)s)
    AND m.run_id <> copy.run_id AND copy.parent_id = asked.message_id
    AND (asked.message_id = m.parent_id OR asked.parent_id = m.message_id)
"""
"""Answers with the runs whose text they received: of an earlier answer, or to the same message."""

_JOBS = "DELETE FROM procrastinate_jobs WHERE status <> 'doing' AND args ->> 'tenant' = %s"
_TABLES = """
SELECT table_name FROM information_schema.columns JOIN information_schema.tables
    USING (table_schema, table_name)
WHERE table_schema = current_schema() AND column_name = 'tenant_id' AND table_type = 'BASE TABLE'
"""
_LAST_KEYS = (
    "It has the only API keys. Without any, the service would accept requests without a key as soon"
    " as no bootstrap key is configured. Create a key of another tenant first."
)
_COUNTS = ("stored_runs", "stored", "cost_sums", "waiting_tenants")
"""Tables that triggers of the other tables write, so they are emptied last."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The data to erase: all of a tenant, or its data with certain metadata."""

    tenant: str
    metadata: Mapping[str, str] | None = None
    """Required metadata values by key; numbers, booleans and null as they are written in JSON. None
    selects everything."""

    def rows_of(self, table: Table) -> Sequence[ColumnElement[bool]]:
        """Return the conditions for the rows of a table that belong to the subject."""
        matches = (
            or_(*(table.c.metadata.contains({key: one}) for one in json_of_text(value)))
            for key, value in (self.metadata or {}).items()
        )
        return [table.c.tenant_id == self.tenant, *matches]

    @property
    def description(self) -> str:
        """Name for the audit log: keys of the metadata, or a digest of the tenant's name."""
        if self.metadata is None:
            return f"tenant sha256:{hashlib.sha256(self.tenant.encode()).hexdigest()[:16]}"
        return ", ".join(f"metadata.{key}" for key in sorted(self.metadata))


@dataclass(frozen=True, slots=True)
class ErasedBatch:
    """The outcome of one batch."""

    erased: Set[str]
    """IDs of the runs that were erased."""
    active: Sequence[str]
    """IDs of the runs that have not ended and have no cancel request."""


class PostgresErasure:
    """Erases data; every method is one transaction."""

    def __init__(self, pool: Pool) -> None:
        """Find the tables of other features by their names."""
        self._pool = pool
        self._keys, self._schedules, self._threads, self._messages = (
            metadata.tables[name] for name in ("api_keys", "schedules", "threads", "messages")
        )

    async def close(self, subject: Subject) -> int:
        """Delete what would create further runs; return the number of deleted schedules.

        Of a whole tenant, the API keys are deleted too.

        Raises:
            InvalidRunError: no API key would remain, so the service would need none.
        """
        async with transaction(self._pool, statement_ms=STATEMENT_MS) as connection:
            deleted = await connection.execute(
                delete(self._schedules).where(*subject.rows_of(self._schedules))
            )
            if subject.metadata is None:
                keys = await connection.execute(
                    delete(self._keys)
                    .where(*subject.rows_of(self._keys))
                    .returning(self._keys.c.agent.is_(None))
                )
                # Standing keys do not close the service to requests without a key.
                remaining = select(exists(self._keys).where(self._keys.c.agent.is_(None)))
                if any(keys.scalars()) and not await connection.scalar(remaining):
                    raise InvalidRunError("tenant", _LAST_KEYS)
        return deleted.rowcount

    async def descendants(self, tenant: str, run_ids: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """Return the forks, children and later answers of these runs, of those, and so on."""
        descendants_of = dict[str, list[str]]()
        pending = list(run_ids)
        async with transaction(self._pool, statement_ms=STATEMENT_MS) as connection:
            while pending:
                descendants_of |= {run_id: [] for run_id in pending}
                parameters = {"tenant": tenant, "run_ids": pending}
                rows = [*await connection.exec_driver_sql(_FORKS, parameters)]
                rows += await connection.exec_driver_sql(_ANSWERS, parameters)
                for run_id, origin in rows:
                    descendants_of[origin].append(run_id)
                pending = list({run_id for run_id, _ in rows} - descendants_of.keys())
        return descendants_of

    async def runs_of(
        self, subject: Subject, *, limit: int, excluding: Collection[str]
    ) -> Sequence[str]:
        """Return the IDs of runs with the metadata, and of runs in threads with it."""
        other = runs.c.request.is_not(None), runs.c.run_id.not_in(list(excluding))
        query: Select[Any] | CompoundSelect[Any]
        if subject.metadata is None:
            query = select(runs.c.run_id).where(runs.c.tenant_id == subject.tenant, *other)
        else:
            run_filter = RunFilter(metadata=subject.metadata, limit=limit)
            by_run = with_metadata(subject.tenant, run_filter, other).limit(limit)
            by_thread = self._runs_of_threads(subject, other, limit)
            query = union(*(select(part.subquery().c.run_id) for part in (by_run, by_thread)))
        async with transaction(self._pool, statement_ms=STATEMENT_MS) as connection:
            return list((await connection.execute(query.limit(limit))).scalars())

    def _runs_of_threads(
        self, subject: Subject, conditions: Sequence[ColumnElement[bool]], limit: int
    ) -> Select[Any]:
        """Return a query that searches thread by thread; the plan of a join might read all runs."""
        threads = self._threads.c
        of_thread = (
            select(runs.c.run_id)
            .where(
                runs.c.tenant_id == subject.tenant,
                literal_column(_THREAD, Text) == threads.thread_id,
                runs.c.created_at >= threads.created_at,  # an older thread had the same ID
                *conditions,
            )
            .limit(limit)
            .lateral("of_thread")
        )
        query = select(of_thread.c.run_id).select_from(self._threads.join(of_thread, true()))
        return query.where(*subject.rows_of(self._threads)).limit(limit)

    async def erase_runs(self, subject: Subject, groups: Iterable[Set[str]]) -> ErasedBatch:
        """Erase each group of runs that have all ended."""
        groups = list(groups)
        run_ids = set[str]().union(*groups)
        locked = (
            select(runs.c.run_id, runs.c.status, runs.c.fence, runs.c.cancel_requested_at)
            .where(
                runs.c.tenant_id == subject.tenant,
                runs.c.run_id.in_(run_ids),
                runs.c.request.is_not(None),
            )
            .order_by(runs.c.run_id)
            .with_for_update()
        )
        async with transaction(self._pool, statement_ms=STATEMENT_MS) as connection:
            rows = {row.run_id: row for row in await connection.execute(locked)}
            active = {run_id for run_id, row in rows.items() if row.status not in TERMINAL}
            ended = set[str]().union(*(group for group in groups if group.isdisjoint(active)))
            erased = ended & rows.keys()
            await self._delete(connection, subject, {one: rows[one].fence for one in erased})
        uncancelled = (one for one in active if rows[one].cancel_requested_at is None)
        return ErasedBatch(erased, sorted(uncancelled))

    async def finish(self, subject: Subject) -> int:
        """Erase everything but the runs, which must be gone; return the number of threads."""
        async with transaction(self._pool, statement_ms=STATEMENT_MS) as connection:
            deleted = await connection.execute(
                delete(self._threads).where(*subject.rows_of(self._threads))
            )
            if subject.metadata is None:
                await connection.exec_driver_sql(_JOBS, (subject.tenant,))
                await connection.exec_driver_sql(LOCK_COSTS)
                tables = (await connection.exec_driver_sql(_TABLES)).scalars().all()
                for table in sorted(tables, key=_COUNTS.__contains__):
                    drop = f'DELETE FROM "{table}" WHERE tenant_id = %s'  # noqa: S608
                    await connection.exec_driver_sql(drop, (subject.tenant,))
        return deleted.rowcount

    async def record(self, subject: Subject, by: str) -> None:
        """Record the erasure in the audit log of the tenant ``by``."""
        async with transaction(self._pool) as connection:
            await record(connection, by, Act.DATA_ERASED, subject.description)

    async def _delete(
        self, connection: AsyncConnection, subject: Subject, fences: Mapping[str, int]
    ) -> None:
        if not fences:
            return
        messages = self._messages
        answers = select(messages.c.thread_id, messages.c.parent_id).where(
            messages.c.tenant_id == subject.tenant, messages.c.run_id.in_(fences)
        )
        for thread_id, parent_id in (await connection.execute(answers)).all():
            message_conditions = (
                messages.c.tenant_id == subject.tenant,
                messages.c.thread_id == thread_id,
                messages.c.message_id == parent_id,
                messages.c.role == "user",
            )
            await connection.execute(
                update(messages).where(*message_conditions).values(content=ERASED_TEXT)
            )
        await delete_runs(connection, subject.tenant, list(fences))
        if subject.metadata is not None:
            fences_to_keep = [(subject.tenant, run_id, fence) for run_id, fence in fences.items()]
            await connection.exec_driver_sql(KEEP_FENCE, fences_to_keep)
