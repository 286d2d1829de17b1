"""Routes for runs: create, resume, get, list, cancel and erase.

A run that resumes from an ended run inherits the fields that its request omits, except deadline and
metadata: the deadline has usually passed, and metadata describe a single run. Each limit that is
not sent is inherited, and usage is counted from 0 again.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Body, Query, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ValidationError

from caseworker.core.trace.payloads import Payloads
from caseworker.platform.caller import KeyScope
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.http.deadline import extend_deadline
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers
from caseworker.platform.http.problems import (
    ATTEMPT_SUPERSEDED,
    INVALID_REQUEST,
    ProblemError,
    invalid,
    violations_of,
)
from caseworker.platform.http.request import (
    ApiRequest,
    PostingRoute,
    api_router,
    for_run_keys,
    requires,
)
from caseworker.runs.errors import (
    GraphRefusedError,
    RunNotFoundError,
    SourceNotEndedError,
    SourceNotFoundError,
)
from caseworker.runs.http.admission import inherited_limits, request_hash
from caseworker.runs.http.body import (
    POST_HEADERS,
    RUN_HEADERS,
    CancelBody,
    GoingOnBody,
    RunFields,
    idempotency_key,
    wait_seconds,
    wants_stream,
)
from caseworker.runs.http.events import EVENT_STREAM, stream_accepted
from caseworker.runs.http.fields import ExternalAccess, RunIdPath, WebhookCheck
from caseworker.runs.http.kinds import EXAMPLES, Admissions, RunBody, RunView, body_of_kind, view_of
from caseworker.runs.http.limits import ApiLimits
from caseworker.runs.http.problems import (
    IDEMPOTENCY_MISMATCH,
    QUEUE_FULL,
    QUOTA_EXCEEDED,
    RUN_CONFLICT,
    RUN_NOT_ENDED,
    RUN_NOT_FOUND,
    TOO_MANY_PENDING_CANCELS,
    rate_headers,
)
from caseworker.runs.http.query import CancelQuery, CancelRunsBody, RunQuery, metadata_filter
from caseworker.runs.http.views import (
    CancelledRunsView,
    CancelReceipt,
    Links,
    RequiredAction,
    RunDetails,
    RunPage,
)
from caseworker.runs.kinds import KINDS, QUEUED
from caseworker.runs.ports import Accepted, RequiredActions, RunFilter
from caseworker.runs.run import NewRun, Run, RunKey, RunRequest, RunSource, RunStatus
from caseworker.runs.service import RunService

ANSWER_SECONDS = 2.0
"""Seconds for reading the run after a request has waited for it."""

router = api_router("runs", prefix="/runs")


async def view_with_usage(run: Run, request: ApiRequest) -> RunDetails:
    """Return the view of a run for its caller, with its usage so far and its open calls."""
    runs, payloads, root = request.service(RunService), request.service(Payloads), request.root
    view = await view_of(await runs.with_usage(run), root, payloads)
    if run.status in (RunStatus.WAITING, RunStatus.RUNNING):
        calls = await request.service(RequiredActions).of_run(run.key)
        return view.model_copy(update={"required_action": RequiredAction.of(calls)})
    return view


_ACCEPTED: Responses = {
    **answers(
        *EVERY_RUN_ROUTE,
        *EVERY_BODY,
        RUN_NOT_FOUND,
        RUN_NOT_ENDED,
        RUN_CONFLICT,
        ATTEMPT_SUPERSEDED,
        IDEMPOTENCY_MISMATCH,
        QUEUE_FULL,
        QUOTA_EXCEEDED,
    ),
    200: {
        "description": "The run ended within the wait time, or had already been accepted. With "
        "`Accept: text/event-stream`, the events of the run until it ends.",
        "model": RunView,
        "content": {"text/event-stream": EVENT_STREAM},
        "headers": RUN_HEADERS,
    },
    202: {
        "description": "Accepted. The run is stored durably.",
        "headers": RUN_HEADERS,
    },
}
_CANCELLED: Responses = {
    **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, TOO_MANY_PENDING_CANCELS),
    200: {
        "description": "The run has already ended; nothing was changed.",
        "model": CancelReceipt,
    },
    202: {"description": "The cancel request is stored, even if the run does not exist yet."},
}

_NO_REASON = CancelBody()


@for_run_keys
async def post_run(
    body: Annotated[RunBody, Body(openapi_examples=dict(EXAMPLES))], request: ApiRequest
) -> Response:
    """Create a run; it is durable when the response is sent.

    Repeating a request with the same `run_id` or `Idempotency-Key` returns the existing run. With
    `from`, the run resumes from an ended run and imports its completed steps and calls.

    With `Accept: text/event-stream`, the response streams the events of the run. The first one is
    `run.accepted`, which names the run. Closing the connection does not cancel the run.
    """
    wait = wait_seconds(request.headers, longest=request.service(ApiLimits).max_wait_seconds)
    if body.streams and request.caller.run_id is None and wants_stream(request.headers):
        return await stream_accepted(partial(_accepted, body, request), request, opens=True)
    access = request.service(ExternalAccess)
    accept: Callable[..., Awaitable[Any]] = _accepted
    # A body with ``from`` may have no kind.
    if request.caller.run_id is not None or body.kind not in QUEUED:
        accept = partial(access.accepted, accept=_accepted)
    accepted = await accept(body, request)
    if isinstance(accepted, Response):
        return accepted
    run = await awaited(request, accepted.run, wait)
    view = await view_with_usage(run, request)
    if KINDS[run.kind].is_external and not run.finished:
        renews = not accepted.created and "idempotency-key" in request.headers
        fields = await access.opened(run, request, renew=renews)
        view = view.model_copy(update=fields)
    return answer_of(view, view.links, accepted, ended=run.finished, wait=wait)


router.add_api_route(
    "",
    post_run,
    methods=["POST"],
    status_code=HTTPStatus.ACCEPTED,
    response_model=RunView,
    responses=_ACCEPTED,
    openapi_extra={"parameters": POST_HEADERS},
    route_class_override=PostingRoute,
)


@router.get("", responses=answers(*EVERY_RUN_ROUTE))
async def list_runs(query: Annotated[RunQuery, Query()], request: ApiRequest) -> RunPage:
    """List runs, newest first, without their results.

    `metadata.<key>=<value>` selects runs by metadata: the value is a string, or a number, boolean
    or null as in JSON. Several filters must all match.

    A page of large runs may hold fewer than `limit` runs.
    """
    run_filter = RunFilter(
        **query.model_dump(),
        metadata=metadata_filter(request.query_params),
        max_bytes=request.service(ApiLimits).max_page_bytes,
    )
    page = await request.service(RunService).store.find(request.caller.tenant, run_filter)
    return await run_in_threadpool(RunPage.of, page, request.root, request.service(Payloads))


@router.get("/{run_id}", responses=answers(*EVERY_RUN_ROUTE, RUN_NOT_FOUND, ATTEMPT_SUPERSEDED))
@for_run_keys
async def get_run(run_id: RunIdPath, request: ApiRequest) -> RunView:
    """Return a run: status, input, result, usage and stop reason."""
    run = await request.service(RunService).get(RunKey(request.caller.tenant, run_id))
    return await view_with_usage(run, request)


@router.delete("/{run_id}", status_code=HTTPStatus.ACCEPTED, responses=_CANCELLED)
@router.post(
    "/{run_id}/cancel",
    status_code=HTTPStatus.ACCEPTED,
    responses=_CANCELLED,
    name="cancel_run_by_post",
)
async def cancel_run(
    run_id: RunIdPath,
    query: Annotated[CancelQuery, Query()],
    request: ApiRequest,
    response: Response,
    body: CancelBody = _NO_REASON,
) -> CancelReceipt:
    """Cancel a run; the request is stored even if the run does not exist yet.

    The data of the run is not deleted.
    """
    request.require_small()
    reason = body.reason or query.reason
    receipt = await request.service(RunService).cancel(
        RunKey(request.caller.tenant, run_id), by=request.caller.name, reason=reason
    )
    if receipt.already_finished:
        response.status_code = HTTPStatus.OK
    return CancelReceipt.of(receipt)


@router.post(
    "/cancel",
    status_code=HTTPStatus.ACCEPTED,
    responses={
        **answers(*EVERY_RUN_ROUTE, *EVERY_BODY),
        202: {"description": "The runs have ended or are being cancelled."},
    },
)
@requires(KeyScope.ADMIN)
async def cancel_runs(body: CancelRunsBody, request: ApiRequest) -> CancelledRunsView:
    """Cancel all runs that match a filter, oldest first, at most 1,000 per request.

    Each run is cancelled as by DELETE if it still matches at that moment. Runs that do not exist
    yet are not affected.
    """
    request.require_small()
    caller = request.caller
    stopped = await request.service(RunService).cancel_matching(
        caller.tenant, body.run_filter, by=caller.name, reason=body.reason
    )
    return CancelledRunsView.model_validate(stopped)


@router.delete(
    "/{run_id}/record",
    status_code=HTTPStatus.NO_CONTENT,
    responses={
        **answers(*EVERY_RUN_ROUTE, RUN_NOT_FOUND, RUN_NOT_ENDED),
        204: {"description": "The run and all its data were deleted."},
    },
)
@requires(KeyScope.ADMIN)
async def erase_run(run_id: RunIdPath, request: ApiRequest) -> None:
    """Erase an ended run with all its data: calls, events, trace, files, deliveries.

    Its ID and its idempotency key can be used again. A thread message that the run answered is
    shown as erased. Runs that resumed from it keep the results they imported.
    """
    await request.service(RunService).erase(RunKey(request.caller.tenant, run_id))


async def _accepted(body: RunFields, request: ApiRequest) -> Accepted:
    key = idempotency_key(request.headers)
    if body.webhook is not None:
        await request.service(WebhookCheck).require_secret(request.caller.tenant)
    hashed = await request.computed(partial(request_hash, body))
    if isinstance(body, GoingOnBody):
        return await _accepted_from(body, request, hashed, key)
    try:
        new = await request.service(Admissions).new_run(body, request, hashed, key)
        return await request.service(RunService).accept(new)
    except GraphRefusedError:
        earlier = await _accepted_before(body, request, hashed, key)
        if earlier is None:
            raise
        return earlier


async def _accepted_from(
    body: GoingOnBody, request: ApiRequest, hashed: str, key: str | None
) -> Accepted:
    """Accept a run that resumes from another; a repeated request works even if that was erased."""
    if body.document.get("graph") is None:
        request.require_small()
    earlier = await _accepted_before(body, request, hashed, key)
    if earlier is not None:
        return earlier
    admissions, runs = request.service(Admissions), request.service(RunService)
    source = (await source_of(body, request.caller.tenant, runs)).request
    fields = admissions[source.kind].fields_of(source, body.document)
    new = await admissions.new_run(completed(body, source, fields), request, hashed, key)
    return await runs.accept(resumed_run(new, body, source, request.service(ApiLimits)))


async def _accepted_before(
    body: RunFields, request: ApiRequest, hashed: str, key: str | None
) -> Accepted | None:
    """Return the run that this request created before, without resolving its references again."""
    if body.run_id is None and key is None:
        return None
    run_key = RunKey(request.caller.tenant, body.run_id or "")
    return await request.service(RunService).accepted_before(run_key, key, hashed)


def answer_of(
    view: BaseModel, links: Links, accepted: Accepted, *, ended: bool, wait: int | None = None
) -> Response:
    """Return the response to a request that creates a run.

    ``wait`` is the requested time to wait for the result, in seconds; None without one. ``ended``
    is whether the run has ended. The status is 200 if a request that waited got the result, or if
    the run already existed; otherwise 202.
    """
    in_time = wait is not None and ended
    status = HTTPStatus.OK if in_time or not accepted.created else HTTPStatus.ACCEPTED
    headers = {"Location": links.self}
    if accepted.rate is not None:
        headers |= rate_headers(accepted.rate)
    if wait is not None:
        headers["Preference-Applied"] = f"wait={wait}"
    return Response(view.model_dump_json(), status, headers, media_type="application/json")


async def awaited(request: ApiRequest, run: Run, wait: int | None) -> Run:
    """Wait up to ``wait`` seconds for a run to end, and return its current state.

    Return ``run`` unchanged if ``wait`` is None or the database becomes unavailable.

    Raises:
        AccessRefusedError, ProblemError: the caller's credential became invalid during the wait.
    """
    if wait is None or run.finished:
        return run
    extend_deadline(request.scope, wait + ANSWER_SECONDS)
    try:
        later = await request.service(RunService).wait(run.key, seconds=wait)
        await request.require_still(KeyScope.READ)
    except StoreUnavailableError:
        return run
    return later


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


def resumed_run(new: NewRun, body: GoingOnBody, source: RunRequest, limits: ApiLimits) -> NewRun:
    """Return ``new`` as a run that resumes from the source run and inherits omitted limits.

    ``source`` is the request of the source run.
    """
    source_ref, is_other_graph = body.from_, bool(body.document.get(source.kind))
    request = replace(
        new.request,
        **inherited_limits(body.budget, source, limits),
        definition_ref=(new.request if is_other_graph else source).definition_ref,
        source=RunSource(source_ref.run_id, source_ref.until),
        chat=source.chat,
    )
    return replace(new, request=request)
