"""Errors that run operations raise; they are independent of HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal

from caseworker.core.graph.validation import Problem
from caseworker.nodes.nesting import DefinitionKind


class RunNotFoundError(LookupError):
    """The run does not exist or belongs to another tenant."""


class BranchNotFoundError(Exception):
    """The messages that a run answers do not exist any more."""

    def __init__(self) -> None:
        super().__init__("The messages to answer were deleted from their thread.")


class RunNotEndedError(Exception):
    """The operation requires a run that has ended."""


class SourceNotFoundError(RunNotFoundError):
    """The run to resume does not exist or belongs to another tenant."""


class SourceNotEndedError(Exception):
    """The run to resume has not ended."""


class ArtifactNotFoundError(LookupError):
    """The run has no such file, or the file was deleted."""


class RunConflictError(Exception):
    """The run ID, alone or with the idempotency key, was already used for a different request."""


class IdempotencyMismatchError(Exception):
    """The idempotency key was already used for a request with a different body."""


class ExternalRunsFullError(Exception):
    """This process already owns its maximum number of external runs."""


class ExecutesNothingError(Exception):
    """This process executes no runs, so another one must accept the external run."""


class TooManyPendingCancelsError(Exception):
    """Too many cancel requests are stored for runs that do not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateState:
    """The state of a tenant's rate limit, as sent in response headers."""

    limit: int
    """Maximum number of runs per minute."""
    remaining: int
    """Number of runs that may be sent immediately."""
    reset_seconds: int
    """Seconds until another run may be sent. If one may be sent now, seconds until the full
    allowance is available."""


class QueueFullError(Exception):
    """The queue is full: it already holds the maximum number of runs."""

    def __init__(self, rate: RateState | None = None) -> None:
        super().__init__()
        self.rate = rate
        """State of the tenant's rate limit; None if it has none."""


class InvalidRunError(ValueError):
    """A request is invalid; the error names the field and explains how to fix it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class GraphRefusedError(ValueError):
    """A graph or an agent cannot be executed; the error holds all its problems.

    Problem locations are relative to the graph or agent, such as ``steps.2.type``. If the caller
    referenced a definition that does not exist, the location is ``name`` or ``version``.
    """

    def __init__(
        self, problems: Sequence[Problem], kind: DefinitionKind = DefinitionKind.GRAPH
    ) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = tuple(problems)
        self.kind = kind


def _plainly(amount: Decimal | int) -> str:
    return f"{Decimal(amount).normalize():f}"


@dataclass(eq=False)
class QuotaExceededError(Exception):
    """A request would exceed a quota of the tenant."""

    dimension: str
    _: KW_ONLY
    used: Decimal | int
    limit: Decimal | int
    retry_after_seconds: int
    reserved: Decimal | int = 0
    requested: Decimal | int = 1
    rate: RateState | None = None
    """State of the tenant's rate limit; None if it has none."""

    def __str__(self) -> str:
        used, reserved, requested, limit = map(_plainly, self.amounts.values())
        return (
            f"{self.dimension}: {used} used, {reserved} reserved, {requested} requested, "
            f"limit {limit}"
        )

    @property
    def amounts(self) -> Mapping[str, Decimal | int]:
        """Used, reserved and requested amounts, and the limit, by name."""
        names = ("used", "reserved", "requested", "limit")
        return {name: getattr(self, name) for name in names}
