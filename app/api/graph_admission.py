"""From a body of kind graph to a run that can be stored, with its whole graph inline."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from app.api.admission import as_json, given_limits, new_run, require_none, usual_violations
from app.api.graph_body import GraphByName, is_name
from app.api.problem_types import INVALID_REQUEST
from app.api.problems import ProblemError
from app.api.run_body import GraphRunBody
from app.api.services import ApiLimits
from app.api.violations import Violation, violations_of
from app.control.budget import Budget
from app.kernel.graph import DEFAULT_HANDLE
from app.runs.definitions import GraphDefinitions
from app.runs.graphs import RunnableGraph
from app.runs.run import GraphRef, NewRun, RunKind, RunRequest


class GraphAdmission:
    """Turns bodies of kind graph into runs, or says what is wrong with them."""

    def __init__(self, limits: ApiLimits, graphs: GraphDefinitions) -> None:
        self._limits = limits
        self._graphs = graphs

    async def new_run(self, body: GraphRunBody, tenant: str, idempotency_key: str | None) -> NewRun:
        """Return the run that a body asks for.

        Raises:
            ProblemError: the body asks for what this service does not do; every field is named.
            GraphRefusedError: the graph cannot be executed; everything wrong with it is named.
        """
        require_none([*usual_violations(body, self._limits), *self._violations(body)])
        ref, runnable = await self._graph(tenant, body.graph)
        limits = self._limits
        request = RunRequest(
            kind=RunKind.GRAPH,
            budget=given_limits(body.budget, Budget()).merged_with(limits.budget_ceiling),
            deadline=body.deadline,
            seed=limits.default_seed if body.seed is None else body.seed,
            timezone=body.timezone or limits.default_timezone,
            graph=runnable.graph,
            graph_ref=ref,
            inputs=_inputs(body),
        )
        new = new_run(body, request, tenant, idempotency_key)
        return replace(new, prepared=runnable.prepared)

    async def _graph(
        self, tenant: str, sent: dict[str, Any]
    ) -> tuple[GraphRef | None, RunnableGraph]:
        if not is_name(sent):
            return None, await self._graphs.inline(tenant, sent)
        try:
            wanted = GraphByName.model_validate(sent)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            named = ({**wrong, "loc": ("graph", *wrong["loc"])} for wrong in found)
            raise ProblemError(INVALID_REQUEST, violations=violations_of(named)) from None
        return await self._graphs.named(tenant, GraphRef(wanted.name, wanted.version))

    def _violations(self, body: GraphRunBody) -> Iterator[Violation]:
        most = self._limits.max_body_bytes
        if body.inputs and len(as_json(body.inputs)) > most:
            yield Violation("inputs", f"The inputs may take at most {most} bytes as JSON.")
        if body.input is not None and DEFAULT_HANDLE in (body.inputs or {}):
            message = f"Send this value as input or as inputs.{DEFAULT_HANDLE}, not as both."
            yield Violation(f"inputs.{DEFAULT_HANDLE}", message)


def _inputs(body: GraphRunBody) -> Mapping[str, Any]:
    """Return the values by handle; ``input`` is short for the value of the usual one."""
    short = {} if body.input is None else {DEFAULT_HANDLE: body.input}
    return {**(body.inputs or {}), **short}
