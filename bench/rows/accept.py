"""Accepting a run durably: the 202 (architecture 7)."""

import asyncio
import json
import re
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.adapters.postgres.embedded.programs import programs_folder
from bench.figures import Check, Figure, Target, ratio
from bench.harness import OURS, Effort, Row, Side, interleaved
from bench.load import Request, put_load
from bench.servers import database, floor, service

ECHO: Final = "FastAPI echo"
PGBENCH: Final = "pgbench inserts"
CLIENTS: Final = 8
OF_ECHO: Final = Target(must=0.4, stretch=0.7, at_least=True)
OF_PGBENCH: Final = Target(must=0.25, stretch=0.45, at_least=True)

INSERT: Final = """
INSERT INTO floor_runs (status, request) VALUES ('queued', '{"input": "2+2?"}');
"""
_RATE: Final = re.compile(rb"tps = ([\d.]+)")

POSTED: Final = Request(
    path="/runs",
    body=json.dumps({"input": "2+2?", "budget": {"max_steps": 0}}).encode(),
    expect=(202,),
)
"""A run that its budget ends at its first step, so that what is measured is the accepting. The
execution up to there and the settling are in our figure all the same."""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure eight clients that post and do not wait."""
    requests = effort.choose(1_200, 400)
    with database() as url, tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "insert.sql"
        script.write_text(INSERT)
        async with service(url) as ours, floor(url) as beneath:
            sides = {
                OURS: _rate(ours, POSTED, requests),
                ECHO: _rate(
                    beneath, Request(path="/echo", body=POSTED.body, expect=(202,)), requests
                ),
                PGBENCH: _pgbench(url, script, effort.choose(200, 100)),
            }
            measured = await interleaved(sides, effort.rounds)
    checks = [
        Check(what=what, value=ratio(measured[OURS], measured[side]), target=target)
        for what, side, target in (
            ("share of an echo", ECHO, OF_ECHO),
            ("share of single inserts", PGBENCH, OF_PGBENCH),
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
