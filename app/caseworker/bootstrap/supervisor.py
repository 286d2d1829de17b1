"""Several processes that serve on one port, started again when they die, ended together.

Each is a whole process of the service, forked from one that has imported it, and listens on a
socket of its own: the kernel spreads new connections over them (SO_REUSEPORT) and leaves out one
that is gone. What they share is the database, as processes of different machines do.
"""

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

import structlog

from caseworker.bootstrap.configuration import StartupError

log = structlog.get_logger(__name__)

ENDS: Final = (signal.SIGTERM, signal.SIGINT)

AGAIN_SECONDS: Final = (0.1, 5.0)
"""How long a process that died is left before it is started again: first, at most."""

STEADY_SECONDS: Final = 30.0
"""How long a process must have lived for the next wait to be the first one again."""

ORPHAN_SECONDS: Final = 1.0
"""How often a process looks whether its supervisor still lives."""


@dataclass(frozen=True, slots=True)
class Place:
    """What one of the processes has for itself."""

    number: int
    """From 0."""
    sockets: Sequence[socket.socket]
    """Bound, not listening yet."""
    is_first: bool
    """Whether it speaks for the service: number 0, as long as none has answered in its place."""
    answers: Callable[[], None]
    """To be called once it answers."""


Serve = Callable[[Place], None]
"""Serves until the process gets a signal to end."""


@dataclass(slots=True, eq=False)
class _Child:
    """A process, or the wait for the next one in its place."""

    process: ForkProcess
    hears: Connection
    pause: float
    served: bool
    """Whether one in its place has answered before."""
    began_at: float = field(default_factory=time.monotonic)
    said: str | None = None
    """Empty once it answers, or why it could not start."""
    again_at: float | None = None
    """When it is started again; None while it lives."""

    def events(self) -> list[Any]:
        """Return what can be read when there is something to look after."""
        if self.again_at is not None:
            return []
        return [self.process.sentinel, *([self.hears] if self.said is None else [])]

    def hear(self) -> None:
        """Take in what it has said."""
        with suppress(EOFError):  # it was killed
            if self.said is None and self.hears.poll():
                self.said = self.hears.recv()
        self.served = self.served or not (self.said or self.said is None)


