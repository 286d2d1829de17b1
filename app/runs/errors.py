"""What can be wrong with what is asked of runs. None of these knows HTTP."""

from collections.abc import Sequence

from app.kernel.validation import Problem
from app.runs.run import GraphRef


class RunNotFoundError(LookupError):
    """There is no such run, or it belongs to somebody else."""


class SourceNotFoundError(RunNotFoundError):
    """There is no run to go on from, or it belongs to somebody else."""


class SourceNotEndedError(Exception):
    """The run to go on from has not ended."""


class CallNotFoundError(LookupError):
    """The run has made no such call."""


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


class StoreUnavailableError(Exception):
    """The database did not answer in time; nothing is known to have been stored."""


class WriteFailedError(Exception):
    """The database was there, and could not carry out one write, however often it was asked."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"The database could not store a write of {size_bytes} bytes.")


class InvalidRunError(ValueError):
    """A request that cannot be run; names the field and what to do."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class GraphRefusedError(ValueError):
    """A graph that cannot be executed; carries everything that is wrong with it.

    The places of the problems are inside the graph: ``steps.2.type``, or ``name`` where the graph
    was given by its name.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = tuple(problems)


class GraphNotFoundError(LookupError):
    """There is no such registered graph or version, or it belongs to somebody else."""


class GraphInUseError(Exception):
    """Other registered graphs contain the one that was to be deleted."""

    def __init__(self, users: Sequence[GraphRef]) -> None:
        super().__init__(f"{len(users)} graphs contain it")
        self.users = tuple(users)


class ContainedGraphGoneError(Exception):
    """A graph that a new definition contains was deleted while the definition was checked."""


class GraphsTooLargeError(Exception):
    """The graphs that were asked for are larger together than the limit."""
