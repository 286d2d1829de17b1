"""Registered graphs replace their names in other graphs; the whole is validated and limited."""

import copy
from unittest.mock import Mock

import pytest
from psycopg import Connection

from caseworker.core.graph.validation import Severity
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.nesting import DefinitionKind, DefinitionReference
from caseworker.platform.fair_threads import PacedThread
from caseworker.runs.accept.definitions import Definitions
from caseworker.runs.accept.expansion import SMALL_BYTES
from caseworker.runs.accept.postgres.definitions import PostgresDefinitions
from caseworker.runs.errors import DefinitionNotFoundError, GraphRefusedError
from caseworker.runs.graphs import GraphLimits, NewDefinition, Registered
from caseworker.runs.run import DefinitionRef
from tests.support.api import Api
from tests.support.graph_documents import TENANT, containing, flat, half_used, named, new_graph
from tests.support.limits import graph_limits
from tests.unit.runs.registering import LIMITS, RegisteredDefinitions

pytestmark = pytest.mark.asyncio(loop_scope="module")


GRAPH = DefinitionKind.GRAPH
LINKS = """
INSERT INTO definitions (tenant_id, kind, name, version, definition, uses, sha256, size_bytes)
SELECT tenant_id, kind, 'g' || number, version, replace(definition::text, '"g0"', before)::json,
    replace(uses::text, '"g0"', before)::jsonb, sha256, size_bytes
FROM definitions, generate_series(2, 999) AS number, format('"g%s"', number - 1) AS before
WHERE name = 'g1'
"""
"""Registers graphs nested more deeply than the call stack allows."""


@pytest.fixture
def world(api: Api) -> RegisteredDefinitions:
    return RegisteredDefinitions(api)


async def test_a_name_becomes_the_graph_it_stands_for(world: RegisteredDefinitions) -> None:
    """The newest or the named version is inserted, with its name and version."""
    await world.register("g", flat("old"))
    await world.register("g", flat("new"))
    graph = containing(named("g"), named("g", 1), flat("own"))
    sent = copy.deepcopy(graph)

    expanded = await world.inline(graph)

    inner = [step["data"]["graph"] for step in expanded["steps"]]
    assert inner[0] == {**flat("new"), "name": "g", "version": 2}
    assert inner[1] == {**flat("old"), "name": "g", "version": 1}
    assert inner[2] == flat("own")
    assert graph == sent


async def test_graphs_are_put_into_graphs_that_are_put_into_graphs(
    world: RegisteredDefinitions,
) -> None:
    """Inline graphs are expanded too; one definition may be used several times."""
    await world.register("c", flat("c"))
    await world.register("b", containing(named("c"), named("c", 1)))

    expanded = await world.inline(containing(containing(named("b")), named("b")))

    first = expanded["steps"][0]["data"]["graph"]["steps"][0]["data"]["graph"]
    second = expanded["steps"][1]["data"]["graph"]
    leaves = [step["data"]["graph"] for graph in (first, second) for step in graph["steps"]]
    assert [first["name"], second["name"]] == ["b", "b"]
    assert leaves == [{**flat("c"), "name": "c", "version": 1}] * 4


async def test_a_graph_without_names_is_the_graph_itself(world: RegisteredDefinitions) -> None:
    """The graph is neither copied nor looked up."""
    graph = containing(flat("a"))

    assert await world.inline(graph) is graph


async def test_a_registered_graph_is_complete_and_says_which_version_it_is(
    world: RegisteredDefinitions,
) -> None:
    """A run can therefore store the complete graph."""
    await world.register("b", flat("b"))
    await world.register("a", containing(named("b")))

    found = await world.graphs.resolved(TENANT, DefinitionRef("a"))

    assert found.head.ref == DefinitionRef("a", 1)
    inner = found.runnable.graph["steps"][0]["data"]["graph"]
    assert inner == {**flat("b"), "name": "b", "version": 1}


