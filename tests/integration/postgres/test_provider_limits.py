"""The shared model limits in the database.

``caseworker_take_turn`` accepts a time, so tests play minutes of many processes at once.
"""

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random

import psycopg
import pytest

from caseworker.models.ports import RateLimit
from caseworker.models.provider_limits import (
    LONGEST_WAIT_SECONDS,
    PostgresProviderLimits,
    amounts_of,
)
from caseworker.platform.postgres.engines import open_engines
from tests.support.limits import pool_sizes
from tests.support.stores import Oracle

TAKE = """
SELECT caseworker_take_turn(%(model)s, %(tenant)s, %(process)s,
    %(requests)s, %(burst_requests)s, %(rate_requests)s,
    %(tokens)s, %(burst_tokens)s, %(rate_tokens)s, %(unused)s, %(longest)s, %(at)s)
"""
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = 60.0
Line = tuple[str, str]
"""A tenant and a process."""


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url) as connection:
        yield connection
        connection.rollback()


@dataclass(frozen=True)
class Grant:
    at: float
    line: Line
    tokens: int
    waited: float

    @property
    def tenant(self) -> str:
        return self.line[0]


@dataclass
class Minutes:
    """Callers of several processes that use the real function, in virtual time."""

    connection: psycopg.Connection
    limit: RateLimit
    at: float = 0.0
    grants: list[Grant] = field(default_factory=list)
    asked: int = 0

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Line, tuple[float, int] | None]] = []
        self._numbers = count()
        self._waiting: dict[Line, deque[tuple[float, int]]] = {}
        self._asleep: dict[Line, float] = {}
        self._dead: dict[str, float] = {}

    def call(self, at: float, line: Line, tokens: int = 0) -> None:
        """Schedule a call on ``line`` at an instant."""
        heapq.heappush(self._events, (at, next(self._numbers), line, (at, tokens)))

    def kill(self, process: str, at: float) -> None:
        """Stop all calls of a process from an instant on."""
        self._dead[process] = at

    def play(self) -> None:
        """Advance the clock until no call waits."""
        while self._events:
            self.at, _, line, call = heapq.heappop(self._events)
            if self._dead.get(line[1], self.at + 1) <= self.at:
                continue
            queue = self._waiting.setdefault(line, deque())
            if call is not None:
                queue.append(call)
            elif self._asleep.get(line) == self.at:
                del self._asleep[line]
            while queue and line not in self._asleep:
                self._ask(line, queue)

    def _ask(self, line: Line, queue: "deque[tuple[float, int]]") -> None:
        came, tokens = queue[0]
        self.asked += 1
        wait = self.take(line, tokens)
        if wait == 0:
            queue.popleft()
            self.grants.append(Grant(self.at, line, tokens, self.at - came))
            return
        assert 0 < wait <= LONGEST_WAIT_SECONDS
        due = self._asleep[line] = self.at + max(wait, 1e-5)
        heapq.heappush(self._events, (due, next(self._numbers), line, None))

    def take(self, line: Line, tokens: int = 0, *, unused: int = 0) -> float:
        asked = amounts_of(self.limit, tokens) | {
            "tenant": line[0],
            "process": line[1],
            "unused": float(unused),
            "longest": LONGEST_WAIT_SECONDS,
            "at": BEGIN + timedelta(seconds=self.at),
        }
        found = self.connection.execute(TAKE, asked).fetchone()
        assert found is not None
        return float(found[0])

    def most_in_a_minute(self, *, tokens: bool = False) -> int:
        """Return the most requests, or their tokens, that were granted in any minute."""
        worst = 0
        for number, first in enumerate(self.grants):
            inside = [g for g in self.grants[number:] if g.at < first.at + MINUTE - 1e-4]
            worst = max(worst, sum(g.tokens for g in inside) if tokens else len(inside))
        return worst


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.guarantee(20)
def test_no_minute_sees_more_than_the_limit_and_nobody_waits_longer_than_that_takes(
    connection: psycopg.Connection, seed: int
) -> None:
    """The limit holds for any arrival times and processes, and it is used while calls wait."""
    chance = Random(seed)
    per_minute, calls = chance.choice((1, 7, 60, 150)), 150
    per_minute = max(per_minute, 7) if seed else 1
    calls = 6 if per_minute == 1 else calls
    minutes = Minutes(connection, RateLimit(model="m", requests_per_minute=per_minute))
    for _ in range(calls):
        line = chance.choice("abc"), chance.choice("12")
        minutes.call(chance.choice((0.0, 30.0, chance.uniform(0, 90))), line)

    minutes.play()

    assert len(minutes.grants) == calls
    assert minutes.most_in_a_minute() <= per_minute
    needed = 90 + (calls - 1) * 60 / per_minute * 1.03
    assert minutes.grants[-1].at <= needed + 0.1
    assert minutes.asked <= 5 * calls + needed / LONGEST_WAIT_SECONDS * 6


@pytest.mark.parametrize("seed", range(2))
def test_tokens_are_limited_by_the_minute_too(connection: psycopg.Connection, seed: int) -> None:
    """The limit may be exceeded by at most one call, even one larger than a burst."""
    chance, per_minute = Random(seed), 12_000
    minutes = Minutes(connection, RateLimit(model="m", tokens_per_minute=per_minute))
    for _ in range(60):
        line = chance.choice("abc"), chance.choice("12")
        minutes.call(chance.uniform(0, 60), line, chance.choice((10, 300, 2_000, 13_000)))

    minutes.play()

    largest = max(grant.tokens for grant in minutes.grants)
    assert len(minutes.grants) == 60
    assert minutes.most_in_a_minute(tokens=True) <= per_minute + largest
    total = sum(grant.tokens for grant in minutes.grants)
    assert minutes.grants[-1].at <= 60 + total / per_minute * 60 * 1.06 + 1


