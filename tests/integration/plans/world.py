"""Two processes of the service, and requests to them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import httpx

from caseworker.main.process import Process
from caseworker.main.server import build_app
from caseworker.settings.schema import Settings
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.stores import Oracle, eventually
from tests.support.tenants import OPERATOR_KEY, Tenants
from tests.support.webhook_receiver import Receiver

Json = dict[str, Any]
LATER = (datetime.now(UTC) + timedelta(days=60)).isoformat()


def tool(step_id: str, name: str, **args: Any) -> Json:
    """Return a step that calls a tool."""
    return {"id": step_id, "type": "tool", "data": {"tool": name, "args": args}}


def graph(*steps: Json) -> Json:
    """Return a graph of steps that depend on nothing."""
    return {"steps": list(steps), "edges": [], "max_parallel": 2}


SUM = graph(tool("sum", "calculator", expression="6*7"))
SAY = graph(tool("say", "respond", answer="Hello"))


def settings_of(provider: FakeProvider, *, sweeps: bool) -> Settings:
    """Return settings with short intervals, and models with a rate limit."""
    model = {
        "provider": "openai",
        "base_url": provider.openai_url,
        "model": "fake",
        "requests_per_minute": 60_000,
        "timeout_seconds": 60,
        "price_per_million_in_usd": 1,
        "price_per_million_out_usd": 2,
    }
    given: Json = {
        "auth": {"bootstrap_key": OPERATOR_KEY},
        "models": {"named": {"fake": model}, "small": {"use": "fake"}, "big": {"use": "fake"}},
        "database": {"connect_timeout_seconds": 60, "lock_timeout_ms": 60_000},
        "worker": {"heartbeat_seconds": 0.4, "stale_after_seconds": 2},
        "cancellation": {"settle_seconds": 20},
        "secrets": {"encryption_key": "k" * 32},
        "verifier_thresholds": {"second_plan": "off"},
        "webhooks": {"allow_http": True, "allow_private": True, "max_attempts": 1},
        "retention": {"sweep_seconds": 2 if sweeps else 86_400, "snapshots_days": 3650},
        "telemetry": {"metrics_key": OPERATOR_KEY, "metrics_labels": ["tenant", "agent"]},
        "tools": {
            "plugins": ["tests.support.drawing_tool:DrawingTool"],
            "mcp": {"servers": {"crm": {"url": "http://127.0.0.1:9/mcp"}}},
        },
        "admission": {"max_schedules": 1_000_000},
        "shutdown": {"grace_seconds": 0.2},
    }
    return Settings(**given)


@asynccontextmanager
async def opened(process: Process, requests: set[tuple[str, str]]) -> AsyncIterator[Tenants]:
    """Open a process; requests are answered in this process, and added to ``requests``."""

    async def note(request: httpx.Request) -> None:
        requests.add((request.method, request.url.path))

    app = build_app(process)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        process.opened(),
        httpx.AsyncClient(
            transport=transport,
            base_url="http://localhost",
            timeout=60,
            event_hooks={"request": [note]},
        ) as client,
    ):
        yield Tenants(client, app)


@dataclass(slots=True)
class ObservedService:
    """The service as one process that executes runs and one that accepts them."""

    url: str
    worker: Tenants
    api: Tenants
    executing: Process
    accepting: Process
    provider: FakeProvider
    receiver: Receiver
    oracle: Oracle
    requests: set[tuple[str, str]]
    """Methods and paths of all requests."""

    async def ask(
        self,
        tenant: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        on: Tenants | None = None,
        status: int | None = None,
        **headers: str,
    ) -> Any:
        """Send a request that must succeed; return its document."""
        answer = await (on or self.worker).ask(tenant, method, path, body, **headers)
        while method == "GET" and answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            await asyncio.sleep(0.1)  # the machine is too slow for a timeout of the service
            answer = await (on or self.worker).ask(tenant, method, path, body, **headers)
        expected = answer.is_success if status is None else answer.status_code == status
        assert expected, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.json() if is_json and answer.content else answer

    async def run(self, tenant: str, body: Json, *, status: str = "completed") -> str:
        """Execute a run to its end; return its ID."""
        found = await self.ask(tenant, "POST", "/runs", body, prefer="wait=60")
        assert found["status"] == status, found
        return str(found["run_id"])

    async def ended(self, tenant: str, run_id: str) -> None:
        """Wait until a run has ended."""

        async def is_ended() -> bool:
            return (await self.ask(tenant, "GET", f"/runs/{run_id}"))["finished_at"] is not None

        await eventually(is_ended)

    async def both_pages(self, tenant: str, path: str) -> None:
        """Get the first two pages of a list."""
        path += ("&" if "?" in path else "?") + "limit=1"
        page = await self.ask(tenant, "GET", path)
        assert page.get("next_cursor"), (path, page)
        await self.ask(tenant, "GET", f"{path}&cursor={page['next_cursor']}")

    def llm(self, prompt: str, **more: Any) -> Json:
        """Return a graph that asks a model."""
        return graph(
            {
                "id": "ask",
                "type": "llm",
                "data": {"prompt": prompt, "model": {"name": "fake"}, **more},
            }
        )

    async def hanging(self, tenant: str, run_id: str, **more: Any) -> Json:
        """Start a run whose model call hangs."""
        prompt = f"Hang {tenant} {run_id}"
        await self.provider.script(prompt, [Step(hang=True)], repeat_last=True)
        body = {"kind": "graph", "graph": self.llm(prompt), "run_id": run_id, **more}
        run: Json = await self.ask(tenant, "POST", "/runs", body)
        await self.provider.wait_for_arrivals(1, prompt)
        return run

    async def listed(self, tenant: str, query: str) -> None:
        """Get the first page of a list of runs, and the second if there is one."""
        page = await self.ask(tenant, "GET", f"/runs?limit=1&{query}")
        assert page["runs"], query
        if page.get("next_cursor"):
            await self.ask(tenant, "GET", f"/runs?limit=1&{query}&cursor={page['next_cursor']}")

    async def replaced(self, statement: str, *values: Any) -> None:
        """Change rows without the triggers that guard them."""
        await self.oracle.rows("SET session_replication_role = replica")
        await self.oracle.rows(statement, *values)
        await self.oracle.rows("SET session_replication_role = origin")
