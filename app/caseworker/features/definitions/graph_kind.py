"""The kind of runs ``graph``: its bodies, its view and its admission."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import ValidationError

from caseworker.core.graph.facts import StepStatus
from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.features.definitions.definitions import Definitions
from caseworker.features.definitions.fields import DefinitionByName, GraphOrName
from caseworker.features.definitions.registration import (
    Definition,
    ResolvedDefinition,
    RunnableGraph,
)
from caseworker.models.gateway import ModelGateway
from caseworker.models.table import ModelTable
from caseworker.nodes.chat import CHAT_START
from caseworker.nodes.nesting import DefinitionKind, is_reference
from caseworker.platform.http.bodies import BodyModel, DocumentedAs, View
from caseworker.platform.http.problems import (
    INVALID_REQUEST,
    ProblemError,
    Violation,
    invalid,
    violations_of,
)
from caseworker.runs.http.admission import Admission, Fields, KindApi, canonical_body, fits
from caseworker.runs.http.body import BudgetBody, OfAgents, RunFields
from caseworker.runs.http.limits import ApiLimits
from caseworker.runs.http.views import RunDetails
from caseworker.runs.run import DefinitionRef, NewRun, RememberedVersion, RunKind, RunRequest


class GraphRunBody(RunFields):
    """A graph to run."""

    contains_graph = True
    kind: Literal["graph"]
    """Kind of the run."""
    graph: GraphOrName
    """A graph included in the request, or a reference to a registered one. The run keeps the graph
    as it was when it was accepted, including all nested graphs."""
    inputs: dict[str, Any] | None = None
    """Input values, by input handle, for steps without incoming flow edges."""
    input: Any = None
    """Input value, short for ``inputs.default``: any JSON value. Null counts as omitted."""
    budget: BudgetBody | None = None
    """Limits for the run; each one defaults to the service's ceiling."""
    agent: OfAgents = None
    model: OfAgents = None
    messages: OfAgents = None


class GraphFields(BodyModel):
    """Fields of a graph that resumes from another one."""

    graph: GraphOrName | None = None
    """Graph to use instead of the source run's, for example with a changed step."""


class StepResult(View):
    """The outcome of a step of a graph."""

    status: StepStatus
    error: str | None = None
    """Message of the error that failed the step, or from which its error policy recovered."""
    error_class: str | None = None
    """Class of the error."""
    attempts: int | None = None
    """Number of attempts, including a fallback; absent if no attempt failed."""
    recovered_by: Literal["skip", "fallback"] | None = None
    """How the step's error policy recovered from the failure; absent if it did not."""


class GraphResult(View):
    """The result of a graph."""

    outputs: dict[str, dict[str, Any]]
    """Output values, by step ID and then by output handle."""
    steps: dict[str, StepResult]


class GraphRun(RunDetails):
    """A run of a graph, with its result."""

    kind: Literal[RunKind.GRAPH]
    result: Annotated[dict[str, Any], DocumentedAs(GraphResult)] | None
    """Result of the graph; partial if the run ended early, null before there is one."""


