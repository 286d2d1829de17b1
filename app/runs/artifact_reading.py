"""What callers can ask of the files of runs, on any replica, while a run works and afterwards."""

from collections.abc import AsyncGenerator, Sequence

from app.engine.supervision import shielded
from app.runs.artifacts import ArtifactStore, StoredArtifact
from app.runs.errors import ArtifactNotFoundError, RunNotFoundError
from app.runs.run import RunKey

PIECE_BYTES = 262_144
"""How much of a file is read at once: all that a slow reader holds of it."""

READ_GRACE_SECONDS = 5.0
"""How long a read may still take once its reader is gone: statements are not cut off."""


class ArtifactReading:
    """Shows the files of runs."""

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
