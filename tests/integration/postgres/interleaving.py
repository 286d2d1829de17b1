"""Drive sessions on one database through every interleaving, statement by statement.

Each exchange with the server (a statement, a BEGIN with it, a COMMIT) first stops at a gate. The
schedule chooses the session that makes the next exchange. If a statement waits for another
session's lock, the database reports it and the schedule continues with the other sessions. The
blocked session takes part again after its answer.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from psycopg.abc import RV, PQGen
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from caseworker.platform.postgres.connections import Connection
from caseworker.platform.postgres.engines import Pool
from tests.support.limits import patience
from tests.support.stores import Oracle

BLOCKED = "SELECT bool_or(cardinality(pg_blocking_pids(pid)) > 0) FROM unnest(%s::int[]) AS pid"


class Gate:
    """Stops a session in front of each of its exchanges while it is closed."""

    def __init__(self) -> None:
        self.closed = False
        self.backends: list[int] = []
        self._arrived = asyncio.Event()
        self._open = asyncio.Event()

    @property
    def somebody_waits(self) -> bool:
        return self._arrived.is_set()

    async def pass_through(self) -> None:
        if self.closed:
            self._arrived.set()
            await self._open.wait()
            self._open.clear()

    def let_one_pass(self) -> None:
        self._arrived.clear()
        self._open.set()


class GatedConnection(Connection):
    """A connection of one session that stops at its gate."""

    gate: Gate | None = None

    async def check(self) -> None:
        """Make no exchange, so that each one belongs to a statement."""

    async def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        if self.gate is not None:
            await self.gate.pass_through()
        return await super().wait(gen, interval, timeout)

    async def rollback(self) -> None:
        """Roll back; outside a transaction this is not an exchange."""
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            await super().rollback()


@dataclass
class Session:
    """One client of the database, with its connections behind one gate."""

    url: str
    gate: Gate = field(default_factory=Gate)

    async def connect(self, **options: Any) -> GatedConnection:
        connection = await GatedConnection.open(self.url, patience(), **options)
        connection.gate = self.gate
        self.gate.backends.append(connection.info.backend_pid)
        return connection

    async def connect_for_hot_writes(self) -> GatedConnection:
        return await self.connect(autocommit=True, row_factory=dict_row, prepare_threshold=0)

    def pool(self) -> Pool:
        """Return a pool of one connection that makes no exchanges on its own."""
        return Pool(self.connect, size=1, wait_seconds=60)


Work = Callable[[], Coroutine[Any, Any, object]]


@dataclass
class Trial:
    """The exchanges of the sessions under one schedule."""

    steps: str = ""
    """The session of each exchange: ``a``, ``b``, and so on."""
    choices: list[tuple[int, int]] = field(default_factory=list)
    """For each choice between ready sessions: the index chosen and the number of candidates."""
    blocked: bool = False
    """True if a session had to wait for another session's lock."""


Begin = Callable[[int], Awaitable[Sequence[Work]]]
Choose = Callable[[int, int], int]
"""Choose a session, given the number of earlier choices and the number of ready sessions."""


async def explore(
    oracle: Oracle, sessions: Sequence[Session], begin: Begin, *, in_a_row: int
) -> AsyncIterator[Trial]:
    """Run ``begin(n)`` for the n-th trial under every schedule, one after another.

    One session makes at most ``in_a_row`` exchanges while another is ready. Without this bound, a
    session that retries on a locked row would make the number of schedules infinite.
    """
    schedule: list[int] = []
    for number in itertools.count():
        choose = partial(_as_planned, schedule)
        trial = await _run(oracle, sessions, await begin(number), choose, in_a_row)
        yield trial
        choices = trial.choices
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices = choices[:-1]
        if not choices:
            return
        schedule = [choice for choice, _ in choices]
        schedule[-1] += 1


async def sample(
    oracle: Oracle, sessions: Sequence[Session], begin: Begin, *, trials: int, draw: Random
) -> AsyncIterator[Trial]:
    """Run ``begin(n)`` for each of ``trials`` trials under random schedules."""
    for number in range(trials):
        works = await begin(number)
        yield await _run(oracle, sessions, works, lambda _, count: draw.randrange(count), 99)


def _as_planned(schedule: Sequence[int], place: int, _: int) -> int:
    """Choose by the schedule; beyond its end choose the first ready session."""
    return schedule[place] if place < len(schedule) else 0


async def _run(
    oracle: Oracle,
    sessions: Sequence[Session],
    works: Sequence[Work],
    choose: Choose,
    in_a_row: int,
) -> Trial:
    """Run works in parallel, one exchange after another."""
    trial = Trial()
    for session in sessions:
        session.gate.closed = True
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work()) for work in works]
        while not all(task.done() for task in tasks):
            stands = zip(sessions, tasks, strict=True)
            states = [await _finish_result(oracle, session, task) for session, task in stands]
            trial.blocked |= "blocked" in states
            able = _able(states, trial.steps[-in_a_row:], in_a_row)
            if not able:
                continue
            choice = 0
            if len(able) > 1:
                choice = choose(len(trial.choices), len(able))
                trial.choices.append((choice, len(able)))
            trial.steps += chr(ord("a") + able[choice])
            sessions[able[choice]].gate.let_one_pass()
    for session in sessions:
        session.gate.closed = False
    return trial


def _able(states: Sequence[str], last: str, in_a_row: int) -> list[int]:
    """Return the ready sessions, except one that has just made ``in_a_row`` exchanges."""
    able = [n for n, state in enumerate(states) if state == "ready"]
    tired = ord(last[0]) - ord("a") if len(last) == in_a_row and len(set(last)) == 1 else None
    return [n for n in able if n != tired] or able


async def _finish_result(oracle: Oracle, session: Session, task: "asyncio.Task[object]") -> str:
    """Wait until a session reaches its gate, ends, or waits for a lock."""
    while True:
        await asyncio.sleep(0)
        if task.done():
            return "done"
        if session.gate.somebody_waits:
            return "ready"
        if await oracle.value(BLOCKED, session.gate.backends):
            return "blocked"
