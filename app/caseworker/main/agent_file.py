"""Read an agent from a file, for commands that send it to the service."""

import json
from pathlib import Path
from typing import Any

from pydantic_settings import SettingsError

from caseworker.main.errors import StartupError
from caseworker.settings.loader import read_yaml


def read_agent(path: Path) -> dict[str, Any]:
    """Return the agent definition in a YAML or JSON file, without validating it.

    Raises:
        StartupError: the file cannot be read, or does not contain an object.
    """
    try:
        agent = read_yaml(path)
        json.dumps(agent, allow_nan=False)  # rejects dates, for example
    except SettingsError as error:
        raise StartupError(str(error)) from None
    except (TypeError, ValueError, RecursionError):
        raise StartupError(
            f"{path.name} contains values that JSON does not support. Quote them."
        ) from None
    if not isinstance(agent, dict):
        raise StartupError(
            f"{path.name} does not define an agent. An agent is an object with name and prompt."
        )
    return agent
