"""Storage of tenants is counted exactly, and limited in the transactions that store more."""

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from caseworker.features.artifacts.postgres import PostgresArtifacts
from caseworker.features.artifacts.storage import SaveOutcome
from caseworker.features.definitions.postgres import PostgresDefinitions
from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.quotas.usage import NearlyFull, QuotaUse
from caseworker.features.retention.postgres import PostgresRetention
from caseworker.features.retention.sweep import Retention
from caseworker.features.schedules.cron_times import CatchUp, Timing
from caseworker.features.schedules.postgres import PostgresSchedules
from caseworker.features.schedules.schedule import NewSchedule, ScheduledRun
from caseworker.features.telemetry.process_metrics import MetricsPage
from caseworker.features.threads.postgres.threads import PostgresThreads
from caseworker.features.threads.thread import Role, Thread, ThreadMessage
from caseworker.main.features import DROPS
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.postgres.schema_version import upgrade
from caseworker.runs.accept.postgres.batch_accept import RunInsert
from caseworker.runs.errors import QuotaExceededError
from caseworker.runs.ports import JournalWrite
from caseworker.runs.quotas import Quota
from caseworker.runs.run import DefinitionRef, Run, RunKey
from tests.support.artifacts import new_artifact
from tests.support.database import TestServer
from tests.support.graph_documents import flat, new_graph
from tests.support.limits import artifact_limits, store_limits
from tests.support.stores import (
    Oracle,
    Stores,
    end_of,
    graph_with_calls,
    new_run,
    open_oracle,
    open_stores,
    records_of,
)
from tests.support.threads import store_messages

TENANT = "acme"
ATTEMPTS = 20
HELD = "SELECT coalesce(sum(bytes), 0)::bigint FROM stored WHERE tenant_id = %s"
AGE = "UPDATE runs SET finished_at = finished_at - make_interval(days => 31)"


def quotas_of(stores: Stores, usual: Quota) -> PostgresQuotas:
    return PostgresQuotas(stores.engines.work, usual)


async def use_of(stores: Stores) -> QuotaUse:
    return (await quotas_of(stores, Quota()).get(TENANT)).use


def thread(thread_id: str, **values: Any) -> Thread:
    return Thread(
        tenant=TENANT, thread_id=thread_id, kind=DefinitionKind.AGENT, definition={}, **values
    )


def limited(stores: Stores, usual: Quota) -> Stores:
    """Return the stores of a process with this quota for tenants without one of their own."""
    return replace(stores, runs=replace(stores.runs, limits=store_limits(quota=usual)))


async def passed(attempts: Iterable[Coroutine[Any, Any, Any]]) -> list[str]:
    """Make all attempts in parallel; return the dimensions of those that were refused."""

    async def refusal(attempt: Coroutine[Any, Any, Any]) -> str | None:
        try:
            await attempt
        except QuotaExceededError as error:
            return error.dimension
        return None

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(refusal(each)) for each in attempts]
    return [refused for task in tasks if (refused := task.result()) is not None]