class Supervisor:
    """Keeps so many processes on one address."""

    def __init__(self, host: str, port: int, *, count: int, serve: Serve) -> None:
        """Take the address; nothing is started before :meth:`run`.

        Raises:
            StartupError: it is not free.
        """
        self._reserved = _reserve(host, port)
        self._count = count
        self._serve = serve
        self._children: list[_Child] = []
        self._ending = False

    def run(self, *, grace_seconds: float) -> None:
        """Keep the processes until a signal ends them; after the grace they are killed.

        Raises:
            StartupError: one of them could not start, before any had answered in its place.
        """
        with self._woken_by_signals() as woken:
            try:
                for number in range(self._count):
                    self._children.append(self._start(number, pause=AGAIN_SECONDS[0]))
                while not self._ending:
                    self._wait(woken)
                    for number, child in enumerate(self._children):
                        self._look_after(number, child)
            finally:
                self._end(grace_seconds)

    def _start(self, number: int, *, pause: float, served: bool = False) -> _Child:
        hears, says = get_context("fork").Pipe(duplex=False)
        process = get_context("fork").Process(
            target=self._be_process,
            args=(number, says, number == 0 and not served, os.getpid()),
            name=f"caseworker {number}",
        )
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # until the child has its own
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        says.close()
        return _Child(process, hears, pause, served)

    def _be_process(self, number: int, says: Connection, is_first: bool, supervisor: int) -> None:
        """Serve, in the child; it ends with 2 if it could not start."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        addresses = [(each.family, each.getsockname()) for each in self._reserved]
        for each in self._reserved:
            each.close()
        structlog.contextvars.bind_contextvars(pid=os.getpid())
        threading.Thread(target=_end_without, args=(supervisor,), daemon=True).start()
        try:
            with suppress(KeyboardInterrupt):
                sockets = [_bound(family, address) for family, address in addresses]
                self._serve(Place(number, sockets, is_first, lambda: says.send("")))
        except StartupError as error:
            says.send(str(error))
            sys.exit(2)

    def _wait(self, woken: socket.socket) -> None:
        """Wait until a process ends or says something, one is to be started, or for a signal."""
        times = [each.again_at for each in self._children if each.again_at is not None]
        events = [event for each in self._children for event in each.events()]
        wait([woken, *events], max(0.0, min(times) - time.monotonic()) if times else None)
        with suppress(BlockingIOError):
            woken.recv(4096)

    def _look_after(self, number: int, child: _Child) -> None:
        """Hear what a process has said; start it again if it has ended.

        Raises:
            StartupError: it cannot start, and nothing has answered in its place yet.
        """
        now = time.monotonic()
        if child.again_at is not None:
            if now >= child.again_at:
                self._start_again(number, child)
            return
        child.hear()
        if child.process.is_alive() or self._ending:
            return
        code = child.process.exitcode or 0
        if not child.served and code > 0:
            raise StartupError(
                child.said or f"A server process exited with code {code} during start-up."
            )
        log.warning("process.died", pid=child.process.pid, status=code, detail=child.said or "")
        child.hears.close()
        first, longest = AGAIN_SECONDS
        steady = now - child.began_at > STEADY_SECONDS
        child.again_at = now + (first if steady else child.pause)
        child.pause = 2 * first if steady else min(2 * child.pause, longest)

    def _start_again(self, number: int, child: _Child) -> None:
        """Start a process in the place of one that died; later, if the system has no room now."""
        try:
            self._children[number] = self._start(number, pause=child.pause, served=child.served)
        except OSError as error:
            log.warning("process.not_started", error=type(error).__name__)
            child.again_at = time.monotonic() + child.pause

    def _end(self, grace_seconds: float) -> None:
        """Have all processes end in order; kill those that do not."""
        until = time.monotonic() + grace_seconds
        for each in self._children:
            each.process.terminate()
        for each in self._children:
            each.process.join(max(0.0, until - time.monotonic()))
        for each in self._children:
            if each.process.is_alive():
                log.error("process.killed", pid=each.process.pid)
                each.process.kill()
                each.process.join()
        for sock in self._reserved:
            sock.close()

    @contextmanager
    def _woken_by_signals(self) -> Iterator[socket.socket]:
        """Remember signals that end the service; the socket can be read when one has come."""
        woken, wakes = socket.socketpair()
        for each in (woken, wakes):
            each.setblocking(False)
        before = {number: signal.signal(number, self._note) for number in ENDS}
        told = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(told)
            for number, handler in before.items():
                signal.signal(number, handler)
            woken.close()
            wakes.close()

    def _note(self, *_: object) -> None:
        self._ending = True


def _reserve(host: str, port: int) -> list[socket.socket]:
    """Take an address for processes that will share it; nobody else may be there already.

    Raises:
        StartupError: it is not free, or there is no such address.
    """
    taken = list[socket.socket]()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            with socket.socket(family, socket.SOCK_STREAM) as alone:
                _set_up(alone, family)
                alone.bind(address)
                address = alone.getsockname()
            taken.append(_bound(family, address))
    except OSError as error:
        for each in taken:
            each.close()
        raise StartupError(f"server.port: cannot bind to {host}:{port}: {error}") from None
    return taken


def _bound(family: int, address: Any) -> socket.socket:
    """Return a socket at an address that others of this service have as well."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    _set_up(sock, family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(address)
    return sock


def _set_up(sock: socket.socket, family: int) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


def _end_without(supervisor: int) -> None:
    """End this process in order once its supervisor is gone; nobody would start it again."""
    while os.getppid() == supervisor:
        time.sleep(ORPHAN_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
