"""Routes of external runs: their heartbeat and their end."""

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Query, Response
from pydantic import Field

from caseworker.core.budget.stops import StopCause
from caseworker.engine.report import class_of
from caseworker.features.access.http import KEY_NOT_FOUND, KeyId, KeyView, members_of
from caseworker.features.access.postgres import PostgresKeys
from caseworker.features.external.end import RunEndedError, client_error
from caseworker.features.external.key_sessions import UNNAMED, SessionRefusedError
from caseworker.features.external.key_use import PostgresKeyUse
from caseworker.features.external.owners import NOT_OWNED, Owners
from caseworker.features.external.sessions import Sessions
from caseworker.features.external.standing import StandingKeys
from caseworker.platform.caller import KeyScope
from caseworker.platform.http.bodies import BodyModel, Instant, PageQuery, QueryModel, View
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import (
    ATTEMPT_SUPERSEDED,
    Errors,
    ProblemError,
    ProblemType,
    invalid,
)
from caseworker.platform.http.request import (
    ApiRequest,
    api_router,
    for_run_keys,
    requires,
)
from caseworker.platform.logs.errors import message_of_error
from caseworker.runs.errors import ExternalRunsFullError
from caseworker.runs.http.fields import RunIdPath
from caseworker.runs.http.problems import RUN_NOT_FOUND
from caseworker.runs.kinds import KINDS
from caseworker.runs.run import Run, RunKey, RunStatus
from caseworker.runs.service import RunService

END_SECONDS: Final = 10.0
"""Seconds that the request to finish a run waits for its end."""

ENDED: Final = ProblemType(
    slug="external-run-ended",
    status=409,
    title="The run has ended differently",
    detail="GET /runs/{run_id} returns how the run ended. An equal second finish returns 200.",
    explanation="The external run has ended, and not as the `finish` says. `GET /runs/{run_id}` "
    "shows how it ended. A repeated `finish` with the same output or error gets 200.",
)
EXTERNAL_RUNS_FULL: Final = ProblemType(
    slug="external-runs-full",
    status=429,
    title="Too many external runs",
    detail="The process owns as many external runs as admission.max_external_runs allows. Retry "
    "after another one has ended.",
    explanation="The process already owns `admission.max_external_runs` external runs. Nothing "
    "was stored: an external run is never queued. Retry after `Retry-After` seconds.",
    retry_after_seconds=5,
)

router = api_router("external runs", prefix="/runs/{run_id}")
gateway_router = api_router("gateway", prefix="/gateway")


class ErrorBody(BodyModel):
    """The error that ended an agent."""

    class_: str = Field("Error", alias="class", max_length=200)
    """Class of the error, such as ``ValueError``."""
    message: str = Field(max_length=10_000)


class FinishBody(BodyModel):
    """The end of an external run: its output or its error."""

    output: Any = None
    """Any JSON value; it becomes the output of the run."""
    error: ErrorBody | None = None
    """Error that failed the agent; the run then fails."""


class HeartbeatView(View):
    """The state of an external run."""

    run_id: str
    status: str
    left: dict[str, Any]
    """Remaining amount of each limit of the run, by its name; null means unlimited."""
    opened_at: datetime | None = None
    """Time at which the current process opened the run; later after a restart of the service. Null
    after the end of the run."""


@router.post(
    "/finish",
    response_model=HeartbeatView,
    responses=answers(
        *EVERY_RUN_ROUTE, *EVERY_BODY, RUN_NOT_FOUND, NOT_OWNED, ENDED, ATTEMPT_SUPERSEDED
    ),
)
@for_run_keys
async def finish_run(
    run_id: RunIdPath, body: FinishBody, request: ApiRequest
) -> HeartbeatView | Response:
    """Finish an external run with its output, or fail it with an error.

    Calls in flight are cancelled.
    """
    run = await _own_run(request, run_id)
    if (response := await _answered_elsewhere(request, run)) is not None:
        return response
    sessions, runs = request.service(Sessions), request.service(RunService)
    session = sessions.get(run.key)
    if session is not None:
        error = None if body.error is None else client_error(body.error.class_, body.error.message)
        session.finish(body.output, error)
        await runs.ended_here(run.key, seconds=END_SECONDS)
        # The run may have been released at this moment.
        if (response := await _answered_elsewhere(request, run)) is not None:
            return response
    run = await runs.wait(run.key, seconds=END_SECONDS)
    if not run.finished:
        raise ProblemError(NOT_OWNED)
    if not _ended_like(run, body):
        raise ProblemError(ENDED)
    return HeartbeatView(run_id=run_id, status=run.status, left={})


