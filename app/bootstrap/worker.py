"""Executes runs without serving the API."""

import asyncio
import signal

import uvloop

from app.bootstrap.garbage import look_for_garbage_seldom
from app.bootstrap.process import Process
from app.settings.schema import Settings


def work(settings: Settings, url: str) -> None:
    """Execute queued runs until the process is told to end."""
    uvloop.run(_work(Process(settings, url, executes=True)))


async def _work(process: Process) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await process.open()
    look_for_garbage_seldom()
    try:
        await ended.wait()
    finally:
        await process.close()