@pytest.mark.guarantee(13)
async def test_exactly_as_many_parallel_definitions_pass_as_fit_in_bytes(
    pair: tuple[Stores, Stores],
) -> None:
    """Two processes register twenty graphs at the same time, of which five fit."""
    size = new_graph("g00").size_bytes
    usual = Quota(max_stored_bytes=5 * size + size // 2)
    kept = [PostgresDefinitions(stores.engines, usual=usual) for stores in pair]
    refused = await passed(
        kept[n % 2].add(new_graph(f"g{n:02}", tenant=TENANT)) for n in range(ATTEMPTS)
    )
    use = await use_of(pair[0])

    assert refused == ["stored_bytes"] * (ATTEMPTS - 5)
    assert (use.stored_bytes, use.definitions) == (5 * size, 5)


@pytest.mark.parametrize("dimension", ["definitions", "threads"])
async def test_exactly_as_many_parallel_definitions_and_threads_pass_as_are_allowed(
    pair: tuple[Stores, Stores], dimension: str
) -> None:
    """Two processes store twenty at the same time, of which three are allowed."""
    usual = replace(Quota(), **{f"max_{dimension}": 3})  # type: ignore[arg-type]
    graphs = [PostgresDefinitions(stores.engines, usual=usual) for stores in pair]
    threads = [PostgresThreads(stores.engines, usual) for stores in pair]
    attempts: dict[str, Iterable[Coroutine[Any, Any, Any]]] = {
        "definitions": (
            graphs[n % 2].add(new_graph(f"g{n}", tenant=TENANT)) for n in range(ATTEMPTS)
        ),
        "threads": (threads[n % 2].create(thread(f"t{n}")) for n in range(ATTEMPTS)),
    }
    refused = await passed(attempts[dimension])

    assert refused == [dimension] * (ATTEMPTS - 3)
    assert getattr(await use_of(pair[0]), dimension) == 3


@pytest.mark.parametrize("own", [True, False], ids=["own", "configured"])
async def test_exactly_as_many_parallel_runs_pass_as_fit_in_bytes(
    pair: tuple[Stores, Stores], own: bool
) -> None:
    """Twenty runs at two processes, with a quota of the tenant's own or the configured one."""
    await pair[0].runs.accept(new_run("r00", tenant=TENANT, text="x" * 5000), worker_id="w1")
    size = (await use_of(pair[0])).stored_bytes
    quota = Quota(max_stored_bytes=6 * size)
    if own:
        await quotas_of(pair[0], Quota()).put(TENANT, quota)
    processes = [limited(stores, Quota() if own else quota) for stores in pair]
    refused = await passed(
        processes[n % 2].runs.accept(
            new_run(f"r{n:02}", tenant=TENANT, text="x" * 5000), worker_id="w1"
        )
        for n in range(1, ATTEMPTS)
    )

    assert size > 5000
    assert refused == ["stored_bytes"] * (ATTEMPTS - 6)
    assert (await use_of(pair[0])).stored_bytes == 6 * size


async def test_runs_are_accepted_in_batches_until_the_limit_is_near(stores: Stores) -> None:
    """A batch inserts without locking the tenant; near the limit it leaves runs out."""
    answers = [
        await stores.journal.insert(
            RunInsert(new_run(f"r{limit}", tenant=TENANT), "w1", max_stored_bytes=limit),
            timeout_seconds=30,
        )
        for limit in (10 << 30, 1 << 20)
    ]

    assert [answer is not None for answer in answers] == [True, False]


@pytest.mark.guarantee(13)
async def test_an_accepted_run_writes_on_when_the_quota_is_full(stores: Stores) -> None:
    """The run's journal, files and end are stored, while another run is refused."""
    run = (await stores.runs.accept(new_run("r", tenant=TENANT), worker_id="w1")).run
    await quotas_of(stores, Quota()).put(TENANT, Quota(max_stored_bytes=0))
    calls = records_of(graph_with_calls("r"), call_key="k", value="v" * 1000)
    files = PostgresArtifacts(stores.engines)

    written = await stores.journal.write(JournalWrite(key=run.key, fence=run.fence, calls=calls))
    kept = await files.save(run.key, run.fence, new_artifact("a.txt"), artifact_limits())
    finished = await stores.journal.finish(end_of(run))

    assert (written.owned, kept, finished.done) == (True, SaveOutcome.STORED, True)
    with pytest.raises(QuotaExceededError) as refused:
        await stores.runs.accept(new_run("next", tenant=TENANT), worker_id="w1")
    assert refused.value.dimension == "stored_bytes"
    assert refused.value.used == (await use_of(stores)).stored_bytes > 0
    assert await stores.runs.get(RunKey(TENANT, "next")) is None


async def test_what_is_repeated_is_answered_when_the_quota_is_full(stores: Stores) -> None:
    """The run, thread and version already exist, so nothing is stored."""
    usual = Quota(max_stored_bytes=100_000)
    process = limited(stores, usual)
    threads = PostgresThreads(stores.engines, Quota(max_threads=1))
    graphs = PostgresDefinitions(stores.engines, usual=Quota(max_definitions=1))
    made = []
    for _ in range(2):
        run = await process.runs.accept(new_run("r", tenant=TENANT), worker_id="w1")
        registered = await graphs.add(new_graph("g", tenant=TENANT))
        _, created = await threads.create(thread("t"))
        made.append((run.created, registered.created, created))
        await quotas_of(stores, usual).put(TENANT, Quota(max_stored_bytes=0))

    assert made == [(True, True, True), (False, False, False)]


async def everything(stores: Stores) -> Run:
    """Store something of every kind that counts; return the run, which has ended."""
    run = (await stores.runs.accept(new_run("r", tenant=TENANT), worker_id="w1")).run
    files = PostgresArtifacts(stores.engines)
    await files.save(run.key, run.fence, new_artifact("a.txt", b"1" * 700), artifact_limits())
    asked = {"prompt": "p" * 400}
    calls = records_of(graph_with_calls("r"), call_key="k", value="v" * 300, request=asked)
    await stores.journal.write(JournalWrite(key=run.key, fence=run.fence, calls=calls))
    await stores.journal.finish(end_of(run))
    await PostgresDefinitions(stores.engines).add(new_graph("g", flat("a", "b"), tenant=TENANT))
    threads = PostgresThreads(stores.engines)
    await threads.create(thread("t", inputs={"text": "i" * 200}))
    said = ThreadMessage(message_id="m1", parent_id=None, role=Role.USER, content="c" * 100)
    answer = ThreadMessage(message_id="m2", parent_id="m1", role=Role.ASSISTANT, run_id="r2")
    await store_messages(stores.engines, TENANT, "t", [said, answer])
    timing = Timing("0 * * * *", "UTC", CatchUp.ALL, 10)
    scheduled = ScheduledRun(body={"input": "2+2?"}, request=run.request, request_hash="hash")
    await schedules_of(stores).put(
        NewSchedule(tenant=TENANT, name="hourly", timing=timing, run=scheduled)
    )
    return run


def schedules_of(stores: Stores) -> PostgresSchedules:
    return PostgresSchedules(stores.engines, store_limits(), max_schedules=5)


async def test_what_is_deleted_is_given_back_to_the_byte(stores: Stores, oracle: Oracle) -> None:
    """After every kind of record is deleted, the counted use is zero."""
    run = await everything(stores)
    before = (await use_of(stores)).stored_bytes
    sizes = [before]
    await stores.runs.erase(run.key)
    sizes.append(await oracle.value(HELD, TENANT))
    await PostgresDefinitions(stores.engines).delete(TENANT, DefinitionRef("g"))
    sizes.append(await oracle.value(HELD, TENANT))
    await PostgresThreads(stores.engines).delete(TENANT, "t")
    sizes.append(await oracle.value(HELD, TENANT))
    await schedules_of(stores).delete(TENANT, "hourly")
    sizes.append(await oracle.value(HELD, TENANT))

    assert before > 700 + 300 + 400 + 200 + 100
    assert sizes == sorted(set(sizes), reverse=True)
    use = await use_of(stores)
    assert (use.stored_bytes, use.definitions, use.threads) == (0, 0, 0)


@pytest.mark.parametrize(
    ("record", "least"), [("requests", 100), ("artifacts", 700), ("runs", 1000)]
)
async def test_what_retention_clears_away_is_given_back(
    stores: Stores, oracle: Oracle, record: str, least: int
) -> None:
    """Deleted parts of runs are subtracted like whole runs."""
    await everything(stores)
    await oracle.rows(AGE)
    before = await oracle.value(HELD, TENANT)
    days = {**dict.fromkeys(DROPS), record: 30}
    retention = Retention(
        store=PostgresRetention(stores.engines.work, DROPS),
        nearly_full=quotas_of(stores, Quota()).nearly_full,
        days=days,
        unlimited=[],
        sweep_seconds=600,
    )
    await retention.sweep()

    assert before - await oracle.value(HELD, TENANT) >= least


async def test_a_sweep_merges_what_sessions_have_counted(stores: Stores, oracle: Oracle) -> None:
    """The rows of a tenant become one, and their sum stays."""
    await everything(stores)
    before = await use_of(stores)
    rows = "SELECT count(*) FROM stored WHERE tenant_id = %s"
    several = await oracle.value(rows, TENANT)
    await PostgresRetention(stores.engines.work, DROPS).claim_sweep_and_merge_counters(600)

    assert (several > 1, await oracle.value(rows, TENANT)) == (True, 1)
    assert await use_of(stores) == before


async def test_a_tenant_is_nearly_full_from_80_percent_on(stores: Stores) -> None:
    """By the configured quota or its own; callers without keys have none configured."""
    threads = PostgresThreads(stores.engines)
    for tenant in ("default", TENANT, "other", "small"):
        for number in range(3 if tenant == "small" else 4):
            await threads.create(replace(thread(f"t{number}"), tenant=tenant))
    quotas = quotas_of(stores, Quota(max_threads=5))
    await quotas.put("other", Quota(max_threads=100, max_definitions=0))
    found = await quotas.nearly_full()

    page = MetricsPage(
        CollectorRegistry(),
        engines=stores.engines,
        executor=None,
        silent_seconds=lambda: 0.0,
        nearly_full=quotas.nearly_full,
        unlimited=["runs"],
    )
    metrics = (await page.text()).decode()

    assert 'caseworker_tenants_nearly_full{dimension="threads"} 1.0' in metrics
    assert 'caseworker_tenants_nearly_full{dimension="stored_bytes"} 0.0' in metrics
    assert 'caseworker_retention_unlimited{record="runs"} 1.0' in metrics
    assert found == [
        NearlyFull(tenant=TENANT, dimension="threads", used=4, limit=5),
        NearlyFull(tenant="other", dimension="definitions", used=0, limit=0),
    ]
    assert (await quotas.get(TENANT)).nearly_full == ["threads"]
    assert (await quotas.get("default")).nearly_full == []


async def test_the_tenant_of_callers_without_keys_stores_without_limit(database_url: str) -> None:
    """A quota of its own would still limit it."""
    usual = Quota(max_stored_bytes=0, max_definitions=0, max_threads=0)
    async with open_stores(database_url, store_limits(quota=usual)) as stores:
        await stores.runs.accept(new_run("r"), worker_id="w1")
        await PostgresThreads(stores.engines, usual).create(replace(thread("t"), tenant="default"))
        await quotas_of(stores, usual).put("default", usual)
        with pytest.raises(QuotaExceededError):
            await stores.runs.accept(new_run("r2"), worker_id="w1")


EXISTING = (
    "INSERT INTO threads (tenant_id, thread_id, kind, request_hash, definition, inputs, tools,"
    " metadata) VALUES (%s, 't', 'agent', '', '{}', '{}', '[]', '{}')",
    "INSERT INTO definitions (tenant_id, kind, name, version, definition, sha256, size_bytes)"
    " VALUES (%s, 'graph', 'g', 1, '{}', '', 500)",
    "INSERT INTO definitions (tenant_id, kind, name, version, sha256, size_bytes)"
    " VALUES (%s, 'graph', 'g', 2, '', 500)",
)
"""SQL that inserts a thread, a version, and the rest of a deleted version."""


async def test_what_was_stored_before_the_migration_counts(postgres: TestServer) -> None:
    """Threads and definitions count; deleted versions do not."""
    with postgres.empty_database() as url:
        await asyncio.to_thread(upgrade, url, "20261126_1730")
        async with open_oracle(url) as oracle:
            for statement in EXISTING:
                await oracle.rows(statement, TENANT)
            await asyncio.to_thread(upgrade, url)
            rows = await oracle.rows("SELECT * FROM stored")

    thread_bytes = len("{}" + "{}" + "[]" + "{}")
    assert rows == [
        {
            "tenant_id": TENANT,
            "part": 0,
            "bytes": 500 + thread_bytes,
            "definitions": 1,
            "threads": 1,
        }
    ]
