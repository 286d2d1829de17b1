"""Database constraints for registered graphs and for the graphs of runs."""

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from caseworker.platform.postgres.engines import open_engines
from caseworker.runs.accept.postgres.definition_heads import DefinitionHeads
from caseworker.runs.accept.postgres.definitions import PostgresDefinitions
from caseworker.runs.errors import (
    ContainedDefinitionGoneError,
    DefinitionInUseError,
    GraphRefusedError,
)
from caseworker.runs.ports import RunFilter
from caseworker.runs.run import DefinitionRef, NewRun, RunKey, RunKind, RunRequest
from tests.support.graph_documents import TENANT, containing, edge, flat, new_graph
from tests.support.limits import pool_sizes
from tests.support.stores import Oracle, Stores, new_run

GOOD = {**flat("a", "b"), "edges": [edge("a", "b", channel="flow"), edge("a", "b", channel="link")]}

INSERT = """
INSERT INTO graphs (tenant_id, name, version, definition, sha256, size_bytes)
VALUES ('t', 'g', %s, %s, '', 1)
"""


@pytest.fixture
async def graphs(stores: Stores) -> PostgresDefinitions:
    return PostgresDefinitions(stores.engines)


async def insert(oracle: Oracle, graph: Any, version: int = 1) -> None:
    await oracle.rows(INSERT, version, json.dumps(graph))


@pytest.mark.req("004/channel")
@pytest.mark.parametrize(
    "said",
    [
        {"data": {}},
        {"data": {"channel": None}},
        {"data": {"channel": "Flow"}},
        {"data": {"channel": 1}},
        {"data": {"channel": ["flow"]}},
        {"data": {"channel": {"flow": "flow"}}},
        {"data": [{"channel": "flow"}]},
        {"data": "flow"},
        {"channel": "flow"},
    ],
)
async def test_the_database_refuses_an_edge_without_a_channel(
    oracle: Oracle, said: dict[str, Any]
) -> None:
    """The constraint covers the graph itself and its nested graphs."""
    bad = {**flat("a", "b"), "edges": [edge("a", "b", channel="flow")]}
    bad["edges"].append({"source": "a", "target": "b", **said})
    fallback = {"on_error": "fallback", "fallback": containing(bad)["steps"][0]}
    by_fallback = {"steps": [{"id": "a", "type": "t", "data": {}, "policy": fallback}]}

    for graph in (bad, containing(bad), containing(containing(bad), kind="map"), by_fallback):
        with pytest.raises(psycopg.errors.CheckViolation) as refused:
            await insert(oracle, graph)
        assert refused.value.diag.constraint_name == "graphs_edges_say_their_channel"


@pytest.mark.req("004/channel")
async def test_the_database_takes_graphs_whose_edges_say_their_channel(oracle: Oracle) -> None:
    """A list named ``edges`` in the data of a step is not treated as edges of the graph."""
    data = {"edges": [1, {"no": "channel"}], "graph": {"name": "other"}}
    other = {"steps": [{"id": "a", "type": "subgraph", "data": data}]}

    for version, graph in enumerate((GOOD, containing(GOOD, kind="map"), other, {}), start=1):
        await insert(oracle, graph, version)

    assert await oracle.value("SELECT count(*) FROM graphs") == 4


@pytest.mark.req("004/channel")
async def test_the_store_says_what_the_database_refused(graphs: PostgresDefinitions) -> None:
    """The store reports a problem of the graph instead of an internal error."""
    bad = {**flat("a", "b"), "edges": [edge("a", "b")]}

    with pytest.raises(GraphRefusedError) as refused:
        await graphs.add(new_graph("g", bad))

    assert [problem.place for problem in refused.value.problems] == ["edges"]


@pytest.mark.parametrize(
    "change",
    [
        "definition = '{}'",
        "version = 9",
        "name = 'h'",
        "sha256 = 'x'",
        "created_at = now(), definition = NULL",
    ],
)
async def test_a_version_never_changes(oracle: Oracle, change: str) -> None:
    """Deleting it removes its content and keeps its number."""
    await insert(oracle, GOOD)

    with pytest.raises(psycopg.errors.CheckViolation):
        await oracle.rows(f"UPDATE graphs SET {change}")  # noqa: S608 - a text of this test
    await oracle.rows("UPDATE graphs SET definition = NULL")
    with pytest.raises(psycopg.errors.CheckViolation):
        await oracle.rows("UPDATE graphs SET definition = '{}'")


async def test_a_deleted_version_leaves_nothing_but_its_number(
    graphs: PostgresDefinitions, oracle: Oracle
) -> None:
    """The version's definition, its description and its references are deleted."""
    await graphs.add(new_graph("part"))
    await graphs.add(new_graph("g", uses=(DefinitionRef("part"),), description="secret"))
    await graphs.delete(TENANT, DefinitionRef("g"))

    [row] = await oracle.rows("SELECT * FROM graphs WHERE name = 'g'")
    assert (row["version"], row["definition"], row["description"]) == (1, None, None)
    assert row["uses"] == []


