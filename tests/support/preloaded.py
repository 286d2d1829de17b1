"""Starts service processes in a tenth of a second by forking a process that has imported it.

An import takes seconds, and the acceptance tests start some hundred processes. A fork is an
ordinary process with its own PID, session, environment and output, so tests can kill and freeze it.
The parent reads requests from stdin and answers on stdout, as JSON lines. It and all forks end when
its stdin closes.
"""

import atexit
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

_POLL_SECONDS = 0.01


class ForkedProcess:
    """One fork, with the part of the interface of ``subprocess.Popen`` that tests need."""

    stdin = None

    def __init__(self, parent: "Preloaded", pid: int) -> None:
        self.pid = pid
        self.code: int | None = None
        self._parent = parent

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal), or None while it runs."""
        self._parent.read(seconds=0)
        return self.code

    def wait(self) -> int:
        """Wait for its end and return the exit code."""
        while (code := self.poll()) is None:
            time.sleep(_POLL_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Preloaded:
    """The process with the imported service, as the tests use it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.support.preloaded"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._lines = b""
        self._began: list[ForkedProcess] = []
        self._running: dict[int, ForkedProcess] = {}
        """Forks by PID, which the system may reuse after their end."""

    def start(
        self, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, out: Path, err: Path
    ) -> ForkedProcess:
        """Fork a process that runs ``caseworker`` with arguments."""
        request = {"argv": list(arguments), "env": dict(env), "cwd": str(cwd)}
        line = json.dumps({**request, "out": str(out), "err": str(err)})
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        while not self._began:
            self.read(seconds=60)
        return self._began.pop()

    def close(self) -> None:
        """End the process and every fork."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def read(self, *, seconds: float) -> None:
        """Read the messages of the parent process; wait at most ``seconds`` for the first one."""
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        while select.select([source], [], [], seconds)[0]:
            piece = os.read(source, 65536)
            if not piece:
                raise RuntimeError("The preloaded process has ended.")
            *lines, self._lines = (self._lines + piece).split(b"\n")
            for said in map(json.loads, lines):
                if "code" in said:
                    self._running.pop(said["ended"]).code = said["code"]
                else:
                    self._began.append(ForkedProcess(self, said["began"]))
                    self._running[said["began"]] = self._began[-1]
            seconds = 0


@cache
def preloaded() -> Preloaded:
    """Return the preloaded process of this process, started on first use."""
    started = Preloaded()
    atexit.register(started.close)
    return started


def _fork(request: Mapping[str, Any]) -> int:
    """Fork; return the PID, or 0 in the child, which becomes the requested process."""
    apart, ready = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ready)
        os.read(apart, 1)
        os.close(apart)
        _say({"began": pid})
        return pid
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for target, path, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], flags),
        (2, request["err"], flags),
    ):
        opened = os.open(path, mode)
        os.dup2(opened, target)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - what stood in the buffer was the parent's
    sys.argv = ["caseworker", *request["argv"]]
    os.close(apart)
    os.close(ready)
    return 0


def _leave(main: Callable[[], object]) -> NoReturn:
    """Run the command and exit without freeing memory."""
    code: object = None
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
    atexit._run_exitfuncs()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _say(what: Mapping[str, int]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _reap(forks: set[int]) -> None:
    while forks and (ended := os.waitpid(-1, os.WNOHANG))[0]:
        forks.discard(ended[0])
        code = os.waitstatus_to_exitcode(ended[1])
        _say({"ended": ended[0], "code": code})


def _is_the_fork() -> bool:
    """Serve requests until stdin closes; return True in a fork, which then runs the service."""
    forks: set[int] = set()
    waiting = b""
    while True:
        _reap(forks)
        if not select.select([0], [], [], _POLL_SECONDS if forks else None)[0]:
            continue
        piece = os.read(0, 65536)
        if not piece:
            break
        *lines, waiting = (waiting + piece).split(b"\n")
        for line in lines:
            if (pid := _fork(json.loads(line))) == 0:
                return True
            forks.add(pid)
    for pid in forks:
        os.killpg(pid, signal.SIGKILL)
    return False


if __name__ == "__main__":
    from caseworker.cli import COMMANDS, main
    from caseworker.models.wires.openai import openai_provider
    from caseworker_cases.tools.dates.reader import DateReader

    modules = {module for panel in COMMANDS.values() for module, _ in panel.values()} - {None}
    for name in ("main.server", "main.commands", *(f"cli.{module}" for module in modules)):
        import_module(f"caseworker.{name}")
    for tool in entry_points(group="caseworker.tools"):
        tool.load()
    DateReader().read("1 January 2000", UTC)  # fills caches that a fork keeps
    openai_provider()  # reads the certificates
    gc.collect()
    gc.freeze()  # forks share these pages until one of them writes
    if _is_the_fork():
        _leave(main)
