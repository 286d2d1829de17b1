"""Detects dead workers by their missing heartbeats, as observed by one process.

A worker writes a new time into its row with each heartbeat. The value does not matter: a worker is
silent for as long as this process keeps reading the same value, so clocks need not agree. A
database outage makes no worker silent, because only the time between consecutive successful reads
counts. After a failed or slow read, every worker gets the long timeout to return. A database may
also accept reads but no writes (read-only, or disk full). This process detects that because its own
heartbeat is not stored. If its own row is missing because another process declared it dead, that is
also treated as a failed heartbeat.

A worker without a connection may also be alive but get none, for example because the server has too
many clients. While a worker misses heartbeats, the caller therefore opens a connection before each
read. If that fails, every worker gets the long timeout as well.

See docs/internals.md, "Recovery".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

MISSED_BEATS = 3
"""Number of missed heartbeats after which a worker without a database connection counts as dead.

When a process ends, its connections close at once, so a dead worker is detected early. A slow or
frozen worker keeps its connection and gets the long timeout.
"""

LATE_BEATS = 1.25
"""Number of intervals without a heartbeat after which one is missed, and not only unseen."""

LOOKS_TO_RETURN = 4
"""Number of read durations to add to the short timeout, in case a slow database delays workers."""

LOOKS_PER_BEAT = 4
"""Number of reads per heartbeat interval while a worker is silent. Reading more often than
heartbeats are sent detects a death sooner."""

LONG_LOOK_SECONDS = 2.0
"""Seconds by which a read must outlast the read interval to count as a database outage."""


@dataclass(frozen=True, slots=True)
class Silent:
    """A worker that missed ``MISSED_BEATS`` heartbeats."""

    worker_id: str
    beat_at: datetime
    """Time of the worker's last heartbeat, on the database's clock."""
    exceeded_stale_timeout: bool
    """Whether the worker counts as dead even if it still holds a database connection."""


@dataclass(slots=True, kw_only=True)
class SilenceWatch:
    """Observes heartbeats. The caller reports each read of them, and each failed read."""

    interval_seconds: float
    """Interval between two heartbeats, and usually between two reads, in seconds."""
    stale_seconds: float
    """Timeout, in seconds, for a worker that still holds its database connection."""
    own_id: str | None = None
    """ID of this process's own worker; None if this process sends no heartbeats."""
    _own_beat: tuple[datetime | None, float] | None = None
    """The own last heartbeat (None if missing) and when it was first seen or missed."""
    _silence: dict[str, tuple[datetime, float]] = field(default_factory=dict)
    """The last heartbeat of each worker, and the seconds of silence since."""
    _looked_at: float | None = None
    _patient_until: float = 0.0
    _interrupted: bool = False

    @property
    def look_seconds(self) -> float:
        """Seconds until the next read: fewer while another worker misses heartbeats."""
        return self.interval_seconds / (LOOKS_PER_BEAT if self.suspects else 1)

    @property
    def suspects(self) -> bool:
        """Whether another worker has missed a heartbeat, so it may soon count as dead."""
        return any(
            seconds > LATE_BEATS * self.interval_seconds
            for worker_id, (_, seconds) in self._silence.items()
            if worker_id != self.own_id
        )

    def interrupted(self) -> None:
        """Record that the database, or this process itself, was unavailable for a while."""
        self._interrupted = True

    def look(self, beats: Mapping[str, datetime], *, began: float, ended: float) -> list[Silent]:
        """Process one read of all workers' last heartbeats; return the silent workers.

        ``began`` and ``ended`` are the times at which the read started and ended.
        """
        took = ended - began
        unheard = self._is_unheard(beats, ended)
        late = self._interrupted or unheard or took > self.interval_seconds + LONG_LOOK_SECONDS
        since = 0.0 if self._looked_at is None or unheard else ended - self._looked_at
        passed = min(self.interval_seconds, since)
        if late:
            self._patient_until = ended + self.stale_seconds
        if unheard:  # earlier silence may have been part of this outage
            self._silence.clear()
        self._interrupted, self._looked_at = False, ended
        self._silence = {
            worker_id: (beat, self._so_far(worker_id, beat, passed))
            for worker_id, beat in beats.items()
        }
        quick = MISSED_BEATS * self.interval_seconds + LOOKS_TO_RETURN * took
        silent_seconds = self.stale_seconds if ended < self._patient_until else quick
        return [
            Silent(worker_id, beat, exceeded_stale_timeout=seconds >= self.stale_seconds)
            for worker_id, (beat, seconds) in self._silence.items()
            if seconds >= min(silent_seconds, self.stale_seconds)
        ]

    def _is_unheard(self, beats: Mapping[str, datetime], now: float) -> bool:
        """Return whether this process's own heartbeat is overdue: the database is suspect."""
        if self.own_id is None:
            return False
        beat = beats.get(self.own_id)
        if self._own_beat is None or beat not in (None, self._own_beat[0]):
            self._own_beat = beat, now
            return False
        return now - self._own_beat[1] > 2 * self.interval_seconds

    def _so_far(self, worker_id: str, beat: datetime, passed: float) -> float:
        """Return the seconds of silence of a worker, or 0 after a new heartbeat."""
        seen = self._silence.get(worker_id)
        return seen[1] + passed if seen is not None and seen[0] == beat else 0.0
