"""Storage for threads and their messages in Postgres."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Identity,
    Table,
    Text,
    and_,
    delete,
    func,
    insert,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.features.expiry import DUE, Batch
from caseworker.features.quotas.postgres import quota_of, storing
from caseworker.features.threads.answers import StoredAnswer
from caseworker.features.threads.memory import ThreadVersion
from caseworker.features.threads.postgres.branches import PostgresBranches
from caseworker.features.threads.thread import (
    MessageNotFoundError,
    Role,
    Thread,
    ThreadChangedError,
    ThreadConflictError,
    ThreadFullError,
    ThreadMessage,
    ThreadNotFoundError,
)
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.paging import Page
from caseworker.platform.postgres.connections import is_refusal
from caseworker.platform.postgres.engines import Engines, read_rows, transaction
from caseworker.runs.errors import IdempotencyMismatchError, RunConflictError
from caseworker.runs.postgres.rows import Row, decode_cursor, instant_and_id, page_of
from caseworker.runs.postgres.tables import INSTANT, columns, metadata, run_key, runs
from caseworker.runs.quotas import UNLIMITED, Quota
from caseworker.runs.run import RunStatus

threads = Table(
    "threads",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    *columns(Text, "kind request_hash", nullable=False),
    *columns(JSON, "definition inputs tools", nullable=False),
    *columns(Text, "title"),
    Column("metadata", JSONB, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Column("erasures", BigInteger, nullable=False, server_default="0"),
)

messages = Table(
    "messages",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("seq", BigInteger, Identity(always=True), nullable=False),
    *columns(Text, "role request_hash", nullable=False),
    *columns(Text, "parent_id content run_id"),
    Column("run_erased_at", INSTANT),
    Column("ends", JSONB, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Column("answer", JSON),
)
"""Messages of threads. An assistant message has a run instead of content, and an answer once the
run has ended; see :mod:`caseworker.features.threads.answers`."""

kept_messages = Table(
    "kept_messages",
    metadata,
    *run_key(),
    Column("message_id", Text, primary_key=True),
    *columns(Text, "parent_id content"),
    Column("role", Text, nullable=False),
    Column("ends", JSONB, nullable=False),
    Column("answer", JSON),
)
"""Messages that were deleted or erased while the unfinished run ``run_id`` needed them."""

_REFUSALS: Mapping[str, type[Exception]] = {
    "no thread": ThreadNotFoundError,
    "mismatch": IdempotencyMismatchError,
    "full": ThreadFullError,
    "changed": ThreadChangedError,
}
"""Errors by the message with which ``caseworker_store_reply`` refuses a run."""

_JSON_COLUMNS = ("definition", "inputs", "tools")
_THREAD = tuple(Thread.__dataclass_fields__.keys() - {"tenant", "kind"})
_MESSAGE = ("message_id", "parent_id", "run_id", "ends", "request_hash", "created_at")

_ANSWER = """coalesce(m.answer, (
        SELECT caseworker_answer(r, m.ends) FROM runs r
        WHERE m.role = 'assistant' AND m.run_erased_at IS NULL AND r.tenant_id = m.tenant_id
            AND r.run_id = m.run_id AND r.finished_at IS NOT NULL
            AND r.request #>> '{chat,thread_id}' = m.thread_id))"""
"""The answer in a message ``m``; if its run ended before answers were stored with their messages,
it is read from the run."""

_IN_THREAD = "m.tenant_id = %(tenant)s AND m.thread_id = %(thread)s"
_SELECTED = f"{_IN_THREAD} AND m.message_id = ANY(%(wanted)s::text[])"

_CONTENTS = f"""
SELECT m.message_id, m.content, {_ANSWER} AS answer FROM messages m WHERE {_SELECTED}
"""  # noqa: S608 - nothing of a caller's is in it, here and below

_DISPLAYED = f"""
SELECT m.message_id, m.content, {_ANSWER} AS answer, m.created_at, ARRAY(
    SELECT s.message_id FROM messages s
    WHERE s.tenant_id = m.tenant_id AND s.thread_id = m.thread_id AND s.role = m.role
        AND CASE WHEN m.parent_id IS NULL THEN s.parent_id IS NULL
            ELSE s.parent_id = m.parent_id END
    ORDER BY s.seq
) AS siblings
FROM messages m WHERE {_SELECTED}
"""  # noqa: S608

_PLACE = f"""
SELECT t.*, m.*, total.messages, total.bytes, total.complete, (
    SELECT r.status FROM runs r
    WHERE r.tenant_id = %(tenant)s AND r.run_id = m.run_id AND r.request IS NOT NULL
) AS status
FROM threads t CROSS JOIN (
    SELECT count(*) AS messages,
        coalesce(sum(octet_length(coalesce(m.content, m.answer::text, ''))), 0) AS bytes,
        coalesce(bool_and(m.role = 'user' OR m.answer IS NOT NULL), true) AS complete
    FROM messages m WHERE {_IN_THREAD}
) total
LEFT JOIN (
    SELECT m.message_id, m.parent_id, m.role, m.content, m.answer,
        CASE WHEN m.run_erased_at IS NULL THEN m.run_id END AS run_id
    FROM messages m WHERE {_IN_THREAD}
        AND (%(message)s::text IS NULL OR m.message_id = %(message)s)
    ORDER BY m.seq DESC LIMIT 1
) m ON true
WHERE t.tenant_id = %(tenant)s AND t.thread_id = %(thread)s
"""  # noqa: S608

_GET = "SELECT * FROM threads WHERE tenant_id = %s AND thread_id = %s"

DROP_THREADS = f"""
DELETE FROM threads WHERE tenant_id = %(tenant)s AND thread_id IN (
    SELECT thread_id FROM threads t WHERE tenant_id = %(tenant)s AND created_at < {DUE}
        AND coalesce((
            SELECT created_at FROM messages m
            WHERE m.tenant_id = t.tenant_id AND m.thread_id = t.thread_id ORDER BY seq DESC LIMIT 1
        ), '-infinity') < {DUE}
        AND NOT EXISTS (
            SELECT FROM messages m LEFT JOIN runs r USING (tenant_id, run_id)
            WHERE m.tenant_id = t.tenant_id AND m.thread_id = t.thread_id
                AND (m.created_at >= {DUE} OR r.status IS NOT NULL AND r.finished_at IS NULL)
        )
    ORDER BY created_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
"""  # noqa: S608
"""Delete old threads without newer messages and without unfinished runs, the oldest first.

The newest message is checked first, so a long thread that is in use costs a sweep one row.
"""


@dataclass(frozen=True, slots=True)
class ThreadPosition:
    """A message in its thread."""

    state: ThreadVersion
    message: ThreadMessage | None
    """The message; None if the thread is empty, or if it does not have the message."""
    answer: StoredAnswer | None
    """The answer that is stored with the message; None if there is none."""
    messages: int
    """Number of messages in the thread."""
    bytes: int
    """Upper bound of the size of all their texts, in bytes of UTF-8."""
    complete: bool
    """Whether all answers of the thread are stored with their messages."""


class PostgresThreads:
    """Stores threads in Postgres; see :mod:`caseworker.features.threads.thread`."""

    def __init__(
        self,
        engines: Engines,
        usual: Quota = UNLIMITED,
        *,
        branches: PostgresBranches | None = None,
    ) -> None:
        """Apply the quota ``usual`` to tenants that have no quota of their own.

        ``branches`` are those that the runs of this process read, if it executes any.
        """
        self.branches = branches or PostgresBranches(engines)
        self._engines = engines
        self._usual = usual

    async def create(self, thread: Thread) -> tuple[Thread, bool]:
        """Store a thread, unless the same request already did.

        Returns the stored thread, and whether this call created it.

        Raises:
            ThreadConflictError: a different request created a thread with this ID.
            QuotaExceededError: the tenant would exceed its storage quota.
        """
        values = {name: getattr(thread, name) for name in _THREAD if name != "created_at"}
        values |= {name: _plain(values[name]) for name in (*_JSON_COLUMNS, "metadata")}
        new = insert(threads).values(
            **values, tenant_id=thread.tenant, kind=thread.kind.value, created_at=func.now()
        )
        try:
            async with transaction(self._engines.work, thread.tenant) as connection:
                quota = await quota_of(connection, thread.tenant, self._usual)
                async with storing(connection, thread.tenant, quota):
                    await connection.execute(new)
        except IntegrityError:
            created = False
        else:
            created = True
        stored = await self.get(thread.tenant, thread.thread_id)
        if stored is None or stored.request_hash != thread.request_hash:
            raise ThreadConflictError
        return stored, created

    async def get(self, tenant: str, thread_id: str) -> Thread | None:
        """Return a thread, or None if it does not exist."""
        rows = await read_rows(self._engines.work, _GET, (tenant, thread_id), tenant=tenant)
        return _thread(rows[0]) if rows else None

    async def find(self, tenant: str, *, limit: int, cursor: str | None) -> Page[Thread]:
        """Return a page of threads, newest first, without definitions, inputs and tools.

        Raises:
            InvalidRunError: the cursor is invalid.
        """
        columns = [column for column in threads.c if column.name not in _JSON_COLUMNS]
        place = tuple_(threads.c.created_at, threads.c.thread_id)
        query = select(*columns).where(threads.c.tenant_id == tenant)
        if cursor is not None:
            query = query.where(place < tuple_(*decode_cursor("threads", cursor, instant_and_id)))
        query = query.order_by(threads.c.created_at.desc(), threads.c.thread_id.desc())
        async with transaction(self._engines.work, tenant) as connection:
            rows = (await connection.execute(query.limit(limit + 1))).mappings().all()
        return page_of(
            "threads",
            rows,
            limit,
            lambda row: [row["created_at"].isoformat(), row["thread_id"]],
            _thread,
        )

    async def delete(self, tenant: str, thread_id: str) -> bool:
        """Delete a thread and its messages; return whether it existed."""
        deleted = delete(threads).where(_is(tenant, thread_id)).returning(threads.c.thread_id)
        async with transaction(self._engines.work, tenant) as connection:
            return (await connection.execute(deleted)).one_or_none() is not None

    async def messages(self, tenant: str, thread_id: str) -> Sequence[ThreadMessage]:
        """Return the messages of a thread in order, without contents."""
        of_run = and_(
            runs.c.tenant_id == messages.c.tenant_id,
            runs.c.run_id == messages.c.run_id,
            runs.c.request.is_not(None),
            messages.c.run_erased_at.is_(None),
        )
        columns = [messages.c[name] for name in (*_MESSAGE, "role")]
        query = (
            select(*columns, runs.c.status, messages.c.run_erased_at)
            .select_from(messages.outerjoin(runs, of_run))
            .where(messages.c.tenant_id == tenant, messages.c.thread_id == thread_id)
            .order_by(messages.c.seq)
        )
        async with transaction(self._engines.work, tenant) as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [
            ThreadMessage(
                role=Role(row["role"]),
                status=RunStatus(row["status"]) if row["status"] else None,
                erased=row["run_erased_at"] is not None,
                **{name: row[name] for name in _MESSAGE},
            )
            for row in rows
        ]

    async def contents(
        self, tenant: str, thread_id: str, message_ids: Sequence[str]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return content, ``incomplete``, ``incomplete_reason`` and model by message ID.

        The content is None if the assistant has produced no text.
        """
        parameters = {"tenant": tenant, "thread": thread_id, "wanted": list(message_ids)}
        rows = await read_rows(self._engines.work, _CONTENTS, parameters, tenant=tenant)
        return {row["message_id"]: _content(row) for row in rows}

    async def displayed(
        self, tenant: str, thread_id: str, message_ids: Sequence[str]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return the fields of :meth:`contents`, and further ones, by message ID.

        These are ``created_at``, ``answer`` (the stored answer, or None), and ``siblings``: the IDs
        of all messages with the same parent and role, oldest first.
        """
        parameters = {"tenant": tenant, "thread": thread_id, "wanted": list(message_ids)}
        rows = await read_rows(self._engines.work, _DISPLAYED, parameters, tenant=tenant)
        return {
            row["message_id"]: {
                **_content(row),
                **{name: row[name] for name in ("created_at", "siblings")},
                "answer": None if row["answer"] is None else StoredAnswer.of_json(row["answer"]),
            }
            for row in rows
        }

    async def place(
        self, tenant: str, thread_id: str, message_id: str | None
    ) -> tuple[Thread, ThreadPosition] | None:
        """Return a thread with the place of a message, or of the newest one for None.

        Returns None if the thread does not exist.
        """
        parameters = {"tenant": tenant, "thread": thread_id, "message": message_id}
        rows = await read_rows(self._engines.work, _PLACE, parameters, tenant=tenant)
        return (_thread(rows[0]), _place(rows[0])) if rows else None

    async def has(self, tenant: str, thread_id: str, message_id: str) -> bool:
        """Return whether a thread has a message."""
        query = select(messages.c.message_id).where(_in_thread(tenant, thread_id, [message_id]))
        async with transaction(self._engines.work, tenant) as connection:
            return (await connection.execute(query)).one_or_none() is not None


async def drop_threads(connection: AsyncConnection, batch: Batch) -> bool:
    """Delete threads whose last message is older than the retention period, with all messages."""
    deleted = await connection.exec_driver_sql(DROP_THREADS, dict(batch))
    return deleted.rowcount == int(batch["limit"])


def _is(tenant: str, thread_id: str) -> Any:
    return and_(threads.c.tenant_id == tenant, threads.c.thread_id == thread_id)


def _in_thread(tenant: str, thread_id: str, message_ids: Sequence[str]) -> Any:
    return and_(
        messages.c.tenant_id == tenant,
        messages.c.thread_id == thread_id,
        messages.c.message_id.in_(list(message_ids)),
    )


def reply_rows(messages: Sequence[ThreadMessage]) -> list[dict[str, Any]]:
    """Return messages as a run brings them that is stored with them; the last one is its answer."""
    names = ("message_id", "parent_id", "content", "run_id", "request_hash")
    return [
        {name: getattr(message, name) for name in names}
        | {"role": message.role.value, "ends": list(message.ends)}
        for message in messages
    ]


def storage_refusal_of(error: Exception) -> Exception | None:
    """Return why the messages of a run cannot be stored; None if ``error`` is another one."""
    reason = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(reason, psycopg.Error):
        return None
    if is_refusal(reason):
        return _REFUSALS[reason.diag.message_primary or ""]()
    if reason.diag.table_name != messages.name:
        return None
    if reason.diag.constraint_name == "messages_follow_one":
        return MessageNotFoundError()
    return RunConflictError()


def _place(row: Row) -> ThreadPosition:
    message = None
    if row["message_id"] is not None:
        message = ThreadMessage(
            message_id=row["message_id"],
            parent_id=row["parent_id"],
            role=Role(row["role"]),
            content=row["content"],
            status=RunStatus(row["status"]) if row["status"] else None,
        )
    answer = None if row["answer"] is None else StoredAnswer.of_json(row["answer"])
    state = ThreadVersion(row["created_at"], row["erasures"])
    complete, size = row["complete"], int(row["bytes"])
    return ThreadPosition(state, message, answer, row["messages"], size, complete=complete)


def _thread(row: Row) -> Thread:
    stored_fields = {name: row.get(name) for name in _THREAD if row.get(name) is not None}
    fields: dict[str, Any] = {"definition": {}, **stored_fields}
    return Thread(tenant=row["tenant_id"], kind=DefinitionKind(row["kind"]), **fields)


def _content(row: Row) -> Mapping[str, Any]:
    if row["answer"] is not None:
        return StoredAnswer.of_json(row["answer"]).displayed
    names = ("incomplete", "incomplete_reason", "model")
    return {"content": row["content"], **dict.fromkeys(names)}


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value)
