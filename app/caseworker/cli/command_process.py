"""The process of a command: its signals, its end, and the heartbeats while it runs."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from caseworker.cli.output import fail

HEARTBEAT_SECONDS: Final = 5.0
GRACE_SECONDS: Final = 10.0
"""Seconds between SIGTERM and SIGKILL, if the service has stopped the run."""
_TYPED: Final = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the command as well."""
_FORWARDED: Final = (*_TYPED, signal.SIGTERM, signal.SIGHUP)


class Keeper(Protocol):
    """Keeps the run of a command open."""

    has_ended: bool
    """Whether the run has ended, so that the command must end."""

    def beat(self) -> None:
        """Send a heartbeat."""
        ...


def run_command(
    command: list[str], variables: Mapping[str, str], keeper: Keeper | None = None
) -> tuple[int, bool]:
    """Run a command until it exits; return its code, and whether a signal was to end it.

    The command stays in this process group, so the terminal treats both as one job.
    """
    import psutil

    with _signal_numbers() as numbers:
        try:
            process = subprocess.Popen(command, env={**os.environ, **variables})  # noqa: S603
        except OSError as error:
            fail(f"{command[0]}: {error.strerror}")
        running, exited, is_interrupted = psutil.Process(process.pid), threading.Event(), False
        watched = _end_with_this_process(running)
        thread = threading.Thread(target=_keep, args=(keeper, running, exited))
        if keeper is not None:
            thread.start()
        while (code := process.poll()) is None:
            for number in os.read(numbers, 64):
                is_interrupted |= number in _FORWARDED
                if number in _TYPED and _is_foreground():
                    continue
                if number in _FORWARDED:
                    process.send_signal(number)
        os.close(watched)
        exited.set()
        if keeper is not None:
            thread.join()
    return 128 - code if code < 0 else code, is_interrupted


@contextmanager
def _signal_numbers() -> Iterator[int]:
    """Return a file descriptor on which the numbers of signals arrive, a byte for each.

    They are SIGCHLD and the signals to forward, unless they are ignored. A handler in Python would
    wait for the end of a blocking call that begins just after its signal; a read returns.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    before = {
        number: signal.signal(number, lambda *_: None)
        for number in (*_FORWARDED, signal.SIGCHLD)
        if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)


def _end_with_this_process(command: Any) -> int:
    """Fork a process that ends the command and its descendants when this process ends.

    This process may be killed, and could then not end them itself. Returns a file descriptor;
    closing it ends the forked process. It has its own session, so that a signal to the process
    group of the command does not reach it. Only a process with one thread may call this.
    """
    reading, writing = os.pipe()
    forked = os.fork()
    if forked:
        os.close(reading)
        os.waitpid(forked, 0)
        return writing
    try:
        if os.fork():  # the second process is not a child of this one, which reaps only the command
            os._exit(0)
        os.setsid()
        os.dup2(reading, 0)
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.read(0, 1)
        _kill(command, threading.Event())
    finally:
        os._exit(0)


def _keep(keeper: Keeper, command: Any, exited: threading.Event) -> None:
    """Send heartbeats until the command exits; end it after a stop or in a superseded attempt."""
    keeper.beat()
    while not keeper.has_ended:
        if exited.wait(HEARTBEAT_SECONDS):
            return
        keeper.beat()
    if not exited.is_set():
        _kill(command, exited)


def _kill(top: Any, exited: threading.Event) -> None:
    """Terminate a process and its descendants; kill those that remain after a grace period.

    ``top`` is a ``psutil.Process``.
    """
    import psutil

    with suppress(psutil.Error):
        processes = [top, *top.children(recursive=True)]
        for send in (psutil.Process.terminate, psutil.Process.kill):
            for each in processes:
                with suppress(psutil.Error):
                    send(each)
            exited.wait(GRACE_SECONDS)


def _is_foreground() -> bool:
    """Return whether a terminal sends its signals to this process group."""
    try:
        with open(os.ctermid()) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
