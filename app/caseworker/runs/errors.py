"""Errors of run operations; none of them depends on HTTP."""

from collections.abc import Sequence

from caseworker.core.graph.validation import Problem
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.quotas import RateState
from caseworker.runs.run import DefinitionRef


class RunNotFoundError(LookupError):
    """The run does not exist or belongs to another tenant."""


class RunNotEndedError(Exception):
    """The operation requires a run that has ended."""


class SourceNotFoundError(RunNotFoundError):
    """The run to resume from does not exist or belongs to another tenant."""


class SourceNotEndedError(Exception):
    """The run to resume from has not ended."""


class CallNotFoundError(LookupError):
    """The run has no call with this node ID."""


class ApprovalNotFoundError(LookupError):
    """The run has no approval with this ID."""


class ApprovalDecidedError(Exception):
    """Another decision, the timeout or the end of the run came first."""


class InvalidArgumentsError(ValueError):
    """Arguments violate their schema; each problem is a pair of field and advice."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = tuple(problems)


class ArtifactNotFoundError(LookupError):
    """The run has no such file, or the file was deleted."""


class RunConflictError(Exception):
    """The run id, or the pair of run id and idempotency key, belongs to another request."""


class IdempotencyMismatchError(Exception):
    """The idempotency key was already used with a different body."""


class TooManyPendingCancelsError(Exception):
    """Too many cancel requests are pending for runs that do not exist."""


class QueueFullError(Exception):
    """The queue has reached its limit."""

    def __init__(self, rate: RateState | None = None) -> None:
        super().__init__()
        self.rate = rate
        """State of the tenant's rate limit, if there is one."""


class InvalidRunError(ValueError):
    """A request is invalid; names the field and the remedy."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class GraphRefusedError(ValueError):
    """A graph or an agent cannot be executed; carries all its problems.

    Places of problems are relative to it, such as ``steps.2.type``, or ``name`` if it was
    referenced by name.
    """

    def __init__(
        self, problems: Sequence[Problem], kind: DefinitionKind = DefinitionKind.GRAPH
    ) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = tuple(problems)
        self.kind = kind


class DefinitionNotFoundError(LookupError):
    """The definition or version does not exist or belongs to another tenant."""

    def __init__(self, ref: DefinitionRef) -> None:
        super().__init__(ref.name)
        self.ref = ref


class DefinitionInUseError(Exception):
    """The definition to delete is contained in other definitions."""

    def __init__(self, ref: DefinitionRef, users: Sequence[DefinitionRef]) -> None:
        super().__init__(f"{len(users)} definitions contain it")
        self.ref = ref
        self.users = tuple(users)


class ContainedDefinitionGoneError(Exception):
    """A definition that a new one contains was deleted during validation."""


class DefinitionsTooLargeError(Exception):
    """The requested definitions together exceed the size limit."""
