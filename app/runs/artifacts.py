"""The files that runs make, and what keeps them (seed 002, 9.4 and 23.3).

A file belongs to the tool call that made it: what a try of the call has kept, another try of it
replaces. It is stored by the owner of the run alone, while the run has not ended, and can be read
as long as the run can.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Protocol

from app.runs.run import RunKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactLimits:
    """How much may be kept."""

    max_bytes: int
    """Of one file (seed 002, 23.3)."""
    max_run_bytes: int
    """Of all files of a run."""
    max_per_run: int
    """Files of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewArtifact:
    """A file that is about to be kept."""

    name: str
    slot: str
    """Which file of which call it is: whatever a lost try of the call kept there is replaced."""
    media_type: str
    sha256: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifact:
    """A file that is kept, without its bytes."""

    name: str
    media_type: str
    size_bytes: int
    sha256: str
    """Of the bytes, in hexadecimal digits."""
    created_at: datetime


class Kept(Enum):
    """What became of a file that was to be kept."""

    KEPT = auto()
    LOST = auto()
    """The run belongs to another worker, or has ended; nothing was written."""
    FULL = auto()
    """The run has no room for it; nothing was written."""


class ArtifactStore(Protocol):
    """Keeps files beside the run they belong to. Every method is one transaction."""

    async def save(self, key: RunKey, fence: int, new: NewArtifact, limits: ArtifactLimits) -> Kept:
        """Keep a file of a run that is owned under this fence and has not ended; durable on return.

        Files of one run are kept one after the other, so that its limits hold. Keeping a file again
        that is there already changes nothing.

        Raises:
            StoreUnavailableError: the database did not answer; the file may be kept or not.
        """
        ...

    async def find(self, key: RunKey, name: str | None = None) -> Sequence[StoredArtifact] | None:
        """Return the files of a run, or the one of a name, oldest first; None if there is no run.

        Raises:
            StoreUnavailableError: the database did not answer.
        """
        ...

    async def read(
        self, key: RunKey, artifact: StoredArtifact, *, offset: int, size: int
    ) -> bytes | None:
        """Return ``size`` bytes of a file, or what is left of it; None if it is not there any more.

        Raises:
            StoreUnavailableError: the database did not answer.
        """
        ...
