"""Routes for approvals, which runs request and people decide."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, Self

from fastapi import Path, Query
from pydantic import Field, model_validator

from caseworker.engine.waiting_calls import Author, Verdict
from caseworker.features.waiting_calls.waiting_calls import (
    Approval,
    ApprovalDecidedError,
    ApprovalNotFoundError,
    Deciding,
    InvalidArgumentsError,
    RunWaitingCalls,
)
from caseworker.platform.caller import KeyScope
from caseworker.platform.http.bodies import BodyModel, PageQuery, Reason, View
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers
from caseworker.platform.http.problems import (
    INVALID_REQUEST,
    Errors,
    ProblemError,
    ProblemType,
    Violation,
)
from caseworker.platform.http.request import ApiRequest, api_router, requires
from caseworker.platform.validation import refusal
from caseworker.runs.http.fields import RunIdPath
from caseworker.runs.http.problems import RUN_NOT_FOUND
from caseworker.runs.run import RunKey

_VERDICTS = {
    "approve": Verdict.APPROVED,
    "approved": Verdict.APPROVED,
    "refuse": Verdict.REFUSED,
    "refused": Verdict.REFUSED,
}


class DecisionBody(BodyModel):
    """A decision to approve or refuse a pending approval."""

    decision: Literal["approve", "refuse", "approved", "refused"]
    """The decision: `approve` or `refuse`. `approved` and `refused`, as used in responses, are
    accepted too."""
    arguments: dict[str, Any] | None = None
    """Arguments that replace the requested ones; they must match the `schema` of the approval. If
    omitted, the requested arguments are used."""
    reason: Reason | None = None
    """Reason for the decision, shown in the run. If the approval is refused, the agent receives it
    too."""

    @model_validator(mode="after")
    def _changes_what_is_approved(self) -> Self:
        if self.arguments is not None and _VERDICTS[self.decision] is Verdict.REFUSED:
            raise refusal("arguments are allowed only with the decision approve.")
        return self

    def deciding(self, approval_id: str, by: str) -> Deciding:
        """Return the decision on the approval with this ID, made by ``by``."""
        verdict = _VERDICTS[self.decision]
        arguments, reason = self.arguments, self.reason
        return Deciding(
            approval_id=approval_id, verdict=verdict, by=by, arguments=arguments, reason=reason
        )


class DecisionView(View):
    """The decision on an approval, or its timeout."""

    decision: Literal["approved", "refused", "timed_out"]
    by: str | None
    """Name of the caller that decided; null if the approval timed out."""
    at: datetime
    reason: str | None
    arguments: Any
    """Arguments that replace the requested ones; null if the requested ones are used."""


class ApprovalView(View):
    """A request by a run for a person's approval, and the decision if there is one."""

    run_id: str
    approval_id: str
    node_id: str
    """ID of the trace node (CallNode) that first requested the approval."""
    run_url: str
    """URL of the run, whose ``input`` is the caller's request."""
    subject: str
    """Name of the tool to call, or of the step that requests the approval."""
    message: str
    arguments: Any
    """Arguments that are used if the request is approved unchanged."""
    arguments_schema: dict[str, Any] | None = Field(alias="schema", serialization_alias="schema")
    """JSON Schema for replacement arguments; null if the arguments cannot be changed."""
    requested_at: datetime
    expires_at: datetime
    """Time at which the approval expires if no decision is made."""
    open: bool
    """Whether a decision can still be made."""
    decision: DecisionView | None

    @classmethod
    def of(cls, approval: Approval, root: str) -> Self:
        """Return the view of an approval. ``root`` is the path prefix for its URLs."""
        question, decided = approval.question, approval.decision
        view = decided and DecisionView.of_parts(decided, decision=decided.verdict.value)
        return cls.of_parts(
            approval,
            question,
            approval.key,
            run_url=f"{root}/runs/{approval.key.run_id}",
            schema=question.schema,
            decision=view,
        )


class ApprovalList(View):
    """A page of approvals, oldest first."""

    approvals: list[ApprovalView]
    next_cursor: str | None = None
    """Cursor of the next page; null on the last page."""


APPROVAL_NOT_FOUND = ProblemType(
    slug="approval-not-found",
    status=404,
    title="Approval not found",
    detail="The run has no approval with this ID. GET /runs/{run_id}/approvals lists all of them.",
    explanation="The run has no approval with this ID. `GET /runs/{run_id}/approvals` lists its "
    "approvals.",
)
APPROVAL_DECIDED = ProblemType(
    slug="approval-decided",
    status=409,
    title="Approval is already resolved",
    detail="The approval was already decided, it expired, or its run ended. GET "
    "/runs/{run_id}/approvals shows the outcome.",
    explanation="Another decision, the timeout, a cancel request or the end of the run came "
    "first; nothing was changed. `GET /runs/{run_id}/approvals` shows which. Repeating the same "
    "decision returns 202. See [approvals.md](approvals.md).",
)


def _invalid_arguments(error: InvalidArgumentsError) -> ProblemError:
    violations = [Violation(field, message) for field, message in error.problems]
    return ProblemError(INVALID_REQUEST, violations=violations)


ERRORS: Errors = {
    ApprovalNotFoundError: APPROVAL_NOT_FOUND,
    ApprovalDecidedError: APPROVAL_DECIDED,
    InvalidArgumentsError: _invalid_arguments,
}

router = api_router("approvals")

ApprovalIdPath = Annotated[
    str, Path(description="ID of the approval.", pattern="^[A-Za-z0-9_-]{1,64}$")
]

_DECIDED: Responses = {
    **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, APPROVAL_NOT_FOUND, APPROVAL_DECIDED),
    202: {"description": "The decision is stored (or was already stored), and the run continues."},
}


@router.get("/approvals", responses=answers(*EVERY_RUN_ROUTE))
async def list_approvals(query: Annotated[PageQuery, Query()], request: ApiRequest) -> ApprovalList:
    """List the pending approvals of all runs, oldest first."""
    approvals, tenant = request.service(RunWaitingCalls), request.caller.tenant
    page = await approvals.store.waiting(tenant, limit=query.limit, cursor=query.cursor)
    views = [ApprovalView.of(each, request.root) for each in page.items]
    return ApprovalList(approvals=views, next_cursor=page.next_cursor)


@router.get("/runs/{run_id}/approvals", responses=answers(*EVERY_RUN_ROUTE, RUN_NOT_FOUND))
async def list_run_approvals(run_id: RunIdPath, request: ApiRequest) -> ApprovalList:
    """List the approvals requested by a run, oldest first, with their decisions."""
    run_approvals = await request.service(RunWaitingCalls).of_run(
        RunKey(request.caller.tenant, run_id)
    )
    asked = [each for each in run_approvals if each.question.author is Author.APPROVER]
    return ApprovalList(approvals=[ApprovalView.of(each, request.root) for each in asked])


@router.post(
    "/runs/{run_id}/approvals/{approval_id}", status_code=HTTPStatus.ACCEPTED, responses=_DECIDED
)
@requires(KeyScope.APPROVE)
async def decide_approval(
    run_id: RunIdPath, approval_id: ApprovalIdPath, body: DecisionBody, request: ApiRequest
) -> ApprovalView:
    """Decide an approval; the first decision is final.

    Repeating the same decision returns the same response.
    """
    request.require_small()
    deciding = body.deciding(approval_id, request.caller.name)
    decided = await request.service(RunWaitingCalls).decide(
        RunKey(request.caller.tenant, run_id), deciding
    )
    return ApprovalView.of(decided, request.root)
