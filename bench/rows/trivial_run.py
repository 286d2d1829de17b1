"""A trivial run, from POST to completed, durable (architecture 7)."""

import json
from collections.abc import Sequence
from typing import Final

from bench.figures import Check, Figure, Samples, Target, ratio
from bench.harness import OURS, Effort, Row, Side, interleaved
from bench.load import Request, put_load
from bench.servers import database, floor, service

FLOOR: Final = "insert, run, update"
SHARE: Final = Target(must=0.4, stretch=0.6, at_least=True)
ALONE: Final = Target(must=3, stretch=2)

OUR_RUN: Final = Request(
    path="/runs",
    body=json.dumps({"input": "2+2?"}).encode(),
    headers="Prefer: wait=20\r\n",
)
FLOOR_RUN: Final = Request(path="/runs", body=OUR_RUN.body)


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure 1, 16 and 64 runs in flight: a case of one calculation on the built-in planner."""
    figures = []
    with database() as url:
        async with service(url) as ours, floor(url) as beneath:
            for in_flight in (1, 16, 64):
                requests = effort.choose(40, 15) * min(in_flight, 16)
                figures.append(await _figure(ours, beneath, in_flight, requests, effort))
    return figures


async def _figure(ours: str, beneath: str, in_flight: int, requests: int, effort: Effort) -> Figure:
    if in_flight == 1:
        sides = {OURS: _p50(ours, OUR_RUN, requests), FLOOR: _p50(beneath, FLOOR_RUN, requests)}
        measured = await interleaved(sides, effort.rounds)
        checks = _checks(measured, "p50 against the floor's", ALONE)
        return Figure(title="Alone", unit="ms", sides=measured, checks=checks)
    sides = {
        OURS: _rate(ours, OUR_RUN, in_flight, requests),
        FLOOR: _rate(beneath, FLOOR_RUN, in_flight, requests),
    }
    measured = await interleaved(sides, effort.rounds)
    checks = _checks(measured, "share of the floor", SHARE) if in_flight == 16 else []
    return Figure(title=f"{in_flight} in flight", unit="runs/s", sides=measured, checks=checks)


def _checks(measured: dict[str, Samples], what: str, target: Target) -> list[Check]:
    return [Check(what=what, value=ratio(measured[OURS], measured[FLOOR]), target=target)]


def _p50(url: str, request: Request, requests: int) -> Side:
    async def measure() -> float:
        load = await put_load(url, request, connections=1, requests=requests)
        return load.milliseconds.median

    return measure


def _rate(url: str, request: Request, connections: int, requests: int) -> Side:
    async def measure() -> float:
        load = await put_load(url, request, connections=connections, requests=requests)
        return load.per_second

    return measure


ROW: Final = Row(title="Trivial run, POST to completed, durable", peers=(), measure=measure)
