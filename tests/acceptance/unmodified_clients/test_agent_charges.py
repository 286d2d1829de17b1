"""Charges of runs with a limit in dollars, against the provider's own counts.

Each client runs as a user starts it. ``make proofs ARGS="-k agent_charges -rP"`` prints the rows
of a table: the provider's count until it noticed a close, the charge, and their ratio.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio

from tests.support.agent_clients.processes import (
    CLIENTS,
    MESSAGES,
    MORE_CLIENTS,
    Client,
    CountingProxy,
    execute,
    start,
)
from tests.support.counted import CountingProvider, cost_of
from tests.support.service import http_client, model_settings

pytestmark = pytest.mark.proof

MODELS: Final = {"small": ("openai", "gpt-5"), "claude": ("anthropic", "claude-sonnet-5")}
QUESTION: Final = (Path(__file__).parents[3] / "docs" / "concepts.md").read_text()[:6_000]
TOKENS_PER_SECOND: Final = 100
ASSUMED_TOKENS_PER_SECOND: Final = 200
FIRST_SECONDS: Final = 0.3
RATIO: Final = (1.0, 1.3)
NEAR_RATIO: Final = 1.5
"""Near bound of a prompt in relation to its tokens, at most; Claude's newest tokenizer varies."""
ROUNDING: Final = 1 + 1e-9


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way in which a call ends."""

    name: str
    reply: Mapping[str, Any]
    """Fields of :class:`tests.support.counting_provider.Reply`."""
    stream: bool = True
    cancelled_after: int | None = None
    """Tokens that the provider has generated when the run is cancelled."""
    shows_text: bool = True
    """Whether the client gets the text while it is generated."""


LONG: Final = {"text_tokens": 4_000}
THINKING: Final = {"text_tokens": 500, "thinking_tokens": 4_000}
CASES: Final = [
    Case(name="whole", reply={"text_tokens": 300}, stream=False),
    Case(name="streamed", reply={"text_tokens": 300}),
    Case(name="cancelled", reply=LONG, cancelled_after=400),
    Case(name="thinking", reply=THINKING, cancelled_after=400, shows_text=False),
    Case(name="cut whole", reply=LONG, stream=False, cancelled_after=400, shows_text=False),
]
CACHED: Final = [
    Case(name="cached", reply={"text_tokens": 300, "is_cached": True}),
    Case(name="cached, cancelled", reply={**LONG, "is_cached": True}, cancelled_after=400),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def counting() -> AsyncIterator[CountingProvider]:
    async with CountingProvider() as running:
        yield running


@pytest.fixture(scope="module")
def service_settings(counting: CountingProvider) -> dict[str, str]:
    named = {
        name: {"provider": provider, "model": model, "base_url": counting.base_urls[provider]}
        for name, (provider, model) in MODELS.items()
    }
    return {
        **model_settings(counting.base_urls["openai"]),
        "MODELS_SMALL_MODEL": MODELS["small"][1],
        "MODELS_NAMED": json.dumps({"claude": {**named["claude"], "api_key": "sk-x"}}),
    }


@pytest.fixture
async def http(proxy: CountingProxy) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(proxy.url) as opened:
        yield opened


async def charge_of(http: httpx.AsyncClient, run: Mapping[str, Any]) -> float:
    """Return the cost of a run once it has ended, in dollars."""
    path = f"/runs/{run['run_id']}"
    async with asyncio.timeout(60):
        ended = (await http.get(path)).json()
        while ended["finished_at"] is None:
            await asyncio.sleep(0.05)
            ended = (await http.get(path)).json()
    return float(ended["usage"]["cost_usd"])


def most_of(case: Case, client: Client, calls: Sequence[Mapping[str, Any]]) -> float:
    """Return the largest charge that is allowed, in dollars.

    Hidden output is charged by time, and its input by the near bound, because no count arrived.
    """
    provider, model = model_of(client)
    total = 0.0
    for call in calls:
        seconds = call["ended_at"] - call["started_at"] + FIRST_SECONDS
        hidden = max(call["tokens_out"], seconds * ASSUMED_TOKENS_PER_SECOND)
        tokens_out = call["tokens_out"] if case.shows_text else hidden
        tokens_in = cost_of(provider, model, {**call, "tokens_out": 0})
        output = cost_of(provider, model, {**call, "tokens_out": tokens_out}) - tokens_in
        total += output * RATIO[1] + tokens_in * (RATIO[1] if case.shows_text else NEAR_RATIO)
    return total


def model_of(client: Client) -> tuple[str, str]:
    """Return the provider and the model of a client's runs."""
    return MODELS["claude" if client.api == MESSAGES else "small"]


async def work(
    client: Client,
    case: Case,
    run: Mapping[str, Any],
    http: httpx.AsyncClient,
    counting: CountingProvider,
    folder: Path,
) -> str:
    """Execute a client until it ends or its run is cancelled; return its output."""
    async with asyncio.TaskGroup() as group:
        working = group.create_task(execute(client, run, QUESTION, folder, stream=case.stream))
        if case.cancelled_after is not None:
            waiting = group.create_task(counting.calls(generated=case.cancelled_after))
            await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            (await http.delete(f"/runs/{run['run_id']}")).raise_for_status()
            await counting.calls(ended=len(await counting.calls()))
            working.cancel()  # some clients repeat refused requests for minutes
    await http.post(f"/runs/{run['run_id']}/finish", json={"output": None})
    return "" if working.cancelled() else "".join(working.result())


@pytest.mark.parametrize("client", [*CLIENTS, *MORE_CLIENTS], ids=repr)
async def test_a_run_is_charged_the_tokens_that_the_provider_counted(
    client: Client, http: httpx.AsyncClient, counting: CountingProvider, tmp_path: Path
) -> None:
    """A call that ends early costs 1.0 to 1.3 times its tokens, or its time if it is silent."""
    wrong = []
    for case in (*CASES, *(CACHED if client.api == MESSAGES else ())):
        await counting.plan(
            [case.reply], tokens_per_second=TOKENS_PER_SECOND, first_seconds=FIRST_SECONDS
        )
        run = await start(http, client, budget={"max_cost_usd": 5})
        folder = tmp_path / case.name.replace(" ", "-")
        output = await work(client, case, run, http, counting, folder)
        calls = await counting.calls(ended=len(await counting.calls()))
        counted = sum(cost_of(*model_of(client), call) for call in calls)
        charged = await charge_of(http, run)
        fits = 0 < counted * RATIO[0] <= charged * ROUNDING <= most_of(case, client, calls)
        ratio = f"{charged / counted:.3f}" if counted else f"refused: {output[-300:]!r}"
        row = f"| {client} | {case.name} | {counted:.6f} | {charged:.6f} | {ratio} |"
        sys.stdout.write(f"{row}{'' if fits else ' wrong'}\n")
        wrong += [] if fits else [case.name]
    assert not wrong
