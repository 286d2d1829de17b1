"""The service inside this process, called as from outside: by its API, without a socket."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx
import uvloop

from app.bootstrap.process import Process
from app.bootstrap.server import build_app
from app.client import CaseworkerClient
from app.settings.schema import Settings

T = TypeVar("T")


def use_in_process(
    use: Callable[[CaseworkerClient], Awaitable[T]], settings: Settings, url: str
) -> T:
    """Open a process on the database at ``url``, return what ``use`` makes of its client."""

    async def opened() -> T:
        process = Process(settings, url, executes=True)
        await process.open()
        try:
            transport = httpx.ASGITransport(build_app(process), raise_app_exceptions=False)
            async with CaseworkerClient("http://in-process", transport=transport) as client:
                return await use(client)
        finally:
            await process.close()

    return uvloop.run(opened())