@pytest.mark.parametrize(
    ("ref", "place"),
    [
        (DefinitionRef("x"), "name"),
        (DefinitionRef("x", 1), "name"),
        (DefinitionRef("g", 2), "version"),
    ],
)
async def test_a_registered_graph_that_does_not_exist_is_named_by_what_is_wrong(
    world: RegisteredDefinitions, ref: DefinitionRef, place: str
) -> None:
    """The problem is at the name, or at the version if only that is missing."""
    await world.register("g", flat("a"))

    with pytest.raises(GraphRefusedError) as refused:
        await world.graphs.resolved(TENANT, ref)

    assert [problem.place for problem in refused.value.problems] == [place]


async def test_all_that_does_not_exist_is_named_at_once_with_whatever_else_is_wrong(
    world: RegisteredDefinitions,
) -> None:
    """Each problem has its path; the catalog's own problems about bare names are left out."""
    await world.store.add(new_graph("g", flat("a")))
    graph = containing(named("x"), named("g", 7), *[flat("a")] * 8, flat())

    problems = await world.refused(graph)

    assert [problem.place for problem in problems] == [
        "steps.0.data.graph.name",
        "steps.1.data.graph.version",
        "steps.10.data.graph.steps",
    ]


async def test_a_name_inside_a_definition_that_leads_nowhere_has_its_place_too(
    world: RegisteredDefinitions,
) -> None:
    """The path is that of the expanded graph."""
    await world.store.add(new_graph("b", containing(named("gone"))))

    problems = await world.refused(containing(flat("a"), containing(named("b"))))

    place = "steps.1.data.graph.steps.0.data.graph.steps.0.data.graph.name"
    assert [problem.place for problem in problems] == [place]


async def test_the_whole_graph_is_checked_and_warnings_refuse_nothing(
    world: RegisteredDefinitions,
) -> None:
    """Problems inside inserted graphs have the paths of the expanded graph."""
    bad = {"steps": [{"id": "a", "type": "nothing", "data": {}}], "edges": []}
    await world.store.add(new_graph("bad", bad))

    problems = await world.refused(containing(named("bad")))
    accepted = await world.register("odd", containing(half_used()))

    assert [problem.place for problem in problems] == ["steps.0.data.graph.steps.0.type"]
    assert [problem.severity for problem in accepted.warnings] == [Severity.WARNING]
    assert await world.inline(containing(named("odd")))


async def test_validating_tells_everything_and_refuses_nothing(
    world: RegisteredDefinitions,
) -> None:
    """Errors, warnings, unknown names and exceeded limits are listed."""
    graph = containing(named("x"), half_used())

    problems = await world.graphs.problems(TENANT, graph, GRAPH)
    large = await world.graphs.problems(TENANT, flat(*map(str, range(101))), GRAPH)

    assert [(problem.place, problem.severity.value) for problem in problems] == [
        ("steps.0.data.graph.name", "error"),
        ("steps.1.data.graph.steps.1", "warning"),
    ]
    assert [problem.place for problem in large] == [""]
    assert await world.graphs.problems(TENANT, flat("a"), GRAPH) == ()


class TestCircles:
    async def test_a_graph_may_not_contain_itself(self, world: RegisteredDefinitions) -> None:
        """A graph may not refer to itself before it has a version, nor to its newest version."""
        await world.register("g", flat("a"))
        for name in ("g", "new"):
            with pytest.raises(GraphRefusedError) as refused:
                await world.register(name, containing(flat("a"), named(name)))

            [problem] = refused.value.problems
            assert problem.place == "steps.1.data.graph"
            assert problem.message == f"Circular reference: {name} -> {name}."

    async def test_a_graph_may_contain_an_older_version_of_itself(
        self, world: RegisteredDefinitions
    ) -> None:
        """An older version never changes, so this is not a cycle."""
        await world.register("g", flat("a"))

        assert (await world.register("g", containing(named("g", 1)))).head.version == 2
        with pytest.raises(GraphRefusedError) as refused:
            await world.register("g", containing(named("g", 3)))
        assert [problem.place for problem in refused.value.problems] == [
            "steps.0.data.graph.version"
        ]

    async def test_a_circle_through_others_is_named_with_its_path(
        self, world: RegisteredDefinitions
    ) -> None:
        """Any version that would close a cycle is rejected."""
        await world.register("c", flat("a"))
        await world.register("b", containing(named("c")))
        await world.register("a", containing(named("b")))

        with pytest.raises(GraphRefusedError) as refused:
            await world.register("c", containing(named("a")))

        [problem] = refused.value.problems
        assert problem.message == "Circular reference: c -> a@1 -> b@1 -> c."

    async def test_a_circle_that_came_about_unseen_is_found_when_it_is_run(
        self, world: RegisteredDefinitions
    ) -> None:
        """Deleting the newest version makes an older one the newest, which may close a cycle."""
        await world.store.add(new_graph("a", containing(named("b"))))
        await world.store.add(new_graph("b", containing(named("a"))))

        problems = await world.refused(containing(named("a")))
        with pytest.raises(GraphRefusedError) as refused:
            await world.graphs.resolved(TENANT, DefinitionRef("b"))

        assert [problem.message for problem in problems] == [
            "Circular reference: a@1 -> b@1 -> a@1."
        ]
        assert [problem.message for problem in refused.value.problems] == [
            "Circular reference: b@1 -> a@1 -> b@1."
        ]


