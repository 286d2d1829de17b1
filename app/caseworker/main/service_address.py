"""Find the URL of the configured service, for commands that call it."""

import os
import re
from contextlib import suppress
from os.path import isfile
from pathlib import Path
from typing import Final

from caseworker.main.errors import StartupError
from caseworker.main.project import PROJECT_FILE, use_dotenv

DEFAULT_URL: Final = "http://127.0.0.1:8080"
"""The URL of a service whose address is not configured."""
_MAY_CONFIGURE: Final = re.compile(r"\bCASEWORKER_(?!API_KEY$)|SERVER|_(HOST|PORT)\b|\bserver\b")
"""Parts of names and lines that may set the address, misspelled ones included."""
_FILES: Final = ("config.yaml", PROJECT_FILE, ".env")


def service_url(url: str | None = None) -> str:
    """Return ``url``, or the URL at which the configured service can be reached on this machine.

    The ``.env`` of a project is read first, as it may set CASEWORKER_API_KEY. The settings are
    loaded only if something may configure the address, because this takes longer than a call of the
    service.

    Raises:
        StartupError: the configuration is invalid, or ``server.port`` is 0.
    """
    use_dotenv(Path.cwd())
    if address := url or os.environ.get("CASEWORKER_URL"):
        return address
    with suppress(OSError):  # reading the settings reports it
        files = [
            Path(each).read_bytes().decode(errors="replace") for each in _FILES if isfile(each)
        ]
        if not any(map(_MAY_CONFIGURE.search, (*os.environ, *files))):
            return DEFAULT_URL
    from caseworker.main.configuration import read_settings, url_of, warn_of_near_misses

    loaded = read_settings()
    warn_of_near_misses(loaded)
    server = loaded.settings.server
    if server.port == 0:
        raise StartupError("server.port is 0 (any free port). Set --url or CASEWORKER_URL.")
    return url_of(server.host, server.port)
