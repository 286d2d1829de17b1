"""The graph runtime and agents in Python. It needs no database.

graph = Graph("report", max_parallel=2)
graph.add_step(FunctionNode("fetch", fetch), "fetch", input="https://example.org")
graph.add_step(FunctionNode("count", count), "count", depends_on=["fetch"])
results = await graph.execute(ExecutionContext(budget=Budget(max_time_seconds=10)))

result = await run_agent({"name": "helper", "prompt": {}}, input="Hi", provider=provider, model="m")
"""

from caseworker.control.budget import Budget, Dimension
from caseworker.control.ledger import Scope
from caseworker.control.retry import ErrorPolicy
from caseworker.control.stops import CancelledError, Stop
from caseworker.control.usage import BudgetExceededError, ResourceUsage
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.concurrency import DeadlockError, NodeLock
from caseworker.engine.context import ExecutionContext, FlowContext
from caseworker.engine.events import Event
from caseworker.engine.materializer import LinkCycleError
from caseworker.engine.node import ExecutionResult, Materializing, Node, NodeEvent
from caseworker.engine.prepared import BoundNode
from caseworker.engine.report import StepTimeoutError
from caseworker.kernel.graph import Channel, GraphError
from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.function import FunctionNode
from caseworker.runtime_api.agents import AgentResult, run_agent
from caseworker.runtime_api.executing import GraphRun
from caseworker.runtime_api.graph import Graph, Step
from caseworker.trace.execution_graph import ExecutionGraph
from caseworker.trace.execution_trace import ExecutionTrace
from caseworker.trace.step_trace import StepTrace

__all__ = [
    "AgentDefinition",
    "AgentResult",
    "BoundNode",
    "Budget",
    "BudgetExceededError",
    "CancellationToken",
    "CancelledError",
    "Channel",
    "DeadlockError",
    "Dimension",
    "ErrorPolicy",
    "Event",
    "ExecutionContext",
    "ExecutionGraph",
    "ExecutionResult",
    "ExecutionTrace",
    "FlowContext",
    "FunctionNode",
    "Graph",
    "GraphError",
    "GraphRun",
    "LinkCycleError",
    "Materializing",
    "Node",
    "NodeEvent",
    "NodeLock",
    "ResourceUsage",
    "Scope",
    "Step",
    "StepTimeoutError",
    "StepTrace",
    "Stop",
    "run_agent",
]
