"""Validating graphs: all problems are reported at once, with a path and without input values."""

import json
from typing import Any

import pytest

from caseworker.core.graph.validation import Severity
from caseworker.engine.context import Materializing
from caseworker.nodes.catalog import DuplicateTypeError, GraphProblemsError, NodeCatalog
from caseworker.nodes.nesting import DefinitionKind, DefinitionReference
from caseworker.nodes.router import router_type
from tests.support.work import counted_calls
from tests.unit.nodes.world import NodeRun, flow, function, graph, link, step

ASK = {"prompt": "Say ${default}."}
SECRET = "sk-4f9a8b7c6d"


@function("twice")
def twice(context: Any) -> Any:
    return context.input * 2


@function("ledger", persistent=True)
def ledger(context: Any) -> Any:
    return None


def node_run() -> NodeRun:
    return NodeRun(functions=(twice, ledger))


def test_a_good_graph_has_no_problems_and_can_be_prepared() -> None:
    """The prepared graph holds the parts that its steps need."""
    good = graph(
        step("a", "llm", ASK, policy={"on_error": "skip", "fallback_value": "none"}),
        step(
            "b", "function", {"name": "twice"}, sub_budget={"max_seconds": 1.5, "max_cost_usd": 2}
        ),
        flow("a", "b"),
        max_parallel=4,
        name="registered",
        version=3,
    )

    assert node_run().catalog.examine(good)[1] == ()
    prepared = node_run().catalog.prepare(good, graph_id="mine")

    assert (prepared.graph.id, prepared.graph.max_parallel) == ("mine", 4)
    policy, limits = prepared.steps["a"].policy, prepared.steps["b"].sub_budget
    assert policy is not None
    assert (policy.on_error, policy.fallback_value) == ("skip", "none")
    assert limits is not None
    assert (limits.max_time_seconds, limits.max_cost_dollars) == (1.5, 2)


def test_all_problems_of_a_graph_are_told_at_once() -> None:
    """Invalid parts, unknown types, invalid data and problems of the whole graph are listed."""
    broken = graph(
        step("a b", "llm", {"prompt": "${default", SECRET: 1}),
        step("b", "llm", {}, policy={"on_error": "retry"}, sub_budget={"max_tokens": -1}),
        step("b", "mystery"),
        step(
            "c",
            "llm",
            ASK,
            policy={"on_error": "fallback", "fallback": {"type": "llm", "data": {"prompt": 1}}},
        ),
        step("d", "function", {"name": "os.system"}),
        flow("b", "nowhere"),
        {**flow("b", "c"), "data": {}},
        flow("c", "d", "other"),
        "no edge",
        entry=["b", "gone"],
        max_parallel=65,
        colour="red",
    )

    assert sorted(node_run().places(broken)) == sorted(
        [
            "max_parallel",
            "colour",
            "steps.0.id",
            "steps.0.data.prompt",
            "steps.0.data.*",
            "steps.1.data.prompt",
            "steps.1.policy.on_error",
            "steps.1.sub_budget.max_tokens",
            "steps.2.id",
            "steps.2.type",
            "steps.3.policy.fallback.data.prompt",
            "steps.4.data.name",
            "edges.0.target",
            "edges.1.data.channel",
            "edges.2.source_handle",
            "edges.3",
            "entry.1",
        ]
    )


def test_what_was_sent_does_not_come_back() -> None:
    """Problems repeat neither values nor unknown keys of the input."""
    broken = graph(
        step("a", "llm", {"prompt": [SECRET], SECRET: SECRET, "tier": SECRET, "seed": SECRET}),
        step("b", "llm", {"prompt": SECRET, "output_schema": {"type": SECRET}}),
        step(
            "c", "router", {"routes": [{"when": {"path": SECRET + "!", "op": SECRET}, "to": "x"}]}
        ),
        {**flow("a", "b"), "data": {"channel": SECRET}, SECRET: 1},
        max_parallel=SECRET,
    )

    problems = node_run().catalog.examine(broken)[1]

    assert len(problems) >= 9
    assert SECRET not in repr(problems)


@pytest.mark.req("004/channel")
@pytest.mark.parametrize(
    "data", [None, {}, {"channel": None}, {"channel": "both"}, {"channel": "FLOW"}, {"channel": 1}]
)
def test_an_edge_without_a_good_channel_is_refused(data: Any) -> None:
    """The channel has no default and is not derived from the handles."""
    edge = {**flow("a", "b"), "data": data}
    without = {name: value for name, value in edge.items() if name != "data"}

    for one in (edge, without):
        made = graph(step("a", "llm", ASK), step("b", "llm", ASK), one)
        (place,) = node_run().places(made)
        assert place.startswith("edges.0.data")
        with pytest.raises(GraphProblemsError):
            node_run().catalog.prepare(made, graph_id="g")


@pytest.mark.parametrize("missing", ["source", "target"])
def test_an_edge_names_both_ends(missing: str) -> None:
    """An edge with a missing end is rejected; the end is not guessed."""
    edge = {name: value for name, value in flow("a", "b").items() if name != missing}

    assert node_run().places(graph(step("a", "llm", ASK), step("b", "llm", ASK), edge)) == [
        f"edges.0.{missing}"
    ]


