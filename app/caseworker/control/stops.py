"""Reasons to end that no policy may override.

A stop travels as a ``BaseException``: an ``except Exception`` of a node, a tool or a library can
neither swallow it nor mistake it for a failure that could be retried. What finishes the run turns
it into a :class:`StopCause`, which is what callers see as ``stop``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from caseworker.control.budget import Amount, json_number


def rfc3339(moment: datetime) -> str:
    """Return a moment in UTC as callers see it, such as ``2025-09-08T12:00:00Z``."""
    return moment.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


class StopKind(StrEnum):
    """What ended a run before its natural end."""

    BUDGET = "budget"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    LOOP = "loop"
    """An agent made the same calls with the same results again and again."""
    ERROR = "error"
    WORKER_LOST = "worker_lost"


_LIMITS = frozenset({StopKind.BUDGET, StopKind.DEADLINE, StopKind.LOOP})


@dataclass(frozen=True, slots=True, kw_only=True)
class StopCause:
    """The precise reason why a run ended, as the run's ``stop`` shows it."""

    kind: StopKind
    dimension: str | None = None
    """The budget dimension that tripped, such as ``tool_calls``."""
    scope: str | None = None
    """The budget scope that tripped, such as ``run`` or ``run/answer``."""
    limit: Amount | None = None
    used: Amount | None = None
    reserved: Amount | None = None
    """What work in flight held of the limit when it refused."""
    requested: Amount | None = None
    """What was asked for and refused."""
    requested_by: str | None = None
    reason: str | None = None
    step_id: str | None = None
    """The step that failed, of an error."""
    error_class: str | None = None
    """The class of the failure, of an error."""
    at: datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the cause as JSON values, without what is not known."""
        known = ((name, getattr(self, name)) for name in _FIELDS)
        values = {name: value for name, value in known if value is not None}
        values["kind"] = self.kind.value
        if self.at is not None:
            values["at"] = rfc3339(self.at)
        for name in _AMOUNTS & values.keys():
            values[name] = json_number(values[name])
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StopCause":
        """Return the cause that :meth:`to_dict` has written."""
        at = values.get("at")
        read = {"kind": StopKind(values["kind"]), "at": at and datetime.fromisoformat(at)}
        return cls(**{**values, **read})


_FIELDS = tuple(field.name for field in fields(StopCause))
_AMOUNTS = frozenset({"limit", "used", "reserved", "requested"})


class Stop(BaseException):
    """A reason to end, on its way from where it arose to what finishes the run.

    It can be copied and pickled, as what a worker process raises must be.
    """

    def __init__(self, cause: StopCause) -> None:
        super().__init__(cause.reason or cause.kind.value)
        self.cause = cause
        self.partial_results: Mapping[str, Any] = {}
        """What a graph executed in Python had produced when it was stopped, by step."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args), self.__dict__

    @property
    def is_limit(self) -> bool:
        """Whether a limit was met: what it ends is halted, and not cancelled or failed."""
        return self.cause.kind in _LIMITS


def _restored(kind: type[Stop], args: tuple[Any, ...]) -> Stop:
    """Return a stop whose attributes are about to be set: its class may ask for other arguments."""
    return kind.__new__(kind, *args)


class CancelledError(Stop):
    """Someone asked the run to stop.

    Not asyncio's class of that name: import it through its module to tell the two apart.
    """

    def __init__(self, reason: str | None = None, *, requested_by: str | None = None) -> None:
        cause = StopCause(kind=StopKind.CANCELLED, reason=reason, requested_by=requested_by)
        super().__init__(cause)


class DeadlineExceededError(Stop):
    """The instant that the caller named has passed."""

    def __init__(self, deadline: datetime) -> None:
        reason = f"The deadline {rfc3339(deadline)} has passed."
        super().__init__(StopCause(kind=StopKind.DEADLINE, reason=reason))


class HandOver(Stop):
    """This process gives the run up, so that another one may go on with it."""

    def __init__(self, reason: str) -> None:
        super().__init__(StopCause(kind=StopKind.WORKER_LOST, reason=reason))


class Suspended(HandOver):
    """Everything that the run could go on with waits for a person; a decision has it go on."""

    def __init__(self, approval_ids: frozenset[str]) -> None:
        super().__init__("It waits for an approval.")
        self.approval_ids = approval_ids
        """The questions that nobody had decided."""
