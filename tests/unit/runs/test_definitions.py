"""Registered graphs replace their names in other graphs; the whole is validated and limited."""

import copy
from unittest.mock import Mock

import pytest
from psycopg import Connection

from caseworker.core.graph.validation import Severity
from caseworker.features.definitions.definitions import Definitions
from caseworker.features.definitions.expansion import SMALL_BYTES
from caseworker.features.definitions.postgres import PostgresDefinitions
from caseworker.features.definitions.registration import (
    DefinitionNotFoundError,
    NewDefinition,
    Registered,
)
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.nesting import DefinitionKind, DefinitionReference
from caseworker.platform.fair_threads import PacedThread
from caseworker.runs.errors import GraphRefusedError
from caseworker.runs.http.limits import GraphLimits
from caseworker.runs.run import DefinitionRef
from tests.support.api import Api
from tests.support.graph_documents import TENANT, containing, flat, graph_ref, half_used, new_graph
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
def registered(api: Api) -> RegisteredDefinitions:
    return RegisteredDefinitions(api)


async def test_a_name_becomes_the_graph_it_stands_for(registered: RegisteredDefinitions) -> None:
    """The newest or the named version is inserted, with its name and version."""
    await registered.register("g", flat("old"))
    await registered.register("g", flat("new"))
    graph = containing(graph_ref("g"), graph_ref("g", 1), flat("own"))
    sent = copy.deepcopy(graph)

    expanded = await registered.inline(graph)

    inner = [step["data"]["graph"] for step in expanded["steps"]]
    assert inner[0] == {**flat("new"), "name": "g", "version": 2}
    assert inner[1] == {**flat("old"), "name": "g", "version": 1}
    assert inner[2] == flat("own")
    assert graph == sent


async def test_graphs_are_put_into_graphs_that_are_put_into_graphs(
    registered: RegisteredDefinitions,
) -> None:
    """Inline graphs are expanded too; one definition may be used several times."""
    await registered.register("c", flat("c"))
    await registered.register("b", containing(graph_ref("c"), graph_ref("c", 1)))

    expanded = await registered.inline(containing(containing(graph_ref("b")), graph_ref("b")))

    first = expanded["steps"][0]["data"]["graph"]["steps"][0]["data"]["graph"]
    second = expanded["steps"][1]["data"]["graph"]
    leaves = [step["data"]["graph"] for graph in (first, second) for step in graph["steps"]]
    assert [first["name"], second["name"]] == ["b", "b"]
    assert leaves == [{**flat("c"), "name": "c", "version": 1}] * 4


async def test_a_graph_without_names_is_the_graph_itself(registered: RegisteredDefinitions) -> None:
    """The graph is neither copied nor looked up."""
    graph = containing(flat("a"))

    assert await registered.inline(graph) is graph


async def test_a_registered_graph_is_complete_and_says_which_version_it_is(
    registered: RegisteredDefinitions,
) -> None:
    """A run can therefore store the complete graph."""
    await registered.register("b", flat("b"))
    await registered.register("a", containing(graph_ref("b")))

    found = await registered.graphs.resolved(TENANT, DefinitionRef("a"))

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
    registered: RegisteredDefinitions, ref: DefinitionRef, place: str
) -> None:
    """The problem is at the name, or at the version if only that is missing."""
    await registered.register("g", flat("a"))

    with pytest.raises(GraphRefusedError) as refused:
        await registered.graphs.resolved(TENANT, ref)

    assert [problem.place for problem in refused.value.problems] == [place]


async def test_all_that_does_not_exist_is_named_at_once_with_whatever_else_is_wrong(
    registered: RegisteredDefinitions,
) -> None:
    """Each problem has its path; the catalog's own problems about bare names are left out."""
    await registered.store.add(new_graph("g", flat("a")))
    graph = containing(graph_ref("x"), graph_ref("g", 7), *[flat("a")] * 8, flat())

    problems = await registered.refused(graph)

    assert [problem.place for problem in problems] == [
        "steps.0.data.graph.name",
        "steps.1.data.graph.version",
        "steps.10.data.graph.steps",
    ]


async def test_a_name_inside_a_definition_that_leads_nowhere_has_its_place_too(
    registered: RegisteredDefinitions,
) -> None:
    """The path is that of the expanded graph."""
    await registered.store.add(new_graph("b", containing(graph_ref("gone"))))

    problems = await registered.refused(containing(flat("a"), containing(graph_ref("b"))))

    place = "steps.1.data.graph.steps.0.data.graph.steps.0.data.graph.name"
    assert [problem.place for problem in problems] == [place]


async def test_the_whole_graph_is_checked_and_warnings_refuse_nothing(
    registered: RegisteredDefinitions,
) -> None:
    """Problems inside inserted graphs have the paths of the expanded graph."""
    bad = {"steps": [{"id": "a", "type": "nothing", "data": {}}], "edges": []}
    await registered.store.add(new_graph("bad", bad))

    problems = await registered.refused(containing(graph_ref("bad")))
    accepted = await registered.register("odd", containing(half_used()))

    assert [problem.place for problem in problems] == ["steps.0.data.graph.steps.0.type"]
    assert [problem.severity for problem in accepted.warnings] == [Severity.WARNING]
    assert await registered.inline(containing(graph_ref("odd")))


