"""Parses a graph from JSON and reports all of its problems at once.

Steps and edges are parsed one by one. An unreadable part is reported and replaced by a placeholder
that causes no further problems. The rest of the graph is still checked as a whole, and each problem
has its own position. Problems that depend on an unreadable part are reported once it is readable.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.graph.graph import Channel, Edge, GraphStep, StepGraph
from caseworker.core.graph.problems import quoted
from caseworker.core.graph.validation import Problem, Severity, Traits, problems_of
from caseworker.engine.prepared import PreparedGraph, PreparedStep
from caseworker.models.table import ModelTable
from caseworker.nodes.graph_spec import EdgeSpec, GraphFrame, PolicySpec, StepSpec, WorkSpec
from caseworker.nodes.nesting import MAX_NESTING, InnerGraph, InnerStep, is_reference
from caseworker.nodes.node_type import NodeType
from caseworker.nodes.strict_parsing import StepData, joined_places, problems_in

Types = Mapping[str, NodeType]
Part = TypeVar("Part", bound=StepData)

_ANYTHING = Traits()
_NO_SOURCE, _NO_TARGET = "?source", "?target"
"""Placeholder steps at the ends of unreadable edges; these are not valid step IDs."""
_UNREADABLE = Edge(source=_NO_SOURCE, target=_NO_TARGET, channel=Channel.LINK)


@dataclass(frozen=True, slots=True)
class _GraphReader:
    """Parses one position of a graph; all readers of a graph share one list of problems."""

    types: Types
    problems: list[Problem]
    graph_id: str
    models: ModelTable | None
    place: str = ""
    depth: int = 0

    def at(self, *places: str, deeper: int = 0) -> "_GraphReader":
        """Return a reader for a nested position."""
        at = joined_places(self.place, *places)
        return replace(self, place=at, depth=self.depth + deeper)

    def tell(self, message: str, *places: str) -> None:
        """Report a problem at a nested position."""
        self.problems.append(Problem(joined_places(self.place, *places), message))

    def part(
        self, kind: type[Part], value: Any, context: "_GraphReader | None" = None
    ) -> Part | None:
        """Parse a part; report its errors and return None if it has any."""
        if isinstance(value, Mapping) and not isinstance(value, dict):
            value = dict(value)
        try:
            return kind.model_validate(value, context=context)
        except ValidationError as error:
            self.problems.extend(problems_in(error, self.place))
            return None

    def graph(self, value: Any, field: str) -> InnerGraph | None:
        """Parse the graph in a field of this data."""
        inner = self.at(field, deeper=1)
        if is_reference(value):
            inner.tell("References to registered graphs are not allowed here; insert the graph.")
            return None
        return read_graph(inner, value) if inner._allowed() else None

    def step(self, value: Any, field: str) -> InnerStep | None:
        """Parse the ``{type, data}`` object in a field of this data."""
        inner = self.at(field, deeper=1)
        spec = inner.part(WorkSpec, value) if inner._allowed() else None
        return None if spec is None else inner.free_work(spec)

    def free_work(self, spec: WorkSpec) -> InnerStep | None:
        """Parse a node without edges: its type must be executable."""
        kind = self.types.get(spec.type)
        if kind is None:
            self.tell(f"There is no step type {quoted(spec.type)}.", "type")
            return None
        if not kind.executes:
            self.tell(
                "Steps of this type can only be linked. Use a type that can be executed.", "type"
            )
            return None
        return self.work(kind, spec.data)

    def work(self, kind: NodeType, data: Mapping[str, Any]) -> InnerStep | None:
        """Parse the data of a step."""
        before = len(self.problems)
        inner = self.at("data")
        parsed = inner.part(kind.data, data, inner)
        for place, message in kind.unknown(data, self.models):
            inner.tell(message, place)
        if parsed is None:
            return None
        for place, message in kind.faults(parsed):
            inner.tell(message, place)
        if _has_errors(self.problems[before:]):
            return None
        return InnerStep(kind.name, kind.bound(parsed), kind.traits_of(parsed))

    def _allowed(self) -> bool:
        allowed = self.depth < MAX_NESTING
        if not allowed:
            self.tell(f"At most {MAX_NESTING} levels of nested graphs are allowed.")
        return allowed


@dataclass(frozen=True, slots=True)
class _ReadStep:
    """A step as far as it could be parsed."""

    step: GraphStep
    traits: Traits | None
    prepared: PreparedStep | None = None
    stands_in: bool = False


def read(
    types: Types, graph: Any, graph_id: str, models: ModelTable | None = None
) -> tuple[InnerGraph | None, tuple[Problem, ...]]:
    """Parse a graph; return it (None if it has errors) and all its problems.

    ``models`` contains the models that the graph may use; None permits any.
    """
    reader = _GraphReader(types, [], graph_id, models)
    graph_step = read_graph(reader, graph)
    return graph_step, tuple(reader.problems)


def read_graph(reader: _GraphReader, value: Any) -> InnerGraph | None:
    """Parse the graph at the reader's position; report its errors and return None if it has any."""
    before = len(reader.problems)
    frame = reader.part(GraphFrame, value)
    raw = value if isinstance(value, Mapping) else {}
    steps = [
        _step(reader.at(f"steps.{index}"), one, index)
        for index, one in enumerate(_listed(raw.get("steps")))
    ]
    edges = [
        _edge(reader.at(f"edges.{index}"), one)
        for index, one in enumerate(_listed(raw.get("edges")))
    ]
    graph = StepGraph(
        id=reader.graph_id,
        steps=tuple(one.step for one in steps),
        edges=tuple(
            edge or replace(_UNREADABLE, source_handle=str(index))
            for index, edge in enumerate(edges)
        ),
        entry=_entry(raw.get("entry")),
        max_parallel=1 if frame is None else frame.max_parallel,
    )
    if frame is not None and None not in edges and not any(one.stands_in for one in steps):
        problems: Iterable[Problem] = problems_of(graph, _traits_of(steps), reader.types)
    else:
        problems = _problems_despite_gaps(graph, steps, reader.types)
    reader.problems.extend(
        Problem(joined_places(reader.place, one.place), one.message, one.severity)
        for one in problems
    )
    if _has_errors(reader.problems[before:]):
        return None
    return InnerGraph(
        PreparedGraph(graph, {one.step.id: one.prepared for one in steps if one.prepared}),
        {one.step.id: one.traits for one in steps if one.traits},
    )


