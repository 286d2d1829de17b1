"""Files for tests, and a run that owns them."""

import asyncio
import hashlib
from dataclasses import dataclass

from caseworker.features.artifacts.postgres import PostgresArtifacts
from caseworker.features.artifacts.storage import ArtifactLimits, NewArtifact, SaveOutcome
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


class SavedFiles:
    """Records the files that a run saves, for tests on virtual time."""

    def __init__(self) -> None:
        self.kept: dict[str, NewArtifact] = {}
        self.answer = SaveOutcome.STORED
        """The answer to every file to be stored."""

    async def save(
        self, key: RunKey, fence: int, new: NewArtifact, limits: ArtifactLimits
    ) -> SaveOutcome:
        await asyncio.sleep(0)
        if self.answer is SaveOutcome.STORED:
            self.kept[new.slot] = new
        return self.answer

    @property
    def names(self) -> list[str]:
        return [new.name for new in self.kept.values()]


@dataclass(frozen=True)
class Files:
    """A run and the store of its files."""

    run: Run
    store: SavedFiles


async def run_with_files(
    runs: RunStore, files: PostgresArtifacts, *made: NewArtifact, run_id: str = "case-1"
) -> Run:
    """Return a running run with these files."""
    run = (await runs.accept(new_run(run_id), worker_id="w1")).run
    for new in made:
        assert await files.save(run.key, run.fence, new, LIMITS) is SaveOutcome.STORED
    return run


async def files_of_a_run(store: SavedFiles | None = None) -> Files:
    """Return a run without files that needs no database."""
    run = (await MemoryRuns().accept(new_run("case-1"), worker_id="w1")).run
    return Files(run, store or SavedFiles())
