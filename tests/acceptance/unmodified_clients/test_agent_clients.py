"""Client libraries and agents of other projects, unmodified, behind the gateway.

Each client runs in its own environment, as a process. A proxy in front of the service counts its
requests. ``make proofs ARGS="-k agent_clients -rP"`` prints a row of a table for each client.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
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
    start,
)
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step

pytestmark = pytest.mark.proof


async def ask(
    client: Client, run: Mapping[str, Any], question: str, folder: Path, *, stream: bool = False
) -> str:
    """Return the answer that a client gets, or ``error:`` and its error."""
    out, err = await execute(client, run, question, folder, stream=stream)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert lines, out + err
    return _outcome(lines)


def _outcome(lines: Sequence[Mapping[str, Any]]) -> str:
    last = lines[-1]
    if "answer" in last:
        return str(last["answer"])
    if last.get("type") == "result":  # Claude Code
        return f"error: {last['result']}" if last["is_error"] else str(last["result"])
    if last.get("type") == "turn.completed":  # Codex
        items = [each["item"] for each in lines if each["type"] == "item.completed"]
        return "".join(each["text"] for each in items if each["type"] == "agent_message")
    return f"error: {last.get('error')}"


async def refused_run(http: httpx.AsyncClient, client: Client, code: str) -> dict[str, Any]:
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


@pytest.mark.parametrize("client", CLIENTS, ids=repr)
async def test_a_client_stops_after_one_request_and_takes_no_part_for_the_whole(
    client: Client,
    http: httpx.AsyncClient,
    proxy: CountingProxy,
    provider: FakeProvider,
    tmp_path: Path,
) -> None:
    """Its environment variables are all that differs from an ordinary use of it."""
    run = await start(http, client)
    await provider.script("WHOLE", [Step(text=WHOLE)], repeat_last=True)
    await provider.script("SLOW", [Step(text=WHOLE, after_events=4)], repeat_last=True)
    shown = []
    for stream in (False, True):
        proxy.posts = 0
        answer = await ask(client, run, "WHOLE", tmp_path / f"whole-{stream}", stream=stream)
        assert answer.strip() == WHOLE.strip()
        assert proxy.posts == 1
    for code in ("budget", "cancelled", "finished", "superseded"):
        run = await refused_run(http, client, code)
        for stream in (False, True):
            proxy.posts, proxy.received = 0, b""
            answer = await ask(client, run, "REFUSED", tmp_path / f"{code}-{stream}", stream=stream)
            shown.append(f"{code}{' streamed' * stream}: {proxy.posts} {answer[:60]!r}")
            assert answer.startswith("error: "), answer
            assert f'"code":"{code}"'.encode() in proxy.received.replace(b" ", b"")
            assert proxy.posts == client.asks
    assert await provider.count("REFUSED") == 0
    run = await start(http, client)
    proxy.posts, proxy.received = 0, b""
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask(client, run, "SLOW", tmp_path / "slow", stream=True))
        await proxy.sent(PART.encode())
        await http.delete(f"/runs/{run['run_id']}")
    shown.append(f"interrupted: {proxy.posts} {asked.result()[:60]!r}")
    sys.stdout.write(f"{client} ({client.packages[0]})\n" + "".join(f"  {s}\n" for s in shown))
    assert asked.result().startswith("error: "), asked.result()
    assert proxy.posts == 1 + client.asks_again
    assert await provider.count("SLOW") == 1
