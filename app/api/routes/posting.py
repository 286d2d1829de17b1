"""Runs: accept one. This is the route that is called all the time."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Response
from pydantic import TypeAdapter

from app.api import problem_types as types
from app.api.admission import request_hash
from app.api.call import Call, PostingRoute
from app.api.documentation import EVERY_BODY, EVERY_RUN_ROUTE, RUN_HEADERS, answers, operation_id
from app.api.examples import RUNS
from app.api.request_headers import POST_HEADERS, idempotency_key, wait_seconds
from app.api.run_body import CaseBody, GraphRunBody, RunBody
from app.api.run_views import RunView
from app.runs.errors import GraphRefusedError, StoreUnavailableError
from app.runs.ports import Accepted
from app.runs.run import Run
from app.runs.service import RunService

router = APIRouter(
    prefix="/runs",
    tags=["runs"],
    route_class=PostingRoute,
    generate_unique_id_function=operation_id,
)

_RUN = TypeAdapter(RunView)


@router.post(
    "",
    status_code=HTTPStatus.ACCEPTED,
    response_model=RunView,
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
async def post_run(body: Annotated[RunBody, Body(openapi_examples=RUNS)], call: Call) -> Response:
    """Accept a run; it is durable once this is answered.

    Repeating a request under the same `run_id` or `Idempotency-Key` returns the run it made.
    """
    wait = wait_seconds(call.headers, longest=call.limits.max_wait_seconds)
    accepted = await _accepted(body, call)
    run = await _awaited(call.runs, accepted.run, wait)
    ended_in_time = wait is not None and run.finished
    status = HTTPStatus.OK if ended_in_time or not accepted.created else HTTPStatus.ACCEPTED
    view = RunView.of(run, call.root)
    headers = {"Location": view.links.self}
    if wait is not None:
        headers["Preference-Applied"] = f"wait={wait}"
    return Response(_RUN.dump_json(view), status, headers, media_type="application/json")


async def _accepted(body: RunBody, call: Call) -> Accepted:
    tenant, key = call.caller.tenant, idempotency_key(call.headers)
    if isinstance(body, CaseBody):
        call.require_small()
        return await call.runs.accept(call.admission.new_run(body, tenant, key))
    try:
        return await call.runs.accept(await call.graph_admission.new_run(body, tenant, key))
    except GraphRefusedError:
        again = await _again(body, call, key)
        if again is None:
            raise
        return again


async def _again(body: GraphRunBody, call: Call, key: str | None) -> Accepted | None:
    """Return the run that this request made while its graph was still registered."""
    if body.run_id is None and key is None:
        return None
    return await call.runs.accepted_before(call.key(body.run_id or ""), key, request_hash(body))


async def _awaited(runs: RunService, run: Run, wait: int | None) -> Run:
    """Return the run as it stands once it was waited for; it is accepted whatever happens here."""
    if wait is None or run.finished:
        return run
    try:
        return await runs.wait(run.key, seconds=wait)
    except StoreUnavailableError:
        return run
