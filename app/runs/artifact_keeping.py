"""How a run keeps the files of its tool calls.

The name of a file is derived from the key of its call, so a call that is made again, because its
worker was lost, puts its files in the place of those of the lost try. A file is stored before the
tool returns, and therefore before the result that refers to it is journaled.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.cancellation import CancellationToken
from app.engine.supervision import shielded
from app.runs.artifacts import ArtifactLimits, ArtifactStore, Kept, NewArtifact
from app.runs.errors import StoreUnavailableError
from app.runs.journal import LostRunError
from app.runs.run import Run
from app.tools.artifacts import ArtifactTooLargeError, SavedArtifact, artifact_name

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
class ArtifactKeeping:
    """Makes the keepers of runs."""

    store: ArtifactStore
    limits: ArtifactLimits

    def keeper_of(self, run: Run, token: CancellationToken) -> "RunArtifacts":
        """Return the keeper of a run that this process executes; ``token`` stops it."""
        return RunArtifacts(self, run, token)


@dataclass(frozen=True, slots=True)
class RunArtifacts:
    """Keeps the files of one execution of a run; an ArtifactKeeper of the tools."""

    keeping: ArtifactKeeping
    run: Run
    token: CancellationToken

    def sink_of(self, call_key: str) -> "CallArtifacts":
        """Return a sink for one try of a call."""
        return CallArtifacts(self, call_key)

    async def keep(self, new: NewArtifact) -> None:
        """Keep a file, once it is digested and named; wait a while for a database that is away.

        Raises:
            NoRoomForArtifactError: the run has no room for it.
            LostRunError: the run belongs to another worker now, or has ended.
            StoreUnavailableError: the database stayed away.
        """
        match await self._save(new):
            case Kept.FULL:
                raise NoRoomForArtifactError(self.keeping.limits)
            case Kept.LOST:
                lost = LostRunError()
                self.token.trip(lost)
                raise lost

    async def _save(self, new: NewArtifact) -> Kept:
        store, limits = self.keeping.store, self.keeping.limits
        for pause_seconds in PAUSES_SECONDS:
            try:
                write = store.save(self.run.key, self.run.fence, new, limits)
                return await shielded(write, grace_seconds=SAVE_GRACE_SECONDS)
            except StoreUnavailableError:
                await asyncio.sleep(pause_seconds)
        write = store.save(self.run.key, self.run.fence, new, limits)
        return await shielded(write, grace_seconds=SAVE_GRACE_SECONDS)


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
        return self._run.keeping.limits.max_bytes

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
        name = artifact_name(self._named(name_stem), number, media_type)
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

    def _named(self, name_stem: str) -> str:
        return f"{name_stem[:MAX_STEM_CHARS].rstrip('-')}-{self._call[:DIGEST_CHARS]}"


async def _sha256(data: bytes) -> str:
    """Return the digest of bytes; many of them are digested while others go on."""
    if len(data) <= SMALL_BYTES:
        return _digest(data)
    return await asyncio.to_thread(_digest, data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
