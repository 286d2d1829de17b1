"""One turn of an agent: a model call and the requested tool call (003/NFR1.1).

The row measures the CPU time of the agent's process; the model provider is a separate process. All
sides play the same ten turns with the same tool. The client library of the provider, which all
sides use, is measured alone as a floor.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from caseworker_client import AsyncCaseworkerClient

from bench.environments import Worker, own_environment, peer_environment, worker
from bench.figures import Check, Figure, Target, ratio
from bench.harness import OURS, Effort, Row, Side, interleaved
from bench.servers import asking, database, models, service, service_process

TURNS: Final = 10
PYDANTIC_AI: Final = "pydantic-ai"
AGNO: Final = "Agno"
SERVED: Final = "the service"
PEERS: Final = {
    PYDANTIC_AI: ("pydantic_ai_turns", ("pydantic-ai-slim[openai]==2.68.0",)),
    AGNO: ("agno_turns", ("agno==3.1.10", "openai==3.54.0")),
}
CLIENT: Final = "openai's client alone"
AGAINST_PEER: Final = Target(must=1.0)
ABOVE_CLIENT: Final = Target(must=10, stretch=5, unit="ms")


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure agents in separate processes, and ours also as a durable run of the service."""
    times = effort.choose(10, 5)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(models())
        sides = {OURS: await stack.enter_async_context(worker(own_environment(), "agent_turns"))}
        alone = await stack.enter_async_context(worker(own_environment(), "openai_turns"))
        sides[CLIENT] = alone
        for name, (script, requirements) in PEERS.items():
            environment = await peer_environment(*requirements)
            sides[name] = await stack.enter_async_context(worker(environment, script))
        served = await stack.enter_async_context(
            service(stack.enter_context(database()), settings=asking(url))
        )
        client = await stack.enter_async_context(AsyncCaseworkerClient(served))
        figures = [
            await _figure(sides, client, url, times, effort, streamed=streamed)
            for streamed in (False, True)
        ]
        return [*figures, await _wall(alone, client, url, times, effort)]


async def _figure(
    workers: dict[str, Worker],
    client: AsyncCaseworkerClient,
    url: str,
    times: int,
    effort: Effort,
    *,
    streamed: bool,
) -> Figure:
    asked: dict[str, Any] = {"url": url, "turns": TURNS, "times": times, "streamed": streamed}
    sides = {name: _side(each, asked) for name, each in workers.items()}
    sides[SERVED] = _served(client, times, streamed, _processor_seconds)
    measured = await interleaved(sides, effort.rounds)
    ours = measured[OURS]
    checks = [
        Check(what=f"against {name}", value=ratio(ours, measured[name]), target=AGAINST_PEER)
        for name in PEERS
    ]
    title = "Streamed" if streamed else "Not streamed"
    return Figure(title=title, unit="ms a turn", sides=measured, checks=checks)


async def _wall(
    alone: Worker, client: AsyncCaseworkerClient, url: str, times: int, effort: Effort
) -> Figure:
    asked: dict[str, Any] = {"url": url, "turns": TURNS, "times": times, "streamed": True}
    sides = {
        SERVED: _served(client, times, True, time.perf_counter),
        CLIENT: _side(alone, {**asked, "wall": True}),
    }
    measured = await interleaved(sides, effort.rounds)
    above = measured[SERVED].median - measured[CLIENT].median
    check = Check(what=f"above {CLIENT}", value=above, target=ABOVE_CLIENT)
    title = "Streamed, by the clock on the wall: a durable run, barriers included"
    return Figure(title=title, unit="ms a turn", sides=measured, checks=[check])


def _processor_seconds() -> float:
    spent = service_process().cpu_times()
    return spent.user + spent.system


def _side(asked: Worker, arguments: dict[str, Any]) -> Side:
    async def measure() -> float:
        return 1e3 * float(await asked.ask("turn", **arguments))

    return measure


def _served(
    client: AsyncCaseworkerClient, times: int, streamed: bool, clock: Callable[[], float]
) -> Side:
    agent = {
        "name": "helper",
        "prompt": {"system": "Compute with the tool."},
        "tools": ["calculator"],
        "model": {"name": f"turns-{TURNS}", "stream": streamed},
    }
    budget = {"max_llm_calls_small": 100, "max_tool_calls": 100}

    async def measure() -> float:
        before = clock()
        for _ in range(times):
            run = await client.run_agent(agent, "How much is it?", budget=budget, wait_seconds=30)
            assert run.result is not None
            assert run.result.turn_count == TURNS, run
        return 1e3 * (clock() - before) / times / TURNS

    return measure


ROW: Final = Row(
    title="Turn of an agent",
    peers=tuple(each for _, requirements in PEERS.values() for each in requirements),
    measure=measure,
)
