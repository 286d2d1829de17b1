"""Parallel model calls against the limit of one run or session: this service and LiteLLM.

``python -m bench.budget_race --clients 4 --servers 4 --repeats 100`` sends 64 streamed calls in
parallel, each of which costs exactly $0.01, under a limit of ten calls. The record of the provider
shows how many calls were made. LiteLLM is one process, whose limits are those of an agent's
session.

A second table shows the real cost of calls whose price is not in their text: images, documents,
choices, and streams whose clients disconnect. A provider counts its own output, and ten calls cost
about the limit.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from decimal import Decimal
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

USD_PER_MILLION: Final = {"IN": 1, "OUT": 8}
"""Prices in the races for real costs, those of ``tests.property.judge.truth``."""
_TEXT: Final = {"type": "text", "text": "Describe it."}
_IMAGE: Final = {"type": "image_url", "image_url": {"url": "https://e.example/2048x768.png"}}
_FILE: Final = {"type": "input_file", "file_url": "https://e.example/tokens-9000.pdf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A kind of calls, ten of which cost about the limit."""

    limit_usd: float
    content: Any
    """Content of the message, after the marker."""
    path: str = "/chat/completions"
    fields: Mapping[str, Any]
    leaves: bool = False
    """Whether the clients disconnect after the first text."""


CONTENTS: Final[Mapping[str, Contents]] = {
    "images": Contents(limit_usd=0.07, content=4 * [_IMAGE], fields={"max_tokens": 100}),
    "documents": Contents(
        limit_usd=0.1, path="/responses", content=[_FILE], fields={"max_output_tokens": 100}
    ),
    "choices": Contents(
        limit_usd=0.065, content=[_TEXT], fields={"max_tokens": 100, "n": 8, "stream": True}
    ),
    "cancelled": Contents(
        limit_usd=0.16, content=[_TEXT], fields={"max_tokens": 2_000, "stream": True}, leaves=True
    ),
}

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Race:
    """What happened to the calls of one run or session."""

    made: int
    """Calls that arrived at the provider."""
    answers: Mapping[str, int]
    """Answers of the clients by their status."""


def settings_of(
    provider: FakeProvider, model_name: str = "fake-small", prices: tuple[int, int] = (0, 100)
) -> dict[str, str]:
    """Return the settings of a service whose model costs $0.01 a call, or these prices."""
    model = {
        "PROVIDER": "openai",
        "BASE_URL": provider.openai_url,
        "API_KEY": "none",
        "MODEL": model_name,
        "PRICE_PER_MILLION_IN_USD": str(prices[0]),
        "PRICE_PER_MILLION_OUT_USD": str(prices[1]),
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
        path = f"/runs/{run['run_id']}"
        async with http.stream("GET", f"{path}/events", headers=_EVENTS) as events:
            async for _ in events.aiter_lines():
                pass  # until the run has ended
        return raced, (await http.get(path)).raise_for_status().json()


async def cost_of_race(
    clients: Sequence[Worker], provider: FakeProvider, url: str, key: str, kind: str, **fields: Any
) -> tuple[Decimal, Mapping[str, int]]:
    """Race with calls of a kind; return their cost at the provider, and the answers."""
    contents, marker = CONTENTS[kind], f"<{next(_numbers)}/{kind}>"
    is_chat = contents.path == "/chat/completions"
    first = {"type": "text" if is_chat else "input_text", "text": marker}
    message = {"role": "user", "content": [first, *contents.content]}
    asked: dict[str, Any] = {
        "url": url + contents.path,
        "headers": {"Authorization": f"Bearer {key}"},
        "body": {
            "model": "small",
            "messages" if is_chat else "input": [message],
            **contents.fields,
            **fields,
        },
        "calls": CALLS // len(clients),
        "leaves": contents.leaves,
    }
    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(each.ask("race", **asked)) for each in clients]
    total: Counter[str] = Counter()
    for each in answers:
        total.update(each.result())
    async with httpx.AsyncClient(trust_env=False, timeout=120) as http:
        counted = await http.get(f"{provider.url}/counted", params={"marker": marker})
    return Decimal(str(counted.json()["cost_usd"])), total