class GraphAdmission(Admission):
    """Validates request bodies of kind ``graph`` and converts them to runs."""

    kind = RunKind.GRAPH

    def __init__(self, limits: ApiLimits, definitions: Definitions, models: ModelTable) -> None:
        super().__init__(limits, models)
        self._definitions = definitions

    def fields_of(self, request: RunRequest, overrides: Mapping[str, Any]) -> Fields:
        """Return the graph and its inputs."""
        inputs = dict(request.inputs)
        if overrides.get("input") is not None:
            inputs.pop(DEFAULT_HANDLE, None)
        return {"graph": request.graph, "inputs": inputs}

    def chat_graph(
        self,
        definition: Mapping[str, Any],
        stored_definition: Definition | None,
        *,
        with_inputs: bool,
    ) -> dict[str, Any]:
        """Return the graph that a run executes to answer in a thread.

        ``definition`` is a graph or a reference. ``stored_definition`` is the referenced
        definition; None if ``definition`` is inline or the definition is unknown.

        Raises:
            ProblemError: the definition is unknown.
        """
        if stored_definition is None and is_reference(definition):
            raise invalid("graph.name", "Unknown graph. GET /graphs lists all graphs.")
        graph = dict(definition if stored_definition is None else stored_definition.content)
        steps = graph.get("steps")
        starts = [
            step.get("id")
            for step in (steps if isinstance(steps, list) else ())
            if isinstance(step, dict) and step.get("type") == CHAT_START
        ]
        return {"entry": starts, **graph} if starts else graph

    def by_handle(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the ``inputs`` of a request, keyed by the input handles of the graph."""
        return inputs

    def unfit_values(
        self, graph: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> Iterator[Violation]:
        """Yield a violation for each of the ``inputs`` that the graph does not accept."""
        return iter(())

    def _inputs(self, body: Any) -> Mapping[str, Any]:
        """Return the input values by handle; ``input`` is the value of the default handle."""
        short = {} if body.input is None else {DEFAULT_HANDLE: body.input}
        return self.by_handle(body.inputs or {}) | short

    async def _runnable(
        self, body: Any, tenant: str, *, remembers: bool
    ) -> tuple[RunnableGraph, ResolvedDefinition | None]:
        """Return the graph of a run, and its definition if it has a registered one."""
        kind, changed = DefinitionKind(self.kind), partial(self._changed, body)
        definition = getattr(body, kind)
        if not is_reference(definition):
            return await self._definitions.inline(tenant, changed(definition), kind), None
        ref = reference_from(definition, kind)
        resolved = await self._definitions.resolved(tenant, ref, changed, remembers=remembers)
        return resolved.runnable, resolved

    def _changed(self, body: Any, definition: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a definition with the changes of the request."""
        return definition

    async def _own_fields(
        self, body: Any, tenant: str, *, remembers: bool = True
    ) -> tuple[Fields, Fields]:
        runnable, resolved = await self._runnable(body, tenant, remembers=remembers)
        graph, kind = runnable.graph, DefinitionKind(self.kind)
        require_models = partial(self._definitions.require_models, kind, graph)
        ref = None if resolved is None else resolved.head.ref
        remembered = None
        if resolved is not None and resolved.is_remembered:
            remembered = RememberedVersion(
                ref=resolved.head.ref,
                sha256=resolved.head.sha256,
                newest=getattr(body, kind).get("version") is None,
                again=partial(self._read_again, body),
            )
        return (
            {"graph": graph, "definition_ref": ref, "inputs": self._inputs(body)},
            {
                "prepared": runnable.prepared,
                "require_models": require_models,
                "remembered": remembered,
            },
        )

    async def _read_again(self, body: Any, new: NewRun) -> NewRun:
        of_request, of_run = await self._own_fields(body, new.key.tenant, remembers=False)
        return replace(new, request=replace(new.request, **of_request), **of_run)

    def _violations(self, body: Any) -> Iterator[Violation]:
        max_bytes = self._limits.max_body_bytes
        if body.inputs and not fits(body.inputs, max_bytes, self._limits):
            yield Violation("inputs", f"The inputs must not exceed {max_bytes} bytes as JSON.")
        if isinstance(body.input, dict | list) and len(canonical_body(body.input)) > max_bytes:
            yield Violation("input", f"The input must not exceed {max_bytes} bytes as JSON.")
        if body.input is not None and DEFAULT_HANDLE in (body.inputs or {}):
            message = f"Send this value either as input or as inputs.{DEFAULT_HANDLE}, not both."
            yield Violation(f"inputs.{DEFAULT_HANDLE}", message)


def reference_from(document: Mapping[str, Any], kind: DefinitionKind) -> DefinitionRef:
    """Parse a reference to a registered graph or agent: its name and, optionally, its version.

    Raises:
        ProblemError: the name or the version is invalid.
    """
    try:
        reference = DefinitionByName.model_validate(document)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        located = ({**wrong, "loc": (kind.value, *wrong["loc"])} for wrong in errors)
        raise ProblemError(INVALID_REQUEST, violations=violations_of(located)) from None
    return DefinitionRef(reference.name, reference.version, kind)


GRAPH_EXAMPLE: Final[Mapping[str, Any]] = {
    "steps": [
        {
            "id": "discount",
            "type": "tool",
            "data": {"tool": "calculator", "args": {"expression": "${default} * 12.5 / 100"}},
        },
        {
            "id": "total",
            "type": "tool",
            "data": {"tool": "calculator", "args": {"expression": "1840 - ${default.value}"}},
        },
    ],
    "edges": [
        {
            "source": "discount",
            "target": "total",
            "data": {"channel": "flow"},
        }
    ],
}

_EXAMPLES: Final = {
    "graph": {
        "summary": "An inline graph with two sequential calculations",
        "value": {"kind": "graph", "graph": GRAPH_EXAMPLE, "inputs": {"default": "1840"}},
    },
    "registered graph": {
        "summary": "A registered graph, referenced by name",
        "value": {
            "kind": "graph",
            "graph": {"name": "discount", "version": 3},
            "input": "1840",
            "budget": {"max_steps": 100, "max_cost_usd": 0.5},
        },
    },
    "going on": {
        "summary": "Resume an ended run from a node with a higher limit",
        "value": {
            "from": {"run_id": "case-2025-09-08.1", "until": "n000004"},
            "budget": {"max_tool_calls": 8},
        },
    },
}

GRAPH_API: Final = KindApi(
    kind=RunKind.GRAPH,
    body=GraphRunBody,
    view=GraphRun,
    admission=lambda services: GraphAdmission(
        services.service(ApiLimits),
        services.service(Definitions),
        services.service(ModelGateway).table,
    ),
    resume=GraphFields,
    examples=_EXAMPLES,
)
