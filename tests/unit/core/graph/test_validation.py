"""Problems in the parts of a graph, and their messages."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from caseworker.core.graph.graph import Channel, Edge, GraphStep, StepGraph
from caseworker.core.graph.validation import Handles, Problem, Severity, Traits, problems_of
from tests.unit.core.graph.drawing import flow, graph, link


def problems(
    checked: StepGraph, traits: Mapping[str, Traits] | None = None, unknown: str = ""
) -> dict[str, str]:
    """Return the messages by place; a place never has two problems in these tests."""
    of_step = traits or {}
    found = problems_of(
        checked,
        lambda step: None if step.type == unknown else of_step.get(step.id, Traits()),
        types={"known"},
    )
    assert len({problem.place for problem in found}) == len(found)
    return {problem.place: problem.message for problem in found}


def test_nothing_is_wrong_with_a_graph_that_can_be_executed() -> None:
    """A valid graph with several handles, linked steps and link-only steps has no problems."""
    whole = graph(
        "ABCL",
        flow("A", "B", "x"),
        flow("A", "B", "y"),
        flow("A", "C"),
        flow("A", "C", into="other"),
        link("A", "C"),
        link("L", "B"),
    )

    assert problems(whole, {"L": Traits(executes=False)}) == {}


def test_all_problems_are_told_at_once_each_with_its_place() -> None:
    """All problems are reported at once, each with its place."""
    broken = StepGraph(
        id="g",
        steps=(
            GraphStep(id="A", type="known"),
            GraphStep(id="A", type="known"),
            GraphStep(id="B", type="strange"),
        ),
        edges=(
            flow("A", "Z"),
            replace(flow("Y", "B"), id="e"),
            replace(flow("A", "B"), id="e"),
            flow("A", "B"),
        ),
        entry=("A", "X", "A"),
        max_parallel=0,
    )

    assert problems(broken, unknown="strange") == {
        "steps.1.id": "The id 'A' is already used by steps.0. Give each step a unique id.",
        "steps.2.type": "Step 'B' has the unknown type 'strange'. Use one of these: known.",
        "edges.0.target": "There is no step 'Z' (edge 'A' to 'Z')."
        " Correct the id, or add the step.",
        "edges.1.source": "There is no step 'Y' (edge 'Y' to 'B')."
        " Correct the id, or add the step.",
        "edges.2.id": "The id 'e' is already used by edges.1."
        " Give each edge a unique id, or no id.",
        "edges.3": "The edge from 'A' to 'B' is a duplicate of edges.2. Remove one of them.",
        "entry.1": "There is no step 'X'. Correct the id, or add the step.",
        "entry.2": "Step 'A' is already listed as entry.0. List it only once.",
        "max_parallel": "max_parallel must be at least 1.",
    }


@pytest.mark.req("004/subgraph")
def test_what_is_broken_is_refused_wherever_it_stands() -> None:
    """Steps that are not executed are validated too."""
    checked = graph("AXX", flow("X", "Y"), entry="A")

    found = problems_of(checked, lambda step: Traits() if step.id == "A" else None)

    assert {problem.place for problem in found if problem.severity is Severity.ERROR} == {
        "steps.1.type",
        "steps.2.type",
        "steps.2.id",
        "edges.0.target",
    }


def test_an_edge_of_an_id_that_is_taken_twice_belongs_to_the_first_step() -> None:
    """An edge of a duplicate ID is checked against the first step with that ID."""
    one = Traits(Handles(flow_outputs=frozenset({"x"})))
    both = (
        GraphStep(id="A", type="one"),
        GraphStep(id="A", type="any"),
        GraphStep(id="B", type="any"),
    )
    twice = StepGraph(id="g", steps=both, edges=(flow("A", "B", "y"),))

    found = problems_of(twice, lambda step: one if step.type == "one" else Traits())

    assert [problem.place for problem in found] == ["steps.1.id", "edges.0.source_handle"]


def test_edges_without_an_id_do_not_repeat_one() -> None:
    """Missing edge IDs are not reported as duplicates."""
    assert problems(graph("ABC", flow("A", "B"), flow("A", "C"))) == {}


def test_a_handle_that_a_step_does_not_have_is_refused() -> None:
    """The message for an unknown handle lists the existing ones."""
    traits = {
        "A": Traits(Handles(flow_outputs=frozenset({"yes", "no"}))),
        "B": Traits(Handles(flow_inputs=frozenset({"default"}), link_inputs=frozenset({"parts"}))),
        "L": Traits(Handles(link_outputs=frozenset({"part"}))),
    }
    edges = flow("A", "B", "maybe"), flow("A", "B", "no", "text"), link("L", "B", "piece", "parts")

    assert problems(graph("ABL", *edges), traits) == {
        "edges.0.source_handle": "Step 'A' has no output 'maybe' on channel flow."
        " It has 'no', 'yes'.",
        "edges.1.target_handle": "Step 'B' has no input 'text' on channel flow. It has 'default'.",
        "edges.2.source_handle": "Step 'L' has no output 'piece' on channel link. It has 'part'.",
    }


@pytest.mark.req("004/channel")
def test_an_edge_on_a_channel_that_a_step_does_not_serve_is_refused() -> None:
    """The message names the channel if the step has no handles on it."""
    none: frozenset[str] = frozenset()
    traits = {"A": Traits(Handles(link_outputs=none)), "C": Traits(Handles(flow_inputs=none))}
    checked = graph("ABC", flow("A", "B"), link("A", "B"), flow("B", "C"))

    assert problems(checked, traits) == {
        "edges.1.data.channel": "Step 'A' has no output on channel link."
        " Use the other channel or another step.",
        "edges.2.data.channel": "Step 'C' has no input on channel flow."
        " Use the other channel or another step.",
    }


@pytest.mark.req("004/channel", "004/pipeline")
def test_an_input_of_one_channel_takes_no_edge_of_the_other() -> None:
    """Any name may be a flow input, except one that is named as an input for links."""
    traits = {"B": Traits(Handles(link_inputs=frozenset({"parts"})))}
    edges = flow("A", "B", into="parts"), link("A", "B", into="parts"), flow("A", "B", into="text")

    assert problems(graph("AB", *edges), traits) == {
        "edges.0.data.channel": "Input 'parts' of step 'B' takes only edges on channel link."
        " Use that channel or another handle.",
    }


@pytest.mark.req("004/channel")
@pytest.mark.parametrize("channel", [None, "", "values"])
def test_a_channel_that_is_none_is_refused(channel: str | None) -> None:
    """An invalid channel is reported, not treated as flow, and hides no other problem."""
    edge = Edge(source="A", target="Z", channel=channel)  # type: ignore[arg-type]

    assert problems(graph("A", edge)) == {
        "edges.0.target": "There is no step 'Z' (edge 'A' to 'Z')."
        " Correct the id, or add the step.",
        "edges.0.data.channel": f"The channel must be flow or link, not {channel!r}.",
    }


def test_a_graph_without_steps_is_refused() -> None:
    """A graph without steps has exactly one problem."""
    assert problems(graph("")) == {"steps": "The graph has no steps. Add at least one."}


def test_an_empty_entry_is_refused() -> None:
    """An empty entry list is the only problem reported; it is not treated as a missing one."""
    assert list(problems(graph("AB", flow("A", "B"), entry=""))) == ["entry"]


def test_steps_are_not_called_left_out_while_an_entry_is_missing() -> None:
    """An unknown entry hides warnings about unreachable steps, which the right one may reach."""
    assert list(problems(graph("AB", entry="AC"))) == ["entry.1"]


def test_a_graph_in_which_nothing_would_begin_is_refused() -> None:
    """A graph in which no step can start is an error at its list of steps."""
    found = problems_of(
        graph("ABL", flow("A", "B"), flow("B", "A"), link("L", "A")), lambda _: Traits()
    )

    assert [(problem.place, problem.severity) for problem in found] == [
        ("steps", Severity.ERROR),
        ("edges.1", Severity.WARNING),
    ]
    assert found[0].message.startswith("No step would be executed")


def test_a_step_that_can_only_be_linked_is_not_executed() -> None:
    """A link-only step that would be executed is reported, as a named entry or by flow."""
    only_linked = {name: Traits(executes=False) for name in "LMN"}

    reached = problems(graph("ALM", flow("A", "M")), only_linked)
    named = problems(graph("ALN", link("L", "A"), entry="AN"), only_linked)

    assert list(reached) == ["steps.1.type", "steps.2.type"]
    assert list(named) == ["entry.1"]
    assert named["entry.1"].startswith("Step 'N' cannot be executed; it can only be linked.")


def test_long_and_strange_names_are_cut_and_escaped() -> None:
    """Long and non-printable names are shortened and escaped, so a message stays one line."""
    checked = graph(
        ["a" * 5_000, "b\n\ud800"], flow("a" * 5_000, "c" * 5_000), flow("b\n\ud800", "d")
    )
    traits = {"b\n\ud800": Traits(Handles(flow_outputs=frozenset(map(str, range(1000)))))}

    found = problems(checked, traits)

    assert all(len(message) < 400 for message in found.values())
    assert "\n" not in "".join(found.values())
    assert "'b\\n\\ud800'" in found["edges.1.source_handle"]
    assert found["edges.1.source_handle"].endswith("and 990 more.")
    "".join(found.values()).encode()


def test_a_problem_is_an_error_unless_it_says_otherwise() -> None:
    """A problem is an error by default, so a new check rejects graphs."""
    assert Problem("steps.0", "It is wrong.").severity is Severity.ERROR


def test_handles_are_asked_for_by_channel() -> None:
    """Handles are returned by direction and channel; None accepts every name."""
    a, b, c = frozenset("a"), frozenset("b"), frozenset("c")
    handles = Handles(a, b, c)

    assert handles.inputs(Channel.FLOW) == a
    assert handles.outputs(Channel.FLOW) == b
    assert handles.inputs(Channel.LINK) == c
    assert handles.outputs(Channel.LINK) is None
