"""What can be wrong with what is asked of runs. None of these knows HTTP."""

from collections.abc import Sequence

from caseworker.kernel.validation import Problem
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.quotas import RateState
from caseworker.runs.run import DefinitionRef


class RunNotFoundError(LookupError):
    """There is no such run, or it belongs to somebody else."""


class RunNotEndedError(Exception):
    """What is asked for can only be done with a run that has ended."""


class SourceNotFoundError(RunNotFoundError):
    """There is no run to go on from, or it belongs to somebody else."""


class SourceNotEndedError(Exception):
    """The run to go on from has not ended."""


class CallNotFoundError(LookupError):
    """The run has made no such call."""


class ApprovalNotFoundError(LookupError):
    """The run asks for no such approval."""


class ApprovalDecidedError(Exception):
    """Another decision came first, or the end of the time or of the run."""


class InvalidArgumentsError(ValueError):
    """Arguments that do not fit what they are for; each problem is a field and what to do."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = tuple(problems)


class ArtifactNotFoundError(LookupError):
    """The run has no such file, or not any more."""


class RunConflictError(Exception):
    """The run id, or the pair of run id and idempotency key, belongs to another request."""


class IdempotencyMismatchError(Exception):
    """The idempotency key was used before, with another body."""


class TooManyPendingCancelsError(Exception):
    """Too many cancel requests are stored for runs that do not exist."""


class QueueFullError(Exception):
    """More runs wait than the service admits."""

    def __init__(self, rate: RateState | None = None) -> None:
        super().__init__()
        self.rate = rate
        """How the tenant stands to its rate, if that is limited."""


class InvalidRunError(ValueError):
    """A request that cannot be run; names the field and what to do."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class GraphRefusedError(ValueError):
    """A graph or an agent that cannot be executed; carries everything that is wrong with it.

    The places of the problems are inside it: ``steps.2.type``, or ``name`` where it was given by
    its name.
    """

    def __init__(
        self, problems: Sequence[Problem], kind: DefinitionKind = DefinitionKind.GRAPH
    ) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = tuple(problems)
        self.kind = kind


class DefinitionNotFoundError(LookupError):
    """There is no such definition or version, or it belongs to somebody else."""

    def __init__(self, ref: DefinitionRef) -> None:
        super().__init__(ref.name)
        self.ref = ref


class DefinitionInUseError(Exception):
    """Other definitions contain the one that was to be deleted."""

    def __init__(self, ref: DefinitionRef, users: Sequence[DefinitionRef]) -> None:
        super().__init__(f"{len(users)} definitions contain it")
        self.ref = ref
        self.users = tuple(users)


class ContainedDefinitionGoneError(Exception):
    """What a new definition contains was deleted while the definition was checked."""


class DefinitionsTooLargeError(Exception):
    """The definitions that were asked for are larger together than the limit."""
