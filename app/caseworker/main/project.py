"""The files that make a folder a project."""

import os
from pathlib import Path
from typing import Final

from caseworker.main.errors import StartupError

PROJECT_FILE: Final = "caseworker.yaml"


def use_dotenv(folder: Path) -> None:
    """Set the variables in the ``.env`` of a project that the environment does not set."""
    if (folder / PROJECT_FILE).is_file() and (folder / ".env").is_file():
        from dotenv import dotenv_values

        try:
            for name, text in dotenv_values(folder / ".env").items():
                if text:
                    os.environ.setdefault(name, text)
        except (OSError, ValueError) as error:  # not UTF-8, for example
            raise StartupError(f".env cannot be read: {type(error).__name__}") from None
