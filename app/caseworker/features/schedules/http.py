"""Routes for schedules: create, read, pause, resume, fire and delete."""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Self

from fastapi import Path, Query, Response
from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from caseworker.features.definitions.fields import DefinitionName
from caseworker.features.definitions.http import NOT_FOUND
from caseworker.features.definitions.registration import DefinitionNotFoundError
from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.schedules.cron_times import (
    CRON,
    MAX_CATCH_UP,
    CatchUp,
    InvalidCronError,
    Timing,
)
from caseworker.features.schedules.postgres import PostgresSchedules
from caseworker.features.schedules.schedule import (
    NewSchedule,
    Overlap,
    Schedule,
    ScheduledRun,
    ScheduleNotFoundError,
    TooManySchedulesError,
)
from caseworker.platform.caller import Caller, KeyScope
from caseworker.platform.http.bodies import BodyModel, DocumentedAs, PageQuery, View, ZoneName
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers
from caseworker.platform.http.problems import (
    INVALID_REQUEST,
    Errors,
    ProblemError,
    ProblemType,
    Violation,
)
from caseworker.platform.http.request import ApiRequest, api_router
from caseworker.platform.validation import refusal
from caseworker.runs.errors import GraphRefusedError
from caseworker.runs.http.body import (
    POST_HEADERS,
    RUN_HEADERS,
    RunFields,
    idempotency_key,
)
from caseworker.runs.http.fields import WebhookCheck
from caseworker.runs.http.kinds import (
    QUEUED_BODIES,
    SECRET_FIELDS,
    Admissions,
    RunView,
    body_of_kind,
    one_of,
)
from caseworker.runs.http.problems import IDEMPOTENCY_MISMATCH, QUEUE_FULL, QUOTA_EXCEEDED
from caseworker.runs.http.runs import answer_of, view_with_usage
from caseworker.runs.kinds import QUEUED
from caseworker.runs.run import NewRun, RunKey
from caseworker.runs.service import RunService, new_run_id

_OF_ONE_RUN = ("run_id", "start_at", "deadline")
_OF_ITS_CALLER = SECRET_FIELDS | {"webhook"}
"""Fields hidden from callers without the scope ``run``; views of runs hide them too."""

ScheduleNamePath = Annotated[DefinitionName, Path(description="Name of the schedule.")]


def _schedulable_body(document: Any, _: ValidatorFunctionWrapHandler) -> RunFields:
    if isinstance(document, dict) and "from" in document:
        raise refusal("A scheduled run cannot resume another run.")
    body = body_of_kind(document)
    if body.kind not in QUEUED:
        raise refusal("A scheduled run cannot be of kind external: its client must exist.")
    return body


def _cron(value: str) -> str:
    try:
        Timing(value, "UTC").require_valid(datetime.now(UTC))
    except InvalidCronError as error:
        raise refusal(str(error)) from None
    return value


class ScheduleBody(BodyModel):
    """The desired definition of a schedule."""

    cron: Annotated[
        str,
        StringConstraints(max_length=200),
        AfterValidator(_cron),
        Field(examples=["30 6 * * 1-5"], json_schema_extra={"pattern": CRON}),
    ]
    """Cron expression with five fields: minute, hour, day of month, month, day of week."""
    timezone: ZoneName = "UTC"
    """Time zone in which the cron expression is interpreted."""
    run: Annotated[RunFields, one_of(QUEUED_BODIES), WrapValidator(_schedulable_body)]
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
    run: Annotated[dict[str, Any], DocumentedAs(*QUEUED_BODIES)]
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
    """ID of the latest scheduled run; null if there is none. Runs that `POST /schedules/{name}/run`
    created do not count."""
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
        hidden = frozenset() if KeyScope.RUN in caller.scopes else _OF_ITS_CALLER
        run = {name: it for name, it in schedule.run.body.items() if name not in hidden}
        return cls.of_parts(schedule, schedule.timing, run=run)


