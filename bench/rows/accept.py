"""Accepting a run durably: the 202 (architecture 7)."""

import asyncio
import json
import re
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.figures import Check, Figure, Target, ratio
from bench.harness import OURS, Effort, Row, Side, interleaved
from bench.load import Request, put_load
from bench.servers import another_database, database, floor, service
from caseworker.platform.postgres.embedded.programs import programs_folder
from caseworker.platform.postgres.schema_version import upgrade

ECHO: Final = "FastAPI echo"
PGBENCH: Final = "pgbench inserts"
CLIENTS: Final = 8
QUEUED: Final = "into the queue"
ALONE: Final = Target(must=0.35, stretch=0.5, at_least=True)
BEGUN: Final = Target(must=0.2, stretch=0.3, at_least=True)

INSERT: Final = """
INSERT INTO floor_runs (status, request) VALUES ('queued', '{"input": "2+2?"}');
"""
_RATE: Final = re.compile(rb"tps = ([\d.]+)")

POSTED: Final = Request(
    path="/runs",
    body=json.dumps({"input": "2+2?", "budget": {"max_steps": 0}}).encode(),
    expect=(202,),
)
"""A run that its budget stops at its first step.

If the accepting process executes it, the figure includes this execution and its end; in a queue it
only waits.
"""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure eight clients that post without waiting for the end."""
    requests = effort.choose(1_200, 400)
    with database() as url, tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "insert.sql"
        script.write_text(INSERT)
        apart = another_database(url, "queue")
        upgrade(apart)
        room = {"ADMISSION_MAX_QUEUED": str(requests * (effort.rounds + 2))}
        async with (
            service(url) as ours,
            service(apart, "--no-worker", settings=room) as accepting,
            floor(url) as beneath,
        ):
            sides = {
                OURS: _rate(ours, POSTED, requests),
                QUEUED: _rate(accepting, POSTED, requests),
                ECHO: _rate(
                    beneath, Request(path="/echo", body=POSTED.body, expect=(202,)), requests
                ),
                PGBENCH: _pgbench(url, script, effort.choose(200, 100)),
            }
            measured = await interleaved(sides, effort.rounds)
    checks = [
        Check(what=what, value=ratio(measured[side], measured[ECHO]), target=target)
        for what, side, target in (
            ("begun and ended, share of an echo", OURS, BEGUN),
            ("into the queue, share of an echo", QUEUED, ALONE),
        )
    ]
    return [Figure(title="8 clients", unit="requests/s", sides=measured, checks=checks)]


def _rate(url: str, request: Request, requests: int) -> Side:
    async def measure() -> float:
        load = await put_load(url, request, connections=CLIENTS, requests=requests)
        return load.per_second

    return measure


def _pgbench(url: str, script: Path, each: int) -> Side:
    program = programs_folder() / "pgbench"
    options = ("-n", "-M", "prepared", "-c", str(CLIENTS), "-t", str(each), "-f", str(script))

    async def measure() -> float:
        process = await asyncio.create_subprocess_exec(program, *options, url, stdout=PIPE)
        printed, _ = await process.communicate()
        found = _RATE.search(printed)
        if found is None:
            raise RuntimeError("pgbench did not say how fast it was")
        return float(found[1])

    return measure


ROW: Final = Row(title="Accept: POST answered 202", peers=(), measure=measure)
