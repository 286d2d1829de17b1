"""API schemas for schedules."""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from fastapi import Path
from pydantic import Field, StringConstraints, ValidatorFunctionWrapHandler, WrapValidator

from caseworker.api.api_request import ApiRequest
from caseworker.api.field_types import Body, DocumentedAs, View, ZoneName
from caseworker.api.problem_types import INVALID_REQUEST
from caseworker.api.problems import ProblemError, as_problem
from caseworker.api.run_body import AgentRunBody, CaseBody, GraphRunBody, OwnBody, body_of_kind
from caseworker.api.violations import Violation
from caseworker.api.webhook_views import require_secret
from caseworker.features.access.caller import Caller, Scope
from caseworker.features.schedules.schedule import (
    NewSchedule,
    Overlap,
    Schedule,
    ScheduledRun,
    SchedulePage,
)
from caseworker.features.schedules.timing import (
    CRON,
    MAX_CATCH_UP,
    CatchUp,
    InvalidCronError,
    Timing,
)
from caseworker.nodes.reading import refusal
from caseworker.runs.errors import DefinitionNotFoundError, GraphRefusedError
from caseworker.runs.run import NewRun

_OF_ONE_RUN = ("run_id", "start_at", "deadline")
_OF_ITS_CALLER = frozenset({"gold_answer", "webhook"})
"""Fields hidden from callers without the scope ``run``; views of runs hide them too."""

ScheduleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
ScheduleNamePath = Annotated[ScheduleName, Path(description="Name of the schedule.")]


def _own(sent: Any, _: ValidatorFunctionWrapHandler) -> OwnBody:
    if isinstance(sent, dict) and "from" in sent:
        raise refusal("A scheduled run cannot resume another run.")
    return body_of_kind(sent)


class ScheduleBody(Body):
    """The desired definition of a schedule."""

    cron: Annotated[
        str,
        StringConstraints(max_length=200),
        Field(examples=["30 6 * * 1-5"], json_schema_extra={"pattern": CRON}),
    ]
    """Cron expression with five fields: minute, hour, day of month, month, day of week."""
    timezone: ZoneName = "UTC"
    """Time zone in which the cron expression is interpreted."""
    run: Annotated[CaseBody | GraphRunBody | AgentRunBody, WrapValidator(_own)]
    """Run to create each time, as in `POST /runs`, without `run_id`, `start_at`, `deadline` and
    `from`. References to registered graphs and agents are resolved now; later versions are not
    used."""
    overlap: Overlap = Field(Overlap.SKIP, strict=False)
    """What to do when a run is due and the previous run has not ended."""
    catch_up: CatchUp = Field(CatchUp.ONE, strict=False)
    """Which missed runs to create late, for example after an outage."""
    max_catch_up: Annotated[int, Field(ge=1, le=MAX_CATCH_UP)] = 10
    """Maximum number of missed runs that `all` creates. If more were missed, the latest ones are
    created."""
    paused: bool = False
    """Whether the schedule is paused and creates no runs."""


class ScheduleView(View):
    """A schedule and its current state."""

    name: str
    cron: str
    timezone: str
    run: Annotated[dict[str, Any], DocumentedAs(CaseBody, GraphRunBody, AgentRunBody)]
    """Run definition as it was sent. Callers without the scope `run` see neither `gold_answer` nor
    `webhook`."""
    overlap: Overlap
    catch_up: CatchUp
    max_catch_up: int
    paused: bool
    next_at: datetime | None
    """Time at which the next run is due; null while the schedule is paused."""
    last_at: datetime | None
    """Time at which a run was last due; null if none has been due yet."""
    last_run_id: str | None
    """ID of the latest run; null if there is none."""
    skipped: int
    """Number of scheduled runs that were skipped because the previous run was still in progress."""
    last_error: str | None
    """Reason why the schedule currently cannot create a run, which it keeps retrying; null if it
    can."""
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, schedule: Schedule, caller: Caller) -> Self:
        """Return the view of a schedule, without fields that the caller may not see."""
        timing, hidden = schedule.timing, frozenset() if caller.may(Scope.RUN) else _OF_ITS_CALLER
        of_timing = {"cron", "timezone", "catch_up", "max_catch_up"}
        own = cls.model_fields.keys() - of_timing - {"run"}
        return cls(
            run={name: it for name, it in schedule.run.sent.items() if name not in hidden},
            **{name: getattr(timing, name) for name in of_timing},
            **{name: getattr(schedule, name) for name in own},
        )


class ScheduleList(View):
    """A page of schedules, sorted by name."""

    schedules: list[ScheduleView]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""

    @classmethod
    def of(cls, page: SchedulePage, caller: Caller) -> Self:
        """Return the view of a page of schedules, without fields that the caller may not see."""
        views = [ScheduleView.of(schedule, caller) for schedule in page.schedules]
        return cls(schedules=views, next_cursor=page.next_cursor)


async def new_schedule(name: str, body: ScheduleBody, request: ApiRequest) -> NewSchedule:
    """Return the schedule that the body describes. Its run is validated as if it were posted now.

    Raises:
        ProblemError: the body is invalid; the error names every field.
    """
    timing = Timing(body.cron, body.timezone, body.catch_up, body.max_catch_up)
    violations = [
        Violation(f"run.{field}", "This field is allowed only for single runs.")
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
    """Return the run requested by a body; violations are reported below ``run``."""
    try:
        if body.webhook is not None:
            await require_secret(request)
        new = await request.admit(body)
        quotas = await request.api.services.quotas.get(request.caller.tenant)
        await new.require_models_of(quotas.quota)
    except (ProblemError, GraphRefusedError, DefinitionNotFoundError) as error:
        problem = as_problem(error)
        below = [Violation(f"run.{each.field}", each.message) for each in problem.violations]
        raise ProblemError(problem.kind, problem.detail, violations=below) from None
    return new
