"""Rounds of load on several HTTP servers: rate, latency, CPU of each server and of Postgres."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import psutil

from bench.environments import has_python, peer_environment
from bench.figures import Check, Figure, Samples
from bench.harness import Side, interleaved
from bench.load import Load, Request, put_load
from bench.servers import cpu_seconds, peer, process_at


@dataclass(frozen=True, slots=True)
class Peer:
    """A server of another project: a module of ``bench.sides`` and its requirements."""

    side: str
    requirements: tuple[str, ...]
    python: str = sys.executable
    """An interpreter, or a version; the peer is skipped if that version is missing."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and the request to send to it."""

    address: str
    request: Request
    process: psutil.Process


@dataclass(frozen=True, slots=True)
class Round:
    """A load on one side, and the CPU milliseconds of each of its runs."""

    load: Load
    server: float
    postgres: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Values of the counted rounds, by the name of the side."""

    rates: Mapping[str, Samples]
    """Runs a second."""
    latencies: Mapping[str, Samples]
    """Milliseconds of each run."""
    medians: Mapping[str, Samples]
    """The median latency of each round, in milliseconds."""
    servers: Mapping[str, Samples]
    """CPU of the server in milliseconds a run."""
    stores: Mapping[str, Samples]
    """CPU of Postgres in milliseconds a run."""

    def figures(
        self,
        title: str,
        *,
        rates: Sequence[Check] = (),
        latencies: Sequence[Check] = (),
        servers: Sequence[Check] = (),
        stores: Sequence[Check] = (),
    ) -> list[Figure]:
        """Return four figures, each with its checks."""
        parts = [
            ("", "runs/s", self.rates, rates),
            (", POST to completed", "ms", self.latencies, latencies),
            (", CPU of the server", "ms a run", self.servers, servers),
            (", CPU of Postgres", "ms a run", self.stores, stores),
        ]
        return [
            Figure(title=title + what, unit=unit, sides=sides, checks=checks)
            for what, unit, sides, checks in parts
        ]


async def start_peers(
    stack: AsyncExitStack, peers: Mapping[str, Peer], url: str, variables: Mapping[str, str]
) -> dict[str, str]:
    """Start peers until ``stack`` closes, each with its own database; return their addresses."""
    addresses = {}
    for name, each in peers.items():
        if not await has_python(each.python):
            print(f"without {name}: there is no Python {each.python}", file=sys.stderr)
            continue
        environment = await peer_environment(*each.requirements, python=each.python)
        started = peer(environment, each.side, url, variables)
        addresses[name] = await stack.enter_async_context(started)
    return addresses


def endpoint(address: str, request: Request) -> Endpoint:
    """Return an endpoint of a server that this process started."""
    return Endpoint(address, request, process_at(address))


async def measure_endpoints(
    endpoints: Mapping[str, Endpoint],
    postgres: psutil.Process,
    *,
    in_flight: int,
    requests: Callable[[str], int],
    rounds: int,
) -> Measured:
    """Put load on every endpoint once a round; ``requests`` gives the number for each side."""
    all_rounds: dict[str, list[Round]] = {name: [] for name in endpoints}
    sides = {
        name: _side(each, postgres, in_flight, requests(name), all_rounds[name])
        for name, each in endpoints.items()
    }
    rates = await interleaved(sides, rounds)

    def samples(values: Callable[[Round], Sequence[float]]) -> dict[str, Samples]:
        return {
            name: Samples(tuple(value for one in measured[1:] for value in values(one)))
            for name, measured in all_rounds.items()
        }

    return Measured(
        rates=rates,
        latencies=samples(lambda one: one.load.milliseconds.values),
        medians=samples(lambda one: [one.load.milliseconds.median]),
        servers=samples(lambda one: [one.server]),
        stores=samples(lambda one: [one.postgres]),
    )


def _side(
    measured: Endpoint,
    postgres: psutil.Process,
    in_flight: int,
    requests: int,
    rounds: list[Round],
) -> Side:
    """Return a side that appends its measurements to ``rounds``.

    Sides take turns, so all CPU time of Postgres during a measurement belongs to its side.
    """

    async def measure() -> float:
        before = cpu_seconds(measured.process), cpu_seconds(postgres, below=True)
        load = await put_load(
            measured.address, measured.request, connections=in_flight, requests=requests
        )
        after = cpu_seconds(measured.process), cpu_seconds(postgres, below=True)
        runs = len(load.milliseconds.values) / 1e3
        costs = [(end - begin) / runs for begin, end in zip(before, after, strict=True)]
        rounds.append(Round(load, *costs))
        return load.per_second

    return measure
