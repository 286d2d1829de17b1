"""Stops: reasons to end a run that no error policy can override.

A stop is a ``BaseException``, so ``except Exception`` in a node or library neither swallows it nor
retries it as a failure. The code that finishes the run converts it into a :class:`StopCause`, the
``stop`` field of a run in the API.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from caseworker.core.budget.budget import Amount, Dimension, json_number


def rfc3339(moment: datetime) -> str:
    """Format a UTC time as RFC 3339, such as ``2025-09-08T12:00:00Z``."""
    return moment.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


class StopKind(StrEnum):
    """Why a run ended early."""

    BUDGET = "budget"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    LOOP = "loop"
    """An agent repeated the same calls with the same results."""
    ERROR = "error"
    WORKER_LOST = "worker_lost"
    POISONED = "poisoned"
    """The code of the run ended its processes again and again."""
    ABANDONED = "abandoned"
    """The client of an external run sent no call and no heartbeat for too long."""


_LIMITS = frozenset({StopKind.BUDGET, StopKind.DEADLINE, StopKind.LOOP})

_ENDS = {StopKind.CANCELLED: "was cancelled", **dict.fromkeys(_LIMITS, "was halted")}


@dataclass(frozen=True, slots=True, kw_only=True)
class StopCause:
    """Details of why a run ended early, as shown in the run's ``stop`` field."""

    kind: StopKind
    dimension: str | None = None
    """Budget dimension whose limit was reached, such as ``tool_calls``; None for other kinds of
    stops."""
    scope: str | None = None
    """Budget scope that the limit belongs to, such as ``run`` or ``run/answer``; None if not
    applicable."""
    limit: Amount | None = None
    used: Amount | None = None
    reserved: Amount | None = None
    """Amount that was reserved for work in flight when the charge was refused; None if not
    applicable."""
    requested: Amount | None = None
    """Amount that was requested and refused; None if not applicable."""
    resets_at: datetime | None = None
    """Time at which the period of the limit ends, such as the day of a tenant's quota; None for a
    limit without a period."""
    requested_by: str | None = None
    reason: str | None = None
    step_id: str | None = None
    """ID of the step that failed, if an error ended the run; otherwise None."""
    error_class: str | None = None
    """Error class, if an error ended the run; otherwise None."""
    call: str | None = None
    """Name of the function that ended the processes of the run; otherwise None."""
    at: datetime | None = None

    @property
    def interrupts(self) -> bool:
        """Whether the limit interrupted work in flight; other limits only refuse new work."""
        return self.dimension in _INTERRUPTING

    @property
    def message(self) -> str:
        """How the run ended and why, such as ``The run was halted: …``, for refused clients."""
        end = f"The run {_ENDS.get(self.kind, 'failed')}"
        return f"{end}: {self.reason}" if self.reason else f"{end}."

    def to_dict(self) -> dict[str, Any]:
        """Return the cause as a JSON object without the fields that are None."""
        fields = ((name, getattr(self, name)) for name in _FIELDS)
        values = {name: value for name, value in fields if value is not None}
        values["kind"] = self.kind.value
        for name in _TIMES & values.keys():
            values[name] = rfc3339(values[name])
        for name in _AMOUNTS & values.keys():
            values[name] = json_number(values[name])
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StopCause":
        """Build a cause from the output of :meth:`to_dict`."""
        times = {name: datetime.fromisoformat(values[name]) for name in _TIMES & values.keys()}
        return cls(**{**values, **times, "kind": StopKind(values["kind"])})


_INTERRUPTING = frozenset(dimension for dimension in Dimension if dimension.interrupts)
_FIELDS = tuple(field.name for field in fields(StopCause))
_AMOUNTS = frozenset({"limit", "used", "reserved", "requested"})
_TIMES = frozenset({"at", "resets_at"})


class Stop(BaseException):
    """The exception that ends a run or a step early; its :class:`StopCause` holds the reason.

    Instances can be copied and pickled, so a worker process can send them to its parent.
    """

    def __init__(self, cause: StopCause) -> None:
        super().__init__(cause.reason or cause.kind.value)
        self.cause = cause
        self.partial_results: Mapping[str, Any] = {}
        """Outputs that each step had produced when the run was stopped, by step ID. Only set for
        graphs that are executed through the Python API."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args), self.__dict__

    @property
    def is_limit(self) -> bool:
        """Whether a limit was reached: the run or step is then halted, not cancelled or failed."""
        return self.cause.kind in _LIMITS


def _restored(kind: type[Stop], args: tuple[Any, ...]) -> Stop:
    """Build a stop for ``pickle``, which sets its attributes afterwards.

    Skips ``__init__``, because subclasses take other arguments.
    """
    return kind.__new__(kind, *args)


class CancelledError(Stop):
    """A cancel request ended the run.

    This is not ``asyncio.CancelledError``. Refer to that class through its module to avoid
    confusion.
    """

    def __init__(self, reason: str | None = None, *, requested_by: str | None = None) -> None:
        cause = StopCause(kind=StopKind.CANCELLED, reason=reason, requested_by=requested_by)
        super().__init__(cause)


class DeadlineExceededError(Stop):
    """The deadline that the caller set has passed."""

    def __init__(self, deadline: datetime) -> None:
        reason = f"The deadline {rfc3339(deadline)} has passed."
        super().__init__(StopCause(kind=StopKind.DEADLINE, reason=reason))


class HandOver(Stop):
    """This process releases the unfinished run, so that another process can resume it."""

    def __init__(self, reason: str) -> None:
        super().__init__(StopCause(kind=StopKind.WORKER_LOST, reason=reason))


class Suspended(HandOver):
    """The run is suspended: all its active work waits for approvals, and a decision resumes it."""

    def __init__(self, approval_ids: frozenset[str]) -> None:
        super().__init__("It waits for an approval.")
        self.approval_ids = approval_ids
        """IDs of the approvals that the run waits for."""
