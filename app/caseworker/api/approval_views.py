"""Approvals as callers see them, and the decisions that they send."""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from caseworker.api.field_types import Body, Reason, View
from caseworker.engine.approvals import Verdict
from caseworker.nodes.reading import refusal
from caseworker.runs.approvals import Approval, ApprovalPage, Deciding

_VERDICTS = {
    "approve": Verdict.APPROVED,
    "approved": Verdict.APPROVED,
    "refuse": Verdict.REFUSED,
    "refused": Verdict.REFUSED,
}


class DecisionBody(Body):
    """What a person decides."""

    decision: Literal["approve", "refuse", "approved", "refused"]
    """`approve` or `refuse`; the words of answers, `approved` and `refused`, mean the same."""
    arguments: dict[str, Any] | None = None
    """Used in the place of those that were asked for; they must fit the `schema` of the approval.
    Left out, what was asked for stays."""
    reason: Reason | None = None
    """Of a refusal, what the agent is told; shown in the run."""

    @model_validator(mode="after")
    def _changes_what_is_approved(self) -> Self:
        if self.arguments is not None and _VERDICTS[self.decision] is Verdict.REFUSED:
            raise refusal("arguments are allowed only with the decision approve.")
        return self

    def deciding(self, approval_id: str, by: str) -> Deciding:
        """Return the decision of a caller."""
        verdict = _VERDICTS[self.decision]
        arguments, reason = self.arguments, self.reason
        return Deciding(
            approval_id=approval_id, verdict=verdict, by=by, arguments=arguments, reason=reason
        )


class DecisionView(View):
    """What became of a question."""

    decision: Literal["approved", "refused", "timed_out"]
    by: str | None
    """Who decided; null if nobody did in time."""
    at: datetime
    reason: str | None
    arguments: Any
    """What is used in the place of what was asked for; null if that stays."""


class ApprovalView(View):
    """A question of a run to a person."""

    run_id: str
    approval_id: str
    node_id: str
    """The CallNode that asked first."""
    run_url: str
    """The run, whose ``input`` is what its caller asked."""
    subject: str
    """The tool that is to be called, or the step that asks."""
    message: str
    arguments: Any
    """What will be used if it is approved."""
    schema_: dict[str, Any] | None = Field(alias="schema", serialization_alias="schema")
    """JSON Schema of arguments that may be put in their place; null: they may not be changed."""
    requested_at: datetime
    expires_at: datetime
    """Until when it can be decided."""
    open: bool
    """Whether it can be decided now."""
    decision: DecisionView | None

    @classmethod
    def of(cls, approval: Approval, root: str) -> Self:
        """Return the view of an approval."""
        question, decided = approval.question, approval.decision
        return cls(
            run_id=approval.key.run_id,
            approval_id=approval.approval_id,
            node_id=approval.node_id,
            run_url=f"{root}/runs/{approval.key.run_id}",
            subject=question.subject,
            message=question.message,
            arguments=question.arguments,
            schema=None if question.schema is None else dict(question.schema),
            requested_at=approval.requested_at,
            expires_at=approval.expires_at,
            open=approval.open,
            decision=None
            if decided is None
            else DecisionView(
                decision=decided.verdict.value,
                by=decided.by,
                at=decided.at,
                reason=decided.reason,
                arguments=decided.arguments,
            ),
        )


class ApprovalList(View):
    """Approvals, oldest first."""

    approvals: list[ApprovalView]
    next_cursor: str | None = None
    """Where the next page begins; null on the last one."""

    @classmethod
    def of(cls, page: ApprovalPage, root: str) -> Self:
        """Return the view of a page."""
        views = [ApprovalView.of(each, root) for each in page.approvals]
        return cls(approvals=views, next_cursor=page.next_cursor)
