"""The files that runs make, what stores them, and how callers read them.

A file belongs to the tool call that made it: what a try of the call has kept, another try of it
replaces. It is stored by the owner of the run alone, while the run has not ended, and can be read
as long as the run can.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Protocol

from app.engine.supervision import shielded
from app.runs.errors import ArtifactNotFoundError, RunNotFoundError
from app.runs.run import RunKey

PIECE_BYTES = 262_144
"""How much of a file is read at once: all that a slow reader holds of it."""

READ_GRACE_SECONDS = 5.0
"""How long a read may still take once its reader is gone: statements are not cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactLimits:
    """How much may be kept."""

    max_bytes: int
    """Of one file."""
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


class ArtifactReading:
    """Reads the files of runs, on any replica, while a run works and afterwards."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    async def find(self, key: RunKey) -> Sequence[StoredArtifact]:
        """Return the files of a run, oldest first.

        Raises:
            RunNotFoundError: there is no such run.
        """
        found = await self._store.find(key)
        if found is None:
            raise RunNotFoundError(key.run_id)
        return found

    async def get(self, key: RunKey, name: str) -> StoredArtifact:
        """Return a file of a run, without its bytes.

        Raises:
            RunNotFoundError: there is no such run.
            ArtifactNotFoundError: the run has no such file.
        """
        found = await self._store.find(key, name)
        if found is None:
            raise RunNotFoundError(key.run_id)
        if not found:
            raise ArtifactNotFoundError(name)
        return found[0]

    async def pieces(self, key: RunKey, artifact: StoredArtifact) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file, piece by piece; each is read when it is asked for.

        Raises:
            ArtifactNotFoundError: it is not there any more, or no longer what it was.
        """
        for offset in range(0, artifact.size_bytes, PIECE_BYTES):
            read = self._store.read(key, artifact, offset=offset, size=PIECE_BYTES)
            piece = await shielded(read, grace_seconds=READ_GRACE_SECONDS)
            if piece is None:
                raise ArtifactNotFoundError(artifact.name)
            yield piece
