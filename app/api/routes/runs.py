"""Runs: accept one, look at one, list them."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Query, Response

from app.api import problem_types as types
from app.api.call import Call, GuardedRoute
from app.api.documentation import EVERY_BODY, EVERY_RUN_ROUTE, RUN_HEADERS, answers
from app.api.examples import CASES
from app.api.parameters import RunIdPath
from app.api.request_headers import POST_HEADERS, idempotency_key, wait_seconds
from app.api.run_body import RunBody, RunQuery
from app.api.run_views import RunPage, RunView
from app.runs.errors import StoreUnavailableError
from app.runs.ports import Accepted, RunFilter
from app.runs.run import Run
from app.runs.service import RunService

router = APIRouter(prefix="/runs", tags=["runs"], route_class=GuardedRoute)


@router.post(
    "",
    status_code=HTTPStatus.ACCEPTED,
    responses={
        **answers(
            *EVERY_RUN_ROUTE,
            *EVERY_BODY,
            types.RUN_CONFLICT,
            types.IDEMPOTENCY_MISMATCH,
            types.QUEUE_FULL,
        ),
        200: {
            "description": "It ended while it was waited for, or had been accepted before.",
            "model": RunView,
            "headers": RUN_HEADERS,
        },
        202: {
            "description": "Accepted: the run is stored and survives any crash.",
            "headers": RUN_HEADERS,
        },
    },
    openapi_extra={"parameters": POST_HEADERS},
)
async def post_run(
    body: Annotated[RunBody, Body(openapi_examples=CASES)],
    call: Call,
    response: Response,
) -> RunView:
    """Accept a run; it is durable once this is answered.

    Repeating a request under the same `run_id` or `Idempotency-Key` returns the run it made.
    """
    wait = wait_seconds(call.headers, longest=call.limits.max_wait_seconds)
    new = call.admission.new_run(body, call.caller.tenant, idempotency_key(call.headers))
    accepted = await call.runs.accept(new)
    run = await _awaited(call.runs, accepted.run, wait)
    _describe(response, accepted, run, wait)
    view = RunView.of(run, call.root)
    response.headers["Location"] = view.links.self
    return view


@router.get("", responses=answers(*EVERY_RUN_ROUTE))
async def list_runs(query: Annotated[RunQuery, Query()], call: Call) -> RunPage:
    """List runs, newest first."""
    wanted = RunFilter(
        status=query.status,
        created_after=query.created_after,
        created_before=query.created_before,
        limit=query.limit,
        cursor=query.cursor,
    )
    return RunPage.of(await call.runs.find(call.caller.tenant, wanted), call.root)


@router.get("/{run_id}", responses=answers(*EVERY_RUN_ROUTE, types.RUN_NOT_FOUND))
async def get_run(run_id: RunIdPath, call: Call) -> RunView:
    """Return a run: its state, its result, what it has spent and why it stopped."""
    return RunView.of(await call.runs.get(call.key(run_id)), call.root)


async def _awaited(runs: RunService, run: Run, wait: int | None) -> Run:
    """Return the run as it stands once it was waited for; it is accepted whatever happens here."""
    if wait is None or run.finished:
        return run
    try:
        return await runs.wait(run.key, seconds=wait)
    except StoreUnavailableError:
        return run


def _describe(response: Response, accepted: Accepted, run: Run, wait: int | None) -> None:
    ended_in_time = wait is not None and run.finished
    if ended_in_time or not accepted.created:
        response.status_code = HTTPStatus.OK
    if wait is not None:
        response.headers["Preference-Applied"] = f"wait={wait}"
