"""The JSON form of a graph.

Its parts are parsed one by one and not as one document, so that an error in one part does not hide
errors in others.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.graph.graph import DEFAULT_HANDLE
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
    """A node type with its configuration."""

    type: TypeName
    data: dict[str, Any]


class PolicySpec(StepData):
    """How to handle failures of a step."""

    on_error: Literal["fail", "retry", "skip", "fallback"] = "fail"
    """What to do after the last attempt."""
    retry_count: int = 0
    """Number of attempts after the first."""
    retry_delay_ms: int = 1000
    retry_backoff: Annotated[float, Field(allow_inf_nan=False)] = 2.0
    timeout_ms: int | None = None
    """Time limit of one attempt; null is unlimited."""
    fallback_value: Any = None
    """The output of a skipped step."""
    retry_on: Annotated[list[ErrorName], Field(max_length=MAX_ERROR_NAMES)] | None = None
    """Error classes, or error codes of tools, that are retried; null: all."""
    no_retry_on: Annotated[list[ErrorName], Field(max_length=MAX_ERROR_NAMES)] = Field(
        default_factory=list
    )
    """Error classes, or error codes of tools, that are not retried."""
    fallback: WorkSpec | None = None
    """Runs instead of a failed step, on the same inputs."""

    def policy(self) -> ErrorPolicy:
        """Return the policy, with ``fallback`` as its ``fallback_node``.

        Raises:
            ValueError: a value is out of range, or two contradict each other; the message starts
                with the name of the field.
        """
        given = dict(self)
        return ErrorPolicy(fallback_node=given.pop("fallback"), **given)


class StepSpec(StepData):
    """A step of a graph."""

    id: StepId
    type: TypeName
    """The node type that executes the step."""
    data: dict[str, Any]
    """The configuration for the node type."""
    policy: PolicySpec | None = None
    sub_budget: Budget | None = None
    """Limits for the step, within the remaining budget of its scope."""


class EdgeData(StepData):
    """The channel of an edge; it is required."""

    channel: Literal["flow", "link"]
    """``flow`` routes values, ``link`` materialises dependencies."""


class EdgeSpec(StepData):
    """Connects an output handle of one step to an input handle of another."""

    id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """A name for human readers."""
    source: StepId
    source_handle: HandleName = DEFAULT_HANDLE
    target: StepId
    target_handle: HandleName = DEFAULT_HANDLE
    data: EdgeData


class GraphFrame(StepData):
    """A graph whose steps and edges are not parsed yet."""

    steps: list[Any]
    edges: list[Any]
    entry: list[StepId] | None = None
    """The steps to start with. Default: the steps without an incoming flow edge."""
    max_parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL)] = 1
    """Maximum number of steps that run concurrently."""
    name: Any = None
    """The name of a registered graph whose definition was copied here; has no effect."""
    version: Any = None


class GraphSpec(GraphFrame):
    """A graph: its steps and the edges between them."""

    steps: list[StepSpec]
    edges: list[EdgeSpec]
