"""Worker processes: they execute runs, and serve only health, metrics and forwarded requests."""

import asyncio
import signal
from contextlib import AsyncExitStack, suppress

from caseworker.main.lifetime import collect_garbage_seldom, end_undisturbed, run_to_end
from caseworker.main.listeners import forwarding_address, forwarding_served, health_served
from caseworker.main.process import Process
from caseworker.main.server import build_app
from caseworker.main.supervisor import WorkerSlot
from caseworker.settings.schema import Settings


def work(settings: Settings, url: str, place: WorkerSlot) -> None:
    """Execute queued runs until SIGINT or SIGTERM, without serving the API.

    Raises:
        StartupError: the health port or the port for forwarded requests is not free.
        StoreUnavailableError: the database does not answer.
    """
    address = forwarding_address(settings, 0)
    process = Process(settings, url, executes=True, address=address, place=place)
    run_to_end(_work(process, place), handles_signals=True)
    end_undisturbed()


def work_alone(settings: Settings, url: str, place: WorkerSlot) -> None:
    """Execute the suspects of deaths, one at a time, until none is left or a signal arrives.

    Raises:
        StoreUnavailableError: the database does not answer.
    """
    process = Process(settings, url, executes=True, place=place)
    run_to_end(_work_alone(process), handles_signals=True)
    end_undisturbed()


async def _work_alone(process: Process) -> None:
    ended = _ended_by_signal()
    async with process.opened():
        working = asyncio.create_task(process.execute_suspects())
        waiting = asyncio.create_task(ended.wait())
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await process.drain()
        if not working.done():
            working.cancel()
        with suppress(asyncio.CancelledError):
            await working


def _ended_by_signal() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    return ended


async def _work(process: Process, place: WorkerSlot) -> None:
    ended = _ended_by_signal()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(process.opened())
        await stack.enter_async_context(health_served(process))
        await stack.enter_async_context(forwarding_served(process, build_app(process), 0))
        collect_garbage_seldom()
        place.answers()
        await ended.wait()
        await process.drain()  # calls in flight still answer forwarded requests
