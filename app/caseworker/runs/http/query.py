"""Query parameters for routes that list, cancel or trace runs."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator
from starlette.datastructures import QueryParams

from caseworker.platform.http.bodies import (
    STORABLE,
    BodyModel,
    Instant,
    PageQuery,
    QueryModel,
    Reason,
    StorableText,
    is_storable,
)
from caseworker.platform.http.problems import invalid
from caseworker.platform.validation import refusal
from caseworker.runs.ports import RunFilter
from caseworker.runs.run import RunKind, RunStatus

METADATA_PREFIX = "metadata."
MAX_METADATA_FILTERS = 10


class CancelQuery(QueryModel):
    """Query parameters for cancelling a run."""

    reason: Reason | None = None
    """Reason for cancelling the run, shown in the receipt and in the trace. A reason in the body
    takes precedence."""


class RunQuery(PageQuery):
    """Filters for a list of runs. All given filters must match."""

    status: RunStatus | None = None
    """Return only runs with this status."""
    kind: RunKind | None = None
    """Return only runs of this kind."""
    agent: Annotated[str, StringConstraints(max_length=64), STORABLE] | None = None
    """Return only runs of the agent with this name, in any version, including runs in threads and
    external runs with this name."""
    thread_id: Annotated[str, StringConstraints(max_length=200), STORABLE] | None = None
    """Return only runs that answer in this thread."""
    created_after: Instant | None = None
    """Return only runs accepted after this time."""
    created_before: Instant | None = None
    """Return only runs accepted before this time."""

    @model_validator(mode="before")
    @classmethod
    def _without_metadata(cls, query: Mapping[str, Any]) -> Any:
        """Remove the parameters that :func:`metadata_filter` parses."""
        return {name: query[name] for name in query if not name.startswith(METADATA_PREFIX)}


def metadata_filter(query: QueryParams) -> dict[str, str]:
    """Return the metadata values that runs must have, by key.

    They are read from the query parameters ``metadata.<key>``.

    Raises:
        ProblemError: a text cannot be stored, or there are too many filters.
    """
    filters: dict[str, str] = {}
    for name, value in query.multi_items():
        if not name.startswith(METADATA_PREFIX):
            continue
        key = name.removeprefix(METADATA_PREFIX)
        if not key or not (is_storable(key) and is_storable(value)):
            raise invalid("metadata", "Write metadata.<key>=<value>, without NUL characters.")
        if len(filters) == MAX_METADATA_FILTERS:
            raise invalid(
                "metadata", f"At most {MAX_METADATA_FILTERS} metadata filters are allowed."
            )
        filters[key] = value
    return filters


MAX_CANCELLED_AT_ONCE = 1000
"""Maximum number of runs that one request cancels. Each is cancelled in a separate transaction."""


class CancelRunsBody(BodyModel):
    """Filters for the runs to cancel.

    Only runs that have not ended are cancelled, and all given filters must match.

    At least one field other than ``reason`` is required. ``created_before`` with the current time
    cancels all existing runs.
    """

    status: Annotated[RunStatus, Field(strict=False)] | None = None
    """Cancel only runs with this status: queued, running or waiting."""
    kind: Annotated[RunKind, Field(strict=False)] | None = None
    """Cancel only runs of this kind."""
    agent: Annotated[str, StringConstraints(max_length=64), STORABLE] | None = None
    """Cancel only runs of the agent with this name, in any version, and external runs with it."""
    metadata: (
        Annotated[
            dict[StorableText, StorableText | bool | int | float | None],
            Field(max_length=MAX_METADATA_FILTERS),
        ]
        | None
    ) = None
    """Cancel only runs whose metadata have all these values."""
    created_after: Instant | None = None
    """Cancel only runs accepted after this time."""
    created_before: Instant | None = None
    """Cancel only runs accepted before this time."""
    reason: Reason | None = None
    """Reason for cancelling the runs, shown in their traces."""

    @model_validator(mode="after")
    def _names_runs(self) -> Self:
        if not any(self.model_dump(exclude={"reason"}).values()):
            raise refusal("Send at least one filter that selects the runs to cancel.")
        return self

    @property
    def run_filter(self) -> RunFilter:
        """Filter that selects one batch of runs to cancel."""
        fields = self.model_dump(exclude={"reason", "metadata"})
        texts = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in (self.metadata or {}).items()
        }
        return RunFilter(**fields, metadata=texts, limit=MAX_CANCELLED_AT_ONCE)
