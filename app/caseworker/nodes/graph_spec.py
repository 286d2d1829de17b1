"""The JSON format of a graph.

Steps and edges are parsed one by one and not as one document, so that an error in one of them does
not hide further errors.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.nodes.strict_parsing import HandleName, StepData
from caseworker.platform.validation import refusal

MAX_PARALLEL = 64

_STEP_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


def _step_id(value: str) -> str:
    if not _STEP_ID.fullmatch(value):
        raise refusal("A step id has 1 to 64 of the characters A-Z a-z 0-9 . _ -")
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
    """A node type with the configuration for it."""

    type: TypeName
    data: dict[str, Any]


class PolicySpec(StepData):
    """How to handle failures of a step."""

    on_error: Literal["fail", "retry", "skip", "fallback"] = "fail"
    """Outcome of the step when its attempts are exhausted. ``fail`` and ``retry`` fail the step,
    ``skip`` replaces its output by ``fallback_value``, and ``fallback`` executes the node in
    ``fallback``."""
    retry_count: int = 0
    """Maximum number of retries after the first attempt."""
    retry_delay_ms: int = 1000
    retry_backoff: Annotated[float, Field(allow_inf_nan=False)] = 2.0
    timeout_ms: int | None = None
    """Time limit for one attempt in milliseconds; null means no limit."""
    fallback_value: Any = None
    """Output of the step if it is skipped."""
    retry_on: Annotated[list[ErrorName], Field(max_length=MAX_ERROR_NAMES)] | None = None
    """Allowlist of errors to retry: error classes, or error codes of tools. Null retries all
    errors."""
    no_retry_on: Annotated[list[ErrorName], Field(max_length=MAX_ERROR_NAMES)] = Field(
        default_factory=list
    )
    """Names of errors that are not retried: error classes, or error codes of tools."""
    fallback: WorkSpec | None = None
    """Node that runs instead of a failed step, with the same inputs. Null unless ``on_error`` is
    ``fallback``."""

    def policy(self) -> ErrorPolicy:
        """Return the engine's error policy for these settings.

        Raises:
            ValueError: a value is out of range, or two contradict each other; the message starts
                with the name of the field.
        """
        fields = dict(self)
        return ErrorPolicy(fallback_node=fields.pop("fallback"), **fields)


class StepSpec(StepData):
    """A step of a graph."""

    id: StepId
    type: TypeName
    """Name of the node type that executes the step."""
    data: dict[str, Any]
    """Configuration for the node type."""
    policy: PolicySpec | None = None
    sub_budget: Budget | None = None
    """Limits for the step, in addition to the limits of its run. Null sets no additional limits."""


class EdgeData(StepData):
    """The channel of an edge."""

    channel: Literal["flow", "link"]
    """Channel of the edge: ``flow`` carries values, ``link`` provides dependencies such as
    tools."""


class EdgeSpec(StepData):
    """An edge from an output handle of one step to an input handle of another."""

    id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Name of the edge for human readers; null if it has none."""
    source: StepId
    source_handle: HandleName = DEFAULT_HANDLE
    target: StepId
    target_handle: HandleName = DEFAULT_HANDLE
    data: EdgeData


class GraphFrame(StepData):
    """A graph whose steps and edges have not been parsed yet."""

    steps: list[Any]
    edges: list[Any]
    entry: list[StepId] | None = None
    """IDs of the steps to start with. Default: all steps without an incoming flow edge."""
    max_parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL)] = 1
    """Maximum number of steps that run concurrently."""
    name: Any = None
    """Name of the registered graph whose definition was copied here. It has no effect."""
    version: Any = None


class GraphSpec(GraphFrame):
    """A graph: its steps and the edges between them."""

    steps: list[StepSpec]
    edges: list[EdgeSpec]
