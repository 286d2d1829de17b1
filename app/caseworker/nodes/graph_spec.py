"""The JSON form of a graph, part by part.

The parts are read one by one and not as one document, so that a mistake in one of them does not
hide those in the others.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from caseworker.control.budget import Budget
from caseworker.control.retry import ErrorPolicy
from caseworker.kernel.graph import DEFAULT_HANDLE
from caseworker.nodes.reading import HandleName, StepData, refusal

MAX_PARALLEL = 64

_STEP_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


def _step_id(value: str) -> str:
    if not _STEP_ID.fullmatch(value):
        raise refusal("The id of a step is 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    return value


StepId = Annotated[
    str,
    AfterValidator(_step_id),
    Field(json_schema_extra={"pattern": f"^{_STEP_ID.pattern}$"}),
]
TypeName = Annotated[str, Field(min_length=1, max_length=64)]
ErrorName = Annotated[str, Field(min_length=1, max_length=128)]
MAX_ERROR_NAMES = 32


class WorkSpec(StepData):
    """A node type and what it is configured with."""

    type: TypeName
    data: dict[str, Any]


class PolicySpec(StepData):
    """What happens when a step fails; ranges are the policy's own business."""

    on_error: Literal["fail", "retry", "skip", "fallback"] = "fail"
    """Once the attempts are used up."""
    retry_count: int = 0
    """Attempts after the first."""
    retry_delay_ms: int = 1000
    retry_backoff: Annotated[float, Field(allow_inf_nan=False)] = 2.0
    timeout_ms: int | None = None
    """The time of one attempt; null is unlimited."""
    fallback_value: Any = None
    """The output of a step that is skipped."""
    retry_on: Annotated[list[ErrorName], Field(max_length=MAX_ERROR_NAMES)] | None = None
    """Error classes, or codes of tools, after which further attempts are made; null: all."""
    no_retry_on: Annotated[list[ErrorName], Field(max_length=MAX_ERROR_NAMES)] = Field(
        default_factory=list
    )
    """Error classes, or codes of tools, after which no further attempt is made."""
    fallback: WorkSpec | None = None
    """Works in place of a step that failed, on the same inputs."""

    def policy(self) -> ErrorPolicy:
        """Return the policy; its fallback stands here and not there.

        Raises:
            ValueError: a value is out of its range, or two contradict each other; the message
                begins with the name of the field.
        """
        given = dict(self)
        return ErrorPolicy(fallback_node=given.pop("fallback"), **given)


class StepSpec(StepData):
    """A placed unit of work."""

    id: StepId
    type: TypeName
    """Names the node type that executes the step."""
    data: dict[str, Any]
    """What the type says."""
    policy: PolicySpec | None = None
    sub_budget: Budget | None = None
    """What the step may spend, within what is left around it."""


class EdgeData(StepData):
    """What travels on an edge; there is no default."""

    channel: Literal["flow", "link"]
    """``flow`` routes values, ``link`` materialises dependencies."""


class EdgeSpec(StepData):
    """Joins an output handle of one step to an input handle of another."""

    id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """A name for people."""
    source: StepId
    source_handle: HandleName = DEFAULT_HANDLE
    target: StepId
    target_handle: HandleName = DEFAULT_HANDLE
    data: EdgeData


class GraphFrame(StepData):
    """A graph whose steps and edges are still to be read."""

    steps: list[Any]
    edges: list[Any]
    entry: list[StepId] | None = None
    """Where to begin; left out, at the steps that no flow edge leads to."""
    max_parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL)] = 1
    """How many steps may be executed at once."""
    name: Any = None
    """Of a registered graph that was put here; means nothing."""
    version: Any = None


class GraphSpec(GraphFrame):
    """A graph: steps, and the edges that join them."""

    steps: list[StepSpec]
    edges: list[EdgeSpec]
