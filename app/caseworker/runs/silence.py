"""Which workers have fallen silent, as one process sees it while the database answers.

A worker beats by writing a new time into its row. What that time is does not matter here: a worker
is silent for as long as this process looks at its row, again and again, and finds the same beat.
So clocks need not agree, and an outage of the database is nobody's silence: only the time between
looks that follow one another counts, and after one that failed or took long every worker is given
the long time to come back. A database may also answer looks and take no beats, because it is
read-only or its disk is full: then the looker's own beat does not get through either. That its own
row is gone, because others took it for dead, is no beat.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

MISSED_BEATS = 3
"""After how many of them a worker counts as dead that holds no connection to the database either.

The end of a process closes its connections at once, so its death is known within these beats. A
worker that is only slow, or frozen, holds its connection and is given the long time.
"""


LOOKS_TO_RETURN = 4
"""How many looks last as long as it takes to connect again and to beat, on a slow network."""

LOOKS_PER_BEAT = 2
"""How often others look at a worker in the time between two of its beats: what is found late by a
look is found sooner by the next one."""

LONG_LOOK_SECONDS = 2.0
"""A look that takes so much longer than usual found a database that had been away."""


@dataclass(frozen=True, slots=True)
class Silent:
    """A worker that has not beaten for a while."""

    worker_id: str
    beat_at: datetime
    """Its last beat, on the database's clock."""
    surely: bool
    """True if it counts as dead whether it holds a connection or not."""


@dataclass(slots=True, kw_only=True)
class SilenceWatch:
    """Observes beats; tell it what was found, or that nothing could be."""

    interval_seconds: float
    """Between two beats."""
    stale_seconds: float
    """How long a worker may be silent that holds its connection."""
    own: str | None = None
    """The worker that this process is itself; None if it does not beat."""
    _own_beat: tuple[datetime | None, float] | None = None
    """The last beat of its own, if there was one, and when it was first seen, or looked for."""
    _silence: dict[str, tuple[datetime, float]] = field(default_factory=dict)
    """The last beat of each worker, and for how many seconds nothing came after it."""
    _looked_at: float | None = None
    _patient_until: float = 0.0
    _interrupted: bool = False

    @property
    def look_seconds(self) -> float:
        """Between two looks."""
        return self.interval_seconds / LOOKS_PER_BEAT

    def interrupted(self) -> None:
        """Remember that the database, or this process itself, was away."""
        self._interrupted = True

    def look(self, beats: Mapping[str, datetime], *, began: float, ended: float) -> list[Silent]:
        """Take the last beat of every worker, as a look found them; return who is silent."""
        took = ended - began
        unheard = self._is_unheard(beats, ended)
        late = self._interrupted or unheard or took > self.look_seconds + LONG_LOOK_SECONDS
        since = 0.0 if self._looked_at is None or unheard else ended - self._looked_at
        passed = min(self.interval_seconds, since)
        if late:
            self._patient_until = ended + self.stale_seconds
        if unheard:  # what silence there was may have been this very outage
            self._silence.clear()
        self._interrupted, self._looked_at = False, ended
        self._silence = {
            worker_id: (beat, self._so_far(worker_id, beat, passed))
            for worker_id, beat in beats.items()
        }
        quick = MISSED_BEATS * self.interval_seconds + LOOKS_TO_RETURN * took
        enough = self.stale_seconds if ended < self._patient_until else quick
        return [
            Silent(worker_id, beat, surely=seconds >= self.stale_seconds)
            for worker_id, (beat, seconds) in self._silence.items()
            if seconds >= min(enough, self.stale_seconds)
        ]

    def _is_unheard(self, beats: Mapping[str, datetime], now: float) -> bool:
        """Tell whether this process has missed a beat itself, so that others may have to."""
        if self.own is None:
            return False
        beat = beats.get(self.own)
        if self._own_beat is None or beat not in (None, self._own_beat[0]):
            self._own_beat = beat, now
            return False
        return now - self._own_beat[1] > 2 * self.interval_seconds

    def _so_far(self, worker_id: str, beat: datetime, passed: float) -> float:
        """Return for how long a worker has been silent, if its last beat is still the same."""
        seen = self._silence.get(worker_id)
        return seen[1] + passed if seen is not None and seen[0] == beat else 0.0
