"""The ASGI factory, for servers of one's own: ``uvicorn --factory caseworker.main:create_app``."""

from fastapi import FastAPI

from caseworker.bootstrap.configuration import StartupError, logged_settings
from caseworker.bootstrap.process import Process
from caseworker.bootstrap.server import build_app


def create_app() -> FastAPI:
    """Return the application for the database that the configuration names.

    Raises:
        StartupError: something does not fit, or no ``database.url`` is configured.
    """
    settings = logged_settings()
    url = settings.database.url
    if url is None:
        raise StartupError(
            "database.url is required: only the caseworker command runs an embedded database."
        )
    return build_app(Process(settings, url.get_secret_value(), executes=settings.worker.enabled))
