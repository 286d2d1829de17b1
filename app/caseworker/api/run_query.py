"""The queries that a caller may send about runs."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator
from starlette.datastructures import QueryParams

from caseworker.api.field_types import (
    STORABLE,
    Body,
    Instant,
    PageQuery,
    Query,
    Reason,
    StorableText,
)
from caseworker.api.json_text import is_storable
from caseworker.api.problems import invalid
from caseworker.nodes.reading import refusal
from caseworker.runs.ports import RunFilter
from caseworker.runs.run import RunKind, RunStatus

METADATA_PREFIX = "metadata."
MAX_METADATA_FILTERS = 10


class CancelQuery(Query):
    """The query of a cancel request."""

    reason: Reason | None = None
    """Shown in the receipt and in the trace; a reason in the body takes precedence."""


class RunQuery(PageQuery):
    """Which runs to list."""

    status: RunStatus | None = None
    """Runs of one status."""
    kind: RunKind | None = None
    """Runs of one kind."""
    agent: Annotated[str, StringConstraints(max_length=64), STORABLE] | None = None
    """Runs of the registered agent of this name, also in threads, whatever its version."""
    thread_id: Annotated[str, StringConstraints(max_length=200), STORABLE] | None = None
    """Runs of one thread."""
    created_after: Instant | None = None
    """Runs accepted later than this."""
    created_before: Instant | None = None
    """Runs accepted earlier than this."""

    @model_validator(mode="before")
    @classmethod
    def _without_metadata(cls, sent: Mapping[str, Any]) -> Any:
        """Leave out what :func:`metadata_filter` reads."""
        return {name: sent[name] for name in sent if not name.startswith(METADATA_PREFIX)}


def metadata_filter(query: QueryParams) -> dict[str, str]:
    """Return the values by key of the parameters ``metadata.<key>``.

    Raises:
        ProblemError: a key stands there twice, a text cannot be stored, or there are too many.
    """
    found: dict[str, str] = {}
    for name, value in query.multi_items():
        if not name.startswith(METADATA_PREFIX):
            continue
        key = name.removeprefix(METADATA_PREFIX)
        if key in found or not key or not (is_storable(key) and is_storable(value)):
            raise invalid(
                "metadata",
                "Write metadata.<key>=<value>, each key once and without NUL characters.",
            )
        if len(found) == MAX_METADATA_FILTERS:
            raise invalid(
                "metadata", f"At most {MAX_METADATA_FILTERS} metadata filters are allowed."
            )
        found[key] = value
    return found


MAX_CANCELLED_AT_ONCE = 1000
"""How many runs one request stops; each is a transaction of its own."""


class CancelRunsBody(Body):
    """Which runs to stop, of those that have not ended, and why; all that is given must hold.

    At least one field besides ``reason`` must be given: ``created_before`` with the present time
    stops every run that exists.
    """

    status: Annotated[RunStatus, Field(strict=False)] | None = None
    """Runs of one status: queued, running or waiting."""
    kind: Annotated[RunKind, Field(strict=False)] | None = None
    """Runs of one kind."""
    agent: Annotated[str, StringConstraints(max_length=64), STORABLE] | None = None
    """Runs of the registered agent of this name, whatever its version."""
    metadata: (
        Annotated[
            dict[StorableText, StorableText | bool | int | float | None],
            Field(max_length=MAX_METADATA_FILTERS),
        ]
        | None
    ) = None
    """Values that the metadata of the runs must have."""
    created_after: Instant | None = None
    """Runs accepted later than this."""
    created_before: Instant | None = None
    """Runs accepted earlier than this."""
    reason: Reason | None = None
    """Shown in the traces of the runs."""

    @model_validator(mode="after")
    def _names_runs(self) -> Self:
        if not any(self.model_dump(exclude={"reason"}).values()):
            raise refusal("Send at least one filter that selects the runs to stop.")
        return self

    @property
    def wanted(self) -> RunFilter:
        """The runs that are meant, as many as are stopped at once."""
        fields = self.model_dump(exclude={"reason", "metadata"})
        texts = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in (self.metadata or {}).items()
        }
        return RunFilter(**fields, metadata=texts, limit=MAX_CANCELLED_AT_ONCE)


class TraceQuery(Query):
    """How to show a trace."""

    format: Literal["json", "explain", "otlp"] = "json"
    """``json`` is the snapshot; ``explain`` is a text to read; ``otlp`` are spans of OpenTelemetry,
    without any content."""
    payloads: bool = False
    """Show with the snapshot what each call asked and what it got."""
