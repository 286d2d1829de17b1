"""Stores the answers of earlier releases, which are in the results of runs, with their messages.

Each message is examined once, in batches and in the order of the primary key. The progress is
stored, so a process that starts later continues from there, or has nothing to do. Readers are not
blocked: until an answer is moved, it is read from its run.
"""

import asyncio

import structlog
from sqlalchemy import Column, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.runs.postgres.tables import INSTANT, metadata

log = structlog.get_logger(__name__)

moves = Table(
    "moves",
    metadata,
    Column("name", Text, primary_key=True),
    Column("place", ARRAY(Text), nullable=False),
    Column("ended_at", INSTANT),
)
"""Progress of background moves of stored data: the last primary key, and when the move ended."""

MESSAGES_AT_ONCE = 100
"""Number of messages in one transaction."""
MIN_PAUSE_SECONDS = 0.05
"""Minimum pause, in seconds, between two batches."""
AGAIN_SECONDS = 30.0
"""Seconds before a process looks again whether another one still moves answers."""
STATEMENT_MS = 30_000

BEGIN = "INSERT INTO moves (name, place) VALUES ('answers', '{}') ON CONFLICT DO NOTHING"

PROGRESS = """
SELECT place, ended_at IS NOT NULL AS ended FROM moves WHERE name = 'answers'
FOR UPDATE SKIP LOCKED
"""

BATCH = """
SELECT tenant_id, thread_id, message_id, seq FROM messages
WHERE %(first)s OR (tenant_id, thread_id, message_id) > (%(tenant)s, %(thread)s, %(message)s)
ORDER BY tenant_id, thread_id, message_id LIMIT %(limit)s
"""

MOVE = """
UPDATE messages m SET answer = caseworker_answer(r, m.ends)
FROM unnest(%(tenants)s::text[], %(threads)s::text[], %(seqs)s::bigint[])
    AS wanted(tenant_id, thread_id, seq), runs r
WHERE m.tenant_id = wanted.tenant_id AND m.thread_id = wanted.thread_id
    AND m.seq = wanted.seq AND m.answer IS NULL AND m.run_erased_at IS NULL
    AND r.tenant_id = m.tenant_id AND r.run_id = m.run_id AND r.finished_at IS NOT NULL
    AND r.request #>> '{chat,thread_id}' = m.thread_id
"""
"""Store the answers of messages whose runs have ended. A run that ends later stores its own.

The messages have their place in the thread, and not their ID: one index finds each exactly, and no
plan reads whole threads.
"""

MOVED = """
UPDATE moves SET place = %(place)s,
    ended_at = CASE WHEN %(ended)s THEN clock_timestamp() END WHERE name = 'answers'
"""


class AnswerMoves:
    """Moves answers in the background; one process at a time works."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def run(self) -> None:
        """Move all answers, then do nothing."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                more = await self.move()
            except StoreUnavailableError:
                log.warning("answers.database_away")
                more = None
            if more:
                await asyncio.sleep(max(MIN_PAUSE_SECONDS, clock() - began))
            elif more is None:
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                await asyncio.get_running_loop().create_future()

    async def move(self, limit: int = MESSAGES_AT_ONCE) -> bool | None:
        """Move the answers of the next messages; return whether there may be more.

        Returns None if another process is moving answers.
        """
        async with transaction(self._pool, statement_ms=STATEMENT_MS) as connection:
            await connection.exec_driver_sql(BEGIN)
            progress = (await connection.exec_driver_sql(PROGRESS)).one_or_none()
            if progress is None:
                return None
            if progress.ended:
                return False
            tenant, thread, message = progress.place or ("", "", "")
            after = {"tenant": tenant, "thread": thread, "message": message, "limit": limit}
            batch = (
                await connection.exec_driver_sql(BATCH, {**after, "first": not progress.place})
            ).all()
            if batch:
                tenants, threads, _, seqs = map(list, zip(*batch, strict=True))
                parameters = {"tenants": tenants, "threads": threads, "seqs": seqs}
                await connection.exec_driver_sql(MOVE, parameters)
            place = list(batch[-1][:3]) if batch else progress.place
            ended = len(batch) < limit
            await connection.exec_driver_sql(MOVED, {"place": place, "ended": ended})
        if ended:
            log.info("answers.moved")
        return not ended
