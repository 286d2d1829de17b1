"""Routes for schedules: create, read, pause, resume, fire and delete."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Query, Response

from caseworker.features.definitions.problems import AGENT_NOT_FOUND, GRAPH_NOT_FOUND
from caseworker.features.schedules.postgres import PostgresSchedules
from caseworker.features.schedules.schedule import ScheduleNotFoundError, TooManySchedulesError
from caseworker.features.schedules.views import (
    ScheduleBody,
    ScheduleList,
    ScheduleNamePath,
    ScheduleView,
    new_schedule,
)
from caseworker.platform.http.field_types import PageQuery
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers
from caseworker.platform.http.problems import Errors, ProblemType
from caseworker.platform.http.request import ApiRequest, api_router
from caseworker.runs.http.body import POST_HEADERS, idempotency_key
from caseworker.runs.http.openapi import RUN_HEADERS
from caseworker.runs.http.problems import IDEMPOTENCY_MISMATCH, QUEUE_FULL, QUOTA_EXCEEDED
from caseworker.runs.http.runs import answer_of, shown
from caseworker.runs.http.views import RunView
from caseworker.runs.run import RunKey
from caseworker.runs.service import RunService, new_run_id

SCHEDULE_NOT_FOUND = ProblemType(
    slug="schedule-not-found",
    status=404,
    title="Schedule not found",
    detail="No schedule has this name. GET /schedules lists all schedules.",
)
TOO_MANY_SCHEDULES = ProblemType(
    slug="too-many-schedules",
    status=429,
    title="Too many schedules",
    detail="Delete unused schedules. admission.max_schedules sets the limit.",
    retry_after_seconds=60,
)

ERRORS: Errors = {
    ScheduleNotFoundError: SCHEDULE_NOT_FOUND,
    TooManySchedulesError: TOO_MANY_SCHEDULES,
}

router = api_router("schedules", prefix="/schedules")

_FOUND = answers(*EVERY_RUN_ROUTE, SCHEDULE_NOT_FOUND)
_PUT: Responses = {
    **answers(
        *EVERY_RUN_ROUTE,
        *EVERY_BODY,
        GRAPH_NOT_FOUND,
        AGENT_NOT_FOUND,
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
    return ScheduleList.of(page, request.caller)


@router.get("/{name}", responses=_FOUND)
async def get_schedule(name: ScheduleNamePath, request: ApiRequest) -> ScheduleView:
    """Return a schedule with the time of its next run and its latest run."""
    store = request.service(PostgresSchedules)
    return ScheduleView.of(await store.get(request.caller.tenant, name), request.caller)


@router.post("/{name}/pause", responses=_FOUND)
async def pause_schedule(name: ScheduleNamePath, request: ApiRequest) -> ScheduleView:
    """Pause a schedule; its existing runs continue."""
    return await _paused(name, request, paused=True)


@router.post("/{name}/resume", responses=_FOUND)
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
    view = await shown(accepted.run, request)
    return answer_of(view, view.links, accepted, ended=False)


@router.delete(
    "/{name}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={**_FOUND, 204: {"description": "Deleted. Its runs are not affected."}},
)
async def delete_schedule(name: ScheduleNamePath, request: ApiRequest) -> None:
    """Delete a schedule; its runs are not affected."""
    await request.service(PostgresSchedules).delete(request.caller.tenant, name)


async def _paused(name: str, request: ApiRequest, *, paused: bool) -> ScheduleView:
    caller = request.caller
    changed = await request.service(PostgresSchedules).pause(caller.tenant, name, paused=paused)
    return ScheduleView.of(changed, caller)
