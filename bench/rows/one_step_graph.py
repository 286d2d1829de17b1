"""Short durable runs over HTTP, from POST to completed, each with its own question.

The peers store runs in the same Postgres: each computes a sum in a workflow of one step and keeps
its runs. All run in one process; ours also stores every call and event.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import urlencode

import psutil

from bench.endpoints import Endpoint, Peer, endpoint, measure_endpoints, start_peers
from bench.figures import Check, Figure, Samples, Target, ratio
from bench.harness import Effort, Row
from bench.load import Request, put_load
from bench.rows.trivial_run import FLOOR, FLOOR_RUN
from bench.servers import database, floor, peak_bytes, postgres_of, service

GRAPH: Final = "a graph of one step"
NAMED: Final = "the same, registered"
CASE: Final = "a case"
AGENTOS: Final = "Agno AgentOS"
AEGRA: Final = "Aegra"
SERVING: Final = ("uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0")
PEERS: Final = {
    AGENTOS: Peer("agentos_runs", ("agno[os,postgres]==3.1.10", *SERVING)),
    AEGRA: Peer("aegra_runs", ("aegra-api==0.11.0", *SERVING), python="3.12"),
}

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


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure 1, 16 and 64 runs in flight, and the memory of the servers."""
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        ours = await stack.enter_async_context(service(url))
        await put_load(ours, REGISTERED, connections=1, requests=1)
        beneath = await stack.enter_async_context(floor(url))
        places = {
            GRAPH: endpoint(ours, GRAPH_RUN),
            NAMED: endpoint(ours, NAMED_RUN),
            CASE: endpoint(ours, CASE_RUN),
            FLOOR: endpoint(beneath, FLOOR_RUN),
        }
        for name, address in (await start_peers(stack, PEERS, url, {})).items():
            places[name] = endpoint(address, PEER_RUNS[name])
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
    places: Mapping[str, Endpoint], postgres: psutil.Process, in_flight: int, effort: Effort
) -> list[Figure]:
    def requests(name: str) -> int:
        return max(10, (2 if name in PEERS else 6) * in_flight)

    rounds = effort.choose(10, 4)
    measured = await measure_endpoints(
        places, postgres, in_flight=in_flight, requests=requests, rounds=rounds
    )
    middles = measured.medians
    alone = [
        Check(what=f"p50, {name}", value=ratio(middles[name], middles[FLOOR]), target=target)
        for name, target in ALONE.items()
    ]
    return measured.figures(
        "Alone" if in_flight == 1 else f"{in_flight} in flight",
        rates=_rate_checks(measured.rates) if in_flight == 16 else (),
        latencies=alone if in_flight == 1 else (),
    )


def _rate_checks(rates: Mapping[str, Samples]) -> list[Check]:
    best = max(PEERS.keys() & rates.keys(), key=lambda name: rates[name].median)
    shares = [
        Check(what=f"share of the floor, {name}", value=ratio(rates[name], rates[FLOOR]), target=to)
        for name, to in SHARES.items()
    ]
    faster = ratio(rates[GRAPH], rates[best])
    return [*shares, Check(what=f"faster than {best}", value=faster, target=AGAINST_PEER)]


ROW: Final = Row(
    title="Short durable runs, each with its own question",
    peers=tuple(each.requirements[0] for each in PEERS.values()),
    measure=measure,
)
