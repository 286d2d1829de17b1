"""Supervise server processes on one port: restart those that die, and stop all together.

The supervisor serves nothing itself and executes no code of runs, so it outlives their crashes. It
sees how a process died, and counts the death against the runs that executed code at that moment
(:mod:`caseworker.main.deaths`). While such runs wait, it starts processes that execute one of them
each and nothing else. The next death is then certain to be that run's own.
"""

import ctypes
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Final

import psycopg
import structlog

from caseworker.main.configuration import StartupError
from caseworker.main.deaths import Death, OutOfMemoryKills, death_of
from caseworker.platform.code_table import CodeTable

log = structlog.get_logger(__name__)

ENDS: Final = (signal.SIGTERM, signal.SIGINT)

AGAIN_SECONDS: Final = (0.1, 5.0)
"""Initial and maximum back-off before a dead process is restarted, in seconds."""

STEADY_SECONDS: Final = 30.0
"""Uptime, in seconds, that resets the back-off of a process to its initial value."""

POLL_SECONDS: Final = 0.3
"""Seconds between two checks for changed files."""

ORPHAN_SECONDS: Final = 1.0
"""Seconds between a child's checks that its supervisor is alive, on other systems than Linux."""

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the tables of the children and at the count of kills."""

COUNT_SECONDS: Final = 30.0
"""Seconds for which a death is counted again while the database does not answer."""

MAX_PAUSE_SECONDS: Final = 30.0
"""Maximum back-off, in seconds, before a process looks again for suspects to execute."""

MAX_ALONE: Final = 2
"""Maximum number of processes that execute one suspect each."""

_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """The index, sockets and callbacks that the supervisor passes to a child process."""

    number: int
    """Zero-based index of the child process."""
    sockets: Sequence[socket.socket]
    """Sockets that the child serves. They are bound, but not listening yet."""
    is_first: bool
    """Whether the child announces the service's URL when it accepts requests. Only process 0 does,
    unless an earlier process 0 has already done so."""
    is_only: bool
    """Whether there is no other child process, except for one that this one replaces."""
    answers: Callable[[], None]
    """Callback that the child invokes once it accepts requests, to report that it started."""
    table: CodeTable | None = None
    """Where the child records the code that it executes; None if deaths are not counted."""
    is_alone: bool = False
    """Whether the child executes only suspects of deaths, one at a time."""


Serve = Callable[[WorkerSlot], None]
"""Function that a child process executes; it serves until a signal ends the process."""


@dataclass(slots=True, eq=False)
class _Child:
    """A running child process, or a dead one that waits for its restart."""

    process: ForkProcess
    hears: Connection
    delay_seconds: float
    served: bool
    """Whether a process with this number has ever reported that it answers."""
    began_at: float = field(default_factory=time.monotonic)
    message: str | None = None
    """The status message: empty once it answers, an error if it could not start, else None."""
    again_at: float | None = None
    """Monotonic time of its restart; None while it is alive."""
    table: CodeTable | None = None
    is_alone: bool = False

    def events(self) -> list[Any]:
        """Return the objects to wait on: the process exit and its pending status message."""
        if self.again_at is not None:
            return []
        return [self.process.sentinel, *([self.hears] if self.message is None else [])]

    def hear(self) -> None:
        """Read the child's status message."""
        with suppress(EOFError):  # the child was killed
            if self.message is None and self.hears.poll():
                self.message = self.hears.recv()
        self.served = self.served or not (self.message or self.message is None)


