"""What commands print, and how they fail: one line on standard error, exit code 2."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NoReturn

import typer
from rich.console import Console

from app.bootstrap.configuration import StartupError

out = Console(highlight=False, soft_wrap=True)


def show(text: str) -> None:
    """Print a text as it is."""
    out.print(text, markup=False)


def fail(message: str) -> NoReturn:
    """End the command with a message."""
    sys.stderr.write(f"{message}\n")
    raise typer.Exit(2)


def utc_text(at: datetime) -> str:
    """Return an instant as text in UTC."""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@contextmanager
def startup_errors() -> Iterator[None]:
    """End the command with the one line of an error that keeps the process from starting."""
    try:
        yield
    except StartupError as error:
        fail(str(error))
