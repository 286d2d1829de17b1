import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from tests.support.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def graph(clock: ManualClock) -> ExecutionGraph:
    return ExecutionGraph("chain-1", now_ms=clock)


@pytest.fixture
def root(graph: ExecutionGraph) -> str:
    return graph.create_root("agent_run")
