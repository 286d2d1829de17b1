"""The ASGI application as a factory; see the package."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from caseworker.main.configuration import logged_settings
from caseworker.main.errors import StartupError
from caseworker.main.listeners import forwarding_address, forwarding_served
from caseworker.main.process import Process
from caseworker.main.server import build_app


def create_app() -> FastAPI:
    """Return the API application, which uses the configured database.

    Raises:
        StartupError: the configuration is invalid, or ``database.url`` is not set.
    """
    settings = logged_settings()
    url = settings.database.url
    if url is None:
        raise StartupError(
            "database.url is required: only the caseworker command runs an embedded database."
        )
    executes = settings.worker.enabled
    address = forwarding_address(settings, None) if executes else None
    process = Process(settings, url.get_secret_value(), executes=executes, address=address)

    @asynccontextmanager
    async def opened(app: FastAPI) -> AsyncIterator[None]:
        async with process.opened(), forwarding_served(process, app, None):
            yield

    return build_app(process, lifespan=opened)