def test_an_edge_joins_the_usual_handles_unless_it_names_others() -> None:
    """A toolset has no default handle, and the problem names the missing handles."""
    ends = {"source": "a", "target": "b"}
    flows = graph(
        step("a", "llm", ASK), step("b", "llm", ASK), {**ends, "data": {"channel": "flow"}}
    )
    links = graph(
        step("a", "toolset", {"tools": []}),
        step("b", "case"),
        {**ends, "data": {"channel": "link"}},
    )

    edge = node_run().catalog.prepare(flows, graph_id="g").topology.graph.edges[0]
    assert (edge.source_handle, edge.target_handle) == ("default", "default")
    assert node_run().places(links) == ["edges.0.source_handle", "edges.0.target_handle"]


def test_a_gap_does_not_make_problems_of_its_own() -> None:
    """A toolset whose edge is invalid is not reported as an executed step."""
    edge = {**link("t", "c"), "source_handle": "no handle"}
    gap = graph(step("t", "toolset", {"tools": []}), step("c", "case"), edge)
    left_out = graph(step("a", "llm", ASK), step("b", "llm", ASK), edge, entry=["a"])

    assert node_run().places(gap) == ["edges.0.source_handle"]
    assert node_run().places(left_out) == ["edges.0.source_handle"]


@pytest.mark.parametrize(
    ("value", "places"),
    [
        (None, [""]),
        ([], [""]),
        ({}, ["edges", "steps"]),
        ({"steps": {}, "edges": 1}, ["edges", "steps"]),
        ({"steps": [None, 1], "edges": [None]}, ["edges.0", "steps.0", "steps.1"]),
        ({"steps": [], "edges": []}, ["steps"]),
    ],
)
def test_anything_at_all_can_be_checked(value: Any, places: list[str]) -> None:
    """Any value that is not a graph gives problems and no exception."""
    assert sorted(node_run().places(value)) == places


def test_warnings_are_told_and_do_not_keep_a_graph_from_being_executed() -> None:
    """Warnings have their own severity and do not reject the graph."""
    odd = graph(step("a", "llm", ASK), step("b", "llm", ASK), flow("b", "b"))

    problems = node_run().catalog.examine(odd)[1]

    assert {problem.severity for problem in problems} == {Severity.WARNING}
    assert node_run().catalog.prepare(odd, graph_id="g").topology.active == ("a",)


def test_the_error_of_a_refused_graph_names_the_first_problems_and_holds_all() -> None:
    """The message serves callers that do not show all problems."""
    broken = graph(*(step(f"s{number}", "llm") for number in range(5)))

    with pytest.raises(
        GraphProblemsError, match=r"steps\.0\.data\.prompt: .* and 2 more$"
    ) as caught:
        node_run().catalog.prepare(broken, graph_id="g")
    assert len(caught.value.problems) == 5


@pytest.mark.req("004/subgraph")
def test_graphs_inside_graphs_are_checked_in_their_place() -> None:
    """Problems and warnings of inner graphs have their full path."""
    inner = graph(step("x", "llm"), step("y", "llm", ASK), flow("y", "y"))
    outer = graph(
        step("a", "llm", ASK),
        step("s", "subgraph", {"graph": graph(step("deeper", "subgraph", {"graph": inner}))}),
        step("m", "map", {"step": {"type": "map", "data": {"graph": inner}}}),
    )

    assert set(node_run().places(outer)) == {
        "steps.1.data.graph.steps.0.data.graph.steps.0.data.prompt",
        "steps.1.data.graph.steps.0.data.graph.steps.1",
        "steps.1.data.graph.steps.0.data.graph.edges.0",
        "steps.2.data.step.data.graph.steps.0.data.prompt",
        "steps.2.data.step.data.graph.steps.1",
        "steps.2.data.step.data.graph.edges.0",
    }


@pytest.mark.parametrize("through", ["graph", "step"])
def test_eight_graphs_may_stand_in_one_another_and_no_more(through: str) -> None:
    """The outermost graph counts, and every kind of nesting counts."""

    def nested(depth: int) -> dict[str, Any]:
        if through == "step":
            work = {"type": "function", "data": {"name": "twice"}}
            for _ in range(depth):
                work = {"type": "map", "data": {"step": work}}
            return graph(step("s", work["type"], work["data"]))  # type: ignore[arg-type]
        made = graph(step("s", "function", {"name": "twice"}))
        for _ in range(depth):
            made = graph(step("s", "subgraph", {"graph": made}))
        return made

    assert node_run().catalog.examine(nested(7))[1] == ()
    (problem,) = node_run().catalog.examine(nested(8))[1]
    assert "At most 8 levels of nested graphs" in problem.message
    assert len(node_run().catalog.examine(nested(60))[1]) == 1


