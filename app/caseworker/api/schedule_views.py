"""Schedules as callers send and see them."""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from fastapi import Path
from pydantic import Field, StringConstraints, ValidatorFunctionWrapHandler, WrapValidator

from caseworker.access.caller import Caller, Scope
from caseworker.api.api_request import ApiRequest
from caseworker.api.field_types import Body, DocumentedAs, View, ZoneName
from caseworker.api.problem_types import INVALID_REQUEST
from caseworker.api.problems import ProblemError, as_problem
from caseworker.api.run_body import AgentRunBody, CaseBody, GraphRunBody, OwnBody, body_of_kind
from caseworker.api.violations import Violation
from caseworker.api.webhook_views import require_secret
from caseworker.nodes.reading import refusal
from caseworker.runs.errors import DefinitionNotFoundError, GraphRefusedError
from caseworker.runs.run import NewRun
from caseworker.schedules.schedule import NewSchedule, Overlap, Schedule, ScheduledRun, SchedulePage
from caseworker.schedules.timing import CRON, MAX_CATCH_UP, CatchUp, InvalidCronError, Timing

_OF_ONE_RUN = ("run_id", "start_at", "deadline")
_OF_ITS_CALLER = frozenset({"gold_answer", "webhook"})
"""What no run shows either."""

ScheduleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
ScheduleNamePath = Annotated[ScheduleName, Path(description="The name of a schedule.")]


def _own(sent: Any, _: ValidatorFunctionWrapHandler) -> OwnBody:
    if isinstance(sent, dict) and "from" in sent:
        raise refusal("The runs of a schedule do not go on from others.")
    return body_of_kind(sent)


class ScheduleBody(Body):
    """A schedule as it is to be."""

    cron: Annotated[
        str,
        StringConstraints(max_length=200),
        Field(examples=["30 6 * * 1-5"], json_schema_extra={"pattern": CRON}),
    ]
    """Five fields: minute, hour, day of the month, month, day of the week."""
    timezone: ZoneName = "UTC"
    """Whose wall clock the expression speaks of."""
    run: Annotated[CaseBody | GraphRunBody | AgentRunBody, WrapValidator(_own)]
    """What is accepted each time, as in `POST /runs`, without `run_id`, `start_at`, `deadline` and
    `from`. Registered graphs and agents are kept as they are now."""
    overlap: Overlap = Field(Overlap.SKIP, strict=False)
    """What happens while the run before has not ended."""
    catch_up: CatchUp = Field(CatchUp.ONE, strict=False)
    """Which instants that were missed, for example during an outage, fire late."""
    max_catch_up: Annotated[int, Field(ge=1, le=MAX_CATCH_UP)] = 10
    """How many `all` fires at most: the last ones."""
    paused: bool = False
    """Whether it fires at all."""


class ScheduleView(View):
    """A schedule, and what has come of it."""

    name: str
    cron: str
    timezone: str
    run: Annotated[dict[str, Any], DocumentedAs(CaseBody, GraphRunBody, AgentRunBody)]
    """As it was sent; who may not run anything sees neither `gold_answer` nor `webhook`."""
    overlap: Overlap
    catch_up: CatchUp
    max_catch_up: int
    paused: bool
    next_at: datetime | None
    """When it fires next; null while it is paused."""
    last_at: datetime | None
    """The last instant that was due."""
    last_run_id: str | None
    """The run that was made last."""
    skipped: int
    """How many instants made no run because the one before had not ended."""
    last_error: str | None
    """Why it cannot fire just now; it is tried again."""
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, schedule: Schedule, caller: Caller) -> Self:
        """Return a caller's view of a schedule."""
        timing, hidden = schedule.timing, frozenset() if caller.may(Scope.RUN) else _OF_ITS_CALLER
        of_timing = {"cron", "timezone", "catch_up", "max_catch_up"}
        own = cls.model_fields.keys() - of_timing - {"run"}
        return cls(
            run={name: it for name, it in schedule.run.sent.items() if name not in hidden},
            **{name: getattr(timing, name) for name in of_timing},
            **{name: getattr(schedule, name) for name in own},
        )


class ScheduleList(View):
    """Some schedules, by name."""

    schedules: list[ScheduleView]
    next_cursor: str | None
    """Ask for the next page with it; null on the last one."""

    @classmethod
    def of(cls, page: SchedulePage, caller: Caller) -> Self:
        """Return a caller's view of a page."""
        views = [ScheduleView.of(schedule, caller) for schedule in page.schedules]
        return cls(schedules=views, next_cursor=page.next_cursor)


async def new_schedule(name: str, body: ScheduleBody, request: ApiRequest) -> NewSchedule:
    """Return the schedule that a body asks for; its run is checked as if it were posted now.

    Raises:
        ProblemError: something is wrong with it; every field is named.
    """
    timing = Timing(body.cron, body.timezone, body.catch_up, body.max_catch_up)
    violations = [
        Violation(f"run.{field}", "This belongs to a single run.")
        for field in _OF_ONE_RUN
        if getattr(body.run, field) is not None
    ]
    try:
        timing.require_valid(datetime.now(UTC))
    except InvalidCronError as error:
        violations.append(Violation("cron", str(error)))
    if violations:
        raise ProblemError(INVALID_REQUEST, violations=violations)
    new = await _admitted(body.run, request)
    run = ScheduledRun(
        sent=(await request.json())["run"],
        request=new.request,
        request_hash=new.request_hash,
        metadata=new.metadata,
        webhook=new.webhook,
    )
    return NewSchedule(
        tenant=request.caller.tenant,
        name=name,
        timing=timing,
        run=run,
        overlap=body.overlap,
        paused=body.paused,
    )


async def _admitted(body: OwnBody, request: ApiRequest) -> NewRun:
    """Return the run that a body asks for; what is wrong with it is named below ``run``."""
    api, tenant = request.api, request.caller.tenant
    try:
        if body.webhook is not None:
            await require_secret(request)
        if isinstance(body, CaseBody):
            request.require_small()
            new = api.cases.new_run(body, tenant, None)
        else:
            new = await api.graph_runs.new_run(body, tenant, None)
        await new.require_models_of((await api.services.quotas.get(tenant)).quota)
    except (ProblemError, GraphRefusedError, DefinitionNotFoundError) as error:
        problem = as_problem(error)
        below = [Violation(f"run.{each.field}", each.message) for each in problem.violations]
        raise ProblemError(problem.kind, problem.detail, violations=below) from None
    return new
