"""The tool interface: specification, context, results and failures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from caseworker.tools.artifacts import ArtifactSink

ToolResult = dict[str, Any]
"""The result of a tool: JSON values only. A failure is ``{"error": message, "code": word}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFunction:
    """One use of a tool, which planners are offered as a separate function."""

    name: str
    """The name that planners call; unique among the functions of all tools."""
    takes: str
    """The names of its arguments in order; a trailing ``?`` marks an optional one."""
    description: str = ""
    """A short hint if the names are not enough; every planning prompt contains it."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Constant arguments for the tool, such as its operation."""
    places: Mapping[str, Any] = field(default_factory=dict)
    """Tool arguments built from function arguments: ``{"start": "{date}", "fields": ["{field}"]}``
    passes ``date`` as ``start``, and ``field`` as a list."""
    schemas: Mapping[str, Any] = field(default_factory=dict)
    """Schemas of arguments that the tool does not have, or that are narrower here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """The description of a tool for planners, and its execution properties."""

    name: str
    description: str
    """One or two sentences for the model: when to use the tool and what it returns."""
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments: an object without additional properties."""
    functions: tuple[ToolFunction, ...] = ()
    """The functions offered to planners instead of the whole tool; empty offers the tool itself. A
    tool with one short list of arguments needs none."""
    external: bool = False
    """True if a call reaches outside this process, so it must be journaled before it is made."""
    idempotent: bool = True
    """True if a call whose outcome is unknown may be repeated."""
    deterministic: bool = False
    """True if equal arguments in the same context always give the same result, and a call has no
    lasting effects. The verifier runs such a tool again to check its result."""
    parallel_safe: bool = True
    transient: frozenset[str] = frozenset()
    """Codes of transient failures, such as ``source_unavailable``. An idempotent tool with any is
    retried after them and after a timeout, according to the ``retry`` settings; every attempt
    counts in ``max_tool_calls``."""
    timeout_seconds: float = 10.0
    """Time limit of each attempt."""
    requires_approval: bool = False
    """True if a person must approve each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The context of the run that calls a tool."""

    run_id: str
    timezone: str
    """IANA name of the time zone for dates without a zone."""
    now: datetime
    """The timezone-aware reference time for relative dates; constant during a run."""
    artifacts: ArtifactSink | None = None
    """Where to store files; None if the run cannot store any."""


class Tool(Protocol):
    """An action that agents can take; bad arguments and tool failures are error results."""

    @property
    def spec(self) -> ToolSpec:
        """The description and execution properties of the tool."""
        ...

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run the tool; every failure is a dict with ``error`` and ``code``.

        A transient failure may set ``retry_after_seconds`` to delay the next attempt. ``args``
        already match ``spec.parameters``.
        """
        ...


@runtime_checkable
class CrossChecked(Protocol):
    """A tool that can recompute its result by another method, for the verifier."""

    async def agrees(
        self, args: Mapping[str, Any], result: ToolResult, context: ToolContext
    ) -> bool | None:
        """Return whether an independent method gives the same result.

        The method shares no code with ``run`` and makes no external calls. None if there is no such
        method for these arguments.
        """
        ...


def failure(
    message: str, code: str = "failed", *, retry_after_seconds: float | None = None
) -> ToolResult:
    """Return the error dict of a failed tool."""
    result: ToolResult = {"error": message, "code": code}
    if retry_after_seconds is not None:
        result["retry_after_seconds"] = retry_after_seconds
    return result


class ToolRefusedError(Exception):
    """A tool cannot handle the request. Models read the message, so suggest a correction."""

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
