"""A worker process: executes queued runs; serves only health, metrics and forwarded requests."""

import asyncio
import signal
from contextlib import AsyncExitStack

from caseworker.main.lifetime import collect_garbage_seldom, end_undisturbed, run_to_end
from caseworker.main.listeners import forwarding_address, forwarding_served, health_served
from caseworker.main.process import Process
from caseworker.main.server import build_app
from caseworker.settings.schema import Settings


def work(settings: Settings, url: str) -> None:
    """Execute queued runs until SIGINT or SIGTERM, without serving the API.

    Raises:
        StartupError: the health port or the port for forwarded requests is not free.
        StoreUnavailableError: the database does not answer.
    """
    address = forwarding_address(settings, 0)
    working = _work(Process(settings, url, executes=True, address=address))
    run_to_end(working, handles_signals=True)
    end_undisturbed()


async def _work(process: Process) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(process.opened())
        await stack.enter_async_context(health_served(process))
        await stack.enter_async_context(forwarding_served(process, build_app(process), 0))
        collect_garbage_seldom()
        await ended.wait()
        await process.drain()  # calls in flight still answer forwarded requests
