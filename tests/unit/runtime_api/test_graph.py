"""Graphs in Python, as seed 000 requires them."""

import asyncio
import threading
from typing import Any

import pytest

from caseworker import ExecutionContext, FunctionNode, Graph, GraphError
from tests.unit.runtime_api.functions import constant, plus_one


def total(context: ExecutionContext) -> int:
    return sum(context.upstream.values())


def diamond(max_parallel: int = 1) -> Graph:
    graph = Graph("diamond", max_parallel)
    graph.add_step(constant(1), "a")
    graph.add_step(
        FunctionNode("b", lambda context: context.upstream["a"] + 1), "b", depends_on=["a"]
    )
    graph.add_step(
        FunctionNode("c", lambda context: context.upstream["a"] + 2), "c", depends_on=["a"]
    )
    graph.add_step(FunctionNode("d", total), "d", depends_on=["b", "c"])
    return graph


@pytest.mark.req("000/G5", "004/one-path")
async def test_a_graph_needs_neither_policy_nor_budget_nor_token_nor_trace() -> None:
    """Steps get the results of the steps they depend on, and their input."""
    graph = diamond()
    graph.add_step(plus_one(), "e", input=41)

    assert await graph.execute() == {"a": 1, "b": 2, "c": 3, "d": 5, "e": 42}
    assert await graph.execute(ExecutionContext()) == await graph.execute()


@pytest.mark.req("000/G5")
async def test_a_session_reaches_every_node_untouched() -> None:
    """Every node gets the caller's session object itself."""
    session = object()
    graph = Graph("g")
    graph.add_step(FunctionNode("n", lambda context: context.session), "a")

    assert (await graph.execute(ExecutionContext(session=session)))["a"] is session


async def test_what_a_graph_is_given_reaches_the_steps_that_have_no_input_of_their_own() -> None:
    """In a nested graph, its input is that of its step."""
    echo = FunctionNode("echo", lambda context: (context.input, dict(context.upstream)))
    inner = Graph("inner")
    inner.add_step(echo, "x")
    inner.add_step(echo, "y", input="own")
    outer = Graph("outer")
    outer.add_step(inner, "a", input="for the nested graph")
    outer.add_step(echo, "b")
    context = ExecutionContext(input="for the graph", upstream={"before": 1})

    results = await outer.execute(context)

    assert results["a"]["x"] == ("for the nested graph", {"before": 1})
    assert results["a"]["y"] == ("own", {"before": 1})
    assert results["b"] == ("for the graph", {"before": 1})


async def test_a_graph_without_steps_has_no_results() -> None:
    """An empty graph is valid."""
    assert Graph("empty").validate() == []
    assert await Graph("empty").execute() == {}


async def test_coroutine_functions_and_blocking_ones_are_nodes_too() -> None:
    """A blocking function runs in its own thread."""

    async def later(context: ExecutionContext) -> str:
        await asyncio.sleep(0)
        return "later"

    graph = Graph("g")
    graph.add_step(FunctionNode("later", later), "a")
    graph.add_step(
        FunctionNode("thread", lambda context: threading.current_thread(), blocking=True), "b"
    )
    results = await graph.execute()

    assert results["a"] == "later"
    assert results["b"] is not threading.main_thread()


@pytest.mark.req("000/P1")
async def test_independent_steps_run_side_by_side() -> None:
    """Each step waits until all three have started."""
    barrier = asyncio.Barrier(3)

    async def meets(context: ExecutionContext) -> int:
        async with asyncio.timeout(150):
            return await barrier.wait()

    graph = Graph("g", max_parallel=3)
    for name in "abc":
        graph.add_step(FunctionNode(name, meets), name)

    assert sorted((await graph.execute()).values()) == [0, 1, 2]


