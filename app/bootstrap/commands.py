"""What the command line starts.

Most of the service is imported only once the settings are known to fit: it takes a second or two.
"""

from collections.abc import Awaitable, Callable

from app.bootstrap.configuration import begin_logging, read_settings


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
