"""The tools of a process by name, and which of them are allowed."""

from dataclasses import replace

import pytest

from caseworker.tools.registry import DuplicateToolError, ToolPolicy, ToolRegistry
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.respond import Respond


@pytest.mark.req("002/8.3", "002/18.3")
def test_a_tool_is_found_by_its_name_and_nothing_else_is() -> None:
    """Tools are found by their exact names."""
    calculator = Calculator()
    registry = ToolRegistry([calculator])

    assert registry.find("calculator") is calculator
    assert registry.find("Calculator") is None
    assert registry.find("") is None


@pytest.mark.req("002/22.3")
def test_listings_do_not_depend_on_the_order_of_making() -> None:
    """Prompts and traces are the same in every run."""
    one = ToolRegistry([Respond(), Calculator()])
    other = ToolRegistry([Calculator(), Respond()])

    assert one.specs() == other.specs()
    assert [spec.name for spec in one.specs()] == ["calculator", "respond"]


def test_two_tools_of_one_name_are_refused() -> None:
    """The tool that runs must not depend on chance."""
    with pytest.raises(DuplicateToolError, match="respond"):
        ToolRegistry([Respond(), Respond()])


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("name", "configured", "matches"),
    [
        ("pay", set(), False),
        ("pay", {"pay"}, True),
        ("pay", {"pay.*"}, True),
        ("bank.pay", {"bank.pay"}, True),
        ("bank.pay", {"bank.*"}, True),
        ("bank.pay", {"bank", "pay", "bank.read", "other.*"}, False),
    ],
)
def test_a_tool_or_the_operator_requires_approval(
    name: str, configured: set[str], matches: bool, own: bool
) -> None:
    """Either of them suffices; the operator may name a tool or all tools of a server."""
    spec = replace(Calculator.spec, name=name, requires_approval=own)

    assert ToolPolicy(approval=frozenset(configured)).requires_approval(spec) is (matches or own)


NAMES = ("calendar", "calculator", "plotter")


def policy(allow: set[str] | None = None, deny: set[str] | None = None) -> ToolPolicy:
    """Return a policy with an allowlist and a denylist."""
    return ToolPolicy(
        allow=None if allow is None else frozenset(allow), deny=frozenset(deny or set())
    )


def allowed(policy: ToolPolicy) -> list[str]:
    """Return the names that a policy allows."""
    return [name for name in NAMES if policy.allows(name)]


@pytest.mark.req("002/23.1")
def test_without_an_allowlist_everything_is_allowed_and_an_empty_one_allows_nothing() -> None:
    """None and an empty list mean different things."""
    assert allowed(policy()) == ["calendar", "calculator", "plotter"]
    assert allowed(policy(allow=set())) == []


@pytest.mark.req("002/23.1", "002/23.2")
def test_only_what_is_allowed_and_not_denied_may_be_used() -> None:
    """The denylist wins over the allowlist."""
    chosen = policy(allow={"calculator", "calendar"}, deny={"calendar"})

    assert allowed(chosen) == ["calculator"]
