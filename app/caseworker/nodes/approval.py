"""The step type ``approval``: a person decides how a run continues."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from caseworker.core.graph.graph import Channel
from caseworker.core.graph.validation import Handles
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.step_path import StepPath
from caseworker.engine.waiting_calls import Question, WaitingCalls
from caseworker.nodes.node_type import NONE, Fault, NodeType
from caseworker.nodes.strict_parsing import ObjectField, StepData, TextField
from caseworker.tools.caller_schema import CallerSchema

APPROVED, REFUSED = "approved", "refused"
"""Output handles for the approved arguments and for a refusal."""

DEFAULT_TIMEOUT_SECONDS = 86_400.0
MAX_TIMEOUT_SECONDS = 366 * 86_400.0
MAX_MESSAGE_CHARS = 10_000


class NotApprovedError(Exception):
    """A person rejected the request or did not respond in time, and no edge handles that."""


class ApprovalData(StepData):
    """The approval request that a person decides on."""

    message: TextField
    """Text shown to the reviewer; at most 10,000 characters are kept."""
    arguments: ObjectField | None = None
    """Values shown to the reviewer. Defaults to the step's inputs, keyed by input handle."""
    changes: dict[str, Any] | None = None
    """JSON Schema (type object) for arguments that the reviewer may submit instead. Default: the
    reviewer cannot change the arguments."""
    timeout_seconds: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_SECONDS)] = DEFAULT_TIMEOUT_SECONDS
    """Time limit for the decision in seconds. When it expires, the request counts as refused."""


class ApprovalNode:
    """Requests an approval and outputs the approved arguments or the rejection."""

    async def execute(
        self, data: ApprovalData, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        """Put the approved arguments on ``approved``, or the rejection on ``refused``.

        All attempts of the step share the same request, so it is made only once.

        Raises:
            MissingValueError: a template refers to a value that does not exist.
            NotApprovedError: the request was not approved, and no flow edge starts at ``refused``.
            LookupError: this run has no approval service.
            Stop: the run is suspended until a decision, or ended.
        """
        args = data.arguments
        question = Question(
            subject=context.node_id,
            message=data.message.render(inputs, context.limits)[:MAX_MESSAGE_CHARS],
            arguments=dict(inputs) if args is None else args.render(inputs, context.limits),
            schema=data.changes,
            timeout_seconds=data.timeout_seconds,
        )
        path: StepPath = context.path.attempts()[0]
        decision = await context.service(WaitingCalls).decision(context, path, question)
        if decision.approved:
            changed = decision.arguments
            return ExecutionResult({APPROVED: question.arguments if changed is None else changed})
        awaited = context.runtime.outgoing_edges(
            context.node_id, channel=Channel.FLOW, source_handle=REFUSED
        )
        if not awaited:
            raise NotApprovedError(decision.refusal)
        return ExecutionResult({REFUSED: decision.to_dict()})


def approval_type() -> NodeType:
    """Return the step type that requests approvals."""

    def faults(data: ApprovalData) -> list[Fault]:
        if data.changes is None:
            return []
        if data.changes.get("type") != "object":
            return [("changes", "This must be a JSON Schema with type object.")]
        try:
            CallerSchema(data.changes)
        except ValueError as error:
            return [("changes", str(error))]
        return []

    return NodeType(
        name="approval",
        description="Requests an approval; the run waits for the decision and uses no resources."
        " The output approved has the approved arguments. A rejection is sent to the output refused"
        " if an edge starts there; otherwise the step fails.",
        node=ApprovalNode(),
        data=ApprovalData,
        handles=Handles(
            flow_outputs=frozenset({APPROVED, REFUSED}), link_inputs=NONE, link_outputs=NONE
        ),
        faults=faults,
    )
