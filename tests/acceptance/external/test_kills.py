"""Agents that run elsewhere are killed, and so is the process that owns their runs.

The provider's record is the oracle: it shows each call that was made.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pytest

from caseworker.core.trace.node import estimated_of
from tests.support.external import QUICK_RECOVERY
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, model_settings
from tests.support.usage_oracle import settings_of_prices

PROGRAM: Final = Path(__file__).parents[2] / "support" / "agent_clients" / "turns.py"
SEED: Final = 30
TURNS: Final = 20
AGENTS_AT_ONCE: Final = 4
RUNS_OF_AN_OWNER: Final = 3
ASKED: Final = 5
"""Turns of each agent whose owner is killed."""
PART: Final = "in part "


def settings_of(provider: FakeProvider) -> dict[str, str]:
    settings = {**model_settings(provider.openai_url), **settings_of_prices("MODELS_SMALL")}
    return {**settings, **QUICK_RECOVERY}


async def open_attempt(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    """Create a run, or open its next attempt."""
    budget = {"max_cost_usd": 1, "max_llm_calls": 1000}
    body = {"kind": "external", "run_id": name, "budget": budget}
    return dict((await http.post("/runs", json=body)).raise_for_status().json())


def whole_call_nodes(trace: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the model calls of a trace: those with a reply, and those that are estimated."""
    nodes = [node for node in trace["snapshot"]["nodes"].values() if node["kind"] == "llm"]
    estimated = [node for node in nodes if estimated_of(node) != (0, 0.0)]
    return [node for node in nodes if node not in estimated], estimated


@pytest.mark.parametrize("each", [1, pytest.param(10, marks=pytest.mark.proof)])
async def test_a_killed_agent_is_started_again_and_repeats_no_call(
    database_url: str, provider: FakeProvider, each: int
) -> None:
    """Agents are killed after each of their 20 turns; each makes exactly 20 calls in total."""
    chosen = range(1, TURNS + 1) if each > 1 else (1, TURNS // 2, TURNS)
    agents = [(turn, number) for turn in chosen for number in range(each)]
    turns = asyncio.Semaphore(AGENTS_AT_ONCE)
    async with (
        ServiceProcess(database_url, settings=settings_of(provider)) as service,
        service.http() as http,
    ):

        async def killed(turn: int, number: int) -> None:
            name = f"AGENT-{turn:02}-{number:02}"
            answers = [f"{name} answers {at}" for at in range(1, TURNS + 1)]
            await provider.script(name, [Step(text=text) for text in answers])
            async with turns:
                first = await _agent(http, name, streamed=number % 2 == 1, kill_after=turn)
                second = await _agent(http, name, streamed=number % 2 == 1)
            done = await http.post(f"/runs/{name}/finish", json={"output": None})
            run = (await http.get(f"/runs/{name}")).json()

            assert first == answers[:turn]
            assert second == answers
            assert done.status_code == 200
            assert await provider.count(name) == TURNS
            assert run["usage"]["llm_calls"] == TURNS
            assert run["usage"]["tokens_estimated"] == 0
            assert run["result"] == {"output": None, "replayed_calls": turn, "unused_calls": 0}

        async with asyncio.TaskGroup() as group:
            for turn, number in agents:
                group.create_task(killed(turn, number))
    sys.stdout.write(f"{len(agents)} agents killed, {TURNS} calls each\n")


async def _agent(
    http: httpx.AsyncClient, name: str, *, streamed: bool, kill_after: int = TURNS + 1
) -> list[str]:
    """Open an attempt and run an agent in it; return the replies that it has reported."""
    access = (await open_attempt(http, name))["access"]
    how = "streamed" if streamed else "whole"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), access["openai_base_url"], access["key"], name),
        *(str(TURNS), how),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    answers = []
    async for line in process.stdout:
        said = json.loads(line)
        answers.append(said["text"])
        if said["turn"] == kill_after:
            process.kill()
            break
        process.stdin.write(b"\n")
    assert await process.wait() == (0 if len(answers) == TURNS < kill_after else -9)
    return answers


@dataclass
class Conversation:
    """An agent in this process whose run is owned by a process that gets killed."""

    name: str
    interrupted_at: int
    """Turn in whose reply the owner is killed."""
    continues: bool
    """Whether it continues in its attempt, instead of opening the next one."""
    key: str = ""

    @property
    def answers(self) -> list[str]:
        """All replies, in order."""
        return [f"{PART * 3}{self.name} {turn}" for turn in range(1, ASKED + 1)]

    def body(self, turn: int) -> dict[str, Any]:
        """Return the request of a turn, from 1."""
        messages = [{"role": "user", "content": self.name}]
        for answer in self.answers[: turn - 1]:
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": "Go on."})
        return {"model": "small", "messages": messages, "stream": True}

    async def script(self, provider: FakeProvider) -> None:
        """Let the provider stop in the middle of one reply, once."""
        steps = [Step(text=text) for text in self.answers]
        held = Step(text=self.answers[self.interrupted_at - 1], after_events=2)
        steps.insert(self.interrupted_at - 1, held)
        await provider.script(self.name, steps)

    async def parts(self, http: httpx.AsyncClient, turn: int) -> AsyncIterator[str]:
        """Yield the parts of a reply; the last one is ``[DONE]``."""
        headers = {"Authorization": f"Bearer {self.key}"}
        path = "/gateway/openai/v1/chat/completions"
        async with http.stream("POST", path, json=self.body(turn), headers=headers) as stream:
            assert stream.status_code == 200, (await stream.aread()).decode()
            async for line in stream.aiter_lines():
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    yield data
                elif data:
                    for choice in json.loads(data)["choices"]:
                        yield choice["delta"].get("content") or ""

    async def ask(self, http: httpx.AsyncClient, turn: int) -> str:
        """Return a complete reply."""
        parts = [part async for part in self.parts(http, turn)]
        assert parts[-1] == "[DONE]", parts
        return "".join(parts[:-1])

    async def until_interrupted(self, http: httpx.AsyncClient, begun: asyncio.Semaphore) -> None:
        """Make all turns until the connection is lost in the middle of one."""
        self.key = (await open_attempt(http, self.name))["access"]["key"]
        for turn in range(1, self.interrupted_at):
            assert await self.ask(http, turn) == self.answers[turn - 1]
        received = ""
        with suppress(httpx.TransportError):
            async for part in self.parts(http, self.interrupted_at):
                received += part
                if received == PART:
                    begun.release()
        assert self.answers[self.interrupted_at - 1].startswith(received)
        assert "[DONE]" not in received

    async def go_on(self, http: httpx.AsyncClient) -> None:
        """Continue with another process, and finish the run."""
        first = self.interrupted_at
        if not self.continues:
            self.key, first = (await open_attempt(http, self.name))["access"]["key"], 1
        await _owned(http, self.name, self.key)
        for turn in range(first, ASKED + 1):
            assert await self.ask(http, turn) == self.answers[turn - 1]
        done = await http.post(f"/runs/{self.name}/finish", json={"output": None})
        assert done.status_code == 200, done.text


