"""The service as one or two processes on a real database and a virtual clock, with its provider."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import psycopg
from fastapi import FastAPI
from psycopg.rows import dict_row
from pydantic import SecretStr

from caseworker.features.external import attempts
from caseworker.main.loops import Loops
from caseworker.main.process import Process
from caseworker.main.server import build_app
from caseworker.models.model_call import ModelCall
from caseworker.models.relayed_call import RelayedCall
from caseworker.models.wires import endpoint
from caseworker.runs.postgres import listener
from caseworker.settings.schema import AuthSettings, Settings
from tests.property.judge.provider import CALL, Behaviour, CountingProvider
from tests.property.judge.truth import FAMILIES, Family

OPERATOR_KEY: Final = "operator-" + "7" * 32
TIMEOUT_SECONDS: Final = 90
_LOOPS: Final = ("heartbeat", "listener", "queue", "recovery")
"""Loops of a process that the stories need; the remaining ones only look for work every second."""


@dataclass(slots=True)
class Answer:
    """The answer of the service to one request."""

    status: int = 0
    """0 until it begins."""
    body: bytes = b""
    is_whole: bool = False
    error: Exception | None = None
    """Exception that the application raised; the connection is then closed."""

    def json(self) -> Any:
        """Return the body as JSON; None for anything else."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def settings() -> Settings:
    """Return the settings of each process; nothing is done at intervals."""
    seconds = 1_000_000.0
    return Settings(
        auth=AuthSettings(bootstrap_key=SecretStr(OPERATOR_KEY)),
        models={"named": {each.alias: _model(each) for each in FAMILIES.values()}},
        worker={
            "heartbeat_seconds": seconds,
            "stale_after_seconds": 10 * seconds,
            "poll_seconds": seconds,
        },
        admission={"max_external_runs": 100_000},
    )


def _model(family: Family) -> dict[str, Any]:
    return {
        "provider": family.provider,
        "model": family.model,
        "api_key": "key",
        "price_per_million_in_usd": family.usd_in,
        "price_per_million_out_usd": family.usd_out,
        "price_per_million_cached_usd": family.usd_cached,
        "max_output_tokens": family.max_output_tokens,
        "timeout_seconds": TIMEOUT_SECONDS,
    }


@dataclass
class JudgedService:
    """The processes, the provider and the database."""

    apps: Sequence[FastAPI]
    provider: CountingProvider
    connection: psycopg.Connection[dict[str, Any]]
    keys: dict[str, str] = field(default_factory=dict)

    async def ask(
        self,
        process: int,
        key: str,
        method: str,
        path: str,
        document: Any = None,
        *,
        answer: Answer | None = None,
        gone: asyncio.Event | None = None,
        pause_seconds: float = 0.0,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request to a process and return its answer.

        ``answer`` is filled as it arrives. The client disconnects when ``gone`` is set. It pauses
        for ``pause_seconds`` in the middle of the body.
        """
        answer = answer or Answer()
        content = b"" if document is None else json.dumps(document).encode()
        app, middle = self.apps[process % len(self.apps)], len(content) // 2
        pieces = [content] if not pause_seconds else [content[:middle], content[middle:]]
        sent = 0

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent < len(pieces):
                if sent:
                    await asyncio.sleep(pause_seconds)
                sent += 1
                body, more = pieces[sent - 1], sent < len(pieces)
                return {"type": "http.request", "body": body, "more_body": more}
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
            else:
                answer.body += message.get("body", b"")
                answer.is_whole = not message.get("more_body", False)

        about = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        about |= {"content-length": str(len(content)), "host": "localhost", **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), text.encode()) for name, text in about.items()],
            "client": ("127.0.0.1", 50000),
            "server": ("localhost", 80),
        }
        try:
            await app(scope, receive, send)
        except Exception as error:  # a server logs it and closes the connection
            answer.error = error
        return answer

    async def tenant(self, tenant: str) -> str:
        """Create a tenant; return the key of its administrator."""
        body = {"name": "robot", "scopes": ["admin"], "tenant": tenant}
        made = await self.ask(0, OPERATOR_KEY, "POST", "/keys", body)
        return str(made.json()["key"])

    def nodes(self, tenant: str) -> list[dict[str, Any]]:
        """Return the model calls of a tenant in the trace, with their run."""
        statement = "SELECT run_id, node FROM journal WHERE tenant_id = %s"
        rows = self.connection.execute(statement, (tenant,)).fetchall()
        return [row["node"] | {"run_id": row["run_id"]} for row in rows if _is_model(row["node"])]

    def unfinished(self, tenant: str) -> bool:
        """Return whether a run of a tenant has not ended."""
        statement = "SELECT FROM runs WHERE tenant_id = %s AND finished_at IS NULL LIMIT 1"
        return self.connection.execute(statement, (tenant,)).fetchone() is not None


def _is_model(node: Mapping[str, Any]) -> bool:
    return node.get("kind") == "llm"


def _keep(loops: Loops, name: str, loop: Callable[[], Awaitable[None]]) -> None:
    if name in _LOOPS:
        _KEEP(loops, name, loop)


_KEEP: Final = Loops.keep


def _noted(send: Callable[..., Any]) -> Callable[..., Any]:
    async def noting(self: ModelCall, attempt: int) -> Any:
        CALL.set((self.run.tenant, self.run.run_id, self.key.text))
        return await send(self, attempt)

    return noting


@asynccontextmanager
async def open_world(
    url: str, behaviour_of: Callable[[str, int], Behaviour], *, processes: int = 2
) -> AsyncIterator[JudgedService]:
    """Open the processes on a database, with a provider that behaves as drawn."""
    provider = CountingProvider(behaviour_of)
    with ExitStack() as patches:
        clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
        patches.enter_context(patch.object(attempts, "time", clock))
        patches.enter_context(patch.object(Loops, "keep", _keep))
        patches.enter_context(patch.object(listener, "QUIET_SECONDS", 1_000_000.0))
        patches.enter_context(patch.object(endpoint, "ModelTransport", lambda *_: provider))
        for call in (ModelCall, RelayedCall):
            patches.enter_context(patch.object(call, "send", _noted(call.send)))
        opened = [Process(settings(), url, executes=True) for _ in range(processes)]
        apps = [build_app(process) for process in opened]
        connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)
        patches.enter_context(connection)
        async with opened[0].opened():
            if processes > 1:
                async with opened[1].opened():
                    yield JudgedService(apps, provider, connection)
            else:
                yield JudgedService(apps, provider, connection)