class ProcessSupervisor:
    """Keeps ``count`` server processes running on one address."""

    def __init__(
        self,
        address: tuple[str, int] | None,
        *,
        count: int,
        serve: Serve,
        counts: Callable[[Death], object] | None = None,
    ) -> None:
        """Reserve the address, host and port; :meth:`run` starts the processes.

        Without an address, they serve nothing. ``counts`` counts a death against runs; it raises
        psycopg.Error while the database does not answer. Without it, no deaths are counted.

        Raises:
            StartupError: the address is not free.
        """
        self._reserved = [] if address is None else reserve(*address)
        self._count = count
        self._serve = serve
        self._counts = counts
        self._children: list[_Child] = []
        self._alone: list[_Child] = []
        """The children that execute suspects."""
        self._alone_at, self._alone_pause = 0.0, 0.0
        """Monotonic time of the next start of such a child, and the back-off before it. It grows
        while they find none to execute, for example because their tenant is at its limit."""
        self._deaths: list[tuple[float, Death]] = []
        """Deaths to count, with the monotonic time until which that is tried."""
        self._kills = OutOfMemoryKills()
        self._ending = False

    def run(self, *, grace_seconds: float) -> None:
        """Run the processes until a signal; kill those still alive after the grace period.

        Raises:
            StartupError: a process failed to start, and no earlier process with its number
                had accepted requests.
        """
        gc.freeze()  # the children then share more of this memory
        with self._woken_by_signals() as woken:
            try:
                for number in range(self._count):
                    self._children.append(self._start(number, delay_seconds=AGAIN_SECONDS[0]))
                while not self._ending:
                    self._wait(woken, seconds=None if self._counts is None else LOOK_SECONDS)
                    self._kills.look()
                    for number, child in enumerate(self._children):
                        self._look_after(number, child)
                    self._look_after_suspects()
                    self._count_deaths()
            finally:
                self._end(grace_seconds)

    def _start(
        self, number: int, *, delay_seconds: float, served: bool = False, is_alone: bool = False
    ) -> _Child:
        hears, says = get_context("fork").Pipe(duplex=False)
        table = None if self._counts is None else CodeTable()
        is_first = number == 0 and not served
        process = get_context("fork").Process(
            target=self._be_process,
            args=(number, says, os.getpid()),
            kwargs={"is_first": is_first, "table": table, "is_alone": is_alone},
            name=f"caseworker {number}",
        )
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # until the child is ready
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        says.close()
        return _Child(process, hears, delay_seconds, served, table=table, is_alone=is_alone)

    def _be_process(
        self, number: int, says: Connection, supervisor: int, *, is_alone: bool, **about: Any
    ) -> None:
        """Serve, in the child process; exit with 2 if it could not start."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        addresses = [(each.family, each.getsockname()) for each in self._reserved]
        for each in self._reserved:
            each.close()
        structlog.contextvars.bind_contextvars(pid=os.getpid())
        _end_with(supervisor)
        try:
            with suppress(KeyboardInterrupt):
                bound = [] if is_alone else addresses
                sockets = [_bound(family, address) for family, address in bound]
                about |= {"is_only": self._count == 1, "is_alone": is_alone}
                self._serve(WorkerSlot(number, sockets, answers=lambda: says.send(""), **about))
        except StartupError as error:
            says.send(str(error))
            sys.exit(2)

    def _wait(self, woken: socket.socket, *, seconds: float | None = None) -> None:
        """Wait for a process exit, a status message, a due restart, a signal or ``seconds``."""
        times = [each.again_at for each in self._children if each.again_at is not None]
        events = [event for each in (*self._children, *self._alone) for event in each.events()]
        waits = [] if seconds is None else [seconds]
        waits += [max(0.0, at - time.monotonic()) for at in times]
        wait([woken, *events], min(waits, default=None))
        with suppress(BlockingIOError):
            woken.recv(4096)

    def _look_after(self, number: int, child: _Child) -> None:
        """Read the child's status; schedule or perform its restart if it has died.

        Raises:
            StartupError: the child failed to start and none with its number ever answered.
        """
        now = time.monotonic()
        if child.again_at is not None:
            if now >= child.again_at:
                self._start_again(number, child)
            return
        child.hear()
        if child.process.is_alive() or self._ending:
            return
        code, death = child.process.exitcode or 0, self._death_of(child)
        if not child.served and code > 0 and death is None:
            raise StartupError(
                child.message or f"A server process exited with code {code} during start-up."
            )
        self._bury(child, death)
        if self._count == 1 and code == 0 and child.table is not None and child.table.is_ending:
            self._ending = True  # the only process was told to end, and not through this one
            return
        initial_delay_seconds, max_delay_seconds = AGAIN_SECONDS
        steady = now - child.began_at > STEADY_SECONDS
        delay_seconds = initial_delay_seconds if steady else child.delay_seconds
        child.again_at = now + delay_seconds
        child.delay_seconds = min(2 * delay_seconds, max_delay_seconds)

    def _death_of(self, child: _Child) -> Death | None:
        """Return the death of a process if it counts against runs, else None."""
        code = child.process.exitcode or 0
        if child.table is None:
            return None
        death = death_of(child.table, code, out_of_memory=self._kills.recent > 0)
        if code == -signal.SIGKILL:
            self._kills.attribute()
        return death

    def _bury(self, child: _Child, death: Death | None) -> None:
        """Log the death of a process; remember it if it counts against runs."""
        code = child.process.exitcode or 0
        detail = child.message or ("" if death is None else death.cause)
        if code or not child.is_alone:  # one that executes suspects ends if none is left
            log.warning("process.died", pid=child.process.pid, status=code, detail=detail)
        child.hears.close()
        if death is not None:
            self._deaths.append((time.monotonic() + COUNT_SECONDS, death))

    def _look_after_suspects(self) -> None:
        """Remove the processes that have executed suspects; start one if suspects wait."""
        for child in tuple(self._alone):
            child.hear()
            if not child.process.is_alive():
                self._alone.remove(child)
                self._bury(child, self._death_of(child))
                was_needed = child.table is not None and child.table.suspects_wait
                longer = min(max(2 * self._alone_pause, LOOK_SECONDS), MAX_PAUSE_SECONDS)
                self._alone_pause = 0.0 if was_needed else longer
                self._alone_at = time.monotonic() + self._alone_pause
        tables = (each.table for each in self._children if each.again_at is None)
        wait = any(table is not None and table.suspects_wait for table in tables)
        is_due = time.monotonic() >= self._alone_at and not (self._deaths or self._ending)
        if wait and is_due and len(self._alone) < MAX_ALONE:
            number = self._count + len(self._alone)
            with suppress(OSError):  # the system has no resources; the next look tries again
                self._alone.append(self._start(number, delay_seconds=0.0, is_alone=True))

    def _count_deaths(self) -> None:
        """Count deaths against runs; while the database does not answer, try again later."""
        deaths, self._deaths = self._deaths, []
        for number, (until, death) in enumerate(deaths):
            try:
                if self._counts is not None:
                    self._counts(death)
                names = sorted({code.name for code in death.codes})
                log.warning(
                    "death.counted",
                    worker_id=death.worker_id,
                    count=len(death.runs),
                    detail=f"{death.cause} in {', '.join(names)}",
                )
            except psycopg.Error as error:
                if time.monotonic() < until:
                    self._deaths.append((until, death))
                log.warning("death.not_counted", error=type(error).__name__)
                self._deaths += deaths[number + 1 :]  # so that signals and restarts do not wait
                return

    def _start_again(self, number: int, child: _Child) -> None:
        """Restart a dead process; retry later if the system has no resources for it."""
        try:
            self._children[number] = self._start(
                number, delay_seconds=child.delay_seconds, served=child.served
            )
        except OSError as error:
            log.warning("process.not_started", error=type(error).__name__)
            child.again_at = time.monotonic() + child.delay_seconds

    def _end(self, grace_seconds: float) -> None:
        """Terminate all processes; kill those still alive after the grace period."""
        until = time.monotonic() + grace_seconds
        children = [*self._children, *self._alone]
        for each in children:
            each.process.terminate()
        for each in children:
            each.process.join(max(0.0, until - time.monotonic()))
        for each in children:
            if each.process.is_alive():
                log.error("process.killed", pid=each.process.pid)
                each.process.kill()
                each.process.join()
        for sock in self._reserved:
            sock.close()

    @contextmanager
    def _woken_by_signals(self) -> Iterator[socket.socket]:
        """Handle shutdown signals; yield a socket that becomes readable when one arrives."""
        woken, wakes = socket.socketpair()
        for each in (woken, wakes):
            each.setblocking(False)
        before = {number: signal.signal(number, self._note) for number in ENDS}
        previous = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(previous)
            for number, handler in before.items():
                signal.signal(number, handler)
            woken.close()
            wakes.close()

    def _note(self, *_: object) -> None:
        self._ending = True


class ReloadingSupervisor(ProcessSupervisor):
    """Keeps one server process running, and replaces it when files change.

    The next process starts next to the current one, which is terminated once the next one accepts
    requests. Its unfinished runs are then released, and the next one recovers them. If the next
    process cannot start, the current one continues.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        serve: Serve,
        changed: Callable[[], str],
        reported: Callable[[str], None],
        started: Callable[[str, int], None],
    ) -> None:
        """Reserve the address.

        ``changed`` is polled and returns the name of a changed file, or an empty string.
        ``reported`` is called with a line for the developer. ``started`` is called with the host
        and port once the first process accepts requests.

        Raises:
            StartupError: the address is not free.
        """
        super().__init__((host, port), count=1, serve=serve)
        self._changed = changed
        self._report = reported
        self._started = started
        self._next: _Child | None = None
        self._served = False

    def run(self, *, grace_seconds: float) -> None:
        """Run until a signal; kill processes that are still alive after the grace period."""
        with self._woken_by_signals() as woken:
            try:
                self._begin_next()
                while not self._ending:
                    self._wait(woken, seconds=POLL_SECONDS)
                    for child in tuple(self._children):
                        self._look_at(child)
                    if file := self._changed():
                        self._report(f"{file} changed.")
                        self._begin_next()
            finally:
                self._end(grace_seconds)

    def _begin_next(self) -> None:
        if self._next is not None:
            self._next.process.terminate()
        self._next = self._start(0, delay_seconds=0.0, served=self._served)
        self._children.append(self._next)

    def _look_at(self, child: _Child) -> None:
        said_before = child.message
        child.hear()
        if child is self._next and child.message == "":
            if self._served:
                self._report("Reloaded; unfinished runs continue in the new process.")
            else:
                self._started(*self._reserved[0].getsockname()[:2])
            self._next, self._served = None, True
            for each in self._children:
                if each is not child:
                    each.process.terminate()
        elif child.message and child.message != said_before:
            self._report(f"error: {child.message}")
        if child.process.is_alive():
            return
        child.hears.close()
        self._children.remove(child)
        code = child.process.exitcode
        if child is self._next:
            self._next = None
        if not (self._children or self._ending):
            if code and not child.message:
                self._report(f"The service exited with code {code}.")
            self._report("Waiting for a change.")