async def _owned(http: httpx.AsyncClient, run_id: str, key: str) -> None:
    """Wait until a process owns the run, as a client does that repeats a refused request."""
    headers = {"Authorization": f"Bearer {key}"}
    async with asyncio.timeout(60):
        while True:
            beat = await http.post(f"/runs/{run_id}/heartbeat", headers=headers)
            if beat.status_code == 200:
                return
            assert beat.status_code == 503, beat.text
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.proof)])
async def test_a_killed_owner_repeats_only_the_call_in_flight_whose_estimate_stays_charged(
    database_url: str, provider: FakeProvider, kills: int
) -> None:
    """Each process is killed in the middle of streams of several runs."""
    draw = random.Random(SEED)
    service = ServiceProcess(database_url, settings=settings_of(provider))
    waits: list[float] = []
    agents: list[Conversation] = []
    try:
        await service.start()
        for kill in range(kills):
            chosen = [
                Conversation(f"OWNED-{kill:03}-{n}", draw.randint(1, ASKED), draw.random() < 0.5)
                for n in range(RUNS_OF_AN_OWNER)
            ]
            await _killed(service, chosen, provider, waits)
            agents += chosen
        async with service.http() as http:
            for each in agents:
                await _require_exact(http, each, provider)
        with psycopg.connect(database_url) as connection:
            stored = connection.execute(
                "SELECT run_id, count(*), count(*) FILTER (WHERE outcome = 'result') FROM journal"
                " WHERE call_key LIKE '%%llm%%' GROUP BY run_id"
            ).fetchall()
    finally:
        service.child.close()
    assert sorted(stored) == sorted((each.name, ASKED + 1, ASKED) for each in agents)
    sys.stdout.write(
        f"{kills} owners of {len(agents)} runs killed (seed {SEED}): the runs were finished"
        f" {sorted(waits)[len(waits) // 2]:.1f} s after the kill (median), {max(waits):.1f} s at"
        f" most; {sum(each.continues for each in agents)} continued in the same attempt\n"
    )


async def _killed(
    service: ServiceProcess,
    agents: Sequence[Conversation],
    provider: FakeProvider,
    waits: list[float],
) -> None:
    """Kill the owner while all agents read a stream, start it again, and let them continue."""
    begun = asyncio.Semaphore(0)
    for each in agents:
        await each.script(provider)
    async with (
        service.http() as http,
        asyncio.TaskGroup() as group,
    ):
        for each in agents:
            group.create_task(each.until_interrupted(http, begun))
        for _ in agents:
            await begun.acquire()
        service.child.kill()
        killed_at = time.monotonic()
    await service.start()
    async with service.http() as http:
        async with asyncio.TaskGroup() as group:
            for each in agents:
                group.create_task(each.go_on(http))
        waits.append(time.monotonic() - killed_at)


async def _require_exact(
    http: httpx.AsyncClient, agent: Conversation, provider: FakeProvider
) -> None:
    """Require that one call was made twice, and that all charges are those of the provider."""
    run = (await http.get(f"/runs/{agent.name}")).json()
    trace = (await http.get(f"/runs/{agent.name}/trace")).json()
    arrivals = await provider.arrivals(agent.name)
    answered, estimated = whole_call_nodes(trace)
    counted = [each.charged for each in arrivals if each.charged is not None]
    (lost,) = [each for each in arrivals if each.charged is None]
    of_lost = sum(tokens for tokens, _ in map(estimated_of, estimated))

    assert run["status"] == "completed", run
    assert len(arrivals) == ASKED + 1
    assert lost.outcome == "client_gone"
    assert arrivals.index(lost) == agent.interrupted_at - 1
    assert Counter((each["tokens_in"], each["tokens_out"]) for each in answered) == Counter(
        (each["tokens_in"], each["tokens_out"]) for each in counted
    )
    assert len(estimated) == 1
    assert run["usage"]["llm_calls"] == ASKED  # the call that was made again counts once
    assert run["usage"]["api_calls"] == ASKED + 1, run["usage"]
    assert run["usage"]["tokens_estimated"] == of_lost > 0
    settled = sum(each["tokens_in"] + each["tokens_out"] for each in counted)
    assert run["usage"]["tokens"] == settled + of_lost
    replayed = 0 if agent.continues else agent.interrupted_at - 1
    assert run["result"] == {"output": None, "replayed_calls": replayed, "unused_calls": 0}
