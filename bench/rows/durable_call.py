"""An external call: stored before it is made, and its result stored before the next."""

import json
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import psycopg

from bench.figures import Check, Figure, Target, ratio
from bench.harness import OURS, Effort, Row, Side, interleaved
from bench.load import Request, put_load
from bench.servers import database, service

CALLS: Final = 100
COMMIT: Final = "a commit of one row"
ALONE: Final = Target(must=1.5)
SHARED: Final = Target(must=50, unit="us")
IN_FLIGHT: Final = 64

ROWS: Final = "CREATE TABLE bench_rows (id bigserial PRIMARY KEY, value text)"
INSERT: Final = "INSERT INTO bench_rows (value) VALUES (repeat('x', 500))"
TOOL: Final = {"TOOLS_PLUGINS": '["bench.sides.outside_tool:OutsideTool"]'}


def _run(calls: int) -> Request:
    """Return a run of ``calls`` calls in sequence."""
    data = {"tool": "outside", "args": {"number": 1}}
    steps: list[dict[str, Any]] = [
        {"id": f"s{number}", "type": "tool", "data": data} for number in range(calls)
    ]
    ids = [step["id"] for step in steps]
    edges = [
        {
            "source": a,
            "target": b,
            "source_handle": "default",
            "target_handle": "default",
            "data": {"channel": "flow"},
        }
        for a, b in pairwise(ids)
    ]
    body = {"kind": "graph", "graph": {"steps": steps, "edges": edges}}
    return Request(
        path="/runs",
        body=json.dumps(body).encode(),
        headers="Prefer: wait=60\r\n",
        holds=b'"status":"completed"',
    )


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure the time a call adds to a run: one run against a commit, and 64 runs at once."""
    with database() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(ROWS)
        async with service(url, settings=TOOL) as ours:
            alone = await interleaved(
                {OURS: _call_ms(ours, 1, 3), COMMIT: _commit_ms(connection)}, effort.rounds
            )
            runs = effort.choose(4, 1) * IN_FLIGHT
            many = await interleaved(
                {OURS: _call_ms(ours, IN_FLIGHT, runs, unit=1e6)}, effort.choose(7, 3)
            )
    beside = Check(what="of a commit", value=ratio(alone[OURS], alone[COMMIT]), target=ALONE)
    each = Check(what="each", value=many[OURS].median, target=SHARED)
    return [
        Figure(title="Alone", unit="ms", sides=alone, checks=[beside]),
        Figure(title=f"{IN_FLIGHT} runs at once, a call", unit="us", sides=many, checks=[each]),
    ]


def _call_ms(url: str, connections: int, runs: int, *, unit: float = 1e3) -> Side:
    """Return a side that measures the additional time of each call of a run."""

    async def seconds(calls: int) -> float:
        load = await put_load(url, _run(calls), connections=connections, requests=runs)
        return 1 / load.per_second

    async def measure() -> float:
        return unit * (await seconds(CALLS) - await seconds(1)) / (CALLS - 1)

    return measure


def _commit_ms(connection: psycopg.Connection[Any]) -> Side:
    async def measure() -> float:
        began = time.perf_counter()
        for _ in range(CALLS):
            connection.execute(INSERT)
        return 1e3 * (time.perf_counter() - began) / CALLS

    return measure


ROW: Final = Row(title="A durable call", peers=(), measure=measure)