class TestLimits:
    @pytest.mark.parametrize(
        ("limits", "name"),
        [
            (graph_limits(max_steps=5), "max_graph_steps"),
            (graph_limits(max_bytes=400), "max_graph_bytes"),
            (graph_limits(max_depth=2), "max_graph_depth"),
        ],
    )
    async def test_what_names_stand_for_counts(
        self, limits: GraphLimits, name: str, api: Api
    ) -> None:
        """Inserted graphs count towards the limits, even if each one alone is small enough."""
        roomy, tight = RegisteredDefinitions(api), RegisteredDefinitions(api, limits)
        await roomy.register("c", flat("a", "b"))
        await roomy.register("b", containing(named("c"), named("c")))
        tight.graphs = Definitions(roomy.store, api.catalog, limits, PacedThread())

        assert await tight.inline(containing(named("c")))
        problems = await tight.refused(containing(named("b")))

        assert [problem.place for problem in problems] == [""]
        assert name in problems[0].message

    async def test_exactly_the_limit_passes(self, api: Api) -> None:
        """Steps of the graph and of inserted graphs are added up."""
        world = RegisteredDefinitions(api, graph_limits(max_steps=7, max_depth=3))
        await world.register("c", flat("a", "b"))

        assert await world.inline(containing(containing(named("c")), named("c")))
        await world.refused(containing(containing(named("c")), named("c"), flat("a")))

    async def test_a_bomb_of_names_is_refused_before_it_is_built(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ten names in each of ten, seven levels deep, would be ten million steps."""
        monkeypatch.setattr(NodeCatalog, "examine", examine := Mock())
        world = RegisteredDefinitions(api, graph_limits(max_depth=20))
        await world.store.add(new_graph("g0", flat("a")))
        for level in range(1, 8):
            inside = containing(*[named(f"g{level - 1}")] * 10)
            await world.store.add(new_graph(f"g{level}", inside))

        problems = await world.refused(containing(named("g7")))

        assert "max_graph" in problems[0].message
        assert world.store.loaded_bytes < 20_000
        examine.assert_not_called()

    async def test_definitions_are_loaded_no_further_than_the_limit_of_bytes(
        self, api: Api
    ) -> None:
        """A graph can refer to more data than a process could hold."""
        world = RegisteredDefinitions(api, graph_limits(max_bytes=3_000))
        for number in range(50):
            await world.store.add(new_graph(f"g{number}", flat("x" * 500, str(number))))

        problems = await world.refused(containing(*(named(f"g{n}") for n in range(20))))

        assert "max_graph_bytes" in problems[0].message
        assert world.store.loaded_bytes == 0

    async def test_what_was_loaded_before_counts_towards_the_limit(self, api: Api) -> None:
        """The limit of bytes covers all levels of nested graphs together."""
        world = RegisteredDefinitions(api, graph_limits(max_bytes=3_000))
        await world.store.add(new_graph("g0", flat("x" * 1_000)))
        for level in range(1, 5):
            inside = containing(named(f"g{level - 1}"), flat("x" * 1_000))
            await world.store.add(new_graph(f"g{level}", inside))

        problems = await world.refused(containing(named("g4")))

        assert "max_graph_bytes" in problems[0].message
        assert 0 < world.store.loaded_bytes < 3_000

    async def test_a_long_chain_is_refused_however_its_links_were_loaded(
        self, api: Api, module_database: Connection
    ) -> None:
        """The links are loaded at once, so the chain is longer than the levels that were loaded."""
        world = RegisteredDefinitions(api, graph_limits(max_bytes=10**6, max_depth=5))
        await world.store.add(new_graph("g0", flat("a")))
        await world.store.add(new_graph("g1", containing(named("g0"))))
        module_database.execute(LINKS)

        at_once = await world.refused(containing(*(named(f"g{n}") for n in reversed(range(1000)))))
        one_by_one = await world.refused(containing(named("g999")))

        assert [problem.message for problem in (*at_once, *one_by_one)] == [
            "A graph can nest at most 5 deep, including nested graphs (max_graph_depth)."
        ] * 2


async def test_a_graph_that_is_deleted_meanwhile_is_looked_for_again(
    world: RegisteredDefinitions,
) -> None:
    """The error is the one for a graph that never existed."""
    await world.register("g", flat("a"))

    class Deleting(PostgresDefinitions):
        async def add(self, new: NewDefinition) -> Registered:
            if await self.get(TENANT, DefinitionRef("g")):
                await self.delete(TENANT, DefinitionRef("g"))
            return await super().add(new)

    store = Deleting(world.api._engines)
    await world.store.add(new_graph("g", flat("a")))
    graphs = Definitions(store, world.api.catalog, LIMITS, PacedThread())

    with pytest.raises(GraphRefusedError) as refused:
        await graphs.register(TENANT, DefinitionRef("user"), containing(named("g")))

    assert [problem.place for problem in refused.value.problems] == ["steps.0.data.graph.name"]


async def test_what_a_graph_contains_is_kept_with_it(world: RegisteredDefinitions) -> None:
    """References are stored as written, each once, so a definition in use cannot be deleted."""
    kept: list[NewDefinition] = []

    class Watching(PostgresDefinitions):
        async def add(self, new: NewDefinition) -> Registered:
            kept.append(new)
            return await super().add(new)

    graphs = Definitions(Watching(world.api._engines), world.api.catalog, LIMITS, PacedThread())
    await graphs.register(TENANT, DefinitionRef("g"), flat("a"))
    await graphs.register(
        TENANT, DefinitionRef("user"), containing(named("g"), containing(named("g", 1)), named("g"))
    )

    assert kept[1].uses == (DefinitionRef("g"), DefinitionRef("g", 1))
    assert kept[1].content == containing(named("g"), containing(named("g", 1)), named("g"))


async def test_a_large_graph_is_checked_beside_the_event_loop(world: RegisteredDefinitions) -> None:
    """The worker thread finds the same problems."""
    graph = flat(*(f"s{n}" for n in range(SMALL_BYTES)), "s0")
    world.graphs = Definitions(world.store, world.api.catalog, graph_limits(), PacedThread())

    problems = await world.refused(graph)

    assert [problem.place for problem in problems] == [f"steps.{SMALL_BYTES}.id"]


async def test_what_is_not_there_is_not_found(world: RegisteredDefinitions) -> None:
    """A missing definition, or a name without versions, is not found."""
    with pytest.raises(DefinitionNotFoundError):
        await world.graphs.get(TENANT, DefinitionRef("x"))
    with pytest.raises(DefinitionNotFoundError):
        await world.graphs.versions(TENANT, DefinitionRef("x"), limit=5, cursor=None)


async def test_a_place_that_no_graph_stands_at_is_a_level_all_the_same(
    world: RegisteredDefinitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level counts under any path that the catalog gives a nested graph."""
    graphs = Definitions(world.store, world.api.catalog, graph_limits(max_depth=1), PacedThread())
    await world.register("g", flat("a"))
    elsewhere = DefinitionReference(("steps", 0, "data", "body"), GRAPH, "g")
    monkeypatch.setattr(
        NodeCatalog, "references", lambda _, graph: [elsewhere] if "root" in graph else []
    )

    with pytest.raises(GraphRefusedError):
        await graphs.inline(TENANT, {**flat("a"), "root": True}, GRAPH)
