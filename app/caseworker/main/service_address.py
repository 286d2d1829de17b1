"""Find the URL of the configured service and its API key, for commands that call it."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from os.path import isfile
from pathlib import Path
from typing import Final

from caseworker.main.errors import StartupError
from caseworker.main.project import PROJECT_FILE, variables_of_project

DEFAULT_URL: Final = "http://127.0.0.1:8080"
"""The URL of a service whose address is not configured."""
API_KEY, STANDING_KEY = "CASEWORKER_API_KEY", "CASEWORKER_KEY"
"""Environment variables with an API key, and with a standing key."""
_URL, _CONFIG = "CASEWORKER_URL", "CASEWORKER_CONFIG"
_MAY_CONFIGURE: Final = re.compile(r"\bCASEWORKER_(?!(API_)?KEY$)|SERVER|_(HOST|PORT)\b|\bserver\b")
"""Parts of names and lines that may set the address, misspelled ones included."""
_FILES: Final = ("config.yaml", PROJECT_FILE, ".env")
_ADDRESS: Final = (("server", "host"), ("server", "port"))


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The URL of the service, and the API key that may be sent to it.

    A key goes only to a URL from the same source. Otherwise the files of a foreign folder could
    direct the user's key to their author, or the user's requests to their author's tenant.
    """

    url: str
    api_key: str = field(repr=False)
    """Empty if the source of the URL has no key."""
    withheld: str | None = None
    """The source of a key that is not sent, because the URL has another source; None for none."""


def service_address(url: str | None = None, key_variable: str = API_KEY) -> ServiceAddress:
    """Return the address at ``url``, or that of the configured service on this machine.

    ``url`` and the environment are one source, and the files of the working directory the other.
    The settings are loaded only if something may configure the address, because this takes longer
    than a call of the service. ``key_variable`` is the environment variable with the key.

    Raises:
        StartupError: the configuration is invalid, or ``server.port`` is 0.
    """
    project, shell = variables_of_project(Path.cwd()), os.environ
    at = partial(_address, key_variable)
    variables = {**project, **shell}
    if address := url or variables.get(_URL):
        return at(address, shell, project, of_shell=url is not None or _URL in shell)
    if not _may_be_configured():
        return at(DEFAULT_URL, variables)
    from caseworker.main.configuration import settings_of, url_of, warn_of_near_misses

    loaded = settings_of(variables, Path.cwd())
    warn_of_near_misses(loaded)
    server = loaded.settings.server
    if server.port == 0:
        raise StartupError("server.port is 0 (any free port). Set --url or CASEWORKER_URL.")
    address = url_of(server.host, server.port)
    origins = [loaded.origins[part] for part in _ADDRESS if part in loaded.origins]
    if not origins:
        return at(address, variables)
    of_file = Path(shell.get(_CONFIG, "")).is_absolute()
    of_shell = all(each in shell or (":" in each and of_file) for each in origins)
    return at(address, shell, project, of_shell=of_shell)


def _may_be_configured() -> bool:
    with suppress(OSError):  # reading the settings reports it
        files = [
            Path(each).read_bytes().decode(errors="replace") for each in _FILES if isfile(each)
        ]
        return any(map(_MAY_CONFIGURE.search, (*os.environ, *files)))
    return True


def _address(
    key_variable: str,
    url: str,
    shell: Mapping[str, str],
    project: Mapping[str, str] | None = None,
    *,
    of_shell: bool = True,
) -> ServiceAddress:
    project = project or {}
    variables, other = (shell, project) if of_shell else (project, shell)
    key, source = variables.get(key_variable, "").strip(), ".env" if of_shell else "the environment"
    return ServiceAddress(url, key, source if other.get(key_variable) and not key else None)
