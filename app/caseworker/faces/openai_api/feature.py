"""The feature ``openai_api``: registered agents behind OpenAI's API."""

from typing import Final

from caseworker.faces.openai_api.routes import ROUTES, FaceOptions
from caseworker.features.feature import Feature, Opened, Parts


def open_openai_api(parts: Parts) -> Opened:
    """Build the options of the face."""
    settings = parts.settings.faces
    return Opened(services=[FaceOptions(appends_system=settings.client_system == "append")])


OPENAI_API: Final = Feature(name="openai_api", routes=ROUTES, open=open_openai_api)
