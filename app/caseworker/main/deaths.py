"""Deaths of processes, as their parent sees them, and the runs against which they count.

Only a death whose cause is known counts: a fault signal, an exit without a request, or the kernel's
kill for lack of memory. A process that was killed by anything else, such as ``kill -9``, a
deployment or the loss of its machine, counts against no run.

The kernel sends SIGKILL when a container has too little memory. Its control group counts these
kills, so a kill is known by the rise of that count.
"""

import json
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from caseworker.platform.code_table import CodeTable, ExecutedCode
from caseworker.platform.postgres.connections import Patience, connect_options
from caseworker.runs.postgres.run_statements import COUNT_DEATH

FAULTS: Final = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
)
"""Signals that the kernel or the C library sends to a process because of an error in its code."""

OUT_OF_MEMORY: Final = "out of memory"

CONNECT_SECONDS: Final = 2
"""Timeout for connecting to the database, during which the parent restarts no process."""

RECENT_SECONDS: Final = 5.0
"""Seconds that a killed process may take to end. It first frees its memory."""


@dataclass(frozen=True, slots=True)
class Death:
    """The death of a process while it executed code of runs."""

    worker_id: str
    cause: str
    """Cause in words, such as ``SIGSEGV``, ``exit code 1`` or ``out of memory``."""
    codes: Sequence[ExecutedCode]

    @property
    def runs(self) -> list[dict[str, object]]:
        """The runs that executed code, each with the names of its functions."""
        calls = dict[tuple[str, str], list[str]]()
        for code in self.codes:
            names_of_run = calls.setdefault((code.tenant, code.run_id), [])
            if code.name not in names_of_run:
                names_of_run.append(code.name)
        return [
            {"tenant_id": tenant, "run_id": run_id, "calls": names}
            for (tenant, run_id), names in calls.items()
        ]


def death_of(table: CodeTable, exit_code: int, *, out_of_memory: bool) -> Death | None:
    """Return the death of a process if it counts, else None.

    ``exit_code`` is the code of the process, or the negative number of the signal that ended it.
    ``out_of_memory`` is whether the kernel has killed a process for lack of memory.
    """
    cause: str | None = None
    if exit_code >= 0:
        cause = None if table.is_ending else f"exit code {exit_code}"
    elif -exit_code in FAULTS:
        cause = signal.Signals(-exit_code).name
    elif -exit_code == signal.SIGKILL and out_of_memory:
        cause = OUT_OF_MEMORY
    if cause is None or (worker_id := table.worker_id) is None or not (codes := table.codes):
        return None
    return Death(worker_id, cause, codes)


def count_death(url: str, death: Death, *, max_attempts: int, patience: Patience) -> int:
    """Count a death against the runs that executed code; return how many they are.

    A run counts only if the dead worker still owns it.

    Raises:
        psycopg.Error: the database does not answer.
    """
    runs = death.runs
    counted = {
        "worker_id": death.worker_id,
        "cause": death.cause,
        "runs": json.dumps(runs),
        "alone": len(runs) == 1,
        "shared": min(1, max_attempts - 1),
        "max_attempts": max_attempts,
    }
    options = {**connect_options(url, patience), "connect_timeout": CONNECT_SECONDS}
    with psycopg.connect(**options) as connection:
        return connection.execute(COUNT_DEATH, counted).rowcount


class OutOfMemoryKills:
    """The number of processes of this control group that the kernel has killed.

    Without a control group for memory nothing is counted.
    """

    def __init__(
        self, proc: Path = Path("/proc/self"), mounts: Path = Path("/sys/fs/cgroup")
    ) -> None:
        """Find the file of this process's group below ``mounts``; ``proc``/cgroup names it."""
        self._file = next(filter(Path.is_file, _files(proc, mounts)), None)
        self._count, self._recent, self._until = self._read(), 0, 0.0

    def look(self) -> None:
        """Read the count. A rise is recent until it is attributed, at most five seconds."""
        before, self._count = self._count, self._read()
        if self._count > before:
            self._recent += self._count - before
            self._until = time.monotonic() + RECENT_SECONDS

    @property
    def recent(self) -> int:
        """Number of recent kills that are not attributed to a process."""
        return self._recent if time.monotonic() <= self._until else 0

    def attribute(self) -> None:
        """Attribute a recent kill, if there is one, to a process."""
        self._recent = max(0, self.recent - 1)

    def _read(self) -> int:
        if self._file is None:
            return 0
        try:
            pairs = [line.split() for line in self._file.read_text().splitlines()]
        except OSError:
            return self._count
        return next((int(count) for name, count in pairs if name == "oom_kill"), 0)


def _files(proc: Path, mounts: Path) -> Iterable[Path]:
    """Yield the files that may count the kills, for version 2 and version 1 of control groups.

    Inside a container, the path of the group may be one that only the host sees. The group itself
    is then mounted.
    """
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if controllers == "":
            for mount in (mounts, mounts / "unified"):
                yield from (mount / inside / "memory.events", mount / "memory.events")
        elif "memory" in controllers.split(","):
            for name in (inside, ""):
                yield mounts / "memory" / name / "memory.oom_control"
