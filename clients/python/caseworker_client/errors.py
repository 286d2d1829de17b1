"""Errors that the client raises."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from caseworker_client.models import Run


class CaseworkerError(Exception):
    """Base class of all errors of this client."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One invalid field of a request."""

    field: str
    """Path of the field, such as ``budget.max_seconds``."""
    message: str


_FIELD_ERRORS = TypeAdapter(tuple[FieldError, ...], config=ConfigDict(defer_build=True))


class ApiError(CaseworkerError):
    """The service returned an error; the message is its problem document (RFC 9457) as text."""

    def __init__(
        self,
        status: int,
        problem: Mapping[str, Any],
        *,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Create from a problem document; ``request_id`` is used if the document has none."""
        self.status = status
        self.problem = dict(problem)
        """The whole document, including members unknown to this version."""
        self.type = str(problem.get("type", "about:blank"))
        """URI of the kind of problem; a web page if the operator publishes the documentation."""
        self.code = str(problem.get("code", self.type.rpartition(":")[2]))
        """Stable identifier of the kind of problem, such as ``run-not-found``."""
        self.title: str | None = problem.get("title")
        self.detail: str | None = problem.get("detail")
        """The problem, or how to resolve it."""
        self.errors: tuple[FieldError, ...] = _field_errors(problem.get("errors"))
        self.request_id: str | None = problem.get("request_id", request_id)
        """ID of the request in the service's log."""
        self.retry_after_seconds = retry_after_seconds
        super().__init__(self._text())

    def _text(self) -> str:
        parts = [str(part).rstrip(".") for part in (self.title, self.detail) if part]
        first = f"{'. '.join(parts)}." if parts else f"The service returned status {self.status}."
        untold = [each for each in self.errors if each.message not in (self.detail or "")]
        return "\n".join([first, *(f"{each.field}: {each.message}" for each in untold)])


class ServiceUnreachableError(CaseworkerError):
    """The service does not answer, or not in time."""


class WaitTimeoutError(CaseworkerError, TimeoutError):
    """A run did not end within the wait time; it continues."""

    def __init__(self, run: Run, timeout_seconds: float) -> None:
        super().__init__(f"Run {run.run_id} is {run.status} after {timeout_seconds:g} seconds.")
        self.run = run
        """The run in its last known state."""


def _field_errors(errors: object) -> tuple[FieldError, ...]:
    try:
        return _FIELD_ERRORS.validate_python(errors or ())
    except ValidationError:
        return ()  # the problem document is not from this service
