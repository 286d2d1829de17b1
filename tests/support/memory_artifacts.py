"""Files in memory: the artifact store as a database keeps its promises."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from app.runs.artifacts import ArtifactLimits, Kept, NewArtifact, StoredArtifact
from app.runs.run import RunKey
from tests.support.memory_runs import OWNED, MemoryRuns


@dataclass(frozen=True)
class _File:
    slot: str
    stored: StoredArtifact
    data: bytes


class MemoryArtifacts:
    """Implements the artifact store beside runs in memory; see ``MemoryRuns`` for its moments."""

    def __init__(self, runs: MemoryRuns) -> None:
        self._runs = runs
        self._files: dict[tuple[RunKey, str], _File] = runs.files

    async def save(self, key: RunKey, fence: int, new: NewArtifact, limits: ArtifactLimits) -> Kept:
        async with _transaction():
            row = self._runs.rows.get(key)
            run = None if row is None else row.run
            if run is None or run.fence != fence or run.status not in OWNED:
                return Kept.LOST
            others = [file for file in self._of(key) if file.slot != new.slot]
            same = self._files.get((key, new.slot))
            if same and (same.stored.name, same.stored.sha256) == (new.name, new.sha256):
                return Kept.KEPT
            size_bytes = sum(file.stored.size_bytes for file in others) + len(new.data)
            if len(others) >= limits.max_per_run or size_bytes > limits.max_run_bytes:
                return Kept.FULL
            assert new.name not in {file.stored.name for file in others}
            self._files[key, new.slot] = _file(new)
            return Kept.KEPT

    async def find(self, key: RunKey, name: str | None = None) -> Sequence[StoredArtifact] | None:
        async with _transaction():
            row = self._runs.rows.get(key)
            if row is None or row.run is None:
                return None
            found = [file.stored for file in self._of(key)]
            wanted = [stored for stored in found if name is None or stored.name == name]
            return sorted(wanted, key=lambda stored: (stored.created_at, stored.name))

    async def read(
        self, key: RunKey, artifact: StoredArtifact, *, offset: int, size: int
    ) -> bytes | None:
        async with _transaction():
            wanted = (artifact.name, artifact.sha256)
            for file in self._of(key):
                if (file.stored.name, file.stored.sha256) == wanted:
                    return file.data[offset : offset + size]
            return None

    def _of(self, key: RunKey) -> Iterator[_File]:
        return (file for (of, _), file in self._files.items() if of == key)


def _file(new: NewArtifact) -> _File:
    stored = StoredArtifact(
        name=new.name,
        media_type=new.media_type,
        size_bytes=len(new.data),
        sha256=new.sha256,
        created_at=datetime.now(UTC),
    )
    return _File(new.slot, stored, new.data)


@asynccontextmanager
async def _transaction() -> AsyncIterator[None]:
    await asyncio.sleep(0)
    try:
        yield
    finally:
        await asyncio.sleep(0)
