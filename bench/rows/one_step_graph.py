"""Short durable runs over HTTP, from POST to completed, each with a question of its own.

Beside ours stand peers that keep runs in the same Postgres: each computes a sum in a workflow of
one step, and has its runs kept. All are one process; ours keeps every call and event as well.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import psutil

from bench.environments import has_python, peer_environment
from bench.figures import Check, Figure, Samples, Target, ratio
from bench.harness import Effort, Row, Side, interleaved
from bench.load import Load, Request, put_load
from bench.rows.trivial_run import FLOOR, FLOOR_RUN
from bench.servers import (
    cpu_seconds,
    database,
    floor,
    peak_bytes,
    peer,
    postgres_of,
    process_at,
    service,
)

GRAPH: Final = "a graph of one step"
NAMED: Final = "the same, registered"
CASE: Final = "a case"
AGENTOS: Final = "Agno AgentOS"
AEGRA: Final = "Aegra"
SERVING: Final = ("uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0")
PEERS: Final = {
    AGENTOS: ("agentos_runs", ("agno[os,postgres]==3.1.10", *SERVING)),
    AEGRA: ("aegra_runs", ("aegra-api==0.11.0", *SERVING)),
}
NEEDS: Final = {AEGRA: "3.12"}
"""A Python newer than the oldest of ours; without it the peer is left out."""

STEP: Final = {
    "id": "sum",
    "type": "tool",
    "data": {"tool": "calculator", "args": {"expression": "${default}"}},
}


def _request(document: Mapping[str, Any], **others: Any) -> Request:
    return Request(body=json.dumps(document).encode(), **others)


OURS: Final[Mapping[str, Any]] = {
    "path": "/runs",
    "headers": "Prefer: wait=20\r\n",
    "holds": b'"status":"completed"',
}
GRAPH_RUN: Final = _request(
    {"kind": "graph", "graph": {"steps": [STEP], "edges": []}, "input": "%d + 1"}, **OURS
)
REGISTERED: Final = Request(
    path="/graphs",
    body=json.dumps({"name": "sum", "graph": {"steps": [STEP], "edges": []}}).encode(),
    expect=(201,),
)
NAMED_RUN: Final = _request({"kind": "graph", "graph": {"name": "sum"}, "input": "%d + 1"}, **OURS)
CASE_RUN: Final = _request({"input": "What is %d + 1?"}, **OURS)
AGENTOS_RUN: Final = Request(
    path="/workflows/sum/runs",
    body=urlencode({"message": "%d + 1", "stream": "false"}, safe="%").encode(),
    content_type="application/x-www-form-urlencoded",
    holds=b'"status":"COMPLETED"',
)
AEGRA_RUN: Final = _request(
    {"assistant_id": "sum", "input": {"asked": "%d + 1"}, "on_completion": "keep"},
    path="/runs/wait",
    holds=b'"answer":',
)
PEER_RUNS: Final = {AGENTOS: AGENTOS_RUN, AEGRA: AEGRA_RUN}

SHARES: Final = {
    GRAPH: Target(must=0.45, stretch=0.6, at_least=True),
    CASE: Target(must=0.25, stretch=0.35, at_least=True),
}
ALONE: Final = {GRAPH: Target(must=2.5, stretch=2.1), CASE: Target(must=3, stretch=2.6)}
AGAINST_PEER: Final = Target(must=10, stretch=15, at_least=True)


@dataclass(frozen=True, slots=True)
class Place:
    """A server and what it is asked."""

    address: str
    request: Request
    process: psutil.Process


@dataclass(frozen=True, slots=True)
class Spent:
    """What a load took, and the milliseconds of CPU that each of its runs cost."""

    load: Load
    server: float
    postgres: float


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure 1, 16 and 64 runs in flight, and how much memory the servers needed for them."""
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        ours = await stack.enter_async_context(service(url))
        await put_load(ours, REGISTERED, connections=1, requests=1)
        beneath = await stack.enter_async_context(floor(url))
        places = {
            GRAPH: _place(ours, GRAPH_RUN),
            NAMED: _place(ours, NAMED_RUN),
            CASE: _place(ours, CASE_RUN),
            FLOOR: _place(beneath, FLOOR_RUN),
        }
        for name, (side, requirements) in PEERS.items():
            python = NEEDS.get(name, sys.executable)
            if not await has_python(python):
                print(f"without {name}: there is no Python {python}", file=sys.stderr)
                continue
            environment = await peer_environment(*requirements, python=python)
            address = await stack.enter_async_context(peer(environment, side, url))
            places[name] = _place(address, PEER_RUNS[name])
        idle = {name: place.process.memory_info().rss for name, place in places.items()}
        postgres = postgres_of(url)
        figures = [
            each
            for count in (1, 16, 64)
            for each in await _figures(places, postgres, count, effort)
        ]
        above = {
            name: Samples(((peak_bytes(place.process) - idle[name]) / 1e6,))
            for name, place in places.items()
            if name not in (CASE, NAMED)
        }
    title = "Peak of memory above idle (ours: graphs and cases)"
    return [*figures, Figure(title=title, unit="MB", sides=above)]


