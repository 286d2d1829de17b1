"""Routes for calls that wait: runs make them, and their authors answer them from outside."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, Self

from fastapi import Path, Query, Response
from pydantic import Field, model_validator

from caseworker.core.trace.frozen_json import ValueTooLargeError
from caseworker.engine.waiting_calls import ERROR, OUTPUT, Author, Verdict
from caseworker.features.waiting_calls.waiting_calls import (
    Approval,
    CallAnsweredError,
    CallNotFoundError,
    Deciding,
    RunWaitingCalls,
)
from caseworker.platform.caller import KeyScope
from caseworker.platform.http.bodies import BodyModel, View
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers
from caseworker.platform.http.problems import Errors, ProblemType, invalid
from caseworker.platform.http.request import ApiRequest, api_router, requires
from caseworker.platform.validation import refusal
from caseworker.runs.http.fields import RunIdPath
from caseworker.runs.http.problems import RUN_NOT_FOUND
from caseworker.runs.run import RunKey

Status = Literal["waiting", "answered", "expired", "stopped"]

_STATUS_BY_VERDICT: dict[Verdict, Status] = {
    Verdict.APPROVED: "answered",
    Verdict.REFUSED: "answered",
    Verdict.TIMED_OUT: "expired",
}

CALL_NOT_FOUND = ProblemType(
    slug="waiting-call-not-found",
    status=404,
    title="Call not found",
    detail="The run has no call with this ID that this key may answer. GET /runs/{run_id}/calls "
    "lists the calls; approvals are decided at /runs/{run_id}/approvals/{approval_id}.",
    explanation="The run has no call with this ID that this key may answer. The key that created "
    "the run answers the calls of its client, and a key with the scope `admin`. `GET "
    "/runs/{run_id}/calls` lists them. See [client-tools.md](client-tools.md).",
)
CALL_ANSWERED = ProblemType(
    slug="call-answered",
    status=409,
    title="Call is already answered",
    detail="The call was already answered, it expired, or its run was stopped. GET "
    "/runs/{run_id}/calls shows the outcome.",
    explanation="Another answer, the expiry, a cancel request or the end of the run came first; "
    "nothing was changed. `GET /runs/{run_id}/calls` shows which. Repeating an equal answer "
    "returns 200. See [client-tools.md](client-tools.md).",
)

ERRORS: Errors = {CallNotFoundError: CALL_NOT_FOUND, CallAnsweredError: CALL_ANSWERED}

router = api_router("calls", prefix="/runs/{run_id}/calls")

CallIdPath = Annotated[str, Path(description="ID of the call.", pattern="^[A-Za-z0-9_-]{1,64}$")]


class CallErrorBody(BodyModel):
    """The error with which the client's tool failed."""

    class_: str = Field("Error", alias="class", min_length=1, max_length=200)
    """Class of the error, such as ``FileNotFoundError``; the model reads it as the code."""
    message: str = Field(min_length=1, max_length=10_000)


class CallResultBody(BodyModel):
    """The result of a client's tool: exactly one of ``output`` and ``error``."""

    output: Any = None
    """Any JSON value; the model reads ``{"output": …}``."""
    error: CallErrorBody | None = None
    """Error of the tool, which the model reads; the run continues."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (OUTPUT in self.model_fields_set) == (self.error is not None):
            raise refusal("Send exactly one of output and error.")
        return self

    def deciding(self, call_id: str, by: str) -> Deciding:
        """Return the answer to the call with this ID, sent by ``by``."""
        if self.error is None:
            verdict, answer = Verdict.APPROVED, {OUTPUT: self.output}
        else:
            verdict, answer = Verdict.REFUSED, {ERROR: self.error.model_dump(by_alias=True)}
        return Deciding(approval_id=call_id, verdict=verdict, by=by, arguments=answer)


class WaitingCallView(View):
    """A call of a run that waits for an answer from outside, or that got one."""

    run_id: str
    call_id: str
    node_id: str
    """ID of the trace node (CallNode) that first made the call."""
    author: Literal["client", "approver"]
    """Who answers: the client that created the run, or a person who may decide approvals."""
    name: str
    """Name of the tool, or of the step that requests an approval."""
    arguments: Any
    status: Status
    """``stopped`` means that the run was stopped, or ended, before an answer."""
    requested_at: datetime
    expires_at: datetime
    """Time at which the call fails if it is not answered."""
    answered_at: datetime | None
    answered_by: str | None
    """Name of the caller that answered; null without an answer."""
    output: Any
    """Output that the client sent; null without one."""
    error: Any
    """Error that the client sent, with ``class`` and ``message``; null without one."""

    @classmethod
    def of(cls, call: Approval) -> Self:
        """Return the view of a call."""
        decision, question = call.decision, call.question
        is_client = question.author is Author.CLIENT
        answer = (decision and decision.arguments) if is_client else None
        status: Status = "waiting" if call.open else "stopped"
        if decision is not None:
            status = _STATUS_BY_VERDICT[decision.verdict]
        return cls(
            run_id=call.key.run_id,
            call_id=call.approval_id,
            node_id=call.node_id,
            author=question.author.value,
            name=question.subject,
            arguments=question.arguments,
            status=status,
            requested_at=call.requested_at,
            expires_at=call.expires_at,
            answered_at=decision and decision.at,
            answered_by=decision and decision.by,
            output=(answer or {}).get(OUTPUT),
            error=(answer or {}).get(ERROR),
        )


class WaitingCallList(View):
    """The calls of a run that wait or waited for an answer from outside, oldest first."""

    calls: list[WaitingCallView]


@router.get("", responses=answers(*EVERY_RUN_ROUTE, RUN_NOT_FOUND))
async def list_run_calls(
    run_id: RunIdPath,
    request: ApiRequest,
    status: Annotated[Status | None, Query(description="Only calls with this status.")] = None,
) -> WaitingCallList:
    """List the calls of a run that wait for an answer from outside, or that got one."""
    calls = await request.service(RunWaitingCalls).of_run(RunKey(request.caller.tenant, run_id))
    views = [WaitingCallView.of(each) for each in calls]
    return WaitingCallList(calls=[each for each in views if status in (None, each.status)])


_ANSWERED: Responses = {
    **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, CALL_NOT_FOUND, CALL_ANSWERED),
    200: {"description": "An equal answer was already stored; nothing was changed."},
    202: {"description": "The answer is stored, and the run continues.", "model": WaitingCallView},
}


@router.post("/{call_id}/result", responses=_ANSWERED)
@requires(KeyScope.RUN)
async def answer_call(
    run_id: RunIdPath,
    call_id: CallIdPath,
    body: CallResultBody,
    request: ApiRequest,
    response: Response,
) -> WaitingCallView:
    """Answer a call as the client that created the run; the first answer is final."""
    request.require_small()
    key = RunKey(request.caller.tenant, run_id)
    deciding = body.deciding(call_id, request.caller.name)
    try:
        answered = await request.service(RunWaitingCalls).answer(key, deciding, request.caller)
    except ValueTooLargeError as error:
        raise invalid(OUTPUT, f"It {error}.") from None
    if answered.is_new:
        response.status_code = HTTPStatus.ACCEPTED
    return WaitingCallView.of(answered)
