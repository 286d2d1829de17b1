"""What can be wrong with what is asked of runs. None of these knows HTTP."""


class RunNotFoundError(LookupError):
    """There is no such run, or it belongs to somebody else."""


class RunConflictError(Exception):
    """The run id, or the pair of run id and idempotency key, belongs to another request."""


class IdempotencyMismatchError(Exception):
    """The idempotency key was used before, with another body."""


class TooManyIntentsError(Exception):
    """Too many stops are stored for runs that do not exist."""


class QueueFullError(Exception):
    """More runs wait than the service admits."""


class StoreUnavailableError(Exception):
    """The database did not answer in time; nothing is known to have been stored."""


class InvalidRunError(ValueError):
    """A request that cannot be run; names the field and what to do."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
