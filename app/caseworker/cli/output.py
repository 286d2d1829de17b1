"""Print the output and errors of commands.

A command that fails prints one line to standard error and exits with code 2.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console

from caseworker.main.configuration import StartupError

out = Console(highlight=False, soft_wrap=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON output.")]

STYLES: Final = {
    "queued": "dim",
    "waiting": "yellow",
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "halted": "magenta",
    "cancelled": "yellow",
    "skipped": "dim",
}
"""Terminal color for each status of a run, step or call."""


def show(text: str) -> None:
    """Print ``text`` without interpreting Rich markup in it."""
    out.print(text, markup=False)


def show_json(data: Any) -> None:
    """Print ``data`` as JSON; datetimes, decimals and frozensets are converted."""
    out.print_json(data=data, default=_as_json)


def fail(message: str) -> NoReturn:
    """Print a message to standard error and exit with code 2."""
    sys.stderr.write(f"{message}\n")
    raise typer.Exit(2)


def utc_text(at: datetime) -> str:
    """Format a datetime in UTC as ISO 8601, to the second."""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _as_json(value: object) -> object:
    match value:
        case datetime():
            return utc_text(value)
        case Decimal():
            return float(value)
        case frozenset():
            return sorted(value)
        case _:
            raise TypeError(f"{type(value).__name__} is not JSON serializable")


@contextmanager
def startup_errors() -> Iterator[None]:
    """Print a StartupError that the block raises as one line, and exit with code 2."""
    try:
        yield
    except StartupError as error:
        fail(str(error))