async def cost_of_run(
    clients: Sequence[Worker], provider: FakeProvider, address: str, kind: str
) -> tuple[Decimal, Mapping[str, int], Decimal]:
    """Race for the budget of a new external run; return also the charge of the run."""
    body = {"kind": "external", "budget": {"max_cost_usd": CONTENTS[kind].limit_usd}}
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=60) as http:
        run = (await http.post("/runs", json=body)).raise_for_status().json()
        access, path = run["access"], f"/runs/{run['run_id']}"
        url, key = access["openai_base_url"], access["key"]
        cost, answers = await cost_of_race(clients, provider, url, key, kind)
        await http.delete(path)
        async with http.stream("GET", f"{path}/events", headers=_EVENTS) as events:
            async for _ in events.aiter_lines():
                pass  # until the run has ended
        usage = (await http.get(path)).raise_for_status().json()["usage"]
    return cost, answers, Decimal(str(usage["cost_usd"]))


_EVENTS: Final = {"Accept": "text/event-stream"}


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


async def _measure_costs(clients: int, repeats: int, with_litellm: bool) -> Table:
    table = Table("side", "calls with", "limit", "races", "real cost", "charged", "answers")
    prices = USD_PER_MILLION["IN"], USD_PER_MILLION["OUT"]
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        counting = FakeProvider("bench.sides.counting_server")
        provider = await stack.enter_async_context(counting)
        racers = await started(stack, clients)
        settings = settings_of(provider, "gpt-4o", prices)
        ours = await stack.enter_async_context(service(url, settings=settings))
        for kind, contents in CONTENTS.items():
            races = [await cost_of_run(racers, provider, ours, kind) for _ in range(repeats)]
            costs, charges = [race[0] for race in races], [race[2] for race in races]
            answers = json.dumps(dict(races[-1][1]))
            cells = (str(repeats), _dollars(costs), _dollars(charges), answers)
            table.add_row("caseworker", kind, f"${contents.limit_usd}", *cells)
        if with_litellm:
            environment = await peer_environment(*LITELLM)
            limits = {
                kind: {"max_budget_per_session": each.limit_usd} for kind, each in CONTENTS.items()
            }
            asked = {"MODELS_URL": provider.openai_url, "MODEL": "gpt-4o"}
            asked |= {"AGENT_LIMITS": json.dumps(limits)}
            asked |= {f"USD_PER_MILLION_{name}": str(n) for name, n in USD_PER_MILLION.items()}
            theirs = await stack.enter_async_context(peer(environment, "litellm_proxy", url, asked))
            for kind, contents in CONTENTS.items():
                theirs_races = []
                for number in range(repeats):
                    session = {"session_id": f"{kind} {number}"}
                    race_of = (racers, provider, f"{theirs}/v1", kind, kind)
                    theirs_races.append(await cost_of_race(*race_of, metadata=session))
                costs = [race[0] for race in theirs_races]
                answers = json.dumps(dict(theirs_races[-1][1]))
                cells = (str(repeats), _dollars(costs), "", answers)
                table.add_row("LiteLLM", kind, f"${contents.limit_usd}", *cells)
    return table


def _dollars(amounts: Sequence[Decimal]) -> str:
    least, most = min(amounts), max(amounts)
    return f"${most:.4f}" if least == most else f"${least:.4f} to ${most:.4f}"


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
    """Print the number of calls under each limit, and the real cost of the largest ones."""
    Console().print(asyncio.run(_measure(clients, servers, repeats, litellm)))
    Console().print(asyncio.run(_measure_costs(clients, repeats, litellm)))


if __name__ == "__main__":
    typer.run(main)
