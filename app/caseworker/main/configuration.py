"""Read the settings and report configuration errors before anything else starts."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from pydantic_settings import SettingsError

from caseworker.main.errors import StartupError as StartupError
from caseworker.platform.logs.logs import configure_logging
from caseworker.settings.loader import LoadedSettings, load_settings
from caseworker.settings.schema import Settings

log = structlog.get_logger(__name__)


def read_settings() -> LoadedSettings:
    """Read the settings of this process from the configuration file and the environment.

    Raises:
        StartupError: a setting is invalid; the message names the key and the allowed values.
    """
    try:
        return load_settings(os.environ, Path.cwd())
    except SettingsError as error:
        raise StartupError(str(error)) from None


def logged_settings() -> Settings:
    """Read the settings, configure logging and log all configuration warnings.

    Raises:
        StartupError: a setting is invalid; see :func:`read_settings`.
    """
    loaded = read_settings()
    logging = loaded.settings.logging
    configure_logging(level=logging.level, form=logging.format)
    for warning in loaded.warnings:
        # Show probable misspellings of settings at every log level.
        tell = log.error if warning in loaded.near_misses else log.warning
        tell("settings.warning", detail=warning)
    return loaded.settings


def warn_of_near_misses(loaded: LoadedSettings) -> None:
    """Print warnings about misspelled settings to standard error, for commands without a log."""
    for warning in loaded.near_misses:
        sys.stderr.write(f"warning: {warning}\n")


@contextmanager
def database_errors() -> Iterator[None]:
    """Convert database errors that the block raises to a one-line :class:`StartupError`.

    Raises:
        StartupError: the database is unreachable or rejects a required operation.
    """
    import psycopg
    from sqlalchemy.exc import DBAPIError

    from caseworker.platform.errors import StoreUnavailableError
    from caseworker.platform.postgres.connections import reason_of

    try:
        yield
    except (StoreUnavailableError, DBAPIError, psycopg.Error) as error:
        raise StartupError(f"database.url: {reason_of(error)}") from None


def url_of(host: str, port: int) -> str:
    """Return the URL at which a server that listens on ``host`` can be reached locally."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