def test_graphs_that_are_only_named_are_found_wherever_they_stand() -> None:
    """Each reference has its path, also in fallbacks and inner graphs."""
    named = {"name": "prices", "version": 2}
    outer = graph(
        step("a", "subgraph", {"graph": named}),
        step("b", "map", {"graph": graph(step("x", "subgraph", {"graph": {"name": "inner"}}))}),
        step("c", "map", {"step": {"type": "subgraph", "data": {"graph": {"name": "each"}}}}),
        step(
            "d",
            "llm",
            ASK,
            policy={
                "on_error": "fallback",
                "fallback": {"type": "subgraph", "data": {"graph": {"name": "instead"}}},
            },
        ),
        step("e", "function", {"name": "twice", "args": {"graph": {"name": "no graph"}}}),
        step("f", "subgraph", {"graph": {**graph(step("x", "llm", ASK)), **named}}),
    )
    catalog = node_run().catalog

    found = catalog.references(outer)

    assert found == (
        DefinitionReference(("steps", 0, "data", "graph"), DefinitionKind.GRAPH, "prices", 2),
        DefinitionReference(
            ("steps", 1, "data", "graph", "steps", 0, "data", "graph"),
            DefinitionKind.GRAPH,
            "inner",
        ),
        DefinitionReference(
            ("steps", 2, "data", "step", "data", "graph"), DefinitionKind.GRAPH, "each", None
        ),
        DefinitionReference(
            ("steps", 3, "policy", "fallback", "data", "graph"),
            DefinitionKind.GRAPH,
            "instead",
            None,
        ),
    )
    assert [".".join(map(str, one.place)) for one in found] == [
        problem.place for problem in catalog.examine(outer)[1]
    ]


@pytest.mark.parametrize(
    "junk", [None, 1, {"steps": 1}, {"steps": [None, {"data": 1}, {"id": []}]}]
)
def test_references_are_looked_for_in_anything(junk: Any) -> None:
    """Invalid input has no references, nor has a step whose type takes no graph."""
    assert node_run().catalog.references(junk) == ()
    taking_none = graph(
        step("a", "llm", {"graph": {"name": "x"}}), step("b", "gone", {"graph": junk})
    )
    assert node_run().catalog.references(taking_none) == ()


def test_persistent_functions_are_found_inside_nested_graphs() -> None:
    """Neither two parallel steps nor two items of a map may share one (seed 000, P4)."""
    use = step("u", "function", {"name": "ledger"})
    side_by_side = graph(
        step("a", "subgraph", {"graph": graph(use)}),
        step("b", "map", {"step": {"type": "function", "data": {"name": "ledger"}}}),
        max_parallel=2,
    )
    items = graph(step("m", "map", {"graph": graph(use), "max_parallel": 2}))
    fallback = {
        "on_error": "fallback",
        "fallback": {"type": "function", "data": {"name": "ledger"}},
    }
    as_fallback = graph(use, step("v", "llm", ASK, policy=fallback), max_parallel=2)

    assert node_run().places(side_by_side) == ["steps.1"]
    assert node_run().places({**side_by_side, "max_parallel": 1}) == []
    assert node_run().places(items) == ["steps.0.data.max_parallel"]
    assert node_run().places(as_fallback) == ["steps.1"]


def test_ten_times_as_many_steps_take_about_ten_times_as_much_work_to_prepare() -> None:
    """Quadratic work would need a hundred times as many function calls."""
    catalog = node_run().catalog

    def calls_for(count: int) -> int:
        steps = [step(f"s{number}", "llm", ASK) for number in range(count)]
        edges = [flow(f"s{number}", f"s{number + 1}") for number in range(count - 1)]
        with counted_calls() as work:
            catalog.prepare({"steps": steps, "edges": edges}, graph_id="g")
        return work.calls

    calls_for(3)  # warm up what all graphs share
    assert calls_for(1_000) < 12 * calls_for(100)


def test_the_types_describe_themselves_as_json() -> None:
    """The JSON includes the schema of each type's data."""
    here = node_run()
    described = {kind["name"]: kind for kind in json.loads(json.dumps(here.catalog.describe()))}

    assert list(described) == sorted(kind.name for kind in here.types)
    assert described["llm"]["data"]["required"] == ["prompt"]
    assert described["tool"]["outputs"] == {"flow": ["default", "error"], "link": []}
    assert described["toolset"]["executes"] is False
    schema = json.loads(json.dumps(node_run().catalog.schema()))
    assert schema["required"] == ["steps", "edges"]


@pytest.mark.req("004/executors", "004/materialize")
def test_what_can_be_linked_materialises_and_nothing_else_does() -> None:
    """A type's behaviour is in its node: `execute`, and `materialize` for links."""
    for kind in node_run().types:
        linkable = kind.handles.link_outputs != frozenset()
        assert isinstance(kind.node, Materializing) == linkable, kind.name
        assert callable(kind.node.execute)


def test_a_catalog_has_each_type_once() -> None:
    """With two types of the same name, a graph would be ambiguous."""
    with pytest.raises(DuplicateTypeError):
        NodeCatalog([router_type(), router_type()])
