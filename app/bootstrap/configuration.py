"""What a process reads before anything else, so that a mistake is reported at once."""

import os
from pathlib import Path

import structlog
from pydantic_settings import SettingsError

from app.observability.logs import configure_logging
from app.settings.loader import LoadedSettings, load_settings
from app.settings.schema import Settings

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
        log.warning("settings.warning", detail=warning)
    return loaded.settings
