"""Draws charts for coroutines in a separate process, with a time limit and cancellation.

There are three reasons for a separate process. Drawing holds the GIL for 60 to 150 ms at a time.
The libraries take 65 MB and up to a second to import. A drawing that hangs or grows could not be
killed in a thread. Starting a new process for each chart would cost half a second each.
"""

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from caseworker.platform.fair_slots import FairSlots
from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.plotting.composing import Picture

TIMEOUT_SECONDS = 30.0
IDLE_SECONDS = 120.0
"""Idle timeout in seconds of the drawing process, which uses about 95 MB of memory."""
WORKER = "caseworker_cases.tools.plotting.worker"

_CODE = Path(__file__).parents[3]
"""The directory that contains the ``caseworker`` package of this process."""
_PASSED_ON = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
"""Environment variables passed to the process; keys, locale and library settings are not."""


class Renderer:
    """A pool of one process that draws one chart at a time; the owner must close it.

    The process is started for the first chart. It is killed after an idle timeout, if a chart takes
    too long, and if the caller is cancelled. It exits if its parent exits.
    """

    def __init__(
        self, *, timeout_seconds: float = TIMEOUT_SECONDS, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        """Create a renderer; ``timeout_seconds`` is for one chart. Tenants take turns."""
        self._timeout = timeout_seconds
        self._idle_seconds = idle_seconds
        self._turn = FairSlots(1)
        self._process: Process | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._folder: TemporaryDirectory[str] | None = None
        """The home directory of the process, which holds matplotlib's font cache."""
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process ID of the drawing process; None if it is not running."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def render(self, picture: Picture, max_bytes: int) -> bytes:
        """Draw a chart and return a file of at most ``max_bytes``.

        Raises:
            ToolRefusedError: the chart is too large (``too_large``), took too long (``timeout``) or
                could not be drawn (``not_drawn``).
        """
        request = pickle.dumps((picture, max_bytes))
        try:
            async with self._turn.held(), asyncio.timeout(self._timeout):
                try:
                    data, problem = await self._exchange(request)
                except (OSError, EOFError, ValueError):  # the process exited: retry once
                    data, problem = await self._exchange(request)
        except TimeoutError as error:
            message = "Drawing took too long: ask for less."
            raise ToolRefusedError(message, code="timeout") from error
        except (OSError, EOFError, ValueError):
            data, problem = b"", "not_drawn"
        if not problem:
            return data
        message = "The picture could not be drawn."
        if problem == "too_large":
            message = f"The picture would be larger than the {max_bytes:,} bytes allowed."
        raise ToolRefusedError(message, code=problem)

    async def aclose(self) -> None:
        """Kill the process; callers that are still waiting get a ToolRefusedError."""
        self._closed = True
        await self._kill()
        if self._folder is not None:
            self._folder.cleanup()

    async def _exchange(self, request: bytes) -> tuple[bytes, str]:
        """Send a request; return the chart, or the problem."""
        process = await self._running()
        try:
            if process.stdin is None or process.stdout is None:
                raise EOFError
            process.stdin.write(request)
            await process.stdin.drain()
            size, problem = (await process.stdout.readline()).decode().rstrip("\n").split(" ")
            data = await process.stdout.readexactly(int(size))
        except BaseException:
            await self._kill()
            raise
        self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, _end, process)
        return data, problem

    async def _running(self) -> Process:
        if self._idle is not None:
            self._idle.cancel()
        if self._closed:
            raise EOFError
        if self._process is None or self.pid is None:
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="caseworker-plots-")
            self._process = await _started(self._folder.name)
        return self._process

    async def _kill(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            _end(process)
            await process.wait()


def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


async def _started(folder: str) -> Process:
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", WORKER),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        cwd=folder,
        env={
            **passed_on,
            "HOME": folder,
            "LC_ALL": "C",
            "MPLBACKEND": "agg",
            "MPLCONFIGDIR": folder,
            "MPL_IGNORE_SYSTEM_FONTS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": str(_CODE),
        },
    )
