"""The parent's end of the drawing process: started when needed, killed when in the way.

Why a process: drawing holds the interpreter for 60 to 150 ms at a time, its libraries take 65 MB
and up to a second to import, and a picture that hangs or grows could not be ended in a thread. A
process for each picture would cost half a second each.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

_PASSED_ON = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
"""What the process sees of our environment: no keys, no locale, no settings of a library."""
WORKER = "app.tools.plotting.worker"


class ProcessEndedError(Exception):
    """The drawing process ended, or was ended, before it answered."""


class Ticket:
    """One ask, so that giving it up ends this one and no other."""

    def __init__(self) -> None:
        self.given_up = False


@dataclass(slots=True)
class _Held:
    """What must not outlive the object that holds it."""

    child: subprocess.Popen[bytes] | None = None
    folder: str | None = None
    """Written by the library (which fonts there are); the home of the child."""


class DrawingProcess:
    """One child process, asked from one thread; any other may give an ask up."""

    def __init__(self, *, idle_seconds: float) -> None:
        """Prepare; the child ends when nothing was asked of it for ``idle_seconds``."""
        self._idle_seconds = idle_seconds
        self._held = _Held()
        self._guard = threading.Lock()
        self._serving: Ticket | None = None
        self._end = weakref.finalize(self, _clear, self._held)

    @property
    def pid(self) -> int | None:
        """The process id of the child, if one runs."""
        child = self._held.child
        return child.pid if child is not None and child.poll() is None else None

    def ask(self, request: Mapping[str, Any], ticket: Ticket) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for its answer: a header and bytes. Blocks.

        Raises:
            ProcessEndedError: the child was killed or broke, or the ask was given up.
        """
        self._serve(ticket)
        try:
            if self.pid is not None:
                # It may end of itself, being idle, just when it is asked: then once more.
                with suppress(ProcessEndedError):
                    return self._asked(request)
            return self._asked(request)
        finally:
            self._serve(None)

    def give_up(self, ticket: Ticket) -> None:
        """Kill the child if it works on this ask; an ask that has not begun never begins."""
        with self._guard:
            ticket.given_up = True
            child = self._held.child
            if self._serving is ticket and child is not None:
                child.kill()

    def close(self) -> None:
        """End the child and remove its folder; no further asks are possible."""
        with self._guard:
            self._end()

    def _serve(self, ticket: Ticket | None) -> None:
        with self._guard:
            self._serving = ticket

    def _asked(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        child = self._running()
        try:
            return _exchange(child, request)
        except ProcessEndedError:
            _end(child)
            raise

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the child, started anew if there is none; not while an ask is being given up."""
        with self._guard:
            if not self._end.alive or (self._serving is not None and self._serving.given_up):
                raise ProcessEndedError("nobody waits for this picture any more")
            held = self._held
            if held.child is not None and held.child.poll() is None:
                return held.child
            if held.child is not None:
                _end(held.child)
            if held.folder is None:
                held.folder = tempfile.mkdtemp(prefix="caseworker-plots-")
            held.child = _started(held.folder, self._idle_seconds)
            return held.child


def _started(folder: str, idle_seconds: float) -> subprocess.Popen[bytes]:
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return subprocess.Popen(  # noqa: S603 - no shell, and no word comes from a caller
        (sys.executable, "-P", "-m", WORKER, str(idle_seconds)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={
            **passed_on,
            "HOME": folder,
            "LC_ALL": "C",
            "MPLBACKEND": "agg",
            "MPLCONFIGDIR": folder,
            "MPL_IGNORE_SYSTEM_FONTS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": str(_code()),
        },
    )


def _code() -> Path:
    """Return the folder that the package ``app`` of this very process lies in."""
    spec = find_spec("app")
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places or ()))).parent


def _exchange(
    child: subprocess.Popen[bytes], request: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    asked, replies = _pipes(child)
    try:
        asked.write(json.dumps(request).encode() + b"\n")
        asked.flush()
        header = json.loads(replies.readline())
        size = int(header.get("size_bytes", 0))
        data = replies.read(size) if size else b""
    except (OSError, ValueError) as error:
        raise ProcessEndedError("the drawing process ended before it answered") from error
    if len(data) != size:
        raise ProcessEndedError("the drawing process ended while it answered")
    return header, data


def _pipes(child: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if child.stdin is None or child.stdout is None:
        raise ProcessEndedError("the drawing process has no pipes")
    return child.stdin, child.stdout


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a child, wait for it and close its pipes; ending it twice does nothing."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was still buffered for a child that is gone
                pipe.close()


def _clear(held: _Held) -> None:
    child, held.child = held.child, None
    if child is not None:
        _end(child)
    if held.folder is not None:
        shutil.rmtree(held.folder, ignore_errors=True)