def reserve(host: str, port: int) -> list[socket.socket]:
    """Reserve an address, which children may share; fail if any other process uses it.

    Raises:
        StartupError: the address is in use or does not exist.
    """
    sockets = list[socket.socket]()
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            # Binding without SO_REUSEPORT fails if another program has the address, even one that
            # shares it. Between this socket and the next, another program could take the address;
            # then binding fails too, unless that program also sets SO_REUSEPORT as this user.
            with socket.socket(family, socket.SOCK_STREAM) as alone:
                _set_up(alone, family)
                alone.bind(address)
                address = alone.getsockname()
            sockets.append(_bound(family, address))
    except OSError as error:
        for each in sockets:
            each.close()
        raise StartupError(
            f"server.port: cannot bind to {host}:{port}: {error}; SERVER_PORT selects another port"
        ) from None
    return sockets


def _bound(family: int, address: Any) -> socket.socket:
    """Return a bound socket that shares its address with the service's other processes."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    _set_up(sock, family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(address)
    return sock


def _set_up(sock: socket.socket, family: int) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


def _end_with(supervisor: int) -> None:
    """Let this process die with its supervisor, so that it never holds the port on its own.

    Linux does that itself. Elsewhere a thread looks for it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == supervisor:
            return
    threading.Thread(target=_end_without, args=(supervisor,), daemon=True).start()


def _end_without(supervisor: int) -> None:
    while os.getppid() == supervisor:
        time.sleep(ORPHAN_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
