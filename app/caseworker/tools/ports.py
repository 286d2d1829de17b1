"""The tool interface: specification, context, results and failures."""

from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol, runtime_checkable

from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.usage import Charge
from caseworker.core.trace.frozen_json import DEFAULT_VALUE_LIMITS
from caseworker.core.trace.json_values import MAX_DEPTH
from caseworker.platform.code_table import Executing
from caseworker.tools.artifacts import ArtifactSink

ONE_TOOL_CALL: Final[Charge] = {Dimension.TOOL_CALLS: 1}
"""The charge for each attempt at a tool call, wherever the tool runs."""

ToolResult = dict[str, Any]
"""Result of a tool, with JSON values only. A failure is ``{"error": message, "code": word}``; see
:func:`is_failure`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFunction:
    """One use of a tool, which planners are offered as a separate function."""

    name: str
    """Name that planners call; unique among the functions of all tools."""
    takes: str
    """Names of the function's arguments in order. A trailing ``?`` marks an optional argument."""
    description: str = ""
    """Short hint that every planning prompt contains; empty if the argument names are clear
    enough."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Constant arguments for the tool, such as its operation."""
    places: Mapping[str, Any] = field(default_factory=dict)
    """Templates that build the tool's arguments from the function's. ``{"start": "{date}",
    "fields": ["{field}"]}`` passes ``date`` as ``start``, and ``field`` as a list. An argument
    without a template is passed under its own name."""
    schemas: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schemas, by name, for arguments that the tool does not have or that are narrower
    here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool's description for planners, and its execution properties."""

    name: str
    description: str
    """One or two sentences for the model: when to use the tool and what it returns."""
    parameters: Mapping[str, Any]
    """JSON Schema for the arguments: an object without additional properties."""
    functions: tuple[ToolFunction, ...] = ()
    """Functions offered to planners instead of the tool itself; empty offers the tool. A tool with
    one short list of arguments needs none."""
    external: bool = False
    """Whether a call reaches outside this process, so that it must be journaled before it is
    made."""
    idempotent: bool = True
    """Whether a call may be repeated if its outcome is unknown."""
    deterministic: bool = False
    """Whether equal arguments in the same context always give the same result and a call has no
    lasting effects. The verifier runs such a tool again to check its result."""
    parallel_safe: bool = True
    transient: frozenset[str] = frozenset()
    """Error codes for transient failures, such as ``source_unavailable``. If there are any and the
    tool is idempotent, it is retried after these failures and after timeouts, as configured by the
    ``retry`` settings. Every attempt counts towards ``max_tool_calls``."""
    without_effect: frozenset[str] = frozenset()
    """Those of the ``transient`` codes after which the call certainly had no effect, or may be
    repeated. A tool that is not idempotent is retried only after these failures."""
    timeout_seconds: float = 10.0
    """Time limit for each attempt, in seconds."""
    requires_approval: bool = False
    """Whether a person must approve each call."""

    @property
    def retried(self) -> frozenset[str]:
        """Error codes after which a call is retried."""
        return self.transient if self.idempotent else self.without_effect


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The context that a run passes to a tool call."""

    run_id: str
    timezone: str
    """IANA name of the time zone that applies to dates without a zone."""
    now: datetime
    """Timezone-aware reference time for relative dates; constant during a run."""
    artifacts: ArtifactSink | None = None
    """Sink for the files that the tool creates; None if the run cannot store files."""
    call_key: str | None = None
    """ID of the call, equal in all attempts and after a crash; an idempotency key for requests."""
    threads: Executor | None = field(default=None, repr=False)
    """Threads for synchronous functions; None uses those of the event loop."""
    max_result_bytes: int = DEFAULT_VALUE_LIMITS.max_value_bytes
    """Maximum size of the result as JSON, in bytes."""
    max_result_depth: int = MAX_DEPTH
    """Maximum nesting depth of the result."""
    executing: Executing = field(default=nullcontext, repr=False)
    """Records code of the call while it runs, in case that it ends the process."""


class Tool(Protocol):
    """An action that agents can take; invalid arguments and failures become error results.

    A tool whose attribute ``records_code`` is true executes code only inside
    :attr:`ToolContext.executing`, or only outside of this process. The code of other tools is
    recorded until :meth:`run` returns. A tool whose attribute ``converts_results`` is true returns
    JSON within the limits of its context.
    """

    @property
    def spec(self) -> ToolSpec:
        """Description and execution properties of the tool."""
        ...

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run the tool; every failure is a dict with ``error`` and ``code``.

        A transient failure may set ``retry_after_seconds`` to delay the next attempt. ``args``
        already match ``spec.parameters``.
        """
        ...


@runtime_checkable
class CrossChecked(Protocol):
    """A tool that can recompute its result by another method, so that the verifier can check it."""

    async def agrees(
        self, args: Mapping[str, Any], result: ToolResult, context: ToolContext
    ) -> bool | None:
        """Return whether an independent method gives the same result.

        The method shares no code with ``run`` and makes no external calls. None means that there is
        no such method for these arguments.
        """
        ...


def is_failure(result: Mapping[str, Any]) -> bool:
    """Return whether a result reports a failure: its ``error`` is a message, or an error object.

    None, False, a blank text and an empty list or object report none. A number is data, such as a
    measured error.
    """
    error = result.get("error")
    if isinstance(error, str):
        return not error.isspace() and error != ""
    return error is True or (isinstance(error, Mapping | list) and len(error) > 0)


def failure(
    message: str, code: str = "failed", *, retry_after_seconds: float | None = None
) -> ToolResult:
    """Return the error dict for a failed tool call; a blank message is replaced."""
    if not message.strip():
        message = "The tool failed without a message."
    result: ToolResult = {"error": message, "code": code}
    if retry_after_seconds is not None:
        result["retry_after_seconds"] = retry_after_seconds
    return result


class ToolRefusedError(Exception):
    """A tool cannot handle a request. Models read the message, so it should suggest a fix."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_arguments",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        """A single word, such as ``invalid_arguments``, ``out_of_range`` or ``too_large``."""
        self.retry_after_seconds = retry_after_seconds
        """Seconds to wait before the next attempt, if a data source requests it."""

    def result(self) -> ToolResult:
        """Return the error dict for this refusal."""
        return failure(str(self), self.code, retry_after_seconds=self.retry_after_seconds)
