"""How the steps of a graph stand, and how the graph ended."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.control.stops import Stop
from app.engine.context import Outputs
from app.kernel.lifecycle import NEXT, StepStatus


class StepBrokenError(Exception):
    """A step that neither returned nor failed as a step does."""


class RecordedFailureError(Exception):
    """A step had failed for good when the worker of its run was lost."""

    def __init__(self, message: str, *, error_class: str) -> None:
        super().__init__(message)
        self.error_class = error_class
        """Of the failure at the time."""

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> "RecordedFailureError":
        """Return the failure that was recorded of a step."""
        return cls(recorded["message"], error_class=recorded["error_class"])


class StepTimeoutError(TimeoutError):
    """One attempt of a step took longer than its policy allows."""


@dataclass(slots=True)
class StepReport:
    """How a step stands."""

    status: StepStatus = StepStatus.PENDING
    outputs: Outputs = field(default_factory=dict)
    """What it produced; of a step that was cut off or failed, what it had so far."""
    error: Exception | None = None
    """What failed it, or what its policy has made good."""
    recovered_by: str | None = None
    """``skip`` or ``fallback``, if its policy has made a failure good."""
    source: Callable[[], Outputs] | None = None
    """Gives the partial outputs of a step that is executed."""
    started_ns: int = 0
    """A reading of ``time.perf_counter_ns``, where the details of steps are gathered."""
    recorded: bool = False
    """True once those of this step were."""

    def keep(self, source: Callable[[], Outputs]) -> None:
        """Remember what gives the step's partial outputs."""
        self.source = source

    def become(
        self, status: StepStatus, outputs: Outputs | None = None, error: Exception | None = None
    ) -> bool:
        """Change the status; a final one stays, whatever abandoned work still comes to.

        Return whether it was changed.
        """
        if status not in NEXT[self.status]:
            return False
        self.status, self.error = status, error
        self.outputs = {} if outputs is None else outputs
        return True

    def so_far(self) -> Outputs:
        """Return what the step would have to show if it ended now."""
        if self.source is None:
            return self.outputs
        try:
            return self.source()
        except Exception:  # what went wrong before it matters more
            return {}


@dataclass(slots=True)
class GraphOutcome:
    """How a graph ended, or how it stands."""

    steps: dict[str, StepReport]
    error: Exception | None = None
    stop: Stop | None = None


def said_of(error: Exception) -> str:
    """Return what may be said of a failure.

    The messages of our own errors are made to be shown; others could hold anything.
    """
    ours = type(error).__module__.startswith("app.")
    return str(error)[:500] if ours else f"It broke with {type(error).__name__}."


def partial_ignored(source: Callable[[], Outputs]) -> None:
    """Take the partial outputs of work that is no step."""


def class_of(error: Exception) -> str:
    """Return the name of the class of a failure, also of one that is only recorded."""
    return error.error_class if isinstance(error, RecordedFailureError) else type(error).__name__
