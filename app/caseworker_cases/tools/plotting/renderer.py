"""Draws charts for coroutines in a separate process, with a time limit and cancellation.

There are three reasons for a separate process. Drawing holds the GIL for 60 to 150 ms at a time.
The libraries take 65 MB and up to a second to import. A drawing that hangs or grows could not be
killed in a thread. Starting a new process for each chart would cost half a second each.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.plotting.picture import Picture

TIMEOUT_SECONDS = 30.0
IDLE_SECONDS = 120.0
"""Idle timeout in seconds of the drawing process, which uses about 95 MB of memory."""
WORKER = "caseworker_cases.tools.plotting.worker"
_NOT_DRAWN = "The picture could not be drawn."

_CODE = Path(__file__).parents[3]
"""The directory that contains the ``caseworker`` package of this process."""
_PASSED_ON = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
"""Environment variables passed to the process; keys, locale and library settings are not."""


class _ProcessEndedError(Exception):
    """The drawing process exited, or was killed, before it replied."""


class Renderer:
    """Draws one chart at a time in a separate process, which is started for the first chart.

    The owner must close it. The process also exits after an idle timeout or when its parent is
    gone. It belongs to one event loop and is restarted for a different one.
    """

    def __init__(
        self, *, timeout_seconds: float = TIMEOUT_SECONDS, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        """Create a renderer; ``timeout_seconds`` includes the wait for other charts."""
        self._timeout = timeout_seconds
        self._idle_seconds = idle_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._killed = False
        self._folder: TemporaryDirectory[str] | None = None
        """The home directory of the process, which holds matplotlib's font cache."""
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process ID of the drawing process; None if it is not running."""
        process = self._process
        if process is None or self._killed or process.returncode is not None:
            return None
        return process.pid

    async def render(self, picture: Picture, max_bytes: int) -> bytes:
        """Draw a chart and return a file of at most ``max_bytes``.

        The process is killed if a chart takes too long or its caller is cancelled. The next chart
        then starts a new process.

        Raises:
            ToolRefusedError: the chart is too large (``too_large``), took too long (``timeout``) or
                could not be drawn (``not_drawn``).
        """
        request = {"picture": asdict(picture), "max_bytes": max_bytes}
        line = json.dumps(request, allow_nan=False).encode() + b"\n"
        self._move_to(asyncio.get_running_loop())
        try:
            async with asyncio.timeout(self._timeout), self._turn:
                header, data = await self._answer(line)
        except TimeoutError as error:
            message = "Drawing took too long: ask for less."
            raise ToolRefusedError(message, code="timeout") from error
        except (_ProcessEndedError, OSError) as error:
            raise ToolRefusedError(_NOT_DRAWN, code="not_drawn") from error
        problem = header.get("problem")
        if problem == "too_large":
            message = f"The picture would be larger than the {max_bytes:,} bytes allowed."
            raise ToolRefusedError(message, code="too_large")
        if problem is not None:
            raise ToolRefusedError(_NOT_DRAWN, code="not_drawn")
        return data

    async def aclose(self) -> None:
        """Kill the process; callers that are still waiting get a ToolRefusedError."""
        self._closed = True
        self._move_to(asyncio.get_running_loop())
        self._kill()
        if self._process is not None:
            await self._process.wait()
        if self._folder is not None:
            self._folder.cleanup()

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            self._kill()
            self._loop, self._turn, self._process = loop, asyncio.Lock(), None

    async def _answer(self, line: bytes) -> tuple[dict[str, Any], bytes]:
        if self.pid is not None:
            # The process may exit at its idle timeout just as it is asked: retry once.
            with suppress(_ProcessEndedError):
                return await self._exchange(line)
        return await self._exchange(line)

    async def _exchange(self, line: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a request; return the header and the data of the reply."""
        process = await self._running()
        try:
            if process.stdin is None or process.stdout is None:
                raise _ProcessEndedError
            process.stdin.write(line)
            await process.stdin.drain()
            header = json.loads(await process.stdout.readline())
            return header, await process.stdout.readexactly(header.get("size_bytes", 0))
        except (OSError, EOFError, ValueError) as error:
            self._kill()
            raise _ProcessEndedError from error
        except BaseException:
            self._kill()
            raise

    async def _running(self) -> Process:
        if self._process is not None:
            if self.pid is not None:
                return self._process
            await self._process.wait()
        if self._closed:
            raise _ProcessEndedError
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="caseworker-plots-")
        self._process = await _started(self._folder.name, self._idle_seconds)
        self._killed = False
        return self._process

    def _kill(self) -> None:
        self._killed = True
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()


async def _started(folder: str, idle_seconds: float) -> Process:
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", WORKER, str(idle_seconds)),
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
