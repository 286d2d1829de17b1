"""What the steps of a run must know of it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A service of every run: the same whenever the run is executed again."""

    now: datetime
    """The aware time from which relative dates start: when the run was accepted."""
    timezone: str | None = None
    """IANA name of the zone that its caller asked for; None: the configured one."""
    seed: int | None = None
    """What its caller wants sampling to start from."""
