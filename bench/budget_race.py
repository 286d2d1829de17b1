"""Parallel model calls against the limit of one run or session: this service and LiteLLM.

``python -m bench.budget_race --clients 4 --servers 4 --repeats 100`` sends 64 streamed calls in
parallel, each of which costs exactly $0.01, under a limit of ten calls. The record of the provider
shows how many calls were made. LiteLLM is one process, whose limits are those of an agent's
session.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, Final

import httpx
import typer
from rich.console import Console
from rich.table import Table

from bench.environments import Worker, own_environment, peer_environment, worker
from bench.servers import database, peer, service
from tests.support.fake_provider import FakeProvider, Step

LITELLM: Final = ("litellm[proxy]==1.108.7", "httptools==0.9.0")
CALLS: Final = 64
ALLOWED: Final = 10
TOKENS: Final = 100
"""Output tokens of each call, at $100 for a million."""
STEP: Final = Step(text="in parts " * 8, delay_seconds=0.2, tokens_in=10, tokens_out=TOKENS)
LIMITS: Final[Mapping[str, Mapping[str, Any]]] = {
    "10 calls": {"max_llm_calls": ALLOWED},
    "$0.10": {"max_cost_usd": 0.10},
    "both": {"max_llm_calls": ALLOWED, "max_cost_usd": 0.10},
}
THEIR_LIMITS: Final[Mapping[str, Mapping[str, Any]]] = {
    "10 calls": {"max_iterations": ALLOWED},
    "$0.10": {"max_budget_per_session": 0.10},
}

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Race:
    """What happened to the calls of one run or session."""

    made: int
    """Calls that arrived at the provider."""
    answers: Mapping[str, int]
    """Answers of the clients by their status."""


def settings_of(provider: FakeProvider) -> dict[str, str]:
    """Return the settings of a service whose model costs $0.01 a call."""
    model = {
        "PROVIDER": "openai",
        "BASE_URL": provider.openai_url,
        "API_KEY": "none",
        "MODEL": "fake-small",
        "PRICE_PER_MILLION_IN_USD": "0",
        "PRICE_PER_MILLION_OUT_USD": "100",
    }
    return {f"MODELS_SMALL_{name}": value for name, value in model.items()}


async def race(
    clients: Sequence[Worker], provider: FakeProvider, url: str, key: str, **fields: Any
) -> Race:
    """Send the calls from all client processes at the same time."""
    marker = f"<race {next(_numbers)}>"
    await provider.script(marker, [STEP], repeat_last=True)
    messages = [{"role": "user", "content": marker}]
    limit = {"max_completion_tokens": TOKENS}
    asked: dict[str, Any] = {
        "url": f"{url}/chat/completions",
        "headers": {"Authorization": f"Bearer {key}"},
        "body": {"model": "small", "messages": messages, "stream": True, **limit, **fields},
        "calls": CALLS // len(clients),
    }
    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(each.ask("race", **asked)) for each in clients]
    total: Counter[str] = Counter()
    for each in answers:
        total.update(each.result())
    return Race(await provider.count(marker), total)


async def race_of_run(
    clients: Sequence[Worker], provider: FakeProvider, address: str, limits: Mapping[str, Any]
) -> tuple[Race, dict[str, Any]]:
    """Race for the budget of a new external run; return the run as it ended, too."""
    body = {"kind": "external", "budget": limits}
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=60) as http:
        run = (await http.post("/runs", json=body)).raise_for_status().json()
        access = run["access"]
        raced = await race(clients, provider, access["openai_base_url"], access["key"])
        accept = {"Accept": "text/event-stream"}
        path = f"/runs/{run['run_id']}"
        async with http.stream("GET", f"{path}/events", headers=accept) as events:
            async for _ in events.aiter_lines():
                pass  # until the run has ended
        return raced, (await http.get(path)).raise_for_status().json()


async def started(stack: AsyncExitStack, clients: int) -> list[Worker]:
    """Start the client processes."""
    return [
        await stack.enter_async_context(worker(own_environment(), "racing_clients"))
        for _ in range(clients)
    ]


async def _measure(clients: int, servers: int, repeats: int, with_litellm: bool) -> Table:
    table = Table("side", "limit", "races", "calls made of 64", "answers of the last race")
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        provider = await stack.enter_async_context(FakeProvider())
        racers = await started(stack, clients)
        options = ("--workers", str(servers)) if servers > 1 else ()
        settings = settings_of(provider)
        ours = await stack.enter_async_context(service(url, *options, settings=settings))
        for name, limits in LIMITS.items():
            races = [(await race_of_run(racers, provider, ours, limits))[0] for _ in range(repeats)]
            table.add_row("caseworker", name, *_cells(races))
        if with_litellm:
            environment = await peer_environment(*LITELLM)
            asked = {"MODELS_URL": provider.openai_url, "MODEL": "fake-small"}
            asked["AGENT_LIMITS"] = json.dumps(THEIR_LIMITS)
            theirs = await stack.enter_async_context(peer(environment, "litellm_proxy", url, asked))
            for name in THEIR_LIMITS:
                sessions = [{"session_id": f"{name} {number}"} for number in range(repeats)]
                races = [
                    await race(racers, provider, f"{theirs}/v1", name, metadata=session)
                    for session in sessions
                ]
                table.add_row("LiteLLM", name, *_cells(races))
    return table


def _cells(races: Sequence[Race]) -> tuple[str, ...]:
    made = sorted({each.made for each in races})
    shown = f"{made[0]}" if len(made) == 1 else f"{made[0]} to {made[-1]}"
    return str(len(races)), shown, json.dumps(dict(races[-1].answers))


def main(
    clients: Annotated[int, typer.Option(help="Number of client processes.")] = 1,
    servers: Annotated[int, typer.Option(help="Number of server processes.")] = 1,
    repeats: Annotated[int, typer.Option(help="Number of races for each limit.")] = 10,
    litellm: Annotated[bool, typer.Option(help="Whether LiteLLM takes part.")] = True,
) -> None:
    """Print how many calls were made under each limit."""
    Console().print(asyncio.run(_measure(clients, servers, repeats, litellm)))


if __name__ == "__main__":
    typer.run(main)
