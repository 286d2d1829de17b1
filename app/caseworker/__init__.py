"""Run agents and graphs within hard limits. This module is the public API of the package.

Names are imported lazily on first use, so importing one does not load the whole service.
"""

from importlib import import_module
from typing import Any, Final

_PUBLIC: Final = {
    "core.budget.budget": ("Budget", "Dimension"),
    "core.budget.ledger": ("Scope",),
    "core.budget.retry": ("ErrorPolicy",),
    "core.budget.stops": ("CancelledError", "Stop"),
    "core.budget.usage": ("BudgetExceededError", "ResourceUsage"),
    "engine.call": ("CallFailedError", "OutcomeUnknownError"),
    "engine.cancellation": ("CancellationToken",),
    "engine.concurrency": ("DeadlockError", "NodeLock"),
    "engine.context": (
        *("ExecutionContext", "ExecutionResult", "FlowContext", "Materializing", "Node"),
        "NodeEvent",
    ),
    "engine.events": ("Event",),
    "engine.materializer": ("LinkCycleError",),
    "engine.prepared": ("BoundNode",),
    "engine.report": ("StepTimeoutError",),
    "core.graph.graph": ("Channel", "GraphError"),
    "core.graph.problems": ("Handles",),
    "features.external.code": ("CodeContext",),
    "models.ports": (
        *("Message", "ModelEndpoint", "ModelError", "ModelProvider", "ModelReply"),
        *("ModelRequest", "TokenUsage", "ToolCall"),
    ),
    "nodes.agent.definition": ("AgentDefinition",),
    "nodes.function": ("FunctionNode",),
    "nodes.node_type": ("NodeType",),
    "nodes.parts": ("NodeParts",),
    "nodes.strict_parsing": ("HandleName", "JsonField", "PathField", "StepData", "TextField"),
    "runtime_api.agents": ("AgentResult", "run_agent"),
    "runtime_api.execution": ("GraphRun",),
    "runtime_api.graph": ("Graph", "Step"),
    "tools.decorator": ("tool",),
    "tools.ports": (
        *("CrossChecked", "Tool", "ToolContext", "ToolFunction", "ToolRefusedError", "ToolResult"),
        *("ToolSpec", "failure"),
    ),
    "tools.resources": ("ToolResources",),
    "core.trace.execution_graph": ("ExecutionGraph",),
    "core.trace.execution_trace": ("ExecutionTrace",),
    "core.trace.step_trace": ("StepTrace",),
}
_MODULES: Final = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_MODULES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
