"""Serve a project during development: reload it on changes, and report errors in one line."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from caseworker.main.commands import HAND_OVER_SECONDS, open_database
from caseworker.main.configuration import (
    database_errors,
    logged_settings,
    url_of,
)
from caseworker.main.demo import has_model, with_stub_model
from caseworker.main.lifetime import lifetime
from caseworker.main.project import use_dotenv

_WATCHED: Final = (".py", ".yaml", ".yml", ".env")
_IGNORED: Final = frozenset({"__pycache__", "node_modules", "data", "venv"})
_SETTINGS: Final = {
    "LOGGING_FORMAT": "console",
    "SHUTDOWN_GRACE_SECONDS": "0.5",
    # The next process would need the same ports as the current one.
    "WORKER_HEALTH_PORT": "null",
    "SERVER_ADVERTISE_URL": "null",
}
"""Defaults of development, which replace the configuration file but not the environment."""


@lifetime()
def run_development(*, report: Callable[[str], None], started: Callable[[str], None]) -> None:
    """Serve the project in the working directory, and reload it when its files change.

    ``report`` is called with each line for the developer, and ``started`` with the URL once the
    service accepts requests for the first time.

    Raises:
        StartupError: the configuration is invalid, or the database or the port cannot be used.
    """
    folder, environment = Path.cwd(), dict(os.environ)
    _use_environment(environment)
    sys.dont_write_bytecode = True  # Python compares whole seconds, which would hide quick changes
    settings = logged_settings()
    from caseworker.main.server import serve
    from caseworker.main.supervisor import ReloadingSupervisor, WorkerSlot

    def serve_at(place: WorkerSlot) -> None:
        _use_environment(environment)
        current = logged_settings()
        if place.is_first and not has_model(current):
            report("No model is configured: the stub model answers. Set OPENAI_API_KEY in .env.")

        async def answers(_: str) -> None:
            place.answers()

        with lifetime(), database_errors():
            serve(with_stub_model(current), url, executes=True, started=answers, place=place)

    with open_database(settings, migrate=False) as url:
        supervisor = ReloadingSupervisor(
            settings.server.host,
            settings.server.port,
            serve=serve_at,
            changed=_changes(folder),
            reported=report,
            started=lambda host, port: started(url_of(host, port)),
        )
        supervisor.run(grace_seconds=settings.shutdown.grace_seconds + HAND_OVER_SECONDS)


def _use_environment(environment: Mapping[str, str]) -> None:
    """Set the variables of the shell, then those of ``.env``, then those of development."""
    os.environ.clear()
    os.environ.update(environment)
    use_dotenv(Path.cwd())
    for name, text in _SETTINGS.items():
        if f"CASEWORKER_{name}" not in os.environ:
            os.environ.setdefault(name, text)


def _changes(folder: Path) -> Callable[[], str]:
    """Return a function that returns the name of a file that changed since its last call.

    It reads a large folder less often, so that it takes at most a twentieth of the time.
    """
    times, next_at = dict(_times(folder)), 0.0

    def changed() -> str:
        nonlocal times, next_at
        if (began := time.monotonic()) < next_at:
            return ""
        before, times = times, dict(_times(folder))
        ended = time.monotonic()
        next_at = ended + 20 * (ended - began)
        different = sorted(path for path, _ in before.items() ^ times.items())
        return different[0] if different else ""

    return changed


def _times(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield each watched file of a project with its time of modification, in ns."""
    for parent, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names and parent != str(folder):
            folders.clear()
            continue
        folders[:] = [each for each in folders if not each.startswith(".") and each not in _IGNORED]
        for name in names:
            path = Path(parent, name)
            if name.endswith(_WATCHED):
                try:
                    yield str(path.relative_to(folder)), path.stat().st_mtime_ns
                except OSError:  # deleted meanwhile, or a broken link
                    continue
