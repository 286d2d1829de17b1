"""A catalog that checks only the shape of graphs, for tests that execute none."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from caseworker.core.graph.validation import Problem, Severity
from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.nesting import DefinitionKind, DefinitionReference, agents_in
from caseworker.nodes.reading import problems_in

CONTAINERS = ("subgraph", "map")
CHANNELS = ("flow", "link")


@dataclass
class ShapeChecks:
    """Checks IDs, types, channels and agents at every depth, and finds references."""

    types: frozenset[str] | None = None
    """The known types of steps; None allows any."""
    checked: int = 0
    """How often a graph was checked."""

    def examine(
        self, graph: Mapping[str, Any], allowed: Any = None
    ) -> tuple[None, tuple[Problem, ...]]:
        self.checked += 1
        return None, tuple(self._problems(graph, ""))

    def references(self, graph: Mapping[str, Any]) -> Sequence[DefinitionReference]:
        return list(_references(graph, ()))

    def _problems(self, graph: Mapping[str, Any], at: str) -> Iterator[Problem]:
        if not isinstance(graph.get("steps"), list):
            yield Problem(f"{at}steps", "A graph has steps.")
            return
        seen = set()
        for index, step in enumerate(graph["steps"]):
            place = f"{at}steps.{index}"
            if not isinstance(step, dict) or not isinstance(step.get("id"), str):
                yield Problem(place, "A step is an object with an id.")
                continue
            if step["id"] in seen:
                yield Problem(f"{place}.id", "Another step has this id.")
            seen.add(step["id"])
            if self.types is not None and step.get("type") not in self.types:
                yield Problem(f"{place}.type", "There is no such type.")
            if step.get("type") == "agent":
                yield from _of_agent(step.get("data"), f"{place}.data.agent")
            nested = _nested(step)
            if nested is not None and not _is_name(nested):
                yield from self._problems(nested, f"{place}.data.graph.")
        if len(graph["steps"]) == 0:
            yield Problem(f"{at}steps", "This graph does nothing.", Severity.WARNING)
        yield from _bad_channels(graph, at)


def _of_agent(data: Any, place: str) -> Iterator[Problem]:
    """Check an agent like its step does; every tool exists."""
    agent = data.get("agent") if isinstance(data, dict) else None
    try:
        AgentDefinition.model_validate(agent)
    except ValidationError as error:
        yield from problems_in(error, place)


def _bad_channels(graph: Mapping[str, Any], at: str) -> Iterator[Problem]:
    for index, edge in enumerate(graph.get("edges") or ()):
        data = edge.get("data") if isinstance(edge, dict) else None
        if not isinstance(data, dict) or data.get("channel") not in CHANNELS:
            yield Problem(f"{at}edges.{index}.data.channel", "This must be flow or link.")


def _references(
    graph: Mapping[str, Any], place: tuple[str | int, ...]
) -> Iterator[DefinitionReference]:
    steps = graph.get("steps")
    for index, step in enumerate(steps if isinstance(steps, list) else ()):
        if isinstance(step, dict) and step.get("type") == "agent":
            data = step.get("data")
            agent = data.get("agent") if isinstance(data, dict) else None
            yield from agents_in(agent, (*place, "steps", index, "data", "agent"))
        nested = _nested(step) if isinstance(step, dict) else None
        here = (*place, "steps", index, "data", "graph")
        if nested is not None and _is_name(nested):
            yield DefinitionReference(
                here, DefinitionKind.GRAPH, nested["name"], nested.get("version")
            )
        elif nested is not None:
            yield from _references(nested, here)


def _nested(step: Mapping[str, Any]) -> Mapping[str, Any] | None:
    data = step.get("data")
    if step.get("type") not in CONTAINERS or not isinstance(data, dict):
        return None
    nested = data.get("graph")
    return nested if isinstance(nested, dict) else None


def _is_name(graph: Mapping[str, Any]) -> bool:
    return "steps" not in graph and isinstance(graph.get("name"), str)