@router.post(
    "/heartbeat",
    response_model=HeartbeatView,
    responses=answers(*EVERY_RUN_ROUTE, RUN_NOT_FOUND, NOT_OWNED, ATTEMPT_SUPERSEDED),
)
@for_run_keys
async def keep_run(run_id: RunIdPath, request: ApiRequest) -> HeartbeatView | Response:
    """Keep an idle external run from failing; return the rest of its budget."""
    run = await _own_run(request, run_id)
    if (response := await _answered_elsewhere(request, run)) is not None:
        return response
    session = request.service(Sessions).get(run.key)
    if session is not None:
        session.touch()
    if session is None:
        return HeartbeatView(run_id=run_id, status=run.status, left={})
    return HeartbeatView(
        run_id=run_id,
        status=run.status,
        left=session.remaining_limits(),
        opened_at=session.opened_at,
    )


class KeyUsageQuery(QueryModel):
    """Query parameters of the usage of a standing key."""

    since: Annotated[
        Instant | None, Field(description="Time from which sessions count as halted.")
    ] = None


class HaltView(View):
    """Why calls are refused."""

    run_id: str | None
    """Run that was halted; null if the session has none."""
    message: str
    resets_at: datetime | None
    """Time at which the limit is renewed; null if it never is."""


class KeyUsageView(View):
    """The usage of a standing key, over all its sessions and users."""

    key_id: str
    at: datetime
    """Time of the response; send it as `since` later."""
    cost_usd: float
    """Cost in US dollars of all calls that have ended and whose budgets are still kept."""
    tokens: int
    """Number of input and output tokens."""
    llm_calls: int
    api_calls: int
    halted: HaltView | None
    """The last halt by a limit since `since`: of the unnamed session, or of a session whose first
    call came since then. Null without one."""
    refusal: HaltView | None
    """Why the next call of the unnamed session would be refused; null if it would not."""


@gateway_router.get("/usage", responses=answers(*EVERY_RUN_ROUTE))
@for_run_keys
async def get_key_usage(
    query: Annotated[KeyUsageQuery, Query()], request: ApiRequest
) -> KeyUsageView:
    """Return the usage of the standing key that sends the request.

    Read it before and after a command to see how much was spent in between.
    """
    caller, standing = request.caller, request.service(StandingKeys)
    if (current := await standing.keys.with_id(caller.tenant, caller.key_id)) is None:
        raise invalid("authorization", "Only a standing key (cwa_...) has a usage.")
    key, state = current
    usage, halt = await standing.keys.usage(key, query.since), None
    if usage.stop is not None:
        halt = _halt(usage.run_id, usage.stop)
    error, refusal = await standing.refusal(key, UNNAMED, state), None
    if isinstance(error, SessionRefusedError):
        refusal = HaltView(run_id=None, message=str(error), resets_at=error.resets_at)
    elif isinstance(error, RunEndedError) and isinstance(error.stop, StopCause):
        refusal = _halt(state.run_id, error.stop)
    return KeyUsageView.of_parts(usage, key_id=key.key_id, halted=halt, refusal=refusal)


def _halt(run_id: str | None, stop: StopCause) -> HaltView:
    return HaltView(run_id=run_id, message=stop.message, resets_at=stop.resets_at)


async def _own_run(request: ApiRequest, run_id: str) -> Run:
    """Return the external run; refuse a key that became invalid while the body arrived."""
    await request.require_still(KeyScope.RUN)
    run = await request.service(RunService).get(RunKey(request.caller.tenant, run_id))
    if not KINDS[run.kind].is_external:
        raise invalid("run_id", "The run is not of kind external, so the service itself ends it.")
    return run


