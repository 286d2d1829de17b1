"""What code outside of the package may import from it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import caseworker

STUB = Path(str(caseworker.__file__)).with_suffix(".pyi")
NAMES = [
    "AgentDefinition",
    "AgentResult",
    "BoundNode",
    "Budget",
    "BudgetExceededError",
    "CallFailedError",
    "CancellationToken",
    "CancelledError",
    "Channel",
    "CodeContext",
    "CrossChecked",
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
    "HandleName",
    "Handles",
    "JsonField",
    "LinkCycleError",
    "Materializing",
    "Message",
    "ModelEndpoint",
    "ModelError",
    "ModelProvider",
    "ModelReply",
    "ModelRequest",
    "Node",
    "NodeEvent",
    "NodeLock",
    "NodeParts",
    "NodeType",
    "OutcomeUnknownError",
    "PathField",
    "ResourceUsage",
    "Scope",
    "Step",
    "StepData",
    "StepTimeoutError",
    "StepTrace",
    "Stop",
    "TextField",
    "TokenUsage",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolFunction",
    "ToolRefusedError",
    "ToolResources",
    "ToolResult",
    "ToolSpec",
    "failure",
    "run_agent",
    "tool",
]


def test_the_public_names_are_these_and_can_be_imported() -> None:
    """A name that is added or removed is a change of the interface."""
    assert sorted(vars(caseworker)["__all__"]) == sorted(NAMES)
    assert all(getattr(caseworker, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = caseworker.nothing  # type: ignore[attr-defined]


def test_the_types_name_the_same_modules() -> None:
    """Type checkers read the stub, the interpreter the table."""
    typed = {
        alias.name: node.module
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert sorted(typed) == sorted(NAMES)
    for name, module in typed.items():
        assert getattr(sys.modules[str(module)], name) is getattr(caseworker, name)


def test_an_import_loads_what_it_needs_and_no_more() -> None:
    """Neither the driver of the database nor the web framework, for a program with one tool."""
    asked = "import sys; from caseworker import tool; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True
    ).stdout.split()

    assert "caseworker.tools.decorator" in loaded
    assert not {"fastapi", "sqlalchemy", "psycopg", "matplotlib"} & set(loaded)
