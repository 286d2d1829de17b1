"""LangChain and LlamaIndex embed 10,000 chunks through the gateway, twice.

``make proofs ARGS="-k retrieval -rP"`` prints the charges, the stored bytes and the longest wait.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pytest

from bench.environments import peer_environment
from tests.support.external import QUICK_RECOVERY
from tests.support.fake_provider.client import FakeProvider
from tests.support.service import ServiceProcess, model_settings
from tests.support.usage_oracle import settings_of_prices

pytestmark = pytest.mark.proof

PACKAGES: Final = (
    "langchain-openai==1.7.4",
    "llama-index-core==0.14.25",
    "llama-index-embeddings-openai==0.7.0",
)
PROGRAM: Final = Path(__file__).parents[2] / "support" / "agent_clients" / "retrieve.py"
CHUNKS: Final = 10_000
DIMENSIONS: Final = 1_536
SECONDS: Final = 400
LOOKS_EACH_SECONDS: Final = 0.005


async def retrieved(run: dict[str, Any], library: str, folder: Path) -> dict[str, Any]:
    """Return the outcome of the program."""
    environment, access = await peer_environment(*PACKAGES), run["access"]
    command = (str(environment.python), str(PROGRAM), library, str(CHUNKS), str(DIMENSIONS))
    process = await asyncio.create_subprocess_exec(
        *command,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "OPENAI_BASE_URL": access["openai_base_url"],
            "OPENAI_API_BASE": access["openai_base_url"],
            "OPENAI_API_KEY": access["key"],
            "NO_PROXY": "*",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return dict(json.loads(out.decode().splitlines()[-1]))


async def longest_wait(http: httpx.AsyncClient, until: asyncio.Event) -> float:
    """Return the longest time, in seconds, that the service took for a request without work."""
    longest = 0.0
    while not until.is_set():
        began = time.monotonic()
        await http.get("/healthz")
        longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(LOOKS_EACH_SECONDS)
    return longest


async def holds(http: httpx.AsyncClient) -> list[str]:
    lines = (await http.get("/metrics")).text.splitlines()
    return [line for line in lines if line.startswith("caseworker_event_loop_holds_total")]


@pytest.mark.parametrize("library", ["langchain", "llama_index"])
async def test_a_run_pays_for_10_000_chunks_once_and_is_charged_what_the_provider_counts(
    database_url: str, provider: FakeProvider, library: str, tmp_path: Path
) -> None:
    """The second attempt gets equal vectors from the record, without a call of the provider."""
    settings = {
        **model_settings(provider.openai_url),
        **settings_of_prices("MODELS_SMALL"),
        **QUICK_RECOVERY,
        "MODELS_SMALL_PRICE_PER_MILLION_IN_USD": "0.02",
    }
    body = {
        "kind": "external",
        "run_id": library,
        "models": {"*": "small"},
        "budget": {"max_cost_usd": 1},
    }
    async with ServiceProcess(database_url, settings=settings) as service, service.http() as http:
        outcomes, waits = [], []
        for _ in range(2):
            run = (await http.post("/runs", json=body)).raise_for_status().json()
            ended = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(longest_wait(http, ended))
                began = time.monotonic()
                outcomes.append(await retrieved(run, library, tmp_path))
                seconds = time.monotonic() - began
                ended.set()
            waits.append((round(seconds, 1), round(waiting.result() * 1000), await holds(http)))
        run = (await http.get(f"/runs/{library}")).json()
        arrivals = await provider.arrivals("")
        counted = sum(each.charged["tokens_in"] for each in arrivals if each.charged)
        trace = (await http.get(f"/runs/{library}/trace")).text
    query = "SELECT sum(length(value::text)), sum(pg_column_size(value)) FROM calls"
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        stored = await (await connection.execute(query)).fetchone()

    sys.stdout.write(
        f"{library}: {len(arrivals)} calls, {counted} tokens counted, {run['usage']['tokens']}"
        f" charged (${run['usage']['cost_usd']}), journal (JSON, on disk) {stored}, trace"
        f" {len(trace)}, seconds, longest wait in ms and holds of each attempt {waits}\n"
    )
    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["vectors"] == CHUNKS
    assert outcomes[0]["found"]
    assert run["usage"]["tokens"] == counted
    assert run["usage"]["tokens_estimated"] == 0
    assert run["usage"]["llm_calls"] == len(arrivals)