def _step(reader: _GraphReader, value: Any, index: int) -> _ReadStep:
    spec = reader.part(StepSpec, value)
    if spec is None:
        return _stand_in(reader, value, index)
    step = GraphStep(id=spec.id, type=spec.type, data=spec.data)
    policy, fallback = _policy(reader.at("policy"), spec.policy)
    kind = reader.types.get(spec.type)
    if kind is None:
        return _ReadStep(step, None)
    work = reader.work(kind, spec.data)
    if work is None:
        return _ReadStep(step, kind.usual_traits)
    traits = work.traits
    if fallback is not None:
        traits = replace(traits, holds=traits.holds | fallback.traits.holds)
    prepared = PreparedStep(
        step=step,
        work=work.work,
        policy=policy,
        fallback=None if fallback is None else fallback.work,
        sub_budget=spec.sub_budget,
    )
    return _ReadStep(step, traits, prepared)


def _stand_in(reader: _GraphReader, value: Any, index: int) -> _ReadStep:
    """Return a placeholder for an unreadable step, with its known properties."""
    fields = value if isinstance(value, Mapping) else {}
    step_id, type_name, data = fields.get("id"), fields.get("type"), fields.get("data")
    kind = reader.types.get(type_name) if isinstance(type_name, str) else None
    if kind is None and isinstance(type_name, str):
        reader.tell(f"There is no step type {quoted(type_name)}.", "type")
    if kind is not None and isinstance(data, Mapping):
        reader.work(kind, data)
    with suppress(ValidationError):  # already reported
        _policy(reader.at("policy"), PolicySpec.model_validate(fields.get("policy")))
    step = GraphStep(id=step_id if isinstance(step_id, str) else f"?{index}", type="")
    return _ReadStep(step, kind.usual_traits if kind else _ANYTHING, stands_in=True)


def _policy(
    reader: _GraphReader, spec: PolicySpec | None
) -> tuple[ErrorPolicy | None, InnerStep | None]:
    if spec is None:
        return None, None
    fallback_spec = spec.fallback
    fallback = None if fallback_spec is None else reader.at("fallback").free_work(fallback_spec)
    try:
        return spec.policy(), fallback
    except ValueError as error:
        message = str(error).replace("fallback_node", "fallback")
        field = message.split(maxsplit=1)[0]
        reader.tell(message, field if field in PolicySpec.model_fields else "")
        return None, fallback


def _edge(reader: _GraphReader, value: Any) -> Edge | None:
    spec = reader.part(EdgeSpec, value)
    if spec is None:
        return None
    fields = dict(spec)
    return Edge(channel=Channel(fields.pop("data").channel), **fields)


def _entry(value: Any) -> tuple[str, ...] | None:
    good = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return tuple(value) if good else None


def _problems_despite_gaps(
    graph: StepGraph, steps: Sequence[_ReadStep], types: Types
) -> Iterator[Problem]:
    """Yield the problems that exist regardless of the unreadable parts.

    Which steps are executed, and in which order, is not known yet.
    """
    if not steps:
        return
    ends = [_ReadStep(GraphStep(id=name, type=""), _ANYTHING) for name in (_NO_SOURCE, _NO_TARGET)]
    readable = [
        replace(one, traits=one.traits and Traits(one.traits.handles)) for one in steps
    ] + ends
    completed = replace(graph, steps=tuple(one.step for one in readable))
    for problem in problems_of(completed, _traits_of(readable), types):
        if problem.severity is Severity.ERROR:
            yield problem


def _traits_of(steps: Sequence[_ReadStep]) -> Callable[[GraphStep], Traits | None]:
    """Return a lookup of traits by step object, because two steps may share an ID."""
    traits_by_step = {id(one.step): one.traits for one in steps}
    return lambda step: traits_by_step[id(step)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _has_errors(problems: Sequence[Problem]) -> bool:
    return any(problem.severity is Severity.ERROR for problem in problems)
