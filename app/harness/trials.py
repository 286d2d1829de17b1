"""One case run once: what was asked, and what came back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.harness.dataset import EvalCase


class Service(Protocol):
    """The service, as its client shows it; every method may raise the client's errors."""

    async def service_version(self) -> str:
        """Return which version answers."""
        ...

    async def post_run(self, body: Mapping[str, Any], *, wait_seconds: int = 0) -> dict[str, Any]:
        """Post a run, or ask again for one that was posted, and wait for its end."""
        ...

    async def cancel_run(self, run_id: str, *, reason: str | None = None) -> dict[str, Any]:
        """Ask a run to stop."""
        ...

    async def trace(self, run_id: str) -> dict[str, Any]:
        """Return the trace of a run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A case run once."""

    case: EvalCase
    repeat: int
    """From 1."""
    run_id: str
    seconds: float = 0.0
    """From the request to the answer, as the caller felt it."""
    run: Mapping[str, Any] | None = None
    """The finished run; None if there is none."""
    trace: Mapping[str, Any] | None = None
    refusal: str | None = None
    """Why the service did not take the input."""
    error: str | None = None
    """What kept the case from being measured."""
