"""Polls for new events of runs that clients of this process follow but other processes execute.

Events that this process stores wake its followers directly. For all other followed runs, one shared
query polls every 50 ms, regardless of the number of followers. Without followers, no query is sent.
Polling is used because NOTIFY would serialize the commits of all writers. It also works with
processes of other releases.

See docs/internals.md, "The journal and its barrier".
"""

import asyncio

from caseworker.platform.postgres.connections import Connection, Patience
from caseworker.platform.postgres.json_text import dump
from caseworker.runs.execute.executor import RunExecutor
from caseworker.runs.observers import RunNotifier
from caseworker.runs.run import RunKey

WATCH_SECONDS = 0.05
"""Delay, in seconds, between a response and the next query."""

NEWER = """
SELECT asked.tenant_id, asked.run_id, newest.seq
FROM json_to_recordset(%s::json) AS asked(tenant_id text, run_id text, seq integer), LATERAL (
    SELECT events.seq FROM events
    WHERE events.tenant_id = asked.tenant_id AND events.run_id = asked.run_id
        AND events.seq > asked.seq
    ORDER BY events.seq DESC LIMIT 1
) newest
"""
"""Return the runs that have events after a given sequence number, with the newest number."""


class EventWatch:
    """Wakes followers of runs that another process executes."""

    def __init__(
        self,
        url: str,
        patience: Patience,
        *,
        notifier: RunNotifier,
        executing: RunExecutor | None,
    ) -> None:
        """Watch the runs for which ``notifier`` has listeners, except those executed here.

        ``executing`` provides the latter; None if this process executes no runs.
        """
        self._url = url
        self._patience = patience
        self._notifier = notifier
        self._executing = executing
        self._seen: dict[RunKey, int] = {}
        """The runs to poll, with the newest known event of each."""
        self._query = ""
        """``_seen`` as JSON; empty if it must be serialized again."""
        self._changes = (0, 0)

    async def run(self) -> None:
        """Watch until cancelled; the connection is opened for the first follower.

        Raises:
            psycopg.OperationalError: the connection was lost, or the database cannot be reached.
        """
        await self._wait_for_followers()
        connection = await Connection.open(
            self._url, self._patience, autocommit=True, prepare_threshold=0
        )
        async with connection:
            # A cached plan from when the table was small must not keep scanning it.
            await connection.execute("SET enable_seqscan = off")
            while True:
                await self._look(connection)
                await asyncio.sleep(WATCH_SECONDS)
                await self._wait_for_followers()

    async def _wait_for_followers(self) -> None:
        """Wait until a client follows a run that is not executed here."""
        while not self._runs_of_others():
            await self._notifier.listened()
            await asyncio.sleep(WATCH_SECONDS)

    def _runs_of_others(self) -> bool:
        """Update the set of runs to poll; return whether it is non-empty.

        A newly added run starts at event 0: its followers may have read its events while it was
        executed by another process.
        """
        executing = self._executing
        changes = (self._notifier.changes, executing.changes if executing else 0)
        if changes != self._changes:
            self._changes = changes
            followed = self._notifier.listened_to - (executing.active if executing else frozenset())
            if followed != self._seen.keys():
                self._seen = {key: self._seen.get(key, 0) for key in followed}
                self._query = ""
        return bool(self._seen)

    async def _look(self, connection: Connection) -> None:
        """Poll once, and notify the followers of each run that has new events."""
        if not self._query:
            seen = self._seen.items()
            self._query = dump(
                [{"tenant_id": k.tenant, "run_id": k.run_id, "seq": seq} for k, seq in seen]
            )
        cursor = await connection.execute(NEWER, (self._query,))
        for tenant, run_id, seq in await cursor.fetchall():
            self._seen[RunKey(tenant, run_id)] = seq
            self._notifier.notify(RunKey(tenant, run_id))
            self._query = ""
