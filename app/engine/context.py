"""What a node is handed: the run's limits, its stop, its journal, and where it stands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from app.control.budget import Budget
from app.control.ledger import Scope
from app.control.usage import BudgetExceededError, ResourceUsage
from app.engine.calls import Calls
from app.engine.cancellation import CancellationToken

Service = TypeVar("Service")


@dataclass(slots=True)
class ExecutionContext:
    """The context of seed 000, for nodes and callers that know no service around them."""

    session: Any = None
    """Whatever the caller wants its nodes to see; passed through untouched."""
    input: Any = None
    upstream: dict[str, Any] = field(default_factory=dict)
    budget: Budget | None = None
    usage: ResourceUsage = field(default_factory=ResourceUsage)
    cancellation: CancellationToken | None = None

    def check_budget(self) -> None:
        """Ask before a further charge whether anything is left (seed 000, REQ-B4).

        Raises:
            BudgetExceededError: a limit is used up.
        """
        if self.budget is None:
            return
        tripped = self.usage.tripped_by(self.budget)
        if tripped is not None:
            reason = self.usage.describe(*tripped)
            raise BudgetExceededError(self.usage, self.budget, reason, dimension=tripped[0])

    def check_cancelled(self) -> None:
        """Ask whether someone wants the run to end.

        Raises:
            CancelledError: someone does.
        """
        if self.cancellation is not None:
            self.cancellation.check()

    def with_input(self, input: Any) -> "ExecutionContext":  # noqa: A002 - seed 000's name
        """Return a context with another input that shares everything else."""
        return replace(self, input=input)

    def with_upstream(self, upstream: dict[str, Any]) -> "ExecutionContext":
        """Return a context that also knows these results; the old one stays as it was."""
        return replace(self, upstream={**self.upstream, **upstream})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowContext:
    """Where a step stands inside its run (seed 004).

    Domain dependencies come in ``services``, by their type; the engine never looks at them.
    """

    run_id: str
    node_id: str
    """The id of the step that is executed."""
    chat_id: str | None = None
    trace_parent: str
    """The CallNode of the step; calls made by the step are its children."""
    scope: Scope
    token: CancellationToken
    calls: Calls
    state: dict[str, Any] = field(default_factory=dict)
    """Belongs to the run's execution and is shared by its steps."""
    services: Mapping[type, Any] = field(default_factory=dict)
    keep: Callable[[Callable[[], Mapping[str, Any]]], None]
    """Register what gives the step's partial outputs, asked for if the step is stopped or fails."""

    def service(self, kind: type[Service]) -> Service:
        """Return the service of a type.

        Raises:
            LookupError: the run has no such service.
        """
        try:
            return self.services[kind]  # type: ignore[no-any-return]
        except KeyError:
            raise LookupError(f"This run has no {kind.__name__}.") from None