async def test_two_replicas_registering_at_once_share_the_numbers(database_url: str) -> None:
    """Forty graphs of one name on two processes get consecutive numbers."""
    sizes = pool_sizes(connect_seconds=60)
    replicas = [open_engines(database_url, sizes) for _ in range(2)]
    try:
        stores = [PostgresDefinitions(engines) for engines in replicas]
        async with asyncio.TaskGroup() as group:
            posts = [
                group.create_task(stores[n % 2].add(new_graph("g", flat(f"s{n}"))))
                for n in range(40)
            ]
        assert sorted(post.result().head.version for post in posts) == list(range(1, 41))
    finally:
        for engines in replicas:
            await engines.dispose()


async def refusal_of(asked: Awaitable[object]) -> type[Exception] | None:
    try:
        await asked
    except (ContainedDefinitionGoneError, DefinitionInUseError) as refused:
        return type(refused)
    return None


async def test_nothing_is_deleted_that_is_being_put_to_use(database_url: str) -> None:
    """The first transaction wins, so no user without its part is ever stored."""
    replicas = [open_engines(database_url, pool_sizes()) for _ in range(2)]
    try:
        one, other = (PostgresDefinitions(engines) for engines in replicas)
        outcomes = set()
        for number in range(20):
            part = DefinitionRef(f"part-{number}", 1)
            await one.add(new_graph(part.name))
            user = new_graph(f"user-{number}", uses=(part,))
            async with asyncio.TaskGroup() as group:
                used = group.create_task(refusal_of(one.add(user)))
                deleted = group.create_task(refusal_of(other.delete(TENANT, part)))
            outcomes.add((used.result(), deleted.result()))
        assert outcomes
        assert outcomes <= {(ContainedDefinitionGoneError, None), (None, DefinitionInUseError)}
    finally:
        for engines in replicas:
            await engines.dispose()


@pytest.fixture
def graph_run() -> NewRun:
    request = RunRequest(
        kind=RunKind.GRAPH,
        graph=GOOD,
        definition_ref=DefinitionRef("g", 3),
        inputs={"default": [1, {"a": None}]},
    )
    return replace(new_run("r"), request=request)


@pytest.fixture(params=["claimed", "queued"])
async def accepted(request: pytest.FixtureRequest, stores: Stores, graph_run: NewRun) -> str:
    """Return a graph run, accepted in one of the two ways."""
    worker_id = "w" if request.param == "claimed" else None
    await stores.runs.accept(graph_run, worker_id=worker_id)
    return str(request.param)


async def test_a_graph_run_is_stored_with_all_that_it_executes(
    stores: Stores, accepted: str, graph_run: NewRun
) -> None:
    """A later owner gets the graph, its name and its inputs."""
    key = RunKey("default", "r")
    found = await (stores.runs.claim(key, "w") if accepted == "queued" else stores.runs.get(key))

    assert found is not None
    assert (found.kind, found.request) == (RunKind.GRAPH, graph_run.request)


async def test_what_was_read_before_a_backup_was_restored_is_not_taken_for_what_is_there(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """A process that survived the restore has cached other graphs under the reused numbers."""
    heads = DefinitionHeads(database_url, pool_sizes().patience)
    heads.begin()
    kept, ref = PostgresDefinitions(stores.engines, heads), DefinitionRef("g", 1)
    for graph in (flat("lost"), flat("again")):
        await oracle.rows("TRUNCATE definitions CASCADE")
        await kept.add(new_graph("g", graph))
        for _ in range(2):
            found = await kept.get(TENANT, ref)
            assert found is not None
            assert found.content == graph
    await heads.stop()


async def test_a_page_of_runs_holds_no_graphs(stores: Stores, accepted: str) -> None:
    """The page would be as large as all graphs together, so it shows their names."""
    [run] = (await stores.runs.find("default", RunFilter())).items

    assert (run.request.graph, run.request.inputs) == (None, {})
    assert run.request.definition_ref == DefinitionRef("g", 3)


async def test_the_request_of_a_case_is_stored_as_before(stores: Stores, oracle: Oracle) -> None:
    """Cases store no fields of graphs."""
    await stores.runs.accept(new_run("case-1"), worker_id="w")

    stored = await oracle.value("SELECT request FROM runs")
    assert not stored.keys() & {"graph", "graph_ref", "inputs"}


async def test_a_run_is_found_by_the_key_or_the_id_that_made_it(stores: Stores) -> None:
    """The key has priority over the ID, and it belongs to one tenant."""
    await stores.runs.accept(new_run("a", key="k"), worker_id=None)
    await stores.runs.accept(new_run("b"), worker_id=None)

    async def found(run_id: str, key: str | None, tenant: str = "default") -> str | None:
        run = await stores.runs.earlier(RunKey(tenant, run_id), key)
        return None if run is None else run.key.run_id

    assert [await found("b", "k"), await found("b", None), await found("", "k")] == ["a", "b", "a"]
    assert [await found("c", None), await found("a", "x"), await found("a", "k", "t")] == [None] * 3
