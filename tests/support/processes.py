"""Child processes for tests: started, watched, frozen, killed, and always ended.

The output goes to files, so a slow or missing reader never blocks a child. Ports are never guessed:
a child binds port 0 and reports its address as one JSON line on its stdout.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from tests.support.preloaded import ForkedProcess, preloaded

_POLL_SECONDS = 0.03
_OUTPUT_TAIL_CHARS = 4000


class ChildFailedError(Exception):
    """A child ended too early or was not ready in time; the message has its output."""


class ChildProcess:
    """One child process in its own session, ended together with all its descendants.

    Use it as a context manager: ``with ChildProcess([...]) as child``. It is not bound to an event
    loop, so a fixture of any scope may hold it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        output_dir: Path | None = None,
        name: str = "child",
    ) -> None:
        self._command = list(command)
        self._env = {**os.environ, **(env or {})}
        self._cwd = cwd
        self._name = name
        self._own_dir = (
            tempfile.TemporaryDirectory(prefix=f"{name}-") if output_dir is None else None
        )
        directory = Path(self._own_dir.name) if self._own_dir else output_dir
        assert directory is not None
        self.stdout_path = directory / f"{name}.stdout"
        self.stderr_path = directory / f"{name}.stderr"
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._started_at_byte = 0
        self._forked = False

    @classmethod
    def python(
        cls,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        output_dir: Path | None = None,
        name: str = "python",
    ) -> Self:
        """Return a child of this interpreter: ``ChildProcess.python("-m", "tests.support.x")``."""
        return cls(
            [sys.executable, "-u", *arguments], env=env, cwd=cwd, output_dir=output_dir, name=name
        )

    @classmethod
    def service(cls, *arguments: str, env: Mapping[str, str], name: str) -> Self:
        """Return ``caseworker`` with arguments, forked from a process that has imported it."""
        child = cls(arguments, env=env, name=name)
        child._forked = True
        return child

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start the child, or start it again; its stdin stays open while this process lives."""
        self._end()
        with self.stdout_path.open("ab") as out, self.stderr_path.open("ab") as err:
            self._started_at_byte = out.tell()
            if not self._forked:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=err,
                    env=self._env,
                    cwd=self._cwd,
                    start_new_session=True,
                )
                return self
        self._process = preloaded().start(
            self._command,
            env=self._env,
            cwd=self._cwd or Path.cwd(),
            out=self.stdout_path,
            err=self.stderr_path,
        )
        return self

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._running().pid

    @property
    def exit_code(self) -> int | None:
        """The exit code (negative: the signal that ended it), or None while it runs."""
        return self._running().poll()

    @property
    def stdout(self) -> str:
        """The standard output of the child since its last start."""
        with self.stdout_path.open("rb") as out:
            out.seek(self._started_at_byte)
            return out.read().decode(errors="replace")

    @property
    def stderr(self) -> str:
        """The standard error of the child so far."""
        return self.stderr_path.read_text(errors="replace")

    async def json_line(self, key: str, *, timeout_seconds: float = 150) -> dict[str, Any]:
        """Wait for a line on stdout that is a JSON object with ``key``.

        Raises:
            ChildFailedError: The child ended, or the line did not arrive in time.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            ended = self.exit_code is not None  # asked first: its last words still count
            for line in self.stdout.splitlines():
                if (found := _json_object(line)) is not None and key in found:
                    return found
            await self._pause(deadline, ended, waiting_for=f"a JSON line with {key!r}")

    async def ready(self, url: str, *, timeout_seconds: float = 300) -> None:
        """Wait until ``url`` answers 200.

        Raises:
            ChildFailedError: The child ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_seconds
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            while True:
                ended = self.exit_code is not None
                try:
                    if (await client.get(url)).status_code == httpx.codes.OK:
                        return
                except httpx.HTTPError:
                    pass  # not listening yet
                await self._pause(deadline, ended, waiting_for=f"200 from {url}")

    async def wait(self, *, timeout_seconds: float = 150) -> int:
        """Wait for the child's end and return its exit code.

        Raises:
            ChildFailedError: The child did not end in time.
        """
        deadline = time.monotonic() + timeout_seconds
        while (code := self.exit_code) is None:
            await self._pause(deadline, False, waiting_for="its end")
        return code

    async def terminate(self, *, timeout_seconds: float = 150) -> int:
        """Send SIGTERM, wait, and return the exit code.

        Raises:
            ChildFailedError: The child did not end in time.
        """
        self.signal(signal.SIGTERM)
        return await self.wait(timeout_seconds=timeout_seconds)

    @property
    def worker_pid(self) -> int:
        """The process id of the one process that the child supervises."""
        (worker,) = psutil.Process(self.pid).children()
        return worker.pid

    def kill(self) -> None:
        """Send ``kill -9`` to the child alone; return once it and its own children have ended."""
        left = psutil.Process(self.pid).children() if self.exit_code is None else []
        self.signal(signal.SIGKILL)
        self._running().wait()
        while any(map(_is_alive, left)):
            time.sleep(_POLL_SECONDS)

    def freeze(self) -> None:
        """Send SIGSTOP and wait until the child and its own children have stopped.

        They keep their sockets.
        """
        for process in self._family():
            process.suspend()
            while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                time.sleep(_POLL_SECONDS)

    def thaw(self) -> None:
        """Send SIGCONT after :meth:`freeze`."""
        if self.exit_code is None:
            for process in self._family():
                process.resume()

    def _family(self) -> list[psutil.Process]:
        process = psutil.Process(self.pid)
        return [process, *process.children()]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child, if it still runs."""
        self._running().send_signal(number)

    def close(self) -> None:
        """Kill the child and its descendants at once and remove its files."""
        self._end()
        if self._own_dir is not None:
            self._own_dir.cleanup()

    def _end(self) -> None:
        if self._process is not None:
            ended = self._process.poll() is not None
            if not (ended and psutil.pid_exists(self._process.pid)):  # else it is another's number
                _kill_group(self._process.pid)
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _running(self) -> subprocess.Popen[bytes] | ForkedProcess:
        if self._process is None:
            raise ChildFailedError(f"{self._name} was never started")
        return self._process

    async def _pause(self, deadline: float, ended: bool, *, waiting_for: str) -> None:
        late = time.monotonic() > deadline
        if ended or late:
            why = f"ended with {self.exit_code}" if ended else "was too slow"
            tail = (self.stdout + self.stderr)[-_OUTPUT_TAIL_CHARS:]
            raise ChildFailedError(f"{self._name} {why} while we waited for {waiting_for}:\n{tail}")
        await asyncio.sleep(_POLL_SECONDS)


def run_caseworker(
    *arguments: str, env: Mapping[str, str], timeout_seconds: float = 600
) -> "subprocess.CompletedProcess[str]":
    """Run ``caseworker`` with arguments, forked like the services, until it ends.

    Raises:
        ChildFailedError: The command did not end in time.
    """
    with ChildProcess.service(*arguments, env=env, name="caseworker") as child:
        until = time.monotonic() + timeout_seconds
        while (code := child.exit_code) is None:
            if time.monotonic() > until:
                raise ChildFailedError(child.stdout + child.stderr)
            time.sleep(_POLL_SECONDS)
        return subprocess.CompletedProcess(arguments, code, child.stdout, child.stderr)


def _json_object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill_group(leader_pid: int) -> None:
    with suppress(ProcessLookupError):  # everything in it may have ended already
        os.killpg(leader_pid, signal.SIGKILL)


def caseworker(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_caseworker(*arguments, env=variables)
