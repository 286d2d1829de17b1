"""The whole path of a file: made by a tool, stored with its run, served by another process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import psycopg
import pytest

from caseworker.features.artifacts.postgres import PostgresArtifacts
from caseworker.features.artifacts.storage import RunArtifacts
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.toolset import tool_type
from caseworker.runs.journal.journal import LostRunError
from caseworker.runs.ports import FinishResult, JournalWrite, Permission
from caseworker.runs.run import FinishRun, NewRun, Run, RunKey, RunKind, RunRequest, RunStatus
from caseworker.tools.ports import ToolContext
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from tests.support.api import Api, client_of
from tests.support.drawing_tool import SVG, DrawingTool
from tests.support.limits import artifact_limits, tool_dispatch
from tests.support.runs import RunProcess
from tests.support.stores import Oracle, Stores, open_stores

KEY = RunKey("default", "r")
HERE = "/runs/r/artifacts"


@dataclass
class Watched:
    """A journal that counts the stored files before each write."""

    stores: Stores
    oracle: Oracle
    seen: list[tuple[str, int]] = field(default_factory=list)
    """Outcomes of the tool call as stored, with the number of files at that time."""

    async def write(self, write: JournalWrite) -> Permission:
        await self._look(write)
        return await self.stores.journal.write(write)

    async def finish(self, finish_run: FinishRun) -> FinishResult:
        await self._look(finish_run)
        return await self.stores.journal.finish(finish_run)

    async def _look(self, written: JournalWrite | FinishRun) -> None:
        for record in written.calls:
            if record.node["kind"] == "tool" and record.outcome is not None:
                count = await self.oracle.value("SELECT count(*) FROM artifacts")
                self.seen.append((record.outcome, count))


@dataclass
class Freezing:
    """The journal of a frozen process: its writes wait until the process thaws."""

    stores: Stores
    frozen: asyncio.Event = field(default_factory=asyncio.Event)
    thawed: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, write: JournalWrite) -> Permission:
        if self.frozen.is_set():
            await self.thawed.wait()
        return await self.stores.journal.write(write)

    async def finish(self, finish_run: FinishRun) -> FinishResult:
        return await self.stores.journal.finish(finish_run)


class DrawingProcess(RunProcess):
    """A process that executes runs with a tool that draws."""

    def __init__(
        self, stores: Stores, tool: DrawingTool, name: str = "w1", journal: Any = None
    ) -> None:
        self.files = PostgresArtifacts(stores.engines)
        dispatch = tool_dispatch(ToolRegistry([tool]), ToolPolicy())
        super().__init__(
            store=stores.runs,
            catalog=NodeCatalog([tool_type(dispatch, timezone="UTC")]),
            workers=stores.workers,
            name=name,
            journals=journal or stores.journal,
            artifacts=partial(RunArtifacts, self.files.save, artifact_limits()),
        )

    async def begin(self, *texts: str) -> Run:
        """Accept a run that draws, and start it."""
        step = {"id": "t", "type": "tool", "data": {"tool": "draw", "args": {"texts": [*texts]}}}
        request = RunRequest(kind=RunKind.GRAPH, graph={"steps": [step], "edges": []})
        return (await self.service.accept(NewRun(key=KEY, request=request, request_hash="h"))).run

    @asynccontextmanager
    async def client(self, url: str) -> AsyncIterator[httpx.AsyncClient]:
        api = Api(url)
        app = api.app(self.service, self.files)
        async with api.opened(), client_of(app) as client:
            yield client


def drawn(run: Run) -> list[dict[str, Any]]:
    """Return the files in the result of the run."""
    assert run.result is not None
    found: list[dict[str, Any]] = run.result["outputs"]["t"]["default"]["artifacts"]
    return found


@pytest.mark.req("002/9.4", "002/5.4")
async def test_a_file_of_a_run_is_given_out_by_every_process(
    stores: Stores, database_url: str
) -> None:
    """The URL in its result returns exactly the bytes that the tool wrote."""
    tool = DrawingTool(media_type="image/svg+xml")
    process = DrawingProcess(stores, tool)
    await process.begin(SVG.decode())
    run = await process.end_of(KEY)

    assert run.status is RunStatus.COMPLETED
    (listed,) = drawn(run)
    async with open_stores(database_url) as elsewhere:
        other = DrawingProcess(elsewhere, tool, name="w2")
        async with other.client(database_url) as client:
            answer = await client.get(listed["url"])
            found = (await client.get(HERE)).json()["artifacts"]

    assert answer.content == SVG
    assert answer.headers["etag"] == f'"{listed["sha256"]}"'
    assert [{**each, "created_at": None} for each in found] == [{**listed, "created_at": None}]


async def test_a_file_is_durable_before_the_result_that_refers_to_it(
    stores: Stores, oracle: Oracle
) -> None:
    """A journal never names a file that a crash could still lose."""
    watched = Watched(stores, oracle)
    process = DrawingProcess(stores, DrawingTool(), journal=watched)
    await process.begin("a", "b")

    await process.end_of(KEY)

    assert watched.seen
    assert set(watched.seen) == {("result", 2)}


async def test_a_call_that_is_made_again_after_its_worker_was_lost_keeps_its_names(
    stores: Stores,
) -> None:
    """The frozen worker thaws too late, adds no file and learns that it has lost the run."""
    goes_on = asyncio.Event()
    late: list[BaseException] = []
    journal = Freezing(stores)

    async def freeze(context: ToolContext) -> None:
        assert context.artifacts is not None
        journal.frozen.set()
        try:
            await goes_on.wait()
            await context.artifacts.save("late", "image/png", b"late")
        except BaseException as refusal:
            late.append(refusal)
            raise
        finally:
            journal.thawed.set()

    frozen = DrawingProcess(stores, DrawingTool(freeze), journal=journal)
    begun = await frozen.begin("a", "b")
    await journal.frozen.wait()
    before = await frozen.files.find(KEY)
    await stores.runs.release(begun, active_seconds=0, calls=(), counted=True)
    successor = DrawingProcess(stores, DrawingTool(), name="w2")
    await successor.take(KEY)
    goes_on.set()
    run = await successor.end_of(KEY)
    await frozen.end_of(KEY)

    assert run.status is RunStatus.COMPLETED
    (refusal,) = late
    assert isinstance(refusal, LostRunError | asyncio.CancelledError)  # it may know already
    assert await successor.files.find(KEY) == before
    assert [each["name"] for each in drawn(run)] == [stored.name for stored in before]
    assert len(before) == 2


@pytest.mark.req("002/23.3")
async def test_what_is_larger_than_one_file_may_be_is_not_kept_at_all(
    stores: Stores, oracle: Oracle, database_url: str
) -> None:
    """The default limit is 5 MB, and a file of exactly that size is stored."""
    limit = artifact_limits().max_bytes
    process = DrawingProcess(stores, DrawingTool())
    await process.begin("a" * limit, "b" * (limit + 1))

    run = await process.end_of(KEY)

    assert limit == 5 * 1024 * 1024
    assert run.status is RunStatus.FAILED
    assert run.stop is not None
    assert "too_large" in str(run.stop["reason"])
    sizes = await oracle.rows("SELECT size_bytes, length(data) AS kept FROM artifacts")
    assert sizes == [{"size_bytes": limit, "kept": limit}]
    async with process.client(database_url) as client:
        (listed,) = (await client.get(HERE)).json()["artifacts"]
        assert (await client.get(listed["url"])).content == b"a" * limit


async def test_the_files_of_a_run_leave_with_it(stores: Stores, oracle: Oracle) -> None:
    """Every way to delete a run deletes its files."""
    process = DrawingProcess(stores, DrawingTool())
    await process.begin("a")
    await process.end_of(KEY)

    await oracle.rows("DELETE FROM runs")

    assert await oracle.value("SELECT count(*) FROM artifacts") == 0


@pytest.mark.parametrize(
    "broken",
    [
        "name = '../a'",
        "name = 'a b'",
        "size_bytes = 3",
        "sha256 = 'abc'",
        "run_id = 'nobody'",
        "slot = NULL",
    ],
)
async def test_the_database_keeps_no_file_that_is_not_whole(
    stores: Stores, oracle: Oracle, broken: str
) -> None:
    """A constraint refuses the row, whichever code writes it."""
    process = DrawingProcess(stores, DrawingTool())
    await process.begin("a")
    await process.end_of(KEY)

    with pytest.raises(psycopg.errors.IntegrityError, match="violates"):
        await oracle.rows(f"UPDATE artifacts SET {broken}")  # noqa: S608


async def test_a_piece_of_a_file_is_read_without_the_rest(stores: Stores, oracle: Oracle) -> None:
    """The column is stored uncompressed, so a read by offset fetches only its part."""
    storage = await oracle.value(
        "SELECT attstorage::text FROM pg_attribute"
        " WHERE attrelid = 'artifacts'::regclass AND attname = 'data'"
    )

    assert storage == "e"
