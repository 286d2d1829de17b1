"""Shutdown of a process: after its work, in order, and with the right exit code."""

import asyncio
import gc
import signal
import sys
import weakref
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from caseworker.features.external.sessions import Sessions
from caseworker.main import lifetime
from caseworker.main import server as server_module
from caseworker.main.lifetime import run_to_end
from caseworker.main.process import Process
from caseworker.main.server import _Server
from tests.support.processes import ChildProcess
from tests.support.virtual_clock import VirtualClockLoop

LEFT = """
import asyncio, threading, time
from caseworker.main.lifetime import lifetime, run_to_end

async def deaf():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    deaf_task = asyncio.create_task(deaf(), name="deaf")
    blocked = asyncio.create_task(asyncio.to_thread(time.sleep, 3600))
    threading.Thread(target=time.sleep, args=(3600,)).start()
    await asyncio.sleep(0.01)

with lifetime():
    run_to_end(main())
    print("closed")
"""

BLOCKED = """
import asyncio, time
from caseworker.main.lifetime import lifetime, run_to_end

async def main():
    blocked = asyncio.create_task(asyncio.to_thread(time.sleep, 3600))
    await asyncio.sleep(0.1)

with lifetime():
    run_to_end(main())
    print("closed")
"""

SIGNALLED = """
import json, signal
from caseworker.main.lifetime import lifetime

with lifetime():
    try:
        print(json.dumps({"ready": True}), flush=True)
        signal.pause()
    finally:
        print("closed")
"""

INTERRUPTED = """
import asyncio, sys
from caseworker.main.lifetime import lifetime, run_to_end

async def exits():
    sys.exit(3)

def interrupts():
    raise KeyboardInterrupt

def interrupts_before(after):
    asyncio.get_running_loop().call_later(0.001, after.append, "timer")
    interrupts()

async def main():
    loop, after = asyncio.get_running_loop(), []
    loop.call_soon(interrupts)
    loop.call_soon(after.append, "callback")
    loop.call_later(0.001, interrupts_before, after)
    task = asyncio.create_task(exits())
    thread = asyncio.to_thread(after.append, "thread")
    await asyncio.wait({task})
    await thread
    while len(after) < 3:
        await asyncio.sleep(0.001)
    print(sorted(after), repr(task.exception()))

with lifetime():
    run_to_end(main(), handles_signals=True)
    print("closed")
"""

EXITS = """
import sys
from caseworker.main.lifetime import lifetime, run_to_end

async def main():
    sys.exit(4)

with lifetime():
    run_to_end(main(), handles_signals=True)
"""

FAILS = """
import sys
from caseworker.main.lifetime import lifetime

with lifetime():
    sys.exit(3)
"""


def python(code: str) -> ChildProcess:
    return ChildProcess.python("-c", code, cwd=Path.cwd(), name="child")


async def test_tasks_and_threads_that_do_not_end_are_left_behind() -> None:
    """A process exits cleanly even if tasks and threads never end."""
    with python(LEFT) as child:
        assert await child.wait(timeout_seconds=600) == 0
        assert child.stdout.splitlines()[-1] == "closed"
        assert "deaf" in child.stdout + child.stderr


async def test_a_thread_of_the_loop_is_not_waited_for() -> None:
    """A blocked thread of the event loop does not delay the exit."""
    with python(BLOCKED) as child:
        assert await child.wait() == 0
        assert child.stdout.splitlines()[-1] == "closed"


async def test_a_signal_ends_a_process_that_does_not_serve_yet() -> None:
    """A signal before serving starts ends the process and closes its resources."""
    with python(SIGNALLED) as child:
        await child.json_line("ready", timeout_seconds=600)
        assert await child.terminate(timeout_seconds=600) == 0
        assert child.stdout.splitlines()[-1] == "closed"


async def test_a_process_that_fails_says_so() -> None:
    """A failing process keeps its exit code."""
    with python(FAILS) as child:
        assert await child.wait(timeout_seconds=600) == 3


async def test_an_exit_of_a_task_or_a_callback_does_not_end_the_loop() -> None:
    """A tool may start such a task. The code that waits for it gets its exception."""
    with python(INTERRUPTED) as child:
        assert await child.wait(timeout_seconds=600) == 0
        lines = child.stdout.splitlines()
        assert "['callback', 'thread', 'timer'] SystemExit(3)" in lines
        assert lines[-1] == "closed"
        assert "process.exit_refused" in child.stdout + child.stderr


async def test_the_exit_of_the_main_coroutine_ends_the_process() -> None:
    """The server exits in this way if its port is not free."""
    with python(EXITS) as child:
        assert await child.wait(timeout_seconds=600) == 4


def test_what_fails_is_raised_when_the_other_tasks_have_ended() -> None:
    """If the main coroutine fails, other tasks are cancelled and may clean up first."""
    cleaned: list[str] = []

    async def cleans() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    async def fails() -> None:
        task = asyncio.create_task(cleans())
        await asyncio.sleep(0)
        raise LookupError(task.get_name())

    with pytest.raises(LookupError):
        run_to_end(fails())
    assert cleaned == ["up"]


class Draining:
    """A process whose response depends on its drain."""

    def __init__(self) -> None:
        self.drained = asyncio.Event()
        self.asked = asyncio.Event()
        self.sessions = Sessions(cast("Any", None))

    def begin_closing(self) -> None:
        """Do nothing."""

    async def drain(self) -> None:
        self.drained.set()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond after the runs are drained."""
        self.asked.set()
        await self.drained.wait()
        await PlainTextResponse("answered")(scope, receive, send)


async def test_runs_and_requests_end_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open request does not delay the hand-over of runs."""
    monkeypatch.setattr(server_module, "collect_garbage_seldom", lambda: None)
    process = Draining()
    config = uvicorn.Config(
        process.app,
        port=0,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        timeout_graceful_shutdown=5,
    )
    url = asyncio.get_running_loop().create_future()

    async def started(at: str) -> None:
        url.set_result(at)

    server = _Server(config, cast("Process", process), [], started, None)
    async with asyncio.TaskGroup() as group, httpx.AsyncClient(trust_env=False) as client:
        serving = group.create_task(uvicorn.Server._serve(cast("Any", server)))
        answer = group.create_task(client.get(await url, timeout=600))
        await process.asked.wait()
        server.handle_exit(signal.SIGTERM, None)
        await serving
        assert (await answer).text == "answered"


class Cycle:
    """An object that only a garbage collection removes."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize(("many", "minutes"), [(sys.maxsize, 1), (0, 61)])
def test_garbage_is_collected_every_minute_or_after_an_hour_of_many_objects(
    monkeypatch: pytest.MonkeyPatch, many: int, minutes: int
) -> None:
    """A full collection next to many objects would stop the process for too long."""
    monkeypatch.setattr(lifetime, "MANY_OBJECTS", many)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "set_threshold", lambda *_: None)

    async def minutes_until_collected() -> int:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        lifetime.collect_garbage_seldom()
        collected = asyncio.Event()
        weakref.finalize(Cycle(), collected.set)
        await collected.wait()
        return round((loop.time() - began_at) / 60)

    gc.disable()
    try:
        with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
            assert runner.run(minutes_until_collected()) == minutes
    finally:
        gc.enable()
