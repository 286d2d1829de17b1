"""The errors that users of clients and agents see after a halt, and after a cancel in a stream.

``make proofs ARGS="-k agent_refusals -rP"`` prints the rows of a table: requests that reached the
gateway, seconds, and the last line that a user sees.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.agent_clients.processes import (
    CLIENTS,
    MORE_CLIENTS,
    Client,
    CountingProxy,
    execute,
    interrupt,
    start,
)
from tests.support.fake_provider.client import FakeProvider

pytestmark = pytest.mark.proof

HALTED: Final = "The run was halted: LLM call limit exceeded: 0 used, limit 0"
CANCELLED: Final = "The run was cancelled: enough"
ASKS: Final = {"crewai": 3}
"""Requests of clients that repeat a refused request whatever its status is."""
ASKS_AGAIN: Final = {"aider": 1}
"""Requests of further clients after an interrupted stream; all of them are refused."""
ALL: Final = [
    replace(
        each,
        asks=ASKS.get(each.name, 1),
        asks_again=ASKS_AGAIN.get(each.name, each.asks_again),
    )
    for each in (*CLIENTS, *MORE_CLIENTS)
    if each.name != "Codex with web search"
]


def row(client: Client, what: str, proxy: CountingProxy, seconds: float, output: str) -> None:
    """Print a row of the table."""
    shown = next((line for line in output.splitlines()[::-1] if "The run " in line), output[-150:])
    at = max(0, shown.find("The run ") - 60)
    text = shown[at : at + 160].replace("|", "/")
    sys.stdout.write(f"| {client} | {what} | {proxy.posts} | {seconds:.1f} | `{text}` |\n")


@pytest.mark.parametrize("client", ALL, ids=repr)
async def test_a_client_ends_with_the_whole_reason_after_a_halt(
    client: Client, http: httpx.AsyncClient, proxy: CountingProxy, tmp_path: Path
) -> None:
    """It asks once, where it lets the status decide, and shows why the run has ended."""
    run = await start(http, client, budget={"max_llm_calls": 0})
    for stream in (False, True):
        proxy.posts, began = 0, time.monotonic()
        output = "".join(
            await execute(client, run, "HALTED", tmp_path / str(stream), stream=stream)
        )
        seconds = time.monotonic() - began
        row(client, "halted, streamed" if stream else "halted", proxy, seconds, output)
        assert HALTED in " ".join(output.split()), output
        assert proxy.posts == client.asks


@pytest.mark.parametrize("client", ALL, ids=repr)
async def test_a_client_ends_with_the_whole_reason_after_a_cancel_in_a_stream(
    client: Client,
    http: httpx.AsyncClient,
    proxy: CountingProxy,
    provider: FakeProvider,
    tmp_path: Path,
) -> None:
    """Some clients ask again, are refused, and then show the reason of the refusal."""
    run = await start(http, client)
    texts, seconds = await interrupt(
        client, run, http, proxy, provider, tmp_path / "slow", reason="enough"
    )
    output = "".join(texts)
    row(client, "cancelled", proxy, seconds, output)
    assert CANCELLED in " ".join(output.split()), output
    assert proxy.posts <= 1 + max(client.asks_again, client.asks - 1)
    assert await provider.count("SLOW") == 1
