"""What a tool is, what it may know of its run, and how it fails."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from caseworker.tools.artifacts import ArtifactSink

ToolResult = dict[str, Any]
"""What a tool returns: JSON values only. A failure is ``{"error": message, "code": word}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFunction:
    """One use of a tool, which planners are offered as a function of its own."""

    name: str
    """As planners call it: of all tools' functions the only one of that name."""
    takes: str
    """The names of its arguments in order; one that ends in ``?`` may be left out."""
    description: str = ""
    """A few words, if names do not say it all: every planning prompt holds them."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the tool always gets, such as its operation."""
    places: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the tool that are made of others: ``{"start": "{date}", "fields": ["{field}"]}``
    passes ``date`` as ``start`` and ``field`` in a list."""
    schemas: Mapping[str, Any] = field(default_factory=dict)
    """The schemas of arguments that the tool does not know, or that are narrower here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """How a tool is presented to planners and how it may be run."""

    name: str
    description: str
    """One or two sentences that tell a model when to use the tool and what it returns."""
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments: an object that refuses unknown properties."""
    functions: tuple[ToolFunction, ...] = ()
    """The uses that planners are offered in the place of the whole tool; none offers it as it is.
    A tool with one short list of arguments needs none."""
    external: bool = False
    """True when a call leaves this process, so that it must be durable before it is made."""
    idempotent: bool = True
    """True when a call whose outcome is unknown may be made again."""
    deterministic: bool = False
    """True when the same arguments in the same context always give the same result, and a call
    leaves nothing behind. The verifier runs such a tool again to check what it found."""
    parallel_safe: bool = True
    transient: frozenset[str] = frozenset()
    """Codes of failures that another attempt may not meet, such as ``source_unavailable``. An
    idempotent tool that names any is called again after them and after a timeout, as the settings
    ``retry`` say; every attempt counts in ``max_tool_calls``."""
    timeout_seconds: float = 10.0
    """Per attempt."""
    requires_approval: bool = False
    """True when a person must agree to each call before it is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool may know about the run that calls it."""

    run_id: str
    timezone: str
    """IANA name of the zone that dates without a zone are read in."""
    now: datetime
    """The aware time that relative dates start from; fixed for the length of a run."""
    artifacts: ArtifactSink | None = None
    """Where files are kept; None where a run cannot keep any."""


class Tool(Protocol):
    """One thing an agent can do; it never raises for bad arguments or failures of its own."""

    @property
    def spec(self) -> ToolSpec:
        """How the tool is presented and run."""
        ...

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run the tool; every failure is a dict with ``error`` and ``code``.

        A transient failure may say in ``retry_after_seconds`` how long to wait before the next
        attempt. ``args`` already follow ``spec.parameters``.
        """
        ...


@runtime_checkable
class CrossChecked(Protocol):
    """A tool that can work out what it has found in another way, for the verifier."""

    async def agrees(
        self, args: Mapping[str, Any], result: ToolResult, context: ToolContext
    ) -> bool | None:
        """Return whether another way of working it out gives the result, too.

        Another way shares no code with ``run`` and does not leave the process. None if there is
        none for these arguments.
        """
        ...


def failure(
    message: str, code: str = "failed", *, retry_after_seconds: float | None = None
) -> ToolResult:
    """Return the dict that every failing tool returns."""
    result: ToolResult = {"error": message, "code": code}
    if retry_after_seconds is not None:
        result["retry_after_seconds"] = retry_after_seconds
    return result


class ToolRefusedError(Exception):
    """A tool cannot do what was asked. A model reads the message: say what to ask instead."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_arguments",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        """One word, such as ``invalid_arguments``, ``out_of_range`` or ``too_large``."""
        self.retry_after_seconds = retry_after_seconds
        """How long a source of data asks not to be called, if it does."""

    def result(self) -> ToolResult:
        """Return the result of a tool that was refused."""
        return failure(str(self), self.code, retry_after_seconds=self.retry_after_seconds)
