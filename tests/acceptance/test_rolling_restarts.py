"""Rolling restarts under load: no call is cut or made twice, and no client sees an error."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, model_settings

pytestmark = [pytest.mark.proof, pytest.mark.req("cw/5.release")]

RESTARTS = 20
CALL_SECONDS = (0.1, 4.0)
GRACE_SECONDS = "5"
MARGIN_SECONDS = 0.5
"""Time from the signal until the process handles it, and from a call's start to its arrival."""
PARTS = 10
CALCULATOR = {"id": "call_1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
AGENT = {"name": "worker", "prompt": {"system": "Use the calculator."}, "tools": ["calculator"]}
CALLS = 3
"""Model calls of each run."""


@dataclass
class Fleet:
    """The processes, behind a load balancer that tries another one if a connection is refused."""

    database_url: str
    provider: FakeProvider
    http: httpx.AsyncClient
    urls: dict[str, str] = field(default_factory=dict)
    """URLs of the processes that accept connections, by the names of the processes."""
    signalled_at: dict[str, float] = field(default_factory=dict)
    """Time at which each process got SIGTERM, by its API key."""
    errors: list[str] = field(default_factory=list)
    stopping: bool = False

    @asynccontextmanager
    async def process(self, name: str) -> AsyncIterator[ServiceProcess]:
        """Run a process with a separate key for the provider."""
        settings = {
            **model_settings(self.provider.openai_url),
            "MODELS_SMALL_API_KEY": f"sk-{name}",
            "SHUTDOWN_GRACE_SECONDS": GRACE_SECONDS,
            "SERVER_REQUEST_TIMEOUT_SECONDS": "60",
        }
        async with ServiceProcess(self.database_url, settings=settings, name=name) as service:
            self.urls[name] = service.url
            yield service

    async def end(self, name: str, service: ServiceProcess) -> None:
        """Send SIGTERM to a process, and require a clean exit."""
        self.signalled_at[f"sk-{name}"] = time.monotonic()
        del self.urls[name]
        service.child.signal(signal.SIGTERM)
        assert await service.child.wait() == 0

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request to any process, and note an error."""
        reply = await self._open(method, path, **options)
        try:
            await reply.aread()
        except httpx.TransportError as error:
            self.errors.append(f"{method} {path}: {error!r}")
            raise
        finally:
            await reply.aclose()
        return reply

    async def _open(self, method: str, path: str, **options: Any) -> httpx.Response:
        while True:
            url = random.choice(list(self.urls.values()))
            request = self.http.build_request(method, url + path, **options)
            try:
                reply = await self.http.send(request, stream=True)
            except httpx.ConnectError:
                continue
            except httpx.TransportError as error:
                self.errors.append(f"{method} {path}: {error!r}")
                raise
            if reply.status_code >= 300:
                self.errors.append(f"{method} {path}: {reply.status_code} {await reply.aread()!r}")
            return reply


def _seconds() -> float:
    return random.uniform(*CALL_SECONDS)


async def agents(fleet: Fleet, lane: str) -> list[str]:
    """Run one agent after the other; return the markers of their calls."""
    markers: list[str] = []
    while not fleet.stopping:
        marker = f"agent-{lane}-{len(markers)}-end"
        markers.append(marker)
        steps = [Step(tool_calls=[CALCULATOR], delay_seconds=_seconds()) for _ in range(CALLS - 1)]
        await fleet.provider.script(marker, [*steps, Step(text="42", delay_seconds=_seconds())])
        body = {"run_id": marker, "kind": "agent", "agent": AGENT, "input": marker}
        await fleet.send("POST", "/runs", json=body)
        path = f"/runs/{marker}"
        while (run := (await fleet.send("GET", path)).json())["finished_at"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        if (run["status"], run["usage"]["llm_calls"], run["attempts"]) != ("completed", CALLS, 1):
            fleet.errors.append(f"{marker}: {run}")
    return markers


async def external(fleet: Fleet, lane: str) -> list[str]:
    """Run one external agent after the other, with whole and streamed calls."""
    markers: list[str] = []
    while not fleet.stopping:
        marker = f"external-{lane}-{len(markers)}-end"
        markers.append(marker)
        body: dict[str, Any] = {"run_id": marker, "kind": "external"}
        created = (await fleet.send("POST", "/runs", json=body)).json()
        headers = {"Authorization": f"Bearer {created['access']['key']}"}
        chunk_seconds = _seconds() / PARTS
        streamed = Step(text="x" * 8 * PARTS, chunk_seconds=chunk_seconds)
        whole = [Step(text="one", delay_seconds=_seconds()) for _ in range(CALLS - 1)]
        await fleet.provider.script(marker, [*whole, streamed])
        for number in range(CALLS):
            asked: dict[str, Any] = {
                "model": "small",
                "messages": [{"role": "user", "content": marker}],
            }
            path, is_stream = "/gateway/openai/v1/chat/completions", number == CALLS - 1
            asked |= {"stream": is_stream, "seed": number}
            reply = await fleet.send("POST", path, json=asked, headers=headers)
            if is_stream and not reply.text.rstrip().endswith("data: [DONE]"):
                fleet.errors.append(f"{marker}: {reply.text}")
            await fleet.send("POST", f"/runs/{marker}/heartbeat", headers=headers)
        ended = await fleet.send("POST", f"/runs/{marker}/finish", json={"output": 1})
        run = (await fleet.send("GET", f"/runs/{marker}")).json()
        if ended.json()["status"] != "completed" or run["usage"]["llm_calls"] != CALLS:
            fleet.errors.append(f"{marker}: {run}")
    return markers


async def test_rolling_restarts_under_load(database_url: str, provider: FakeProvider) -> None:
    """Each of two processes is restarted in turn, while agents and external agents work."""
    async with httpx.AsyncClient(trust_env=False, timeout=120) as http, AsyncExitStack() as stack:
        fleet = Fleet(database_url, provider, http)
        running: list[tuple[str, ServiceProcess]] = []
        for number in range(2):
            name = f"process-{number}"
            running.append((name, await stack.enter_async_context(fleet.process(name))))
        lanes = [
            asyncio.create_task(load(fleet, str(lane)))
            for load in (agents, external)
            for lane in range(4)
        ]
        for number in range(2, RESTARTS + 2):
            await asyncio.wait(lanes, timeout=2.0)
            name, service = running.pop(0)
            await fleet.end(name, service)
            name = f"process-{number}"
            running.append((name, await stack.enter_async_context(fleet.process(name))))
        fleet.stopping = True
        markers = [marker for lane in lanes for marker in await lane]

    arrivals = await provider.arrivals("-end")
    late, cut = [], []
    for each in arrivals:
        signalled_at = fleet.signalled_at.get(each.headers["authorization"].removeprefix("Bearer "))
        if signalled_at is not None and each.arrived_monotonic > signalled_at + MARGIN_SECONDS:
            late.append((each.marker, each.arrived_monotonic - signalled_at))
        if each.outcome != "answered":
            cut.append((each.marker, each.outcome))
    made = Counter(next(m for m in markers if m in each.prompt) for each in arrivals)
    assert fleet.errors == []
    assert (late, cut) == ([], [])
    assert made == dict.fromkeys(markers, CALLS)
    in_flight = sum(
        each.arrived_monotonic < signalled_at < (each.ended_monotonic or 0)
        for each in arrivals
        if (
            signalled_at := fleet.signalled_at.get(
                each.headers["authorization"].removeprefix("Bearer ")
            )
        )
    )
    assert in_flight >= RESTARTS, "too few calls were in flight at the restarts"
