"""Create runs that resume from an ended run; omitted fields default to those of the source run.

Deadline and metadata are not inherited: the deadline has usually passed, and metadata describe a
single run. Each limit that is not sent is inherited, and usage is counted from 0 again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from caseworker.core.budget.budget import Budget
from caseworker.platform.http.problems import INVALID_REQUEST, ProblemError, invalid, violations_of
from caseworker.runs.errors import RunNotFoundError, SourceNotEndedError, SourceNotFoundError
from caseworker.runs.http.admission import limits_spending
from caseworker.runs.http.body import GoingOnBody, RunFields
from caseworker.runs.http.kinds import body_of_kind
from caseworker.runs.run import NewRun, Run, RunKey, RunRequest, RunSource
from caseworker.runs.service import RunService


async def source_of(body: GoingOnBody, tenant: str, runs: RunService) -> Run:
    """Return the run from which the requested run resumes.

    Raises:
        SourceNotFoundError: the source run does not exist.
        SourceNotEndedError: the source run has not ended.
        ProblemError: the body specifies another kind.
    """
    run_id = body.from_.run_id
    try:
        source = await runs.get(RunKey(tenant, run_id))
    except RunNotFoundError:
        raise SourceNotFoundError(run_id) from None
    if not source.finished:
        raise SourceNotEndedError(run_id)
    if body.kind not in (None, source.kind.value):
        message = f"The source run is of kind {source.kind.value}. Send the same kind or omit it."
        raise invalid("kind", message)
    return source


def completed(body: GoingOnBody, source: RunRequest, fields: Mapping[str, Any]) -> RunFields:
    """Return an equivalent body without ``from``, with omitted fields copied from the source run.

    ``fields`` are those fields of the source run that only its kind has.

    Raises:
        ProblemError: a field is invalid or does not belong to runs of this kind.
    """
    fields_of_body = {name: value for name, value in body.document.items() if value is not None}
    del fields_of_body["from"]
    about = {"kind": source.kind.value, "seed": source.seed, "timezone": source.timezone}
    inherited = {name: it for name, it in {**about, **fields}.items() if it is not None}
    if "messages" in fields_of_body:
        inherited.pop("input", None)
    try:
        return body_of_kind(inherited | fields_of_body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        raise ProblemError(INVALID_REQUEST, violations=violations_of(errors)) from None


def going_on(new: NewRun, body: GoingOnBody, source: RunRequest, ceiling: Budget) -> NewRun:
    """Return ``new`` as a run that resumes from the source run and inherits omitted limits.

    ``ceiling`` caps the limits. ``source`` is the request of the source run.
    """
    budget_body, request = body.budget, new.request
    budget = source.budget if budget_body is None else budget_body.over(source.budget)
    prices_asked = budget_body is not None and "max_cost_usd" in budget_body.stated
    requires_prices = request.requires_prices if prices_asked else source.requires_prices
    source_ref = body.from_
    request = replace(
        request,
        budget=budget.merged_with(ceiling),
        requires_prices=requires_prices,
        limits_spending=source.limits_spending or limits_spending(budget_body),
        definition_ref=(request if body.graph or body.agent else source).definition_ref,
        source=RunSource(source_ref.run_id, source_ref.until),
        chat=source.chat,
    )
    return replace(new, request=request)
