"""Files for tests, and a run that owns them."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from caseworker.features.artifacts.keeping import (
    ArtifactLimits,
    ArtifactStore,
    Kept,
    NewArtifact,
    StoredArtifact,
)
from caseworker.runs.ports import RunStore
from caseworker.runs.run import Run, RunKey
from tests.support.limits import artifact_limits
from tests.support.memory_runs import MemoryRuns
from tests.support.stores import new_run

LIMITS = artifact_limits(max_bytes=1_000_000, max_run_bytes=2_000_000, max_per_run=3)


def new_artifact(
    name: str, data: bytes = b"bytes", *, slot: str | None = None, media_type: str = "image/png"
) -> NewArtifact:
    """Return a file as the sink of a call passes it on."""
    return NewArtifact(
        name=name,
        slot=slot or f"slot of {name}",
        media_type=media_type,
        sha256=hashlib.sha256(data).hexdigest(),
        data=data,
    )


class StubArtifacts:
    """An artifact store with configurable answers, for tests of its callers.

    The contract of the real store is tested on Postgres.
    """

    def __init__(self) -> None:
        self.kept: dict[str, tuple[StoredArtifact, bytes]] = {}
        self.answer = Kept.KEPT
        """The answer to every file to be stored."""

    async def save(self, key: RunKey, fence: int, new: NewArtifact, limits: ArtifactLimits) -> Kept:
        await asyncio.sleep(0)
        if self.answer is Kept.KEPT:
            stored = StoredArtifact(
                name=new.name,
                media_type=new.media_type,
                size_bytes=len(new.data),
                sha256=new.sha256,
                created_at=datetime.now(UTC),
            )
            self.kept[new.slot] = stored, new.data
        return self.answer

    async def find(self, key: RunKey, name: str | None = None) -> Sequence[StoredArtifact] | None:
        await asyncio.sleep(0)
        found = [stored for stored, _ in self.kept.values() if name in (None, stored.name)]
        return found if key == RunKey("default", "case-1") else None

    async def read(
        self, key: RunKey, artifact: StoredArtifact, *, offset: int, size: int
    ) -> bytes | None:
        await asyncio.sleep(0)
        [data] = [data for stored, data in self.kept.values() if stored == artifact]
        return data[offset : offset + size]


@dataclass(frozen=True)
class Files:
    """A run, and the store of its files."""

    run: Run
    store: StubArtifacts


async def run_with_files(
    runs: RunStore, files: ArtifactStore, *made: NewArtifact, run_id: str = "case-1"
) -> Run:
    """Return a running run with these files."""
    run = (await runs.accept(new_run(run_id), worker_id="w1")).run
    for new in made:
        assert await files.save(run.key, run.fence, new, LIMITS) is Kept.KEPT
    return run


async def files_of_a_run(*made: NewArtifact, store: StubArtifacts | None = None) -> Files:
    """Return a run with these files that is executed without a database."""
    store = store or StubArtifacts()
    return Files(await run_with_files(MemoryRuns(), store, *made), store)
