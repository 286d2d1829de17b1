"""Call the API with a client, for commands that may start the service in their own process."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from caseworker_client import AsyncCaseworkerClient, RetryPolicy
from httpx import ASGITransport
from pydantic import SecretStr

from caseworker.main.commands import open_database, recording
from caseworker.main.configuration import database_errors, read_settings, warn_of_near_misses
from caseworker.main.lifetime import collect_garbage_seldom, run_to_end
from caseworker.platform.logs.logs import configure_logging

T = TypeVar("T")


def run_with_client(
    use: Callable[[AsyncCaseworkerClient], Awaitable[T]],
    *,
    url: str | None,
    log: Path,
    record: Path | None = None,
    about: Mapping[str, Any],
    retry: RetryPolicy,
) -> T:
    """Call ``use`` with an API client and return its result.

    The client calls the service at ``url``. Without a URL, the service runs in this process. The
    replies of its models are then recorded in the file ``record``, if given, with ``about`` in the
    header. Warnings are logged to the file ``log``, not printed. ``retry`` is the client's retry
    policy.

    Raises:
        StartupError: the service cannot start in this process.
        OSError: a file cannot be written.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as stream:
        configure_logging(level="warning", stream=stream)
        try:
            if url is not None:
                return asyncio.run(_use_remote(use, url, retry))
            return _use_in_process(use, record, about, retry)
        finally:
            configure_logging(level="warning")  # the stream is closed from here on


async def _use_remote(
    use: Callable[[AsyncCaseworkerClient], Awaitable[T]], url: str, retry: RetryPolicy
) -> T:
    async with AsyncCaseworkerClient(url, retry=retry) as client:
        return await use(client)


def _use_in_process(
    use: Callable[[AsyncCaseworkerClient], Awaitable[T]],
    record: Path | None,
    about: Mapping[str, Any],
    retry: RetryPolicy,
) -> T:
    """Start the service in this process, and call its full HTTP API without a socket.

    The client uses a temporary bootstrap key, because opening the database already implies operator
    rights.
    """
    loaded = read_settings()
    warn_of_near_misses(loaded)
    from caseworker.main.agent_folder import read_agents
    from caseworker.main.process import Process
    from caseworker.main.server import build_app, opened

    key = secrets.token_hex(32)
    auth = loaded.settings.auth.model_copy(update={"bootstrap_key": SecretStr(key)})
    settings = loaded.settings.model_copy(update={"auth": auth})
    with (
        recording(settings, record, about) as recorder,
        open_database(settings, migrate=False) as url,
        database_errors(),
    ):

        async def used() -> T:
            files = read_agents(settings.agents.folder)
            process = Process(settings, url, executes=True, recorder=recorder)
            transport = ASGITransport(build_app(process), raise_app_exceptions=False)
            client = AsyncCaseworkerClient(
                "http://localhost", api_key=key, retry=retry, transport=transport
            )
            async with opened(process, files), client:
                collect_garbage_seldom()
                return await use(client)

        return run_to_end(used())
