"""The feature ``openai_api``: registered agents behind OpenAI's API."""

from typing import Final

from caseworker.faces.openai_api.bodies import agent_named
from caseworker.faces.openai_api.routes import ROUTES, FaceOptions
from caseworker.features.feature import Feature, Opened, Parts


def open_openai_api(parts: Parts) -> Opened:
    """Build the options of the API in a process."""
    settings = parts.settings.faces
    appends, task = settings.client_system == "append", settings.task_model
    options = FaceOptions(
        appends,
        None if task is None else agent_named(task),
        client_wait_seconds=settings.client_wait_seconds,
        max_waiting_runs=settings.max_waiting_runs,
    )
    return Opened(services=[options])


OPENAI_API: Final = Feature(name="openai_api", routes=ROUTES, open=open_openai_api)
