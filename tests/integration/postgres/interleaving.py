"""Two sessions on one database, driven statement by statement through every interleaving.

Each exchange with the server (a statement, a BEGIN with it, a COMMIT) stops at a gate first. The
schedule says which session may make the next one. A session whose statement waits for a lock of the
other is found out by asking the database, and the schedule goes on with the other; it takes part
again once its answer has come.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from psycopg.abc import RV, PQGen
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.adapters.postgres.connections import Connection, Patience
from app.adapters.postgres.json_text import dump
from tests.support.stores import Oracle

BLOCKED = "SELECT cardinality(pg_blocking_pids(pid)) > 0 FROM unnest(%s::int[]) AS pid"


class Gate:
    """Stops a session in front of each of its exchanges while it is closed."""

    def __init__(self) -> None:
        self.closed = False
        self.backends: list[int] = []
        self._arrived = asyncio.Event()
        self._open = asyncio.Event()

    async def pass_through(self) -> None:
        if not self.closed:
            return
        self._arrived.set()
        await self._open.wait()
        self._open.clear()

    def let_one_pass(self) -> None:
        self._arrived.clear()
        self._open.set()

    @property
    def somebody_waits(self) -> bool:
        return self._arrived.is_set()


class GatedConnection(Connection):
    """A connection of one session."""

    gate: Gate

    @classmethod
    async def gated(cls, url: str, gate: Gate, **options: Any) -> "GatedConnection":
        connection = await cls.open(url, Patience(), **options)
        connection.gate = gate
        gate.backends.append(connection.info.backend_pid)
        return connection

    async def wait(
        self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None
    ) -> RV:
        gate = getattr(self, "gate", None)
        if gate is not None:
            await gate.pass_through()
        return await super().wait(gen, interval, timeout)


@dataclass
class Session:
    """One client of the database, with its connections behind one gate."""

    url: str
    gate: Gate = field(default_factory=Gate)

    def engine(self) -> AsyncEngine:
        """Return a pool of one connection; it makes no exchange of its own accord."""
        return create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: GatedConnection.gated(self.url, self.gate),
            pool_size=1,
            max_overflow=0,
            json_serializer=dump,
        )

    async def connect(self) -> GatedConnection:
        """Return a connection for the hot writes."""
        return await GatedConnection.gated(
            self.url, self.gate, autocommit=True, row_factory=dict_row, prepare_threshold=0
        )


@dataclass
class Seen:
    """What happened in the trials: whether they prove anything at all."""

    trials: int = 0
    blocked: int = 0
    """How often a session had to wait for the other's lock."""
    outcomes: Counter[str] = field(default_factory=Counter)
    schedules: set[str] = field(default_factory=set)


Work = Callable[[], Coroutine[Any, Any, object]]


class Trial:
    """One run of two sessions under one schedule, written as the indices of who goes next."""

    def __init__(self, oracle: Oracle, sessions: Sequence[Session]) -> None:
        self._oracle = oracle
        self._sessions = sessions
        self.choices: list[tuple[int, int]] = []
        """At each point where both could go on: who did, and how many could."""
        self.steps = ""
        self.blocked = 0

    async def run(self, works: Sequence[Work], schedule: Sequence[int]) -> list[Any]:
        """Run ``works`` side by side; beyond its end the schedule is all zeros."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work()) for work in works]
            for session in self._sessions:
                session.gate.closed = True
            ready = [await self._settles(n, tasks) for n in range(len(tasks))]
            while True:
                able = [n for n, is_ready in enumerate(ready) if is_ready]
                if not able:
                    if all(task.done() for task in tasks):
                        break
                    ready = [await self._settles(n, tasks) for n in range(len(tasks))]
                    continue
                turn = able[0]
                if len(able) > 1:
                    place = len(self.choices)
                    turn = schedule[place] if place < len(schedule) else 0
                    self.choices.append((turn, len(able)))
                self.steps += "ab"[turn]
                self._sessions[turn].gate.let_one_pass()
                ready[turn] = await self._settles(turn, tasks)
                other = 1 - turn
                if not ready[other]:
                    ready[other] = await self._settles(other, tasks)
            for session in self._sessions:
                session.gate.closed = False
        return [task.result() for task in tasks]

    async def _settles(self, turn: int, tasks: "Sequence[asyncio.Task[object]]") -> bool:
        """Wait until a session stands at its gate, has ended, or waits for a lock."""
        gate = self._sessions[turn].gate
        looked = 0
        while True:
            for _ in range(3):
                await asyncio.sleep(0)
            if tasks[turn].done():
                return False
            if gate.somebody_waits:
                return True
            looked += 1
            rows = await self._oracle.rows(BLOCKED, gate.backends)
            if any(value for row in rows for value in row.values()):
                self.blocked += 1
                return False