async def _figures(
    places: Mapping[str, Place], postgres: psutil.Process, in_flight: int, effort: Effort
) -> list[Figure]:
    spent: dict[str, list[Spent]] = {name: [] for name in places}
    sides = {
        name: _side(place, postgres, in_flight, 2 if name in PEERS else 6, spent[name])
        for name, place in places.items()
    }
    rates = await interleaved(sides, effort.choose(10, 4))
    counted = {name: each[1:] for name, each in spent.items()}
    latencies = {
        name: Samples(tuple(value for one in each for value in one.load.milliseconds.values))
        for name, each in counted.items()
    }
    middles = {
        name: Samples(tuple(one.load.milliseconds.median for one in each))
        for name, each in counted.items()
    }
    servers = {name: Samples(tuple(one.server for one in each)) for name, each in counted.items()}
    stores = {name: Samples(tuple(one.postgres for one in each)) for name, each in counted.items()}
    alone = [
        Check(what=f"p50, {name}", value=ratio(middles[name], middles[FLOOR]), target=target)
        for name, target in ALONE.items()
    ]
    title = "Alone" if in_flight == 1 else f"{in_flight} in flight"
    return [
        Figure(
            title=title,
            unit="runs/s",
            sides=rates,
            checks=_rate_checks(rates) if in_flight == 16 else [],
        ),
        Figure(
            title=f"{title}, POST to completed",
            unit="ms",
            sides=latencies,
            checks=alone if in_flight == 1 else [],
        ),
        Figure(title=f"{title}, CPU of the server", unit="ms a run", sides=servers),
        Figure(title=f"{title}, CPU of Postgres", unit="ms a run", sides=stores),
    ]


def _rate_checks(rates: Mapping[str, Samples]) -> list[Check]:
    best = max(PEERS.keys() & rates.keys(), key=lambda name: rates[name].median)
    shares = [
        Check(what=f"share of the floor, {name}", value=ratio(rates[name], rates[FLOOR]), target=to)
        for name, to in SHARES.items()
    ]
    faster = ratio(rates[GRAPH], rates[best])
    return [*shares, Check(what=f"faster than {best}", value=faster, target=AGAINST_PEER)]


def _place(address: str, request: Request) -> Place:
    return Place(address, request, process_at(address))


def _side(
    place: Place, postgres: psutil.Process, in_flight: int, each: int, spent: list[Spent]
) -> Side:
    """Return a side that sends ``each`` requests over every connection, and at least ten.

    It leaves in ``spent`` what they took. Sides take turns, so all that Postgres does is theirs.
    """
    requests = max(10, each * in_flight)

    async def measure() -> float:
        before = cpu_seconds(place.process), cpu_seconds(postgres, below=True)
        load = await put_load(
            place.address, place.request, connections=in_flight, requests=requests
        )
        after = cpu_seconds(place.process), cpu_seconds(postgres, below=True)
        runs = len(load.milliseconds.values) / 1e3
        costs = [(end - begin) / runs for begin, end in zip(before, after, strict=True)]
        spent.append(Spent(load, *costs))
        return load.per_second

    return measure


ROW: Final = Row(
    title="Short durable runs, each with its own question",
    peers=tuple(requirements[0] for _, requirements in PEERS.values()),
    measure=measure,
)
