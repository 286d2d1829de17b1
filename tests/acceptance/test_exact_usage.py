"""Usage equals the count of the provider, and a limit of N allows exactly N.

Two real service processes share a database, and one of them is killed or terminated from time to
time. The provider answers, fails, disconnects, omits its counts and reports cached tokens.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest
from caseworker_client import ServiceUnreachableError

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_documents import map_run
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.usage_oracle import differences, settings_of_prices

RUNS = 500
AT_ONCE = 12
DOWN = (ServiceUnreachableError, httpx.HTTPError, OSError)


def exact_settings(provider: FakeProvider) -> dict[str, str]:
    """Return models with a price and a fallback, and short retries."""
    fallback = {
        "provider": "openai",
        "base_url": provider.openai_url,
        "model": "fake-fallback",
        "price_per_million_in_usd": 1,
        "price_per_million_out_usd": 2,
        "price_per_million_cached_usd": 0.1,
    }
    return {
        **model_settings(provider.openai_url),
        **settings_of_prices("MODELS_SMALL"),
        "MODELS_SMALL_FALLBACKS": json.dumps([fallback]),
        "RETRY_BASE_SECONDS": "0.02",
        "WORKER_MAX_ATTEMPTS": "20",
        "ADMISSION_MAX_QUEUED": "10000",
        "DATABASE_CONNECT_TIMEOUT_SECONDS": "120",
        "DATABASE_LOCK_TIMEOUT_MS": "120000",
    }


@pytest.mark.req("000/B5", "002/20.4")
async def test_sixty_small_calls_in_thirty_two_lanes_fit_under_a_cent(
    database_url: str, provider: FakeProvider
) -> None:
    """Calls that would reserve most of the budget shrink, wait for each other, and succeed."""
    await provider.answer_by_default(Step(text="ok", tokens_in=12, tokens_out=2))
    settings = exact_settings(provider)
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        service.client() as client,
    ):
        run = map_run("Say ok to ${default}.", 60, lanes=32)
        await client.post_run(run | {"run_id": "cent", "budget": {"max_cost_usd": 0.01}})
        ended = await finished(client, "cent", seconds=180)
        trace = await client.trace("cent")

    assert ended["status"] == "completed", ended
    usage = ended["usage"]
    assert (usage["llm_calls_small"], usage["tokens"]) == (60, 60 * 14)
    assert usage["cost_usd_estimated"] == 0
    assert len(await provider.arrivals()) == 60
    nodes = trace["snapshot"]["nodes"].values()
    assert sum("waited_ms" in node["metadata"] for node in nodes) > 0
    asked = [a.body["max_tokens"] for a in await provider.arrivals(bodies=True) if a.body]
    assert 256 <= min(asked) < max(asked) <= 4096


@pytest.mark.req("000/B1")
@pytest.mark.guarantee(11, 20)
@pytest.mark.parametrize("runs", [24, pytest.param(1_500, marks=pytest.mark.proof)])
async def test_a_limit_of_three_calls_allows_three_in_every_run(
    database_url: str, provider: FakeProvider, runs: int
) -> None:
    """This includes the runs that a process hands over on SIGTERM with calls in flight."""
    await provider.answer_by_default(Step(text="ok", delay_seconds=0.05))
    settings = exact_settings(provider)
    names = [f"three-{number}" for number in range(runs)]
    run = map_run("Say ok.", 8, lanes=8) | {"budget": {"max_llm_calls_small": 3}}
    async with (
        ServiceProcess(database_url, settings=settings, name="first") as first,
        ServiceProcess(database_url, settings=settings, name="second") as second,
        first.client() as posting,
        second.client() as client,
    ):
        connections = asyncio.Semaphore(50)  # a post that waits for one in the client times out

        async def post(name: str) -> None:
            async with connections:
                await posting.post_run(run | {"run_id": name})

        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(post(name))
        await provider.wait_for_arrivals(runs // 2)
        await first.child.terminate()
        ended = [await finished(client, name, seconds=600) for name in names]

    assert Counter(run["status"] for run in ended) == {"halted": len(names)}
    assert Counter(run["usage"]["llm_calls_small"] for run in ended) == {3: len(names)}
    stops = [run["stop"] for run in ended]
    assert {(stop["dimension"], stop["limit"], stop["used"]) for stop in stops} == {
        ("llm_calls_small", 3, 3)
    }
    answers = Counter(sum(each is not None for each in _answers(run)) for run in ended)
    assert answers == {3: len(names)}


def _answers(run: dict[str, Any]) -> list[Any]:
    return list(run["result"]["outputs"]["m"]["default"])


@dataclass
class Chaos:
    """Two services of which one is replaced from time to time, and a client for both."""

    chance: random.Random
    start: Callable[[str], Awaitable[ServiceProcess]]
    services: list[ServiceProcess] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)

    async def replace_one(self) -> None:
        """Kill or terminate a service and start a replacement."""
        place = self.chance.randrange(2)
        old = self.services[place]
        if self.chance.random() < 0.5:
            self.happened["killed"] += 1
            old.child.kill()
        else:
            self.happened["terminated"] += 1
            await old.child.terminate()
        new = await self.start(f"service-{sum(self.happened.values())}")
        self.services[place] = new
        old.child.close()

    async def ask(self, request: Callable[[JsonClient], Awaitable[Any]]) -> Any:
        """Call a service; use another one if it has just stopped."""
        async with asyncio.timeout(150):
            while True:
                try:
                    async with self.chance.choice(self.services).client() as client:
                        return await request(client)
                except DOWN:
                    await asyncio.sleep(0.05)


def some_step(chance: random.Random) -> Step:
    """Return the provider's treatment of one request."""
    tokens: dict[str, Any] = {
        "tokens_in": chance.randint(1, 400),
        "tokens_out": chance.randint(1, 300),
        "delay_seconds": chance.choice((0, 0.01, 0.1, 0.4)),
        "text": "ok",
    }
    kind = chance.choices(
        ("well", "cached", "busy", "gone", "cut", "dropped", "uncounted", "broken"),
        (12, 4, 3, 2, 1, 1, 1, 1),
    )[0]
    match kind:
        case "cached":
            tokens["tokens_cached"] = tokens["tokens_in"] // 2
        case "busy":
            tokens["status"] = chance.choice((429, 503))
        case "gone":
            tokens["status"] = 404
        case "cut" | "dropped":
            tokens["cut"] = "middle" if kind == "cut" else "before"
        case "uncounted":
            tokens["omit_usage"] = True
        case "broken":
            tokens["raw_body"] = "{"
    return Step(**tokens)


