"""The tools of a process, by name."""

import pytest

from app.tools.calculator import Calculator
from app.tools.registry import DuplicateToolError, ToolRegistry
from app.tools.respond import Respond


@pytest.mark.req("002/8.3", "002/18.3")
def test_a_tool_is_found_by_its_name_and_nothing_else_is() -> None:
    """Names are exact."""
    calculator = Calculator()
    registry = ToolRegistry([calculator])

    assert registry.find("calculator") is calculator
    assert registry.find("Calculator") is None
    assert registry.find("") is None
    assert "calculator" in registry
    assert len(registry) == 1


@pytest.mark.req("002/22.3")
def test_listings_do_not_depend_on_the_order_of_making() -> None:
    """Prompts and traces are the same from run to run."""
    one = ToolRegistry([Respond(), Calculator()])
    other = ToolRegistry([Calculator(), Respond()])

    assert one.names() == other.names() == ("calculator", "respond")
    assert [spec.name for spec in one.specs()] == ["calculator", "respond"]


def test_two_tools_of_one_name_are_refused() -> None:
    """Which of them would run must not be a matter of luck."""
    with pytest.raises(DuplicateToolError, match="respond"):
        ToolRegistry([Respond(), Respond()])
