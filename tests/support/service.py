"""The service as processes, as an operator starts it."""

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.json_client import JsonClient
from tests.support.processes import ChildFailedError, ChildProcess

QUICK = {
    "WORKER_HEARTBEAT_SECONDS": "0.4",
    "WORKER_STALE_AFTER_SECONDS": "2",
    "SHUTDOWN_GRACE_SECONDS": "0.3",
    "SERVER_PORT": "0",
    "SERVER_REQUEST_TIMEOUT_SECONDS": "150",
    "AUTH_ANONYMOUS": "loopback",
}
"""Settings with short detection times and long waiting times for callers."""

SETTLED = {"CANCELLATION_SETTLE_SECONDS": "60"}
"""Settings with which the receipt of a cancel request is that of the ended run."""

_LISTENS = re.compile(r"Caseworker listens on (\S+)")


def model_settings(provider_url: str) -> dict[str, str]:
    """Return settings that use one endpoint for both tiers; cases only ask it for plans."""
    return {
        "VERIFIER_THRESHOLDS_SECOND_PLAN": "off",
    } | {
        f"MODELS_{tier}_{key}": value
        for tier in ("SMALL", "BIG")
        for key, value in {
            "PROVIDER": "openai",
            "BASE_URL": provider_url,
            "MODEL": f"fake-{tier.lower()}",
            "TIMEOUT_SECONDS": "20",
        }.items()
    }


def claude_settings(provider_url: str, **fields: Any) -> dict[str, str]:
    """Return settings with the named model ``claude``, which uses the Messages API.

    ``fields`` are further fields of the model, such as its prices.
    """
    claude = {"provider": "anthropic", "base_url": provider_url, "model": "fake-claude"}
    return {"MODELS_NAMED": json.dumps({"claude": {**claude, "api_key": "sk-x", **fields}})}


class ServiceProcess:
    """One ``caseworker`` process: ``async with ServiceProcess(database_url) as service``."""

    def __init__(
        self,
        database_url: str,
        *options: str,
        command: str = "serve",
        settings: Mapping[str, str] | None = None,
        name: str = "service",
        prefix: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> None:
        """Prepare a process, forked from one that has imported the service.

        With ``prefix``, a command that executes another one, the process is a new interpreter.
        """
        self._serves = command == "serve"
        self._executes = "--no-worker" not in options  # else ready only with another worker
        env = {**QUICK, **(settings or {}), "DATABASE_URL": database_url}
        if prefix:
            started = [*prefix, sys.executable, "-u", "-m", "caseworker", command, *options]
            self.child = ChildProcess(started, env=env, cwd=cwd, name=name)
        else:
            self.child = ChildProcess.service(command, *options, env=env, name=name)
        self.url = ""

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            self.child.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.child.close()

    async def start(self) -> Self:
        """Start the process and wait until it is ready."""
        self.child.start()
        pattern = _LISTENS if self._serves else None
        if pattern is not None:
            self.url = await self._listening()
            await self.child.ready(f"{self.url}/{'readyz' if self._executes else 'healthz'}")
        else:
            await self._logged("process.open")
        return self

    def http(self, key: str | None = None, **headers: str) -> httpx.AsyncClient:
        """Return an HTTP client of this process that sends a key and headers."""
        return http_client(self.url, key, **headers)

    def client(self) -> JsonClient:
        """Return a client of this process."""
        return JsonClient(self.url, timeout_seconds=150)

    async def _listening(self) -> str:
        until = time.monotonic() + 300
        while (found := _LISTENS.search(self.child.stdout)) is None:
            self._require_life(until)
            await asyncio.sleep(0.05)
        return found[1]

    async def _logged(self, event: str) -> None:
        until = time.monotonic() + 300
        while event not in self.child.stderr:
            self._require_life(until)
            await asyncio.sleep(0.05)

    def _require_life(self, until: float) -> None:
        if self.child.exit_code is not None or time.monotonic() > until:
            raise ChildFailedError(self.child.stdout + self.child.stderr)


def http_client(url: str, key: str | None = None, **headers: str) -> httpx.AsyncClient:
    """Return an HTTP client of a service that is patient and ignores proxies of this machine."""
    sent = headers if key is None else {"Authorization": f"Bearer {key}", **headers}
    return httpx.AsyncClient(base_url=url, headers=sent, trust_env=False, timeout=150)


@asynccontextmanager
async def two_services(
    database_url: str, settings: Mapping[str, str]
) -> AsyncIterator[tuple[ServiceProcess, ServiceProcess, JsonClient]]:
    """Start two processes on one database; the client uses the second one."""
    async with (
        ServiceProcess(database_url, settings=settings, name="first") as first,
        ServiceProcess(database_url, settings=settings, name="second") as second,
        second.client() as client,
    ):
        yield first, second, client


async def finished(client: JsonClient, run_id: str, *, seconds: float = 150) -> dict[str, Any]:
    """Return a run once its status is terminal.

    Raises:
        TimeoutError: The run did not end in time.
    """
    until = time.monotonic() + seconds
    while True:
        run = await client.get_run(run_id)
        if run["finished_at"] is not None:
            return run
        if time.monotonic() > until:
            raise TimeoutError(f"run {run_id} is still {run['status']}")
        await asyncio.sleep(0.05)
