"""What a process reads before anything else, so that a mistake is reported at once."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from pydantic_settings import SettingsError

from caseworker.observability.logs import configure_logging
from caseworker.settings.loader import LoadedSettings, load_settings
from caseworker.settings.schema import Settings

log = structlog.get_logger(__name__)


class StartupError(Exception):
    """The process cannot start; the message is the one line to show."""


def read_settings() -> LoadedSettings:
    """Read the settings of this process.

    Raises:
        StartupError: something does not fit; the message names the key and what is allowed.
    """
    try:
        return load_settings(os.environ, Path.cwd())
    except SettingsError as error:
        raise StartupError(str(error)) from None


def logged_settings() -> Settings:
    """Read the settings, configure logging, and log what was noticed.

    Raises:
        StartupError: like :func:`read_settings`.
    """
    loaded = read_settings()
    logging = loaded.settings.logging
    configure_logging(level=logging.level, form=logging.format)
    for warning in loaded.warnings:
        # What was probably meant as a setting is shown whatever level is logged.
        tell = log.error if warning in loaded.near_misses else log.warning
        tell("settings.warning", detail=warning)
    return loaded.settings


def warn_of_near_misses(loaded: LoadedSettings) -> None:
    """Write on standard error what was probably meant as a setting; for commands without a log."""
    for warning in loaded.near_misses:
        sys.stderr.write(f"warning: {warning}\n")


@contextmanager
def database_errors() -> Iterator[None]:
    """Report in one line why the database cannot be used while the process starts.

    Raises:
        StartupError: the database cannot be reached, or refuses what the process needs.
    """
    import psycopg
    from sqlalchemy.exc import DBAPIError

    from caseworker.adapters.postgres.connections import reason_of
    from caseworker.observability.store_errors import StoreUnavailableError

    try:
        yield
    except (StoreUnavailableError, DBAPIError, psycopg.Error) as error:
        raise StartupError(f"database.url: {reason_of(error)}") from None


def url_of(host: str, port: int) -> str:
    """Return the URL under which this machine reaches a server that listens on ``host``."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
