"""The files that runs make, what stores them, and how callers read them.

A file belongs to the tool call that made it: what a try of the call has kept, another try of it
replaces. It is stored by the owner of the run alone, while the run has not ended, and can be read
as long as the run can.

The name of a file is derived from the key of its call, so a call that is made again, because its
worker was lost, puts its files in the place of those of the lost try. A file is stored before the
tool returns, and therefore before the result that refers to it is journaled.
"""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import Protocol

from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.supervision import shielded
from caseworker.observability.store_errors import StoreUnavailableError
from caseworker.runs.errors import ArtifactNotFoundError, RunNotFoundError
from caseworker.runs.journal import lost_run
from caseworker.runs.run import Run, RunKey
from caseworker.tools.artifacts import ArtifactTooLargeError, SavedArtifact, artifact_name

PIECE_BYTES = 262_144
"""How much of a file is read at once: all that a slow reader holds of it."""

READ_GRACE_SECONDS = 5.0
"""How long a read may still take once its reader is gone: statements are not cut off."""


DIGEST_CHARS = 8
"""How much of a call's digest its files have in their names.

In a run of a hundred calls two share it with a chance of one in a million, which does harm only if
their files have the same stem as well: the second one is then refused.
"""

MAX_STEM_CHARS = 60 - 1 - DIGEST_CHARS
"""How much of a stem is left beside it."""

SMALL_BYTES = 262_144
"""What is digested at once; to hand it to a thread would take as long."""

SAVE_GRACE_SECONDS = 5.0
"""How long a save may still take once its tool was cancelled: its statements are not cut off."""

PAUSES_SECONDS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""How long a save waits, again and again, for a database that is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactLimits:
    """How much may be kept: bytes of one file, bytes of a run, files of a run."""

    max_bytes: int
    max_run_bytes: int
    max_per_run: int


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
    """A file that is kept, without its bytes; their digest is in hexadecimal digits."""

    name: str
    media_type: str
    size_bytes: int
    sha256: str
    created_at: datetime


class Kept(Enum):
    """What became of a file that was to be kept."""

    KEPT = auto()
    LOST = auto()
    """The run belongs to another worker, or has ended; nothing was written."""
    FULL = auto()
    """The run has no room for it; nothing was written."""


class ArtifactStore(Protocol):
    """Keeps files beside the run they belong to; every method is one transaction.

    Raises:
        StoreUnavailableError: the database did not answer; a file may be kept or not.
    """

    async def save(self, key: RunKey, fence: int, new: NewArtifact, limits: ArtifactLimits) -> Kept:
        """Keep a file of a run that is owned under this fence and has not ended; durable on return.

        Files of one run are kept one after the other, so that its limits hold. Keeping a file again
        that is there already changes nothing.
        """
        ...

    async def find(self, key: RunKey, name: str | None = None) -> Sequence[StoredArtifact] | None:
        """Return the files of a run, or the one of a name, oldest first; None without a run."""
        ...

    async def read(
        self, key: RunKey, artifact: StoredArtifact, *, offset: int, size: int
    ) -> bytes | None:
        """Return ``size`` bytes of a file, or what is left of it; None if it is gone."""
        ...