async def one_run(name: str, chance: random.Random, chaos: Chaos, provider: FakeProvider) -> None:
    """Post a run with its own script, possibly cancel it, and wait for its end."""
    items = chance.randint(1, 6)
    for item in range(items):
        steps = [some_step(chance) for _ in range(chance.randint(1, 4))]
        await provider.script(f"{name} <m/{item}>", steps)
    run = map_run(f"{name} <m/${{index}}>", items, lanes=chance.randint(1, 4))
    limits = {
        "max_tokens": 9_000,
        "max_cost_usd": 0.01,
        "max_api_calls": 5,
        "max_llm_calls_small": 4,
    }
    chosen = chance.sample(sorted(limits), chance.randint(0, 2))
    run |= {"run_id": name, "budget": {limit: limits[limit] for limit in chosen}}
    await chaos.ask(lambda client: client.post_run(run))
    if chance.random() < 0.3:
        await asyncio.sleep(chance.uniform(0, 0.2))
        await chaos.ask(lambda client: client.cancel_run(name))
    ended = await chaos.ask(lambda client: finished(client, name, seconds=180))
    chaos.happened[ended["status"]] += 1


@pytest.mark.req("002/20.4", "002/22.4")
@pytest.mark.proof
async def test_the_usage_of_random_runs_is_what_the_provider_has_counted(
    database_url: str, provider: FakeProvider
) -> None:
    """Counts match to the token, except those marked as estimated; each mark has its reason."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - to repeat it
    chance, settings = random.Random(seed), exact_settings(provider)
    names = [f"exact-{number:04}" for number in range(RUNS)]

    async def start(name: str) -> ServiceProcess:
        return await ServiceProcess(database_url, settings=settings, name=name).start()

    chaos = Chaos(chance, start)
    try:
        chaos.services = [await start("a"), await start("b")]
        await _all_runs(names, chaos, provider)
        problems = []
        for name in names:
            run = await chaos.ask(partial(JsonClient.get_run, run_id=name))
            trace = await chaos.ask(partial(JsonClient.trace, run_id=name))
            arrivals = await provider.arrivals(f"{name} ")
            found = differences(run, trace["snapshot"], arrivals)
            problems += [f"{name}: {problem}" for problem in found]
            tampered = run | {"usage": run["usage"] | {"tokens": run["usage"]["tokens"] + 1}}
            assert any(differences(tampered, trace["snapshot"], arrivals)), "it sees nothing"
            chaos.happened["estimated"] += run["usage"]["tokens_estimated"] > 0
            chaos.happened["charged"] += run["usage"]["tokens"] > 0
    finally:
        for service in chaos.services:
            service.child.close()

    print(dict(chaos.happened))  # noqa: T201
    assert problems == [], seed
    assert all(chaos.happened[kind] for kind in ("completed", "estimated", "charged")), chaos


async def _all_runs(names: list[str], chaos: Chaos, provider: FakeProvider) -> None:
    """Execute all runs, some concurrently, and replace a service after each twentieth."""
    left = list(reversed(names))
    done = 0

    async def lane() -> None:
        nonlocal done
        while left:
            name = left.pop()
            await one_run(name, random.Random(f"{name} {chaos.chance.random()}"), chaos, provider)
            done += 1

    async with asyncio.TaskGroup() as group:
        lanes = [group.create_task(lane()) for _ in range(AT_ONCE)]
        replaced = 0
        while not all(task.done() for task in lanes):
            if done >= 20 * (replaced + 1) and left:
                replaced += 1
                await chaos.replace_one()
            await asyncio.sleep(0.05)
