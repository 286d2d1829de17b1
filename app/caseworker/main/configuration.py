"""Read the settings and report configuration errors before anything else starts."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic_settings import SettingsError

from caseworker.main.errors import StartupError as StartupError
from caseworker.main.project import PROJECT_FILE, use_dotenv
from caseworker.settings.loader import LoadedSettings, load_settings
from caseworker.settings.schema import Settings
from caseworker.settings.values import keys_of, path_text


def read_settings() -> LoadedSettings:
    """Read the settings of this process from the configuration file and the environment.

    A ``caseworker.yaml`` in the working directory marks a project: its modules can be imported, and
    its ``.env`` adds to the environment.

    Raises:
        StartupError: a setting is invalid; the message names the key and the allowed values.
    """
    folder = Path.cwd()
    use_dotenv(folder)
    loaded = settings_of(os.environ, folder)
    # Last, so that no file of the project replaces an installed module.
    if loaded.source == folder / PROJECT_FILE and str(folder) not in sys.path:
        sys.path.append(str(folder))
    return loaded


def settings_of(variables: Mapping[str, str], folder: Path) -> LoadedSettings:
    """Read the settings from variables and the configuration file of a folder; import nothing.

    Raises:
        StartupError: a setting is invalid; the message names the key and the allowed values.
    """
    try:
        return load_settings(variables, folder)
    except SettingsError as error:
        raise StartupError(str(error)) from None


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting with its value as JSON, in which secrets are masked, and its source."""

    key: str
    value: Any
    source: str
    """Environment variables and lines of the configuration file that set it, or ``default``."""


def shown_settings() -> list[ShownSetting]:
    """Return all settings of this process, in the order of ``config.yaml.example``.

    Raises:
        StartupError: the configuration is invalid.
    """
    loaded = read_settings()
    values: Any = loaded.settings.model_dump(mode="json")
    settings = []
    for path, _ in keys_of(Settings):
        origins = {loaded.origins[at]: None for at in loaded.origins if at[: len(path)] == path}
        value = reduce(lambda section, name: section[name], path, values)
        settings.append(ShownSetting(path_text(path), value, ", ".join(origins) or "default"))
    return settings


def logged_settings() -> Settings:
    """Read the settings, configure logging and log all configuration warnings.

    Raises:
        StartupError: a setting is invalid; see :func:`read_settings`.
    """
    loaded = read_settings()
    import structlog  # not needed by commands that only find the service

    from caseworker.platform.logs.logs import configure_logging

    log = structlog.get_logger(__name__)
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
    address = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