class ArtifactReading:
    """Reads the files of runs, on any replica, while a run works and afterwards.

    Raises:
        RunNotFoundError: there is no such run.
        ArtifactNotFoundError: the run has no such file, not any more, or not as it was.
    """

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    async def find(self, key: RunKey, name: str | None = None) -> Sequence[StoredArtifact]:
        """Return the files of a run, or the one of a name, oldest first."""
        found = await self._store.find(key, name)
        if found is None:
            raise RunNotFoundError(key.run_id)
        return found

    async def get(self, key: RunKey, name: str) -> StoredArtifact:
        """Return a file of a run, without its bytes."""
        found = await self.find(key, name)
        if not found:
            raise ArtifactNotFoundError(name)
        return found[0]

    async def pieces(self, key: RunKey, artifact: StoredArtifact) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file, piece by piece; each is read when it is asked for."""
        for offset in range(0, artifact.size_bytes, PIECE_BYTES):
            read = self._store.read(key, artifact, offset=offset, size=PIECE_BYTES)
            piece = await shielded(read, grace_seconds=READ_GRACE_SECONDS)
            if piece is None:
                raise ArtifactNotFoundError(artifact.name)
            yield piece


class NoRoomForArtifactError(ArtifactTooLargeError):
    """All that a run may keep is kept."""

    def __init__(self, limits: ArtifactLimits) -> None:
        super().__init__(limits.max_bytes)
        self._limits = limits

    def __str__(self) -> str:
        return (
            f"A run may keep {self._limits.max_per_run} files of {self._limits.max_run_bytes:,}"
            " bytes together, and there is no room for this one."
        )


@dataclass(frozen=True, slots=True)
class RunArtifacts:
    """Keeps the files of one execution of a run; an ArtifactKeeper of the tools."""

    store: ArtifactStore
    limits: ArtifactLimits
    run: Run
    token: CancellationToken
    """Stops the execution, tripped here where the run is lost."""

    def sink_of(self, call_key: str) -> "CallArtifacts":
        """Return a sink for one try of a call."""
        return CallArtifacts(self, call_key)

    async def keep(self, new: NewArtifact) -> None:
        """Keep a file that is digested and named; raises what :meth:`CallArtifacts.save` does."""
        match await self._save(new):
            case Kept.FULL:
                raise NoRoomForArtifactError(self.limits)
            case Kept.LOST:
                raise lost_run(self.token)

    async def _save(self, new: NewArtifact) -> Kept:
        save = partial(self.store.save, self.run.key, self.run.fence, new, self.limits)
        for pause_seconds in PAUSES_SECONDS:
            with suppress(StoreUnavailableError):
                return await shielded(save(), grace_seconds=SAVE_GRACE_SECONDS)
            await asyncio.sleep(pause_seconds)
        return await shielded(save(), grace_seconds=SAVE_GRACE_SECONDS)


class CallArtifacts:
    """Keeps the files of one try of a tool call; an ArtifactSink."""

    def __init__(self, run: RunArtifacts, call_key: str) -> None:
        """Keep files for ``run``, named after the call."""
        self._run = run
        self._call = hashlib.sha256(call_key.encode()).hexdigest()
        self._numbers = itertools.count(1)
        self._saved: dict[tuple[str, str, str], SavedArtifact] = {}

    @property
    def max_bytes(self) -> int:
        """How large a file may be."""
        return self._run.limits.max_bytes

    @property
    def saved(self) -> Sequence[SavedArtifact]:
        """The files that were kept so far, in the order in which they were saved."""
        return tuple(self._saved.values())

    async def save(self, name_stem: str, media_type: str, data: bytes) -> SavedArtifact:
        """Keep a file; the same bytes under the same stem are kept once.

        Raises:
            ArtifactTooLargeError: there are more than ``max_bytes``, or more than the run may keep.
            ValueError: the stem is no plain one, or no file of that media type is made here.
            LostRunError: the run belongs to another worker now, or has ended.
            StoreUnavailableError: the database stayed away.
        """
        if len(data) > self.max_bytes:
            raise ArtifactTooLargeError(self.max_bytes)
        number = next(self._numbers)
        stem = f"{name_stem[:MAX_STEM_CHARS].rstrip('-')}-{self._call[:DIGEST_CHARS]}"
        name = artifact_name(stem, number, media_type)
        digest = await _sha256(data)
        earlier = self._saved.get((name_stem, media_type, digest))
        if earlier is not None:
            return earlier
        slot = f"{self._call}-{number}"
        await self._run.keep(
            NewArtifact(name=name, slot=slot, media_type=media_type, sha256=digest, data=data)
        )
        saved = SavedArtifact(name=name, media_type=media_type, size_bytes=len(data), sha256=digest)
        self._saved[name_stem, media_type, digest] = saved
        return saved


async def _sha256(data: bytes) -> str:
    """Return the digest of bytes; many of them are digested while others go on."""
    if len(data) <= SMALL_BYTES:
        return hashlib.sha256(data).hexdigest()
    return (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