def test_a_tenant_with_a_thousand_calls_holds_up_nobody(connection: psycopg.Connection) -> None:
    """Another tenant's call is granted first or second, for any number of waiting processes."""
    minutes = Minutes(connection, RateLimit(model="m", requests_per_minute=600))
    for number in range(1000):
        minutes.call(0.0, ("greedy", str(number % 4)))
    for number in range(20):
        minutes.call(5.0 + number, ("modest", "1"))

    minutes.play()

    waits = [grant.waited for grant in minutes.grants if grant.tenant == "modest"]
    assert len(waits) == 20
    assert max(waits) <= 0.4
    assert minutes.most_in_a_minute() <= 600


def test_tenants_share_a_model_evenly_while_both_want_it(connection: psycopg.Connection) -> None:
    """Tenants share the capacity: calls four times as large get a fourth as many slots."""
    minutes = Minutes(connection, RateLimit(model="m", tokens_per_minute=60_000))
    for number in range(200):
        minutes.call(0.0, ("large", str(number % 3)), 2000)
        minutes.call(0.0, ("small", "1"), 500)
        minutes.call(0.0, ("small", "2"), 500)

    minutes.play()

    until = min(max(g.at for g in minutes.grants if g.tenant == who) for who in ("large", "small"))
    taken: Counter[str] = Counter()
    for grant in minutes.grants:
        if grant.at <= until:
            taken[grant.tenant] += grant.tokens
    assert 0.8 <= taken["large"] / taken["small"] <= 1.25


def test_a_process_that_is_gone_holds_up_nobody_for_long(connection: psycopg.Connection) -> None:
    """Calls behind its position pass once that position is late."""
    minutes = Minutes(connection, RateLimit(model="m", requests_per_minute=60))
    for number in range(30):
        minutes.call(0.0, ("a", str(number % 3)))
    minutes.kill("0", 4.0)

    minutes.play()

    assert sum(process != "0" for _, process in (g.line for g in minutes.grants)) == 20
    assert minutes.grants[-1].at <= 30 + LONGEST_WAIT_SECONDS + 2
    left = connection.execute("SELECT count(*) FROM provider_turns").fetchone()
    assert left is not None
    assert left[0] <= 1


def test_what_a_request_did_not_need_is_there_for_the_next(connection: psycopg.Connection) -> None:
    """Unused tokens are returned, and tokens beyond the estimate are deducted."""
    minutes = Minutes(connection, RateLimit(model="m", tokens_per_minute=60_000))
    one, other = ("a", "1"), ("b", "1")
    assert minutes.take(one, 3_000) == 0
    without = minutes.take(other, 2_000)
    assert 1.9 < without < 2.2

    assert minutes.take(other, 2_000, unused=2_500) == 0
    assert minutes.take(one, 1_000, unused=-2_500) > 2.9


@pytest.fixture
async def processes(database_url: str) -> AsyncIterator[list[PostgresProviderLimits]]:
    """Open two processes with separate pools."""
    pools = [open_engines(database_url, pool_sizes(work=2)) for _ in range(2)]
    yield [PostgresProviderLimits(each.work) for each in pools]
    for each in pools:
        await each.dispose()


@pytest.mark.guarantee(20)
async def test_two_processes_share_a_limit(
    processes: list[PostgresProviderLimits], oracle: Oracle
) -> None:
    """Of all concurrent calls one gets the slot of a minute, and one more after another minute."""
    limit = RateLimit(model="m", requests_per_minute=1)

    for minute in range(4):
        async with asyncio.TaskGroup() as group:
            asking = [
                group.create_task(limits.take(limit, tenant, 0))
                for limits in processes
                for tenant in "ab"
            ]
        assert [wait.result() for wait in asking].count(0) == 1, minute
        await oracle.rows(
            "UPDATE provider_limits SET refilled_at = refilled_at - interval '1 minute'"
        )


async def test_a_pause_holds_for_all_processes_and_a_place_can_be_left(
    processes: list[PostgresProviderLimits], oracle: Oracle
) -> None:
    """A shorter pause does not replace a longer one."""
    limit = RateLimit(model="m", requests_per_minute=60)
    one, other = processes
    await one.pause(limit, 30)
    await other.pause(limit, 0.1)

    assert await other.take(limit, "a", 0) == LONGEST_WAIT_SECONDS
    assert await oracle.value("SELECT count(*) FROM provider_turns") == 1
    await other.leave(limit, "a")
    assert await oracle.value("SELECT count(*) FROM provider_turns") == 0
    remaining = "SELECT extract(epoch FROM refilled_at - clock_timestamp()) FROM provider_limits"
    assert 20 < float(await oracle.value(remaining)) <= 30


async def test_a_call_waits_for_a_database_that_is_away() -> None:
    """The call gets a delay for its retry, like a call without a slot."""
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    limits = PostgresProviderLimits(open_engines(nowhere, pool_sizes()).work)

    assert await limits.take(RateLimit(model="m", requests_per_minute=1), "a", 0) == 1.0
    await limits.pause(RateLimit(model="m"), 1)
