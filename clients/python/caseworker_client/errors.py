"""What can go wrong between a caller and the service."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from caseworker_client.models import Run


class CaseworkerError(Exception):
    """Any error of this client."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong with a request."""

    field: str
    """Where, such as ``budget.max_seconds``."""
    message: str


_FIELD_ERRORS = TypeAdapter(tuple[FieldError, ...], config=ConfigDict(defer_build=True))


class ApiError(CaseworkerError):
    """The service refused a request; the message is its problem document (RFC 9457) as text."""

    def __init__(
        self,
        status: int,
        problem: Mapping[str, Any],
        *,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Take a problem document; ``request_id`` counts where the document names none."""
        self.status = status
        self.problem = dict(problem)
        """The whole document, members that this version does not know included."""
        self.type = str(problem.get("type", "about:blank"))
        """A stable name of the kind of problem: decide by its last part, such as
        ``run-not-found``."""
        self.title: str | None = problem.get("title")
        self.detail: str | None = problem.get("detail")
        """What to do about it."""
        self.errors: tuple[FieldError, ...] = _field_errors(problem.get("errors"))
        self.request_id: str | None = problem.get("request_id", request_id)
        """Under which id the service's log knows the request."""
        self.retry_after_seconds = retry_after_seconds
        super().__init__(self._text())

    def _text(self) -> str:
        parts = [str(part).rstrip(".") for part in (self.title, self.detail) if part]
        first = f"{'. '.join(parts)}." if parts else f"The service returned status {self.status}."
        return "\n".join([first, *(f"{each.field}: {each.message}" for each in self.errors)])


class ServiceUnreachableError(CaseworkerError):
    """Nobody answers at the service's address, or not in time."""


class WaitTimeoutError(CaseworkerError, TimeoutError):
    """A run has not ended within the time that its caller would wait; the run goes on."""

    def __init__(self, run: Run, timeout_seconds: float) -> None:
        super().__init__(f"Run {run.run_id} is {run.status} after {timeout_seconds:g} seconds.")
        self.run = run
        """As it was when it was last asked for."""


def _field_errors(errors: object) -> tuple[FieldError, ...]:
    try:
        return _FIELD_ERRORS.validate_python(errors or ())
    except ValidationError:
        return ()  # the problem document is somebody else's