async def test_validating_tells_everything_and_refuses_nothing(
    registered: RegisteredDefinitions,
) -> None:
    """Errors, warnings, unknown names and exceeded limits are listed."""
    graph = containing(graph_ref("x"), half_used())

    problems = await registered.graphs.problems(TENANT, graph, GRAPH)
    large = await registered.graphs.problems(TENANT, flat(*map(str, range(101))), GRAPH)

    assert [(problem.place, problem.severity.value) for problem in problems] == [
        ("steps.0.data.graph.name", "error"),
        ("steps.1.data.graph.steps.1", "warning"),
    ]
    assert [problem.place for problem in large] == [""]
    assert await registered.graphs.problems(TENANT, flat("a"), GRAPH) == ()


class TestCircles:
    async def test_a_graph_may_not_contain_itself(self, registered: RegisteredDefinitions) -> None:
        """A graph may not refer to itself before it has a version, nor to its newest version."""
        await registered.register("g", flat("a"))
        for name in ("g", "new"):
            with pytest.raises(GraphRefusedError) as refused:
                await registered.register(name, containing(flat("a"), graph_ref(name)))

            [problem] = refused.value.problems
            assert problem.place == "steps.1.data.graph"
            assert problem.message == f"Circular reference: {name} -> {name}."

    async def test_a_graph_may_contain_an_older_version_of_itself(
        self, registered: RegisteredDefinitions
    ) -> None:
        """An older version never changes, so this is not a cycle."""
        await registered.register("g", flat("a"))

        assert (await registered.register("g", containing(graph_ref("g", 1)))).head.version == 2
        with pytest.raises(GraphRefusedError) as refused:
            await registered.register("g", containing(graph_ref("g", 3)))
        assert [problem.place for problem in refused.value.problems] == [
            "steps.0.data.graph.version"
        ]

    async def test_a_circle_through_others_is_named_with_its_path(
        self, registered: RegisteredDefinitions
    ) -> None:
        """Any version that would close a cycle is rejected."""
        await registered.register("c", flat("a"))
        await registered.register("b", containing(graph_ref("c")))
        await registered.register("a", containing(graph_ref("b")))

        with pytest.raises(GraphRefusedError) as refused:
            await registered.register("c", containing(graph_ref("a")))

        [problem] = refused.value.problems
        assert problem.message == "Circular reference: c -> a@1 -> b@1 -> c."

    async def test_a_circle_that_came_about_unseen_is_found_when_it_is_run(
        self, registered: RegisteredDefinitions
    ) -> None:
        """Deleting the newest version makes an older one the newest, which may close a cycle."""
        await registered.store.add(new_graph("a", containing(graph_ref("b"))))
        await registered.store.add(new_graph("b", containing(graph_ref("a"))))

        problems = await registered.refused(containing(graph_ref("a")))
        with pytest.raises(GraphRefusedError) as refused:
            await registered.graphs.resolved(TENANT, DefinitionRef("b"))

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
        await roomy.register("b", containing(graph_ref("c"), graph_ref("c")))
        tight.graphs = Definitions(roomy.store, api.catalog, limits, PacedThread())

        assert await tight.inline(containing(graph_ref("c")))
        problems = await tight.refused(containing(graph_ref("b")))

        assert [problem.place for problem in problems] == [""]
        assert name in problems[0].message

    async def test_exactly_the_limit_passes(self, api: Api) -> None:
        """Steps of the graph and of inserted graphs are added up."""
        registered = RegisteredDefinitions(api, graph_limits(max_steps=7, max_depth=3))
        await registered.register("c", flat("a", "b"))

        assert await registered.inline(containing(containing(graph_ref("c")), graph_ref("c")))
        await registered.refused(containing(containing(graph_ref("c")), graph_ref("c"), flat("a")))

    async def test_a_bomb_of_names_is_refused_before_it_is_built(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ten names in each of ten, seven levels deep, would be ten million steps."""
        monkeypatch.setattr(NodeCatalog, "examine", examine := Mock())
        registered = RegisteredDefinitions(api, graph_limits(max_depth=20))
        await registered.store.add(new_graph("g0", flat("a")))
        for level in range(1, 8):
            inside = containing(*[graph_ref(f"g{level - 1}")] * 10)
            await registered.store.add(new_graph(f"g{level}", inside))

        problems = await registered.refused(containing(graph_ref("g7")))

        assert "max_graph" in problems[0].message
        assert registered.store.loaded_bytes < 20_000
        examine.assert_not_called()

    async def test_definitions_are_loaded_no_further_than_the_limit_of_bytes(
        self, api: Api
    ) -> None:
        """A graph can refer to more data than a process could hold."""
        registered = RegisteredDefinitions(api, graph_limits(max_bytes=3_000))
        for number in range(50):
            await registered.store.add(new_graph(f"g{number}", flat("x" * 500, str(number))))

        problems = await registered.refused(containing(*(graph_ref(f"g{n}") for n in range(20))))

        assert "max_graph_bytes" in problems[0].message
        assert registered.store.loaded_bytes == 0

    async def test_what_was_loaded_before_counts_towards_the_limit(self, api: Api) -> None:
        """The limit of bytes covers all levels of nested graphs together."""
        registered = RegisteredDefinitions(api, graph_limits(max_bytes=3_000))
        await registered.store.add(new_graph("g0", flat("x" * 1_000)))
        for level in range(1, 5):
            inside = containing(graph_ref(f"g{level - 1}"), flat("x" * 1_000))
            await registered.store.add(new_graph(f"g{level}", inside))

        problems = await registered.refused(containing(graph_ref("g4")))

        assert "max_graph_bytes" in problems[0].message
        assert 0 < registered.store.loaded_bytes < 3_000

    async def test_a_long_chain_is_refused_however_its_links_were_loaded(
        self, api: Api, module_database: Connection
    ) -> None:
        """The links are loaded at once, so the chain is longer than the levels that were loaded."""
        registered = RegisteredDefinitions(api, graph_limits(max_bytes=10**6, max_depth=5))
        await registered.store.add(new_graph("g0", flat("a")))
        await registered.store.add(new_graph("g1", containing(graph_ref("g0"))))
        module_database.execute(LINKS)

        at_once = await registered.refused(
            containing(*(graph_ref(f"g{n}") for n in reversed(range(1000))))
        )
        one_by_one = await registered.refused(containing(graph_ref("g999")))

        assert [problem.message for problem in (*at_once, *one_by_one)] == [
            "A graph can nest at most 5 deep, including nested graphs (max_graph_depth)."
        ] * 2


async def test_a_graph_that_is_deleted_meanwhile_is_looked_for_again(
    registered: RegisteredDefinitions,
) -> None:
    """The error is the one for a graph that never existed."""
    await registered.register("g", flat("a"))

    class Deleting(PostgresDefinitions):
        async def add(self, new: NewDefinition) -> Registered:
            if await self.get(TENANT, DefinitionRef("g")):
                await self.delete(TENANT, DefinitionRef("g"))
            return await super().add(new)

    store = Deleting(registered.api._engines)
    await registered.store.add(new_graph("g", flat("a")))
    graphs = Definitions(store, registered.api.catalog, LIMITS, PacedThread())

    with pytest.raises(GraphRefusedError) as refused:
        await graphs.register(TENANT, DefinitionRef("user"), containing(graph_ref("g")))

    assert [problem.place for problem in refused.value.problems] == ["steps.0.data.graph.name"]


async def test_what_a_graph_contains_is_kept_with_it(registered: RegisteredDefinitions) -> None:
    """References are stored as written, each once, so a definition in use cannot be deleted."""
    kept: list[NewDefinition] = []

    class Watching(PostgresDefinitions):
        async def add(self, new: NewDefinition) -> Registered:
            kept.append(new)
            return await super().add(new)

    graphs = Definitions(
        Watching(registered.api._engines), registered.api.catalog, LIMITS, PacedThread()
    )
    await graphs.register(TENANT, DefinitionRef("g"), flat("a"))
    await graphs.register(
        TENANT,
        DefinitionRef("user"),
        containing(graph_ref("g"), containing(graph_ref("g", 1)), graph_ref("g")),
    )

    assert kept[1].uses == (DefinitionRef("g"), DefinitionRef("g", 1))
    assert kept[1].content == containing(
        graph_ref("g"), containing(graph_ref("g", 1)), graph_ref("g")
    )


async def test_a_large_graph_is_checked_beside_the_event_loop(
    registered: RegisteredDefinitions,
) -> None:
    """The worker thread finds the same problems."""
    graph = flat(*(f"s{n}" for n in range(SMALL_BYTES)), "s0")
    registered.graphs = Definitions(
        registered.store, registered.api.catalog, graph_limits(), PacedThread()
    )

    problems = await registered.refused(graph)

    assert [problem.place for problem in problems] == [f"steps.{SMALL_BYTES}.id"]


async def test_what_is_not_there_is_not_found(registered: RegisteredDefinitions) -> None:
    """A missing definition, or a name without versions, is not found."""
    with pytest.raises(DefinitionNotFoundError):
        await registered.graphs.get(TENANT, DefinitionRef("x"))
    with pytest.raises(DefinitionNotFoundError):
        await registered.graphs.versions(TENANT, DefinitionRef("x"), limit=5, cursor=None)


async def test_a_place_that_no_graph_stands_at_is_a_level_all_the_same(
    registered: RegisteredDefinitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level counts under any path that the catalog gives a nested graph."""
    graphs = Definitions(
        registered.store, registered.api.catalog, graph_limits(max_depth=1), PacedThread()
    )
    await registered.register("g", flat("a"))
    elsewhere = DefinitionReference(("steps", 0, "data", "body"), GRAPH, "g")
    monkeypatch.setattr(
        NodeCatalog, "references", lambda _, graph: [elsewhere] if "root" in graph else []
    )

    with pytest.raises(GraphRefusedError):
        await graphs.inline(TENANT, {**flat("a"), "root": True}, GRAPH)
