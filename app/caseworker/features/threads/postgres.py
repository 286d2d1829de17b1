"""Storage for threads and their messages in Postgres."""

from collections.abc import Mapping, Sequence
from typing import Any

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
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.features.threads.thread import (
    MessageNotFoundError,
    Role,
    Thread,
    ThreadConflictError,
    ThreadFullError,
    ThreadMessage,
    ThreadNotFoundError,
)
from caseworker.nodes.nesting import DefinitionKind
from caseworker.nodes.templates import compact
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.runs.errors import IdempotencyMismatchError, RunConflictError
from caseworker.runs.paging import Page
from caseworker.runs.postgres.quotas import quota_of, storing
from caseworker.runs.postgres.retention import DUE, Batch
from caseworker.runs.postgres.rows import Row, decode_cursor, instant_and_id, page_of
from caseworker.runs.postgres.tables import INSTANT, columns, metadata, runs
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
)
"""Messages of threads. An assistant message has a run instead of content."""

_JSON_COLUMNS = ("definition", "inputs", "tools")
_THREAD = tuple(Thread.__dataclass_fields__.keys() - {"tenant", "kind"})
_MESSAGE = ("message_id", "parent_id", "run_id", "ends", "request_hash", "created_at")

_CONTENTS = text(
    """
    SELECT m.message_id, m.content, answer.parts, answer.reason, asked.model,
        coalesce(answer.incomplete, CASE r.status WHEN 'cancelled' THEN r.status END) AS incomplete
    FROM messages m
    LEFT JOIN runs r ON r.tenant_id = m.tenant_id AND r.run_id = m.run_id
        AND m.run_erased_at IS NULL
        AND r.request #>> '{chat,thread_id}' = m.thread_id
    LEFT JOIN LATERAL (
        SELECT jsonb_agg(jsonb_build_array(given -> 'default', given #> '{result,raw_content}')
                ORDER BY place) AS parts,
            max(given #>> '{result,incomplete}') AS incomplete,
            max(given #>> '{result,incomplete_reason}') AS reason
        FROM jsonb_array_elements_text(m.ends) WITH ORDINALITY AS ending(step, place),
        LATERAL (SELECT r.result -> 'outputs' -> step AS given) found
        WHERE given IS NOT NULL
    ) answer ON true
    LEFT JOIN LATERAL (
        SELECT coalesce(
            nullif(made.value ->> 'model', ''), made.brief ->> 5, made.node ->> 'model') AS model
        FROM calls made
        WHERE :models AND made.tenant_id = r.tenant_id AND made.run_id = r.run_id
            AND EXISTS (SELECT FROM jsonb_array_elements_text(m.ends) step
                WHERE starts_with(made.call_key, step || '/')
                    OR starts_with(made.call_key, step || '~'))
            AND coalesce(made.brief ->> 0, made.node ->> 'kind') = 'llm'
            AND made.status NOT IN ('created', 'fail')
            AND made.outcome IS DISTINCT FROM 'not_made'
        ORDER BY made.seq DESC LIMIT 1
    ) asked ON true
    WHERE m.tenant_id = :tenant AND m.thread_id = :thread AND m.message_id = ANY(:wanted)
    """
)
"""For an answer, reads only the outputs of the last steps: the whole result may be much larger. The
model is that of the last call in these steps that was made and did not fail. It comes from the
table ``calls``, because the view ``journal`` would build the node of each call of the run."""


_THAT_CALLED = text(
    """
    SELECT m.message_id
    FROM messages m
    JOIN runs r ON r.tenant_id = m.tenant_id AND r.run_id = m.run_id
        AND r.request #>> '{chat,thread_id}' = m.thread_id
    WHERE m.tenant_id = :tenant AND m.thread_id = :thread AND m.message_id = ANY(:wanted)
        AND jsonb_path_exists(
            r.result #> ARRAY['outputs', m.ends ->> 0, 'result', 'messages'],
            '$[*] ? (@.role == "tool")')
    ORDER BY m.seq DESC LIMIT :most
    """
)


DROP_THREADS = f"""
DELETE FROM threads WHERE tenant_id = %(tenant)s AND thread_id IN (
    SELECT thread_id FROM threads t WHERE tenant_id = %(tenant)s AND created_at < {DUE}
        AND NOT EXISTS (
            SELECT FROM messages m LEFT JOIN runs r USING (tenant_id, run_id)
            WHERE m.tenant_id = t.tenant_id AND m.thread_id = t.thread_id
                AND (m.created_at >= {DUE} OR r.status IS NOT NULL AND r.finished_at IS NULL)
        )
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
"""  # noqa: S608


