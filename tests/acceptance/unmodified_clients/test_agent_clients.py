"""Client libraries and agents of other projects, unmodified, behind the gateway.

Each client runs in its own environment, as a process. A proxy in front of the service counts its
requests. ``make proofs ARGS="-k agent_clients -rP"`` prints the rows of a table.
"""

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.agent_clients.processes import (
    CLIENTS,
    PART,
    WHOLE,
    Client,
    CountingProxy,
    execute,
    interrupt,
    start,
)
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step

pytestmark = pytest.mark.proof


def answer_of(output: tuple[str, str]) -> str:
    """Return the answer that a client printed, or ``error:`` and its error."""
    out, err = output
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert lines, out + err
    last = lines[-1]
    if "answer" in last:
        return str(last["answer"])
    if last.get("type") == "result":  # Claude Code
        return f"error: {last['result']}" if last["is_error"] else str(last["result"])
    if last.get("type") == "turn.completed":  # Codex
        items = [each["item"] for each in lines if each["type"] == "item.completed"]
        return "".join(each["text"] for each in items if each["type"] == "agent_message")
    return f"error: {last.get('error')}"


def print_row(client: Client, call: str, proxy: CountingProxy, answer: str) -> None:
    """Print a row of the table."""
    sys.stdout.write(f"{client} ({client.packages[0]}) {call}: {proxy.posts} {answer[:60]!r}\n")


async def stopped_run(http: httpx.AsyncClient, client: Client, code: str) -> dict[str, Any]:
    """Return a run whose calls are refused with this code."""
    limits = {"budget": {"max_llm_calls": 0}} if code == "budget" else {}
    run = await start(http, client, **limits)
    path = f"/runs/{run['run_id']}"
    match code:
        case "cancelled":
            (await http.delete(path)).raise_for_status()
        case "finished":
            (await http.post(f"{path}/finish", json={"output": 1})).raise_for_status()
        case "superseded":
            await start(http, client, run_id=run["run_id"])
    return run


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS, ids=repr)
async def test_a_client_gets_its_answer_with_one_request(
    client: Client,
    stream: bool,
    http: httpx.AsyncClient,
    proxy: CountingProxy,
    provider: FakeProvider,
    tmp_path: Path,
) -> None:
    """Its environment variables are all that differs from an ordinary use of it."""
    await provider.script("WHOLE", [Step(text=WHOLE)], repeat_last=True)
    run = await start(http, client)

    answer = answer_of(await execute(client, run, "WHOLE", tmp_path / "whole", stream=stream))

    assert answer.strip() == WHOLE.strip()
    assert proxy.posts == 1


@pytest.mark.parametrize("code", ["budget", "cancelled", "finished", "superseded"])
@pytest.mark.parametrize("client", CLIENTS, ids=repr)
async def test_a_client_accepts_a_refusal_and_shows_an_error(
    client: Client,
    code: str,
    http: httpx.AsyncClient,
    proxy: CountingProxy,
    provider: FakeProvider,
    tmp_path: Path,
) -> None:
    """It gets the code of the refusal; no request reaches the model provider."""
    run = await stopped_run(http, client, code)
    for stream in (False, True):
        proxy.posts, proxy.received = 0, b""
        output = await execute(client, run, "REFUSED", tmp_path / str(stream), stream=stream)
        answer = answer_of(output)
        print_row(client, f"{code}{' streamed' * stream}", proxy, answer)
        assert answer.startswith("error: "), answer
        assert f'"code":"{code}"'.encode() in proxy.received.replace(b" ", b"")
        assert proxy.posts == client.asks
    assert await provider.count("REFUSED") == 0


@pytest.mark.parametrize("client", CLIENTS, ids=repr)
async def test_a_client_does_not_take_part_of_an_answer_for_the_whole(
    client: Client,
    http: httpx.AsyncClient,
    proxy: CountingProxy,
    provider: FakeProvider,
    tmp_path: Path,
) -> None:
    """A cancel in the middle of a stream is an error; the provider gets no second request."""
    run = await start(http, client)

    output, _ = await interrupt(client, run, http, proxy, provider, tmp_path / "slow")
    answer = answer_of(output)

    print_row(client, "interrupted", proxy, answer)
    assert PART.encode() in proxy.received
    assert answer.startswith("error: "), answer
    assert proxy.posts == 1 + client.asks_again
    assert await provider.count("SLOW") == 1
