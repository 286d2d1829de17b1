"""Contract of the artifact store."""

import asyncio
import hashlib
from dataclasses import dataclass, replace

import pytest

from caseworker.features.artifacts.postgres import PostgresArtifacts
from caseworker.features.artifacts.storage import NewArtifact, SaveOutcome, StoredArtifact
from caseworker.runs.errors import ArtifactNotFoundError, RunNotFoundError
from caseworker.runs.ports import JournalStore, JournalWrite, RunStore
from caseworker.runs.run import CancelRequest, Run, RunKey, RunSource, RunStatus
from tests.support.api import Api
from tests.support.artifacts import LIMITS, new_artifact
from tests.support.stores import end_of, graph_with_calls, new_run, records_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = RunKey("default", "case-1")
BIG = bytes(range(256)) * 3000


@dataclass(frozen=True)
class Stores:
    """The artifact store and the run store."""

    files: PostgresArtifacts
    runs: RunStore
    journal: JournalStore

    async def claimed(self, run_id: str = "case-1", *, tenant: str = "default") -> Run:
        return (await self.runs.accept(new_run(run_id, tenant=tenant), worker_id="w1")).run

    async def lost(self, run: Run) -> Run:
        """Release the run, let another worker claim it, and return it as the new owner sees it."""
        await self.runs.release(run, active_seconds=0, calls=(), counted=True)
        taken = await self.runs.claim(run.key, "w2")
        assert taken is not None
        return taken

    async def save(self, run: Run, new: NewArtifact) -> SaveOutcome:
        return await self.files.save(run.key, run.fence, new, LIMITS)

    async def names(self, key: RunKey = KEY) -> list[str]:
        return [stored.name for stored in await self.files.find(key)]

    async def one(self, name: str, key: RunKey = KEY) -> StoredArtifact:
        (stored,) = await self.files.find(key, name)
        return stored

    async def bytes_of(self, stored: StoredArtifact, key: RunKey = KEY) -> bytes | None:
        return await self.files.read(key, stored, offset=0, size=stored.size_bytes)


@pytest.fixture
def stores(api: Api) -> Stores:
    """Open empty stores."""
    return Stores(api.files, api.store, api.journal)


@pytest.mark.req("002/9.4")
async def test_what_is_kept_comes_back_as_it_was(stores: Stores) -> None:
    """A file can be read whole or in pieces, with its metadata unchanged."""
    run = await stores.claimed()
    new = new_artifact("plot-1.png", BIG)

    kept = await stores.save(run, new)
    stored = await stores.one("plot-1.png")

    assert kept is SaveOutcome.STORED
    assert (stored.media_type, stored.size_bytes, stored.sha256) == (
        "image/png",
        len(BIG),
        new.sha256,
    )
    assert stored.created_at >= run.created_at
    assert await stores.bytes_of(stored) == BIG
    pieces = [await stores.files.read(KEY, stored, offset=at, size=500_000) for at in (0, 500_000)]
    assert pieces == [BIG[:500_000], BIG[500_000:]]


async def test_files_are_listed_in_the_order_in_which_they_were_made(stores: Stores) -> None:
    """A run that exists has a list, even if it is empty; a missing run has none."""
    run = await stores.claimed()
    assert await stores.files.find(KEY) == []
    for name in ("b.png", "a.png", "c.svg"):
        await stores.save(run, new_artifact(name, b""))

    assert await stores.names() == ["b.png", "a.png", "c.svg"]
    assert await stores.files.find(KEY, "d.png") == []
    with pytest.raises(ArtifactNotFoundError):
        await stores.files.get(KEY, "d.png")
    with pytest.raises(RunNotFoundError):
        await stores.files.find(RunKey("default", "nobody"))
    with pytest.raises(RunNotFoundError):
        await stores.files.get(RunKey("default", "nobody"), "a.png")


async def test_a_wish_to_stop_a_run_that_does_not_exist_is_no_run(stores: Stores) -> None:
    """A pending cancel has a row, but it is not a run."""
    await stores.runs.cancel(KEY, CancelRequest(requested_by="tester", reason=None))

    with pytest.raises(RunNotFoundError):
        await stores.files.find(KEY)


async def test_a_file_that_is_kept_again_is_the_same_file(stores: Stores) -> None:
    """Repeating a call saves the same file, even under another owner."""
    run = await stores.claimed()
    new = new_artifact("plot-1.png", BIG)
    await stores.save(run, new)
    before = await stores.one("plot-1.png")

    again = await stores.save(await stores.lost(run), new)

    assert again is SaveOutcome.STORED
    assert await stores.one("plot-1.png") == before


async def test_another_file_takes_the_place_of_one_that_a_lost_try_has_made(
    stores: Stores,
) -> None:
    """The new file gets its own name, and a reader of the replaced file finds nothing."""
    run = await stores.claimed()
    await stores.save(run, new_artifact("plot-aapl-1.png", b"old", slot="call-1"))
    old = await stores.one("plot-aapl-1.png")

    await stores.save(run, new_artifact("plot-aapl-1.png", b"newer", slot="call-1"))
    newer = await stores.one("plot-aapl-1.png")
    await stores.save(run, new_artifact("plot-msft-1.svg", b"newest", slot="call-1"))

    assert (newer.size_bytes, newer.sha256) == (5, new_artifact("x", b"newer").sha256)
    assert await stores.names() == ["plot-msft-1.svg"]
    assert await stores.bytes_of(await stores.one("plot-msft-1.svg")) == b"newest"
    assert await stores.bytes_of(old) is None
    assert await stores.bytes_of(newer) is None


