"""Invalid graphs are rejected before execution, with the position of the error."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from caseworker import (
    ErrorPolicy,
    ExecutionContext,
    FunctionNode,
    Graph,
    GraphError,
    NodeLock,
)
from tests.unit.runtime_api.functions import constant


class Ledger:
    """A node with its own state, as a user of the API would write it."""

    persistent = True

    def __init__(self) -> None:
        self.id = "ledger"
        self.entries: list[Any] = []

    async def execute(self, context: ExecutionContext) -> int:
        self.entries.append(context.input)
        return len(self.entries)


@pytest.mark.parametrize("step_id", ["", "a/b", "a~2", "a>b"])
def test_a_step_id_that_paths_are_made_with_is_refused(step_id: str) -> None:
    """The ID would be ambiguous in traces and in the journal."""
    with pytest.raises(ValueError, match="step id"):
        Graph("g").add_step(constant(1), step_id)


@pytest.mark.parametrize("step_id", [5, None, b"a"])
def test_a_step_id_is_a_text(step_id: Any) -> None:
    """A number would not equal any ID that arrives as JSON."""
    with pytest.raises(TypeError, match="step id"):
        Graph("g").add_step(constant(1), step_id)


def test_dependencies_are_a_collection_of_ids_and_not_one_text() -> None:
    """The text "ab" would mean the steps a and b."""
    with pytest.raises(TypeError, match=r"\['ab'\]"):
        Graph("g").add_step(constant(1), "x", depends_on="ab")


def test_a_missing_dependency_names_the_step_that_asks_for_it() -> None:
    """With a hundred steps, the missing ID alone would not help."""
    graph = Graph("g")
    graph.add_step(constant(1), "report", depends_on=["gone"])

    (problem,) = graph.validate()

    assert "'report'" in problem
    assert "'gone'" in problem


async def test_a_graph_inside_itself_is_refused() -> None:
    """Direct and indirect nesting is rejected, and the message names the path."""
    direct, outer, inner = Graph("direct"), Graph("outer"), Graph("inner")
    direct.add_step(direct, "again")
    outer.add_step(inner, "in")
    inner.add_step(outer, "out")

    with pytest.raises(GraphError, match="again"):
        await direct.execute()
    with pytest.raises(GraphError, match="in/out"):
        await outer.execute()


@pytest.mark.parametrize("fallback", ["backup", 5, object()])
def test_a_fallback_must_be_a_node(fallback: Any) -> None:
    """The ID of a step is not accepted."""
    policy = ErrorPolicy(on_error="fallback", fallback_node=fallback)

    with pytest.raises(TypeError, match="fallback_node"):
        Graph("g").add_step(constant(1), "a", error_policy=policy)


def test_a_persistent_fallback_is_seen_by_the_check_for_sharing() -> None:
    """Two parallel steps must not use the same fallback node."""
    shared = FunctionNode("shared", lambda _: 1, persistent=True)
    policy = ErrorPolicy(on_error="fallback", fallback_node=shared)
    graph = Graph("g", max_parallel=2)
    graph.add_step(constant(1), "a", error_policy=policy)
    graph.add_step(constant(2), "b", error_policy=policy)

    assert any("'shared'" in problem for problem in graph.validate())


async def test_a_persistent_node_of_another_author_gets_a_lock() -> None:
    """The graph creates the lock for a node that only declares itself persistent."""
    ledger = Ledger()
    graph = Graph("g", max_parallel=2)
    graph.add_step(ledger, "a", input=1)
    graph.add_step(ledger, "b", input=2, depends_on=["a"])

    assert await graph.execute() == {"a": 1, "b": 2}
    graph.add_step(ledger, "c")
    assert any("'ledger'" in problem for problem in graph.validate())


def test_a_persistent_node_whose_lock_is_of_another_kind_is_refused() -> None:
    """The lock would otherwise be replaced without notice."""
    ledger = Ledger()
    ledger.lock = "mine"  # type: ignore[attr-defined]

    with pytest.raises(TypeError, match="NodeLock"):
        Graph("g").add_step(ledger, "a")


def generator(_: ExecutionContext) -> Iterator[int]:
    yield 1


async def asynchronous_generator(_: ExecutionContext) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("fn", [generator, asynchronous_generator])
async def test_a_generator_function_is_refused(fn: Any) -> None:
    """A generator function is rejected, because it would never be started."""
    with pytest.raises(ValueError, match="generator"):
        FunctionNode("n", fn)


@pytest.mark.parametrize("fn", [generator, asynchronous_generator])
async def test_a_function_that_returns_a_generator_fails_its_step(fn: Any) -> None:
    """A function that returns a generator fails its step instead of completing it."""
    graph = Graph("g")
    graph.add_step(FunctionNode("n", lambda context: fn(context)), "a")

    with pytest.raises(TypeError, match="generator"):
        await graph.execute()


def test_what_is_built_shows_what_it_is() -> None:
    """The representation helps at a prompt and in a failed assertion."""
    graph = Graph("report", 2)
    node = FunctionNode("fetch", lambda _: 1)
    graph.add_step(node, "a")

    assert repr(graph) == "Graph('report', steps=['a'], max_parallel=2)"
    assert repr(node) == "FunctionNode('fetch')"
    assert repr(NodeLock("n")) == "'n'"
