"""A durable model call with a budget: the CPU time of the service.

A run of one ``llm`` step calls a model over HTTP; a run of one ``tool`` step calls none. Their
difference is a model call with its budget, journal and trace. The provider is a separate process
without latency.
"""

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from bench.environments import own_environment, worker
from bench.figures import Check, Figure, Samples, Target
from bench.harness import Effort, Row, Side, interleaved
from bench.load import Request, put_load
from bench.rows.agent_turn import CLIENT
from bench.rows.one_step_graph import GRAPH_RUN, OURS
from bench.servers import asking, database, models, service, service_process

MODEL: Final = "a run of one llm step"
TOOL: Final = "a run of one tool step"
IN_FLIGHT: Final = 16
CALL: Final = Target(must=0.8, stretch=0.5, unit="ms")
STEP: Final = {"id": "ask", "type": "llm", "data": {"prompt": "How much is ${default}?"}}
MODEL_RUN: Final = Request(
    body=json.dumps(
        {"kind": "graph", "graph": {"steps": [STEP], "edges": []}, "input": "%d + 1"}
    ).encode(),
    **OURS,
)


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure both runs and the client in turn; the difference of the runs is taken in pairs."""
    requests = effort.choose(320, 96)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(models())
        alone = await stack.enter_async_context(worker(own_environment(), "openai_turns"))
        served = await stack.enter_async_context(
            service(stack.enter_context(database()), settings=asking(url))
        )

        async def client() -> float:
            asked = {"url": url, "turns": 1, "times": requests, "streamed": False}
            return 1e3 * float(await alone.ask("turn", **asked))

        sides = {
            MODEL: _run(served, MODEL_RUN, requests),
            TOOL: _run(served, GRAPH_RUN, requests),
            CLIENT: client,
        }
        measured = await interleaved(sides, effort.rounds)
    pairs = zip(measured[MODEL].values, measured[TOOL].values, strict=True)
    above = Samples(tuple(model - tool for model, tool in pairs))
    check = Check(what="model call", value=above.median, target=CALL)
    title = f"CPU of the process, {IN_FLIGHT} in flight"
    return [
        Figure(title=title, unit="ms a run", sides=measured),
        Figure(
            title="Run of one llm step above a run of one tool step",
            unit="ms",
            sides={MODEL: above},
            checks=[check],
        ),
    ]


def _run(address: str, request: Request, requests: int) -> Side:
    process = service_process()

    async def measure() -> float:
        before = process.cpu_times()
        await put_load(address, request, connections=IN_FLIGHT, requests=requests)
        after = process.cpu_times()
        return 1e3 * (after.user + after.system - before.user - before.system) / requests

    return measure


ROW: Final = Row(title="Durable model call, over HTTP", peers=(), measure=measure)
