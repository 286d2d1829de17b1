"""Validation of a graph without a service or a database."""

from typing import Any

from caseworker.core.graph.problems import Severity
from caseworker.main.checks import graph_problems
from caseworker.settings.schema import Settings


def graph_of(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"steps": list(steps), "edges": []}


def told(graph: dict[str, Any], **sections: Any) -> list[tuple[str, str]]:
    (found,) = graph_problems(Settings.model_validate(sections), [graph])
    return [(each.severity, each.place) for each in found]


def test_a_graph_is_checked_with_the_tools_of_this_machine() -> None:
    """Tools are checked for existence and permission; tools of MCP servers are not looked up."""
    known = {"id": "a", "type": "tool", "data": {"tool": "calculator", "args": {"expression": "1"}}}
    served = {"id": "b", "type": "tool", "data": {"tool": "web.echo", "args": {}}}
    web = {"mcp": {"servers": {"web": {"url": "http://127.0.0.1:9/mcp"}}}}

    assert told(graph_of(known)) == []
    assert told(graph_of(known), tools={"deny": ["calculator"]}) == [
        (Severity.ERROR, "steps.0.data.tool")
    ]
    assert told(graph_of(served)) == [(Severity.ERROR, "steps.0.data.tool")]
    assert told(graph_of(served), tools=web) == []


def test_what_is_registered_elsewhere_is_a_warning() -> None:
    """A reference to a registered graph is a warning, and other steps are still checked."""
    named = {"id": "a", "type": "subgraph", "data": {"graph": {"name": "other"}}}
    broken = {"id": "b", "type": "subgraph", "data": {}}

    assert told(graph_of(named)) == [(Severity.WARNING, "steps.0.data.graph.name")]
    found = told(graph_of(named, broken))
    assert (Severity.WARNING, "steps.0.data.graph.name") in found
    assert any(kind is Severity.ERROR and place.startswith("steps.1") for kind, place in found)


def test_a_graph_that_is_too_large_is_not_looked_at() -> None:
    """A graph beyond the configured size is rejected before it is examined."""
    steps = [{"id": f"s{number}", "type": "approval", "data": {}} for number in range(3)]

    assert told(graph_of(*steps), admission={"max_graph_steps": 2}) == [(Severity.ERROR, "")]