class PostgresThreads:
    """Stores threads in Postgres; see :mod:`caseworker.features.threads.thread`."""

    def __init__(self, engines: Engines, usual: Quota = UNLIMITED) -> None:
        """Apply the quota ``usual`` to tenants that have no quota of their own."""
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
        query = select(threads).where(_is(tenant, thread_id))
        async with transaction(self._engines.work, tenant) as connection:
            row = (await connection.execute(query)).mappings().one_or_none()
        return None if row is None else _thread(row)

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
        gone = delete(threads).where(_is(tenant, thread_id)).returning(threads.c.thread_id)
        async with transaction(self._engines.work, tenant) as connection:
            return (await connection.execute(gone)).one_or_none() is not None

    async def add(
        self, tenant: str, thread_id: str, messages: Sequence[ThreadMessage], *, most: int
    ) -> bool:
        """Store messages, unless the same request already did; return whether they are new.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            MessageNotFoundError: a parent message does not exist.
            RunConflictError: a run with the answer's run ID exists, or the messages conflict.
            IdempotencyMismatchError: a different request stored the answer.
            ThreadFullError: the thread would have more than ``most`` messages.
        """
        try:
            async with transaction(self._engines.work, tenant) as connection:
                return await _add(connection, tenant, thread_id, messages, most)
        except IntegrityError as error:
            if "messages_follow_one" in str(error.orig):
                raise MessageNotFoundError from None
            raise RunConflictError from None

    async def remove(self, tenant: str, thread_id: str, message_ids: Sequence[str]) -> None:
        """Remove messages from a thread; used if their run was refused."""
        gone = delete(messages).where(_in_thread(tenant, thread_id, message_ids))
        async with transaction(self._engines.work, tenant) as connection:
            await connection.execute(gone)

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
        self, tenant: str, thread_id: str, message_ids: Sequence[str], *, models: bool
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return content, ``incomplete``, ``incomplete_reason`` and model by message ID.

        The content is None if the assistant has produced no text. The model is None unless
        ``models`` is set.
        """
        wanted = list(message_ids)
        asked = {"tenant": tenant, "thread": thread_id, "wanted": wanted, "models": models}
        async with transaction(self._engines.work, tenant) as connection:
            rows = (await connection.execute(_CONTENTS, asked)).all()
        return {
            row.message_id: {
                "content": row.content or _answer(row.parts),
                "incomplete": row.incomplete,
                "incomplete_reason": row.reason,
                "model": row.model,
            }
            for row in rows
        }

    async def that_called(
        self, tenant: str, thread_id: str, message_ids: Sequence[str], *, limit: int
    ) -> Sequence[str]:
        """Return the IDs of the newest answers whose final step is an agent that called tools.

        The IDs are newest first, at most ``limit``. ``message_ids`` are the answers to search; each
        of them must come from a graph with a single final step.
        """
        asked = {"tenant": tenant, "thread": thread_id, "wanted": list(message_ids), "most": limit}
        async with transaction(self._engines.work, tenant) as connection:
            return (await connection.scalars(_THAT_CALLED, asked)).all()


async def drop_threads(connection: AsyncConnection, batch: Batch) -> bool:
    """Delete threads whose last message is older than the retention period, with all messages."""
    gone = await connection.exec_driver_sql(DROP_THREADS, dict(batch))
    return gone.rowcount == int(batch["limit"])


async def _add(
    connection: AsyncConnection,
    tenant: str,
    thread_id: str,
    new: Sequence[ThreadMessage],
    most: int,
) -> bool:
    """Store messages while holding the thread's row lock, so concurrent adds and deletes wait."""
    locked = select(threads.c.thread_id).where(_is(tenant, thread_id)).with_for_update()
    if (await connection.execute(locked)).one_or_none() is None:
        raise ThreadNotFoundError(thread_id)
    answer = new[-1]
    of_answer = _in_thread(tenant, thread_id, [answer.message_id])
    stored = await connection.scalar(select(messages.c.request_hash).where(of_answer))
    if stored is not None:
        if stored != answer.request_hash:
            raise IdempotencyMismatchError
        erased = of_answer & messages.c.run_erased_at.is_not(None)
        await connection.execute(update(messages).where(erased).values(run_erased_at=None))
        return False
    taken = select(runs.c.run_id).where(
        runs.c.tenant_id == tenant, runs.c.run_id == answer.run_id, runs.c.request.is_not(None)
    )
    if (await connection.execute(taken)).one_or_none() is not None:
        raise RunConflictError
    counted = select(func.count()).where(
        messages.c.tenant_id == tenant, messages.c.thread_id == thread_id
    )
    if (await connection.scalar(counted) or 0) + len(new) > most:
        raise ThreadFullError
    named = ("message_id", "parent_id", "content", "run_id", "request_hash")
    for message in new:
        row = {name: getattr(message, name) for name in named}
        row |= {"tenant_id": tenant, "thread_id": thread_id, "role": message.role.value}
        row |= {"ends": list(message.ends), "created_at": func.now()}
        await connection.execute(insert(messages).values(row))
    return True


def _is(tenant: str, thread_id: str) -> Any:
    return and_(threads.c.tenant_id == tenant, threads.c.thread_id == thread_id)


def _in_thread(tenant: str, thread_id: str, message_ids: Sequence[str]) -> Any:
    return and_(
        messages.c.tenant_id == tenant,
        messages.c.thread_id == thread_id,
        messages.c.message_id.in_(list(message_ids)),
    )


def _thread(row: Row) -> Thread:
    named = {name: row.get(name) for name in _THREAD if row.get(name) is not None}
    given: dict[str, Any] = {"definition": {}, **named}
    return Thread(tenant=row["tenant_id"], kind=DefinitionKind(row["kind"]), **given)


def _answer(parts: Sequence[Sequence[Any]] | None) -> str | None:
    """Join the outputs of a run's last steps into one text; JSON represents non-text outputs.

    A stopped step has no output yet; the text that its agent had streamed is used instead.
    """
    given = (output if output is not None else so_far for output, so_far in parts or ())
    said = [one if isinstance(one, str) else compact(one) for one in given if one not in (None, "")]
    return "\n\n".join(said) or None


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value)
