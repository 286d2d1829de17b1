"""Sessions of real agents under limits of $1 and $5: how much of a limit they can use.

``python -m bench.honest_work SESSIONS`` replays files with the request bodies that an agent sent
in order: one ``{"dialect", "body"}`` a line as in ``tests/data/client_bodies``, but at full size. A
session is repeated with another first prompt until a call is refused. The provider counts with a
tokenizer, caches prompts as the vendors do, and costs their list prices.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer
from rich.console import Console
from rich.table import Table

from bench.servers import database, service
from tests.support.counted import CountingProvider, cost_of

MODELS: Final = {
    "gpt-5": "openai",
    "claude-opus-5": "anthropic",
    "claude-sonnet-5": "anthropic",
}
"""Models and their providers; a session calls the model of its kind, else ``gpt-5``."""
LIMITS: Final = (1.0, 5.0)
LEAST_SHARES: Final = {1.0: 0.65, 5.0: 0.80}
LEAST_OUTPUT: Final = 4_096
"""A call may be refused if its input and this output cost more than the rest of the limit."""
MOST_CALLS: Final = 1_500
MOST_REFUSALS: Final = 50
TIMED_CALLS: Final = 80
TOKENS_PER_SECOND: Final = 5_000
PARALLEL: Final = 8
PATHS: Final = {
    "chat_completions": ("openai_base_url", "/chat/completions"),
    "responses": ("openai_base_url", "/responses"),
    "messages": ("anthropic_base_url", "/v1/messages"),
}


@dataclass(kw_only=True)
class Replay:
    """What happened to the calls of one run."""

    calls: int = 0
    spent_usd: float = 0
    refusals: list[str] = field(default_factory=list)
    """Codes of the errors; the last one ended the replay."""
    message: str = ""
    next_usd: float = 0
    """Exact cost of the input of the refused call at its dearest price, with ``LEAST_OUTPUT``."""


def replies_of(name: str) -> Iterator[dict[str, Any]]:
    """Yield the replies of a session: hidden thinking, and a text as long as a tool call."""
    drawn = random.Random(name)
    while True:
        thinking = min(8_000, int(drawn.lognormvariate(5.5, 1)))
        yield {
            "thinking_tokens": 0 if name == "langchain_anthropic" else thinking,
            "text_tokens": min(8_000, int(drawn.lognormvariate(5.5, 1))),
        }


def bodies_of(file: Path, model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the dialect and the body of each call; every round has another first prompt."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for number in range(1, MOST_CALLS):
        for line in lines:
            text = json.dumps({**line["body"], "model": model})
            text = text.replace("Work through the files", f"Round {number}: work through the files")
            yield line["dialect"], json.loads(text)


def model_of(file: Path) -> str:
    """Return the model that a session calls."""
    with file.open() as lines:
        named = json.loads(next(lines))["body"]["model"]
    return next((each for each in MODELS if each.rpartition("-")[0] in named), "gpt-5")


@asynccontextmanager
async def run_of(
    http: httpx.AsyncClient, model: str, limit: float | None
) -> AsyncIterator[dict[str, Any]]:
    """Create an external run whose calls all go to one model."""
    budget = {} if limit is None else {"max_cost_usd": limit}
    body = {"kind": "external", "models": {"*": model}, "budget": budget}
    run = (await http.post("/runs", json=body)).raise_for_status().json()
    yield run
    await http.post(f"/runs/{run['run_id']}/finish", json={"output": None})


async def send(
    http: httpx.AsyncClient, run: Mapping[str, Any], dialect: str, body: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Make one call; return its error."""
    base, path = PATHS[dialect]
    access = run["access"]
    headers = {"Authorization": f"Bearer {access['key']}", "anthropic-version": "2023-06-01"}
    async with http.stream("POST", access[base] + path, json=body, headers=headers) as reply:
        lines = [line async for line in reply.aiter_lines()]
    if reply.status_code >= 400:
        error: dict[str, Any] = json.loads("\n".join(lines))["error"]
        return error
    events = (json.loads(line[6:]) for line in lines if line.startswith("data: {"))
    return next((event["error"] for event in events if event.get("type") == "error"), None)


async def replay(
    http: httpx.AsyncClient,
    provider: CountingProvider,
    file: Path,
    model: str,
    limit: float,
) -> Replay:
    """Replay a session in one run until a call is refused."""
    await provider.plan(planned_for(file), tokens_per_second=TOKENS_PER_SECOND)
    done = Replay()
    async with run_of(http, model, limit) as run:
        for dialect, body in bodies_of(file, model):
            error = await send(http, run, dialect, body)
            if error is None:
                done.calls += 1
            else:
                done.refusals.append(str(error.get("code")))
                done.message = str(error["message"])
                if done.refusals[-1] != "unsupported_field" or len(done.refusals) > MOST_REFUSALS:
                    break
        counted = await provider.calls()
        done.spent_usd = sum(cost_of(MODELS[model], model, call) for call in counted)
        done.next_usd = await _next_cost(provider, model, body)
    return done


