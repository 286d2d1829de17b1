"""What the first tools say of themselves."""

import pytest

from app.tools.arguments import ArgumentChecks
from app.tools.calculator import Calculator
from app.tools.calendar import Calendar
from app.tools.dates.operations import OPERATIONS
from app.tools.ports import Tool
from app.tools.registry import ToolRegistry
from app.tools.respond import Respond

TOOLS: tuple[Tool, ...] = (Calculator(), Calendar(), Respond())


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.spec.name)
def test_a_tool_stays_inside_the_process_and_describes_itself(tool: Tool) -> None:
    """A model must be able to choose it from its description alone."""
    assert not tool.spec.external
    assert tool.spec.idempotent
    assert len(tool.spec.description) > 60
    assert tool.spec.parameters["additionalProperties"] is False
    ArgumentChecks(ToolRegistry([tool]))


def test_the_calendar_describes_every_operation() -> None:
    """None can be reached only by guessing."""
    spec = Calendar().spec

    assert spec.parameters["properties"]["operation"]["enum"] == list(OPERATIONS)
    assert [name for name in OPERATIONS if name not in spec.description] == []


def test_every_argument_in_a_description_exists() -> None:
    """And every operation uses only arguments that the schema knows."""
    known = set(Calendar().spec.parameters["properties"])

    for operation in OPERATIONS.values():
        assert operation.needs | operation.takes <= known
