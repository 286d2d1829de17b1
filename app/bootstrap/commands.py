"""What the command line starts.

Most of the service is imported only once the settings are known to fit: it takes a second or two.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.bootstrap.configuration import begin_logging, read_settings
from app.client import CaseworkerClient
from app.observability.logs import configure_logging

T = TypeVar("T")


def run_server(*, executes: bool, migrate: bool, started: Callable[[str], Awaitable[None]]) -> None:
    """Serve the API until the process is told to end; ``started`` is told the URL.

    Raises:
        StartupError: the process cannot start.
    """
    loaded = read_settings()
    begin_logging(loaded)
    from app.bootstrap.server import serve
    from app.bootstrap.startup import database

    settings = loaded.settings
    with database(settings, migrate=migrate) as url:
        serve(settings, url, executes=executes and settings.worker.enabled, started=started)


def run_worker(*, migrate: bool) -> None:
    """Execute queued runs until the process is told to end.

    Raises:
        StartupError: the process cannot start.
    """
    loaded = read_settings()
    begin_logging(loaded)
    from app.bootstrap.startup import database
    from app.bootstrap.worker import work

    with database(loaded.settings, migrate=migrate) as url:
        work(loaded.settings, url)


def check_configuration() -> list[str]:
    """Read the configuration as the service would; return what is worth saying about it.

    Raises:
        StartupError: it does not fit.
    """
    loaded = read_settings()
    from app.bootstrap.agents import build_tools
    from app.bootstrap.toolbox import Toolbox

    build_tools(loaded.settings, Toolbox(loaded.settings.tools).tools)
    warnings = [f"warning: {warning}" for warning in loaded.warnings]
    return [*warnings, f"The configuration fits ({loaded.source or 'defaults and environment'})."]


def upgrade_database() -> None:
    """Bring the configured database to the newest revision.

    Raises:
        StartupError: the database cannot be reached or started.
    """
    loaded = read_settings()
    begin_logging(loaded)
    from app.bootstrap.startup import database

    with database(loaded.settings, migrate=True):
        return


def run_with_client(use: Callable[[CaseworkerClient], Awaitable[T]], *, url: str | None) -> T:
    """Return what ``use`` makes of a client of the service at ``url``.

    Without a URL the service runs in this process, with the configured database; it logs warnings
    alone, so that what the command prints can be read.

    Raises:
        StartupError: the service cannot start in this process.
    """
    configure_logging(level="warning")
    if url is not None:
        return asyncio.run(_use_remote(use, url))
    settings = read_settings().settings
    from app.bootstrap.in_process import use_in_process
    from app.bootstrap.startup import database

    with database(settings, migrate=False) as database_url:
        return use_in_process(use, settings, database_url)


async def _use_remote(use: Callable[[CaseworkerClient], Awaitable[T]], url: str) -> T:
    async with CaseworkerClient(url) as client:
        return await use(client)