async def slowdown(
    http: httpx.AsyncClient,
    provider: CountingProvider,
    file: Path,
    model: str,
    limit: float,
    calls: int,
) -> float:
    """Return the wall time with a limit divided by the time without it, less one.

    Each call is made in both runs, in alternating order, so other load affects both alike.
    """
    pairs = [reply for reply in planned_for(file) for _ in range(2)]
    await provider.plan(pairs, tokens_per_second=TOKENS_PER_SECOND)
    bodies = bodies_of(file, model)
    seconds = [0.0, 0.0]
    async with run_of(http, model, limit) as limited, run_of(http, model, None) as free:
        for number in range(calls):
            dialect, body = next(bodies)
            for index in (0, 1) if number % 2 else (1, 0):
                start = time.monotonic()
                await send(http, (limited, free)[index], dialect, body)
                seconds[index] += time.monotonic() - start
    return seconds[0] / seconds[1] - 1 if calls else 0.0


def planned_for(file: Path) -> list[dict[str, Any]]:
    """Return the replies of the calls of a session."""
    replies = replies_of(file.stem)
    return [next(replies) for _ in range(MOST_CALLS)]


async def _next_cost(provider: CountingProvider, model: str, body: Mapping[str, Any]) -> float:
    """Return the cost of a call that reads no input from the cache."""
    tokens = await provider.count(body)
    marks = json.dumps(body).count('"cache_control": {')
    written = tokens if marks else 0
    long = written if '"ttl": "1h"' in json.dumps(body) else 0
    usage = {"tokens_in": tokens, "tokens_cached": 0, "tokens_written": written}
    call = {**usage, "tokens_written_1h": long, "tokens_out": LEAST_OUTPUT}
    return cost_of(MODELS[model], model, call)


async def in_flight(http: httpx.AsyncClient, provider: CountingProvider) -> int:
    """Return how many of eight calls without an output limit run at the same time for $1."""
    await provider.plan([{"text_tokens": 2_000}], tokens_per_second=1_000)
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "Write a page."}]}
    async with run_of(http, "gpt-5", 1.0) as run:
        async with asyncio.TaskGroup() as group:
            for number in range(PARALLEL):
                own = {**body, "stream": True, "user": str(number)}
                group.create_task(send(http, run, "chat_completions", own))
        calls = await provider.calls()
    moments = [float(call["started_at"]) for call in calls]
    return max(
        len([call for call in calls if call["started_at"] <= at < call["ended_at"]])
        for at in moments
    )


def row_of(name: str, model: str, limit: float, halted: Replay, wall: float) -> Sequence[str]:
    """Return a row of the table."""
    share = halted.spent_usd / limit
    refused = halted.refusals.count("unsupported_field")
    is_used = share >= LEAST_SHARES[limit] or halted.next_usd > limit - halted.spent_usd
    holds = not refused and is_used
    return (
        *(name, model, f"${limit:.0f}", str(halted.calls), str(refused)),
        *(f"{share:.1%}", f"${halted.next_usd:.3f}", f"{wall:+.1%}"),
        "yes" if holds else f"no: {halted.message[:150]}",
    )


async def _measure(files: Sequence[Path]) -> None:
    console = Console(width=200)
    table = Table(
        *("session", "model", "limit", "calls", "refused", "spent", "next", "time", "holds")
    )
    async with CountingProvider() as provider:
        models = {
            name: {"provider": vendor, "model": name, "base_url": provider.base_urls[vendor]}
            for name, vendor in MODELS.items()
        }
        named = {name: {**each, "api_key": "none"} for name, each in models.items()}
        settings = {
            "MODELS_NAMED": json.dumps(named),
            "AUTH_ANONYMOUS": "loopback",
            "ADMISSION_MAX_COST_USD": "1000",
            "ADMISSION_MAX_TOKENS": "2000000000",
        }
        with database() as url:
            async with (
                service(url, settings=settings) as address,
                httpx.AsyncClient(base_url=address, trust_env=False, timeout=120) as http,
            ):
                console.print(f"in flight: {await in_flight(http, provider)} of {PARALLEL}")
                for file in files:
                    model = model_of(file)
                    for limit in LIMITS:
                        halted = await replay(http, provider, file, model, limit)
                        calls = min(halted.calls, TIMED_CALLS) // 2
                        wall = await slowdown(http, provider, file, model, limit, calls)
                        row = row_of(file.stem, model, limit, halted, wall)
                        table.add_row(*row)
                        console.print(" | ".join(row))
    console.print(table)


def main(
    files: Annotated[list[Path], typer.Argument(help="Files with a session each.")],
) -> None:
    """Print how much of its limit each session has used when a call is refused."""
    asyncio.run(_measure(files))


if __name__ == "__main__":
    typer.run(main)