async def _answered_elsewhere(request: ApiRequest, run: Run) -> Response | None:
    """Return the response of the process that owns a run; None if this process does.

    A process that shuts down owns its runs until it has released them.

    Raises:
        ProblemError: no process owns the run, or its owner cannot be reached.
    """
    sessions = request.service(Sessions)
    if (
        run.finished
        or sessions.get(run.key) is not None
        or not sessions.is_owned_elsewhere(run.key)
    ):
        return None
    return await request.service(Owners).answer(request, await request.body(), run.key)


def _ended_like(run: Run, body: FinishBody) -> bool:
    """Return whether a run has ended as a finish with this body ends it."""
    if body.error is None:
        is_completed = run.status is RunStatus.COMPLETED
        return is_completed and (run.result or {}).get("output") == body.output
    stop, error = run.stop or {}, client_error(body.error.class_, body.error.message)
    ended = run.status, stop.get("error_class"), stop.get("reason")
    return ended == (RunStatus.FAILED, class_of(error), message_of_error(error))


class AmountsView(View):
    """Amounts of the dimensions that accounts count."""

    cost_usd: float
    tokens: int
    llm_calls: int
    api_calls: int


class AccountUseView(View):
    """What calls have used of an account, and have reserved."""

    used: AmountsView
    reserved: AmountsView
    """Maximum of the calls in flight."""
    refused: int
    """Number of calls that the gateway has refused without a request to a provider. Each process
    stores its refusals every two seconds."""


class KeyUseView(KeyView):
    """A key, without its secret, and what its calls have used."""

    day: AccountUseView | None
    """Use of all sessions of an `agent` key in the UTC day; null for other keys."""
    month: AccountUseView | None
    """Use of all sessions of an `agent` key in the month in UTC; null for other keys."""


class SessionView(AccountUseView):
    """A session of a standing key. The amounts of the unnamed session are those of the UTC day."""

    session: str
    """Hash of the name of the session; empty for the unnamed one."""
    name: str | None
    """Name of the session, without secrets and personal data; null for the unnamed one."""
    user_agent: str | None
    """`User-Agent` of the first request of the newest run."""
    run_id: str
    """ID of the newest run."""
    status: RunStatus | None
    """Status of the newest run; null if it is not stored."""
    first_at: datetime
    """Time at which the first run was opened."""
    opened_at: datetime
    """Time at which the newest run was opened."""
    last_call_at: datetime | None
    """Time at which the last call of the newest run started; null if it has made none."""


class SessionList(View):
    """Sessions of a key, newest first."""

    sessions: list[SessionView]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""


keys = api_router("keys", prefix="/keys/{key_id}")


@keys.get("", responses=answers(*EVERY_RUN_ROUTE, KEY_NOT_FOUND))
@requires(KeyScope.ADMIN)
async def get_key(key_id: KeyId, request: ApiRequest) -> KeyUseView:
    """Return a key without its secret, and what its calls have used and reserved.

    The budgets of an `agent` key are limits of these amounts.
    """
    key = await request.service(PostgresKeys).get(request.caller, key_id)
    use = await request.service(PostgresKeyUse).of_key(key)
    day, month = (None, None) if use is None else (use.day, use.month)
    return KeyUseView.of_parts(key, **members_of(key), day=day, month=month)


@keys.get("/sessions", responses=answers(*EVERY_RUN_ROUTE, KEY_NOT_FOUND))
@requires(KeyScope.ADMIN)
async def list_key_sessions(
    key_id: KeyId, query: Annotated[PageQuery, Query()], request: ApiRequest
) -> SessionList:
    """List the sessions of an `agent` key, newest first, with their used and reserved amounts.

    A key that replaces another one by a rotation has its sessions.
    """
    key = await request.service(PostgresKeys).get(request.caller, key_id)
    page = await request.service(PostgresKeyUse).sessions(key, **dict(query))
    views = [SessionView.of_parts(each, each.use) for each in page.items]
    return SessionList(sessions=views, next_cursor=page.next_cursor)


ERRORS: Errors = {ExternalRunsFullError: EXTERNAL_RUNS_FULL}
PROBLEMS: Final = (NOT_OWNED, ENDED, ATTEMPT_SUPERSEDED)