class ScheduleList(View):
    """A page of schedules, sorted by name."""

    schedules: list[ScheduleView]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""


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
    if violations:
        raise ProblemError(INVALID_REQUEST, violations=violations)
    new = await _admitted(body.run, request)
    run = ScheduledRun(
        body=(await request.json())["run"],
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


async def _admitted(body: RunFields, request: ApiRequest) -> NewRun:
    """Return the run requested by a body; violations are reported below ``run``."""
    tenant = request.caller.tenant
    try:
        if body.webhook is not None:
            await request.service(WebhookCheck).require_secret(tenant)
        new = await (await request.service(Admissions).new_run(body, request)).current()
        quota = (await request.service(PostgresQuotas).get(tenant)).quota
        await new.require_models_of(quota.models)
    except (ProblemError, GraphRefusedError, DefinitionNotFoundError) as error:
        problem = request.problem_of(error)
        run_violations = [
            Violation(f"run.{each.field}", each.message) for each in problem.violations
        ]
        raise ProblemError(problem.kind, problem.detail, violations=run_violations) from None
    return new


SCHEDULE_NOT_FOUND = ProblemType(
    slug="schedule-not-found",
    status=404,
    title="Schedule not found",
    detail="No schedule has this name. GET /schedules lists all schedules.",
    explanation="No schedule has this name, or it belongs to another tenant. `GET /schedules` "
    "lists all schedules.",
)
TOO_MANY_SCHEDULES = ProblemType(
    slug="too-many-schedules",
    status=429,
    title="Too many schedules",
    detail="Delete unused schedules. admission.max_schedules sets the limit.",
    explanation="The tenant has `admission.max_schedules` schedules. Delete unused schedules.",
    retry_after_seconds=60,
)

ERRORS: Errors = {
    ScheduleNotFoundError: SCHEDULE_NOT_FOUND,
    TooManySchedulesError: TOO_MANY_SCHEDULES,
}

router = api_router("schedules", prefix="/schedules")

_RESPONSES_OF_ONE = answers(*EVERY_RUN_ROUTE, SCHEDULE_NOT_FOUND)
_PUT: Responses = {
    **answers(
        *EVERY_RUN_ROUTE,
        *EVERY_BODY,
        *NOT_FOUND.values(),
        TOO_MANY_SCHEDULES,
        QUOTA_EXCEEDED,
    ),
    200: {"description": "The schedule was updated.", "model": ScheduleView},
    201: {"description": "The schedule was created."},
}
_FIRED: Responses = {
    **answers(
        *EVERY_RUN_ROUTE,
        SCHEDULE_NOT_FOUND,
        IDEMPOTENCY_MISMATCH,
        QUEUE_FULL,
        QUOTA_EXCEEDED,
    ),
    200: {
        "description": "The run had already been accepted.",
        "model": RunView,
        "headers": RUN_HEADERS,
    },
    202: {"description": "Accepted. The run is stored.", "headers": RUN_HEADERS},
}


@router.put("/{name}", status_code=HTTPStatus.CREATED, responses=_PUT)
async def put_schedule(
    name: ScheduleNamePath, body: ScheduleBody, request: ApiRequest, response: Response
) -> ScheduleView:
    """Create or replace a schedule.

    If the timing changes, the time of the next run is computed again from now; otherwise it is
    kept.
    """
    new = await new_schedule(name, body, request)
    schedule, created = await request.service(PostgresSchedules).put(new)
    if not created:
        response.status_code = HTTPStatus.OK
    return ScheduleView.of(schedule, request.caller)


@router.get("", responses=answers(*EVERY_RUN_ROUTE))
async def list_schedules(query: Annotated[PageQuery, Query()], request: ApiRequest) -> ScheduleList:
    """List schedules, sorted by name."""
    store = request.service(PostgresSchedules)
    page = await store.find(request.caller.tenant, limit=query.limit, cursor=query.cursor)
    views = [ScheduleView.of(schedule, request.caller) for schedule in page.items]
    return ScheduleList(schedules=views, next_cursor=page.next_cursor)


@router.get("/{name}", responses=_RESPONSES_OF_ONE)
async def get_schedule(name: ScheduleNamePath, request: ApiRequest) -> ScheduleView:
    """Return a schedule with the time of its next run and its latest run."""
    store = request.service(PostgresSchedules)
    return ScheduleView.of(await store.get(request.caller.tenant, name), request.caller)


@router.post("/{name}/pause", responses=_RESPONSES_OF_ONE)
async def pause_schedule(name: ScheduleNamePath, request: ApiRequest) -> ScheduleView:
    """Pause a schedule; its existing runs continue."""
    return await _paused(name, request, paused=True)


@router.post("/{name}/resume", responses=_RESPONSES_OF_ONE)
async def resume_schedule(name: ScheduleNamePath, request: ApiRequest) -> ScheduleView:
    """Resume a schedule; runs that were due while it was paused are not created."""
    return await _paused(name, request, paused=False)


@router.post(
    "/{name}/run",
    status_code=HTTPStatus.ACCEPTED,
    response_model=RunView,
    responses=_FIRED,
    openapi_extra={"parameters": POST_HEADERS[:1]},
)
async def run_schedule(name: ScheduleNamePath, request: ApiRequest) -> Response:
    """Create a run of a schedule now, even if the schedule is paused.

    The run is independent of scheduled runs: the overlap policy ignores it.
    """
    tenant, key = request.caller.tenant, idempotency_key(request.headers)
    schedule = await request.service(PostgresSchedules).get(tenant, name)
    about = {"schedule": schedule.name}
    new = schedule.run.new_run(
        RunKey(tenant, new_run_id()), about, idempotency_key=key, named=False
    )
    accepted = await request.service(RunService).accept(new)
    view = await view_with_usage(accepted.run, request)
    return answer_of(view, view.links, accepted, ended=False)


@router.delete(
    "/{name}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={**_RESPONSES_OF_ONE, 204: {"description": "Deleted. Its runs are not affected."}},
)
async def delete_schedule(name: ScheduleNamePath, request: ApiRequest) -> None:
    """Delete a schedule; its runs are not affected."""
    await request.service(PostgresSchedules).delete(request.caller.tenant, name)


async def _paused(name: str, request: ApiRequest, *, paused: bool) -> ScheduleView:
    caller = request.caller
    changed = await request.service(PostgresSchedules).pause(caller.tenant, name, paused=paused)
    return ScheduleView.of(changed, caller)
