"""The files that make a folder a project."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from caseworker.main.errors import StartupError

PROJECT_FILE: Final = "caseworker.yaml"


def variables_of_project(folder: Path) -> Mapping[str, str]:
    """Return the variables in the ``.env`` of a project; none for another folder.

    A ``${NAME}`` in a value stays as it is, so the file cannot send variables of the shell to the
    address that it names.

    Raises:
        StartupError: the file cannot be read.
    """
    if not (folder / PROJECT_FILE).is_file() or not (folder / ".env").is_file():
        return {}
    from dotenv import dotenv_values

    with _reading():
        values = dotenv_values(folder / ".env", interpolate=False)
        return {name: text for name, text in values.items() if text}


def use_dotenv(folder: Path) -> None:
    """Set the variables in the ``.env`` of a project that the environment does not set."""
    variables = variables_of_project(folder)
    with _reading():
        for name, text in variables.items():
            os.environ.setdefault(name, text)


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # not UTF-8, for example
        raise StartupError(f".env cannot be read: {type(error).__name__}") from None
