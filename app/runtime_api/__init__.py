"""The graph runtime and agents in Python. It needs no database.

graph = Graph("report", max_parallel=2)
graph.add_step(FunctionNode("fetch", fetch), "fetch", input="https://example.org")
graph.add_step(FunctionNode("count", count), "count", depends_on=["fetch"])
results = await graph.execute(ExecutionContext(budget=Budget(max_time_seconds=10)))

result = await run_agent({"name": "helper", "prompt": {}}, input="Hi", provider=provider, model="m")
"""

from app.control.budget import Budget, Dimension
from app.control.ledger import Scope
from app.control.retry import ErrorPolicy
from app.control.stops import CancelledError, Stop
from app.control.usage import BudgetExceededError, ResourceUsage
from app.engine.cancellation import CancellationToken
from app.engine.concurrency import DeadlockError, NodeLock
from app.engine.context import ExecutionContext, FlowContext
from app.engine.events import Event
from app.engine.materializer import LinkCycleError
from app.engine.node import ExecutionResult, Materializing, Node, NodeEvent
from app.engine.prepared import BoundNode
from app.engine.report import StepTimeoutError
from app.kernel.graph import Channel, GraphError
from app.nodes.agent.definition import AgentDefinition
from app.nodes.function import FunctionNode
from app.runtime_api.agents import AgentResult, run_agent
from app.runtime_api.executing import GraphRun
from app.runtime_api.graph import Graph, Step
from app.trace.execution_graph import ExecutionGraph
from app.trace.execution_trace import ExecutionTrace
from app.trace.step_trace import StepTrace

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
