"""Many runs with a slow model, posted as fast as they are accepted: the delay of their ends."""

import asyncio
import json
from collections.abc import Sequence
from typing import Final

import psycopg

from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.load import Request, put_load
from bench.servers import asking, database, models, service

MODEL_SECONDS: Final = 5
CONNECTIONS: Final = 64
LOOK_SECONDS: Final = 1.0
LATE: Final = Target(must=3, stretch=1, unit="s")
LAST: Final = "the last to end, behind the last to be accepted"

AGENT: Final = {
    "name": "slow",
    "prompt": {"system": "Take your time."},
    "model": {"name": f"wait-{MODEL_SECONDS}"},
}
RUN: Final = Request(
    path="/runs",
    body=json.dumps({"kind": "agent", "agent": AGENT, "input": "Is it %d?"}).encode(),
    expect=(202,),
)

UNENDED: Final = "SELECT count(*) FROM runs WHERE finished_at IS NULL"
TAKEN: Final = """
SELECT extract(epoch FROM finished_at - created_at)::float8 FROM runs WHERE status = 'completed'
"""
LAST_OF: Final = "SELECT extract(epoch FROM max(finished_at) - max(created_at))::float8 FROM runs"


async def measure(effort: Effort) -> Sequence[Figure]:
    """Post them, wait until all have ended, and read their times from the clock of Postgres.

    Raises:
        RuntimeError: A run did not complete.
    """
    runs = effort.choose(3_000, 500)
    with database() as url, psycopg.connect(url, autocommit=True) as connection:
        async with (
            models() as provider,
            service(url, settings={"WORKER_MAX_RUNS": str(runs), **asking(provider)}) as served,
        ):
            await put_load(served, RUN, connections=CONNECTIONS, requests=runs)
            while (connection.execute(UNENDED).fetchone() or (0,))[0]:  # noqa: ASYNC110 - a server
                await asyncio.sleep(LOOK_SECONDS)
        late = [taken - MODEL_SECONDS for (taken,) in connection.execute(TAKEN)]
        (last,) = connection.execute(LAST_OF).fetchone() or (0.0,)
    if len(late) < runs // CONNECTIONS * CONNECTIONS:
        raise RuntimeError(f"Only {len(late)} runs have completed.")
    check = Check(what=LAST, value=last - MODEL_SECONDS, target=LATE)
    title = f"{runs:,} runs posted at full speed: how late each ends"
    return [Figure(title=title, unit="s", sides={OURS: Samples(tuple(late))}, checks=[check])]


ROW: Final = Row(title="Many at once", peers=(), measure=measure)