async def test_only_the_owner_keeps_files(stores: Stores) -> None:
    """An older fence, a waiting run or a missing run cannot store files."""
    run = await stores.claimed()
    owner = await stores.lost(run)
    frozen = await stores.save(run, new_artifact("a.png"))
    await stores.runs.release(owner, active_seconds=0, calls=(), counted=True)
    queued = await stores.save(owner, new_artifact("a.png"))
    nobody = await stores.save(replace(run, key=RunKey("default", "x")), new_artifact("a.png"))

    assert [frozen, queued, nobody] == [SaveOutcome.LOST, SaveOutcome.LOST, SaveOutcome.LOST]
    assert await stores.names() == []


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
async def test_a_run_that_has_ended_keeps_what_it_has_and_no_more(
    stores: Stores, status: RunStatus
) -> None:
    """A finished run's files remain readable, but no file is added."""
    run = await stores.claimed()
    await stores.save(run, new_artifact("a.png"))
    await stores.journal.finish(end_of(run, status))

    late = await stores.save(run, new_artifact("b.png"))
    changed = await stores.save(run, new_artifact("a.png", b"other bytes"))

    assert (late, changed) == (SaveOutcome.LOST, SaveOutcome.LOST)
    assert await stores.names() == ["a.png"]
    assert await stores.bytes_of(await stores.one("a.png")) == b"bytes"


@pytest.mark.req("002/23.3")
async def test_a_run_keeps_no_more_files_than_it_may(stores: Stores) -> None:
    """A file that replaces another one does not count as an additional file."""
    run = await stores.claimed()
    for number in (1, 2, 3):
        await stores.save(run, new_artifact(f"{number}.png"))

    assert await stores.save(run, new_artifact("4.png")) is SaveOutcome.FULL
    assert await stores.save(run, new_artifact("1.png")) is SaveOutcome.STORED
    assert await stores.save(run, new_artifact("1.png", b"another")) is SaveOutcome.STORED
    assert await stores.names() == ["2.png", "3.png", "1.png"]


@pytest.mark.req("002/23.3")
async def test_a_run_keeps_no_more_bytes_than_it_may(stores: Stores) -> None:
    """The limit is exact, and a file that replaces another one is counted in its place."""
    run = await stores.claimed()
    await stores.save(run, new_artifact("1.png", bytes(1_500_000)))

    assert await stores.save(run, new_artifact("2.png", bytes(500_001))) is SaveOutcome.FULL
    assert await stores.save(run, new_artifact("1.png", bytes(2_000_001))) is SaveOutcome.FULL
    assert await stores.save(run, new_artifact("2.png", bytes(500_000))) is SaveOutcome.STORED
    assert await stores.save(run, new_artifact("1.png", b"less")) is SaveOutcome.STORED
    assert await stores.save(run, new_artifact("3.png", bytes(1_499_996))) is SaveOutcome.STORED


@pytest.mark.req("002/23.3")
async def test_files_that_are_kept_at_once_share_the_room_there_is(stores: Stores) -> None:
    """Of ten files saved at once, only the three that fit are stored."""
    run = await stores.claimed()

    async with asyncio.TaskGroup() as group:
        saves = [
            group.create_task(stores.save(run, new_artifact(f"{number}.png")))
            for number in range(10)
        ]

    kept = [save.result() for save in saves]
    assert kept.count(SaveOutcome.STORED) == len(await stores.names()) == 3
    assert kept.count(SaveOutcome.FULL) == 7


async def test_tenants_and_runs_never_meet(stores: Stores) -> None:
    """Equal names, equal slots and a known file record give no access to another run's files."""
    runs = [
        await stores.claimed(),
        await stores.claimed("case-2"),
        await stores.claimed(tenant="other"),
    ]
    for number, run in enumerate(runs):
        await stores.save(run, new_artifact("a.png", b"%d" % number, slot="s"))

    for number, run in enumerate(runs):
        stored = await stores.one("a.png", run.key)
        seen = [await stores.bytes_of(stored, other.key) for other in runs]
        expected: list[bytes | None] = [None] * 3
        expected[number] = b"%d" % number
        assert seen == expected


async def test_a_run_that_goes_on_has_files_of_its_own(stores: Stores) -> None:
    """The new run gets the files of the calls that it imports.

    They remain when the source run and its files are erased.
    """
    run = await stores.claimed()
    graph = graph_with_calls("case-1")
    records = records_of(graph, call_key="case/plot", outcome="result", value={})
    await stores.journal.write(JournalWrite(key=KEY, fence=1, calls=records))
    digest = hashlib.sha256(b"case/plot").hexdigest()
    await stores.save(run, replace(new_artifact("plot-1.png", BIG), slot=f"{digest}-1"))
    await stores.save(run, new_artifact("other.png", b""))
    assert (await stores.journal.finish(end_of(run))).done

    new = new_run("case-2")
    new = replace(new, request=replace(new.request, source=RunSource("case-1")))
    await stores.runs.accept(new, worker_id="w1")

    assert await stores.names(new.key) == ["plot-1.png"]
    stored = await stores.one("plot-1.png", new.key)
    assert await stores.bytes_of(stored, new.key) == BIG
