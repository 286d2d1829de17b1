"""An idle process does not wake its event loop."""

import asyncio
import sys
import threading
from typing import Any

import pytest
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from caseworker.main import listeners
from caseworker.main.loop_watch import LoopWatch

LOOKS = 5


def test_the_watch_of_the_event_loop_does_not_wake_an_idle_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread sees that the loop executes no callback."""
    looks: list[Any] = []
    woken: list[str] = []
    ended = threading.Event()
    frames = sys._current_frames

    class Loop(uvloop.Loop):
        def call_soon_threadsafe(  # type: ignore[override]
            self, callback: Any, *args: Any, context: Any = None
        ) -> Any:
            woken.append(threading.current_thread().name)
            return super().call_soon_threadsafe(callback, *args, context=context)

    def counted() -> Any:
        looks.append(frames())
        if len(looks) == LOOKS:
            ended.set()
        return looks[-1]

    async def main() -> None:
        watching = asyncio.create_task(LoopWatch(CollectorRegistry()).run())
        await asyncio.to_thread(ended.wait, 150)
        watching.cancel()
        await asyncio.wait({watching})

    monkeypatch.setattr(sys, "_current_frames", counted)
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())
    assert len(looks) >= LOOKS
    assert "event loop watch" not in woken


async def test_a_server_ends_without_another_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two renewals of the header ``Date`` it only waits for its end."""
    monkeypatch.setattr(listeners, "DATE_SECONDS", 3600)
    server = listeners.Server(uvicorn.Config(app=None))  # type: ignore[arg-type]
    serving = asyncio.create_task(server.main_loop())
    await asyncio.sleep(0)
    server.end()
    async with asyncio.timeout(150):
        await serving