def test_the_order_respects_dependencies_and_is_always_the_same() -> None:
    """The order does not depend on the order in which steps were added."""
    graph = Graph("g")
    graph.add_step(constant(3), "c", depends_on=["b"])
    graph.add_step(constant(1), "a")
    graph.add_step(constant(2), "b", depends_on=["a"])

    assert graph.execution_order() == ["a", "b", "c"]
    assert Graph("empty").execution_order() == []


@pytest.mark.parametrize("call", ["execute", "run"])
async def test_a_graph_that_is_not_valid_executes_nothing(call: str) -> None:
    """An invalid graph executes no step, and all problems are reported at once."""
    done: list[str] = []
    graph = Graph("g")
    graph.add_step(FunctionNode("n", lambda context: done.append("a")), "a", depends_on=["nobody"])
    graph.add_step(constant(1), "b", depends_on=["c"])
    graph.add_step(constant(1), "c", depends_on=["b"])

    with pytest.raises(GraphError) as refused:
        await getattr(graph, call)()

    assert "nobody" in str(refused.value)
    assert "b" in str(refused.value)
    assert len(graph.validate()) >= 2
    assert done == []


def test_a_step_id_is_used_once_and_a_step_needs_a_node() -> None:
    """A repeated ID or a missing node raises an error when the step is added."""
    graph = Graph("g")
    graph.add_step(constant(1), "a")

    with pytest.raises(GraphError, match="'a' already"):
        graph.add_step(constant(1), "a")
    with pytest.raises(TypeError, match="execute"):
        graph.add_step(object(), "b")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_parallel"):
        Graph("g", 0)


@pytest.mark.req("000/P4")
def test_parallel_steps_that_share_a_persistent_node_are_refused() -> None:
    """The error names both steps and the node; a dependency between the steps removes it."""
    terminal = FunctionNode("terminal", lambda context: None, persistent=True)

    def build(*, parallel: int, depends: bool, nested: bool = False) -> list[str]:
        graph = Graph("g", max_parallel=parallel)
        graph.add_step(terminal, "one")
        node: Any = terminal
        if nested:
            node = Graph("inner")
            node.add_step(terminal, "deep")
        graph.add_step(node, "two", depends_on=["one"] if depends else [])
        return graph.validate()

    [problem] = build(parallel=2, depends=False)
    assert all(name in problem for name in ("one", "two", "terminal"))
    assert build(parallel=2, depends=False, nested=True)
    assert build(parallel=2, depends=True) == []
    assert build(parallel=1, depends=False) == []


@pytest.mark.req("000/P3")
async def test_a_persistent_node_is_shared_by_two_graphs_one_at_a_time() -> None:
    """The graphs run at the same time, but the node runs once at a time."""
    working = most = 0

    async def works(context: ExecutionContext) -> None:
        nonlocal working, most
        working += 1
        most = max(most, working)
        for _ in range(5):
            await asyncio.sleep(0)
        working -= 1

    terminal = FunctionNode("terminal", works, persistent=True)
    graphs = [Graph(f"g{index}") for index in range(4)]
    for graph in graphs:
        graph.add_step(terminal, "step")
    async with asyncio.TaskGroup() as group:
        for graph in graphs:
            group.create_task(graph.execute())

    assert most == 1


async def test_a_chain_of_a_thousand_steps_is_no_recursion() -> None:
    """The traversal is iterative, whatever the length of the chain."""
    chain = Graph("chain")
    chain.add_step(constant(0), "s0")
    for index in range(1, 1000):
        chain.add_step(
            FunctionNode("n", lambda context: next(iter(context.upstream.values())) + 1),
            f"s{index}",
            depends_on=[f"s{index - 1}"],
        )

    assert (await chain.execute())["s999"] == 999


@pytest.mark.parametrize("step_id", ["outer/inner", "a>b", "a~2", ""])
def test_an_id_that_would_be_read_as_a_path_is_refused(step_id: str) -> None:
    """The JSON form of graphs rejects the same IDs."""
    with pytest.raises(ValueError, match="step id"):
        Graph("g").add_step(FunctionNode("f", lambda context: None), step_id)
