"""Stores artifacts, the files that runs create.

A file belongs to the tool call that created it. A later attempt at the call replaces the files of
an earlier attempt. Only the owner of the run can store files, and only until the run ends. Files
can be read for as long as the run can.

The name of a file is derived from the key of the call. If a call is repeated because its worker was
lost, its files therefore replace those of the lost attempt. A file is stored before the tool
returns, and thus before the journal holds the result that refers to it.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import Any

from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.supervision import shielded
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.journal.journal import lost_run
from caseworker.runs.run import Run, RunKey
from caseworker.tools.artifacts import ArtifactTooLargeError, SavedArtifact, artifact_name

DIGEST_CHARS = 8
"""Number of hexadecimal digits of the call's hash in the names of its files.

If a run makes a hundred calls, the probability that two of them share these digits is one in a
million. It matters only if their files also have the same stem: the second file is then refused.
"""

MAX_STEM_CHARS = 60 - 1 - DIGEST_CHARS
"""Maximum length of the part of a file name that the tool chooses."""

SMALL_BYTES = 262_144
"""Maximum number of bytes that are hashed on the event loop; larger files are hashed in a
thread."""

SAVE_GRACE_SECONDS = 5.0
"""Seconds to wait for an unfinished save after its tool was cancelled; SQL statements are not
interrupted."""

PAUSES_SECONDS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses in seconds between attempts to save a file while the database is unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactLimits:
    """Limits on the size of each file, and on the total size and number of a run's files."""

    max_bytes: int
    max_run_bytes: int
    max_per_run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewArtifact:
    """A file to store."""

    name: str
    slot: str
    """Key that identifies the file within the run. A later attempt at the same call replaces the
    file with the same slot."""
    media_type: str
    sha256: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifact:
    """Metadata of a stored file; ``sha256`` is in hexadecimal digits."""

    name: str
    media_type: str
    size_bytes: int
    sha256: str
    created_at: datetime


class SaveOutcome(Enum):
    """The outcome of an attempt to store a file."""

    STORED = auto()
    LOST = auto()
    """Another worker owns the run, or the run has ended; nothing was written."""
    FULL = auto()
    """A limit of the run would be exceeded; nothing was written."""


class StorageFullError(ArtifactTooLargeError):
    """The file would exceed the run's limit on the number or total size of its files."""

    def __init__(self, limits: ArtifactLimits) -> None:
        super().__init__(limits.max_bytes)
        self._limits = limits

    def __str__(self) -> str:
        return (
            f"A run may keep {self._limits.max_per_run} files of {self._limits.max_run_bytes:,}"
            " bytes together; this one exceeds the limit."
        )


@dataclass(frozen=True, slots=True)
class RunArtifacts:
    """Stores the files that one execution of a run creates; implements ArtifactKeeper."""

    store: Callable[[RunKey, int, NewArtifact, ArtifactLimits], Coroutine[Any, Any, SaveOutcome]]
    """Function that stores a file, such as :meth:`PostgresArtifacts.save`."""
    limits: ArtifactLimits
    run: Run
    token: CancellationToken
    """Cancellation token of the execution. It is set when a save finds that another worker owns the
    run, or that the run has ended."""

    def sink_of(self, call_key: str) -> "CallArtifacts":
        """Return an object that stores the files of one attempt at a call."""
        return CallArtifacts(self, call_key)

    async def keep(self, new: NewArtifact) -> None:
        """Store a file.

        Raises:
            StorageFullError: the run has no space left for it.
            Stop: the run is no longer executed by this process.
        """
        match await self._save(new):
            case SaveOutcome.FULL:
                raise StorageFullError(self.limits)
            case SaveOutcome.LOST:
                raise lost_run(self.token)

    async def _save(self, new: NewArtifact) -> SaveOutcome:
        save = partial(self.store, self.run.key, self.run.fence, new, self.limits)
        for pause_seconds in PAUSES_SECONDS:
            with suppress(StoreUnavailableError):
                return await shielded(save(), grace_seconds=SAVE_GRACE_SECONDS)
            await asyncio.sleep(pause_seconds)
        return await shielded(save(), grace_seconds=SAVE_GRACE_SECONDS)


class CallArtifacts:
    """Stores the files of one attempt at a tool call; implements ArtifactSink."""

    def __init__(self, run: RunArtifacts, call_key: str) -> None:
        """Store files for ``run``, with names derived from ``call_key``."""
        self._run = run
        self._call = hashlib.sha256(call_key.encode()).hexdigest()
        self._numbers = itertools.count(1)
        self._saved: dict[tuple[str, str, str], SavedArtifact] = {}

    @property
    def max_bytes(self) -> int:
        """Maximum size of a file in bytes."""
        return self._run.limits.max_bytes

    @property
    def saved(self) -> Sequence[SavedArtifact]:
        """Files stored by this attempt so far, in order."""
        return tuple(self._saved.values())

    async def save(self, name_stem: str, media_type: str, data: bytes) -> SavedArtifact:
        """Store a file, unless one with the same bytes, stem and media type is already stored.

        Raises:
            ArtifactTooLargeError: the file exceeds ``max_bytes`` or the limits of the run.
            ValueError: the stem or the media type is not allowed.
            LostRunError: another worker owns the run, or it has ended.
            StoreUnavailableError: the database is still unavailable after all retries.
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
    """Return the SHA-256 in hex; large data is hashed in a thread so the event loop stays free."""
    if len(data) <= SMALL_BYTES:
        return hashlib.sha256(data).hexdigest()
    return (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
