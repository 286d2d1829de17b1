"""Files for tests, and a run that has them."""

import hashlib
from dataclasses import dataclass

from app.runs.artifacts import ArtifactStore, Kept, NewArtifact
from app.runs.ports import RunStore
from app.runs.run import Run
from tests.support.limits import artifact_limits
from tests.support.memory_artifacts import MemoryArtifacts
from tests.support.memory_runs import MemoryRuns
from tests.support.stores import new_run

LIMITS = artifact_limits(max_bytes=1_000_000, max_run_bytes=2_000_000, max_per_run=3)


def new_artifact(
    name: str, data: bytes = b"bytes", *, slot: str | None = None, media_type: str = "image/png"
) -> NewArtifact:
    """Return a file as the sink of a call hands it on."""
    return NewArtifact(
        name=name,
        slot=slot or f"slot of {name}",
        media_type=media_type,
        sha256=hashlib.sha256(data).hexdigest(),
        data=data,
    )


@dataclass(frozen=True)
class Files:
    """Runs in memory, and the files that one of them has made."""

    runs: MemoryRuns
    store: MemoryArtifacts
    run: Run


async def run_with_files(
    runs: RunStore, files: ArtifactStore, *made: NewArtifact, run_id: str = "case-1"
) -> Run:
    """Return a run that is executed and has made these files."""
    run = (await runs.accept(new_run(run_id), worker_id="w1")).run
    for new in made:
        assert await files.save(run.key, run.fence, new, LIMITS) is Kept.KEPT
    return run


async def files_of_a_run(*made: NewArtifact, run_id: str = "case-1") -> Files:
    """Return a run that is executed and has made these files."""
    runs = MemoryRuns()
    store = MemoryArtifacts(runs)
    return Files(runs, store, await run_with_files(runs, store, *made, run_id=run_id))
