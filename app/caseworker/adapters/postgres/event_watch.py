"""Notices what other processes store of runs that are followed here, whatever release they are.

What this process stores it is told of. For all other runs that somebody follows here there is one
question every few hundredths of a second, however many they are and however often each is followed;
while nobody follows any, nothing is asked. The writers need not know: a notification would make
every commit of theirs wait for those of all others that notify.
"""

import asyncio
from collections.abc import Set
from typing import Protocol

from caseworker.adapters.postgres.connections import Connection, Patience
from caseworker.adapters.postgres.json_text import dump
from caseworker.runs.notifying import RunNotifier
from caseworker.runs.run import RunKey

WATCH_SECONDS = 0.05
"""How long after an answer is asked again."""

NEWER = """
SELECT asked.tenant_id, asked.run_id, newest.seq
FROM json_to_recordset(%s::json) AS asked(tenant_id text, run_id text, seq integer), LATERAL (
    SELECT events.seq FROM events
    WHERE events.tenant_id = asked.tenant_id AND events.run_id = asked.run_id
        AND events.seq > asked.seq
    ORDER BY events.seq DESC LIMIT 1
) newest
"""
"""Return the runs that have events behind a number, with the number of the newest."""


class Executing(Protocol):
    """Whoever executes runs in this process."""

    changes: int
    """How often a run has begun or ended here."""

    @property
    def active(self) -> Set[RunKey]:
        """The runs that are being executed now."""


class EventWatch:
    """Notifies followers of runs that this process does not execute."""

    def __init__(
        self,
        url: str,
        patience: Patience,
        *,
        notifier: RunNotifier,
        executing: Executing | None,
    ) -> None:
        """Watch the runs that ``notifier`` has listeners for and that are not executed here."""
        self._url = url
        self._patience = patience
        self._notifier = notifier
        self._executing = executing
        self._seen: dict[RunKey, int] = {}
        """The runs to ask about, with the newest event that is known of each."""
        self._asked = ""
        """The same as JSON; empty if it has to be written."""
        self._changes = (0, 0)

    async def run(self) -> None:
        """Watch for ever; the connection is made when it is first needed.

        Raises:
            psycopg.OperationalError: it was lost, or the database cannot be reached.
        """
        await self._somebody_follows()
        connection = await Connection.open(
            self._url, self._patience, autocommit=True, prepare_threshold=0
        )
        async with connection:
            await connection.execute("SET enable_seqscan = off")
            while True:
                await self._look(connection)
                await asyncio.sleep(WATCH_SECONDS)
                await self._somebody_follows()

    async def _somebody_follows(self) -> None:
        """Wait until somebody follows a run that is not executed here."""
        while not self._elsewhere():
            await self._notifier.listened()
            await asyncio.sleep(WATCH_SECONDS)

    def _elsewhere(self) -> bool:
        """See which runs to ask about, and whether there are any.

        Of one that was not asked about before everything is new: its followers may have looked
        before its process was another.
        """
        here = self._executing
        changes = (self._notifier.changes, here.changes if here else 0)
        if changes != self._changes:
            self._changes = changes
            followed = self._notifier.listened_to - (here.active if here else frozenset())
            if followed != self._seen.keys():
                self._seen = {key: self._seen.get(key, 0) for key in followed}
                self._asked = ""
        return bool(self._seen)

    async def _look(self, connection: Connection) -> None:
        """Ask once, and notify those who follow a run of which there is something new."""
        if not self._asked:
            seen = self._seen.items()
            self._asked = dump(
                [{"tenant_id": k.tenant, "run_id": k.run_id, "seq": seq} for k, seq in seen]
            )
        cursor = await connection.execute(NEWER, (self._asked,))
        for tenant, run_id, seq in await cursor.fetchall():
            self._seen[RunKey(tenant, run_id)] = seq
            self._notifier.notify(RunKey(tenant, run_id))
            self._asked = ""
