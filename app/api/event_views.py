"""The events of a run: what callers may ask of them, and how they see them (spec, section 9)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers

from app.api.problem_types import INVALID_REQUEST
from app.api.problems import ProblemError
from app.api.violations import Violation
from app.runs.ports import EventPage
from app.runs.run import EventRecord

MAX_SEQ = 2**31 - 1

_DOCUMENTED = ConfigDict(use_attribute_docstrings=True)
_SEQ = "^[0-9]{1,10}$"
_VALID_SEQ = re.compile(_SEQ[1:-1], re.ASCII)

EVENT_HEADERS: list[dict[str, Any]] = [
    {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The last event that was seen; counts more than `after`. "
        "Browsers send it by themselves when they connect again.",
        "schema": {"type": "string", "pattern": _SEQ},
    },
]
"""How the OpenAPI document describes them."""


class EventsQuery(BaseModel):
    """Which events of a run to show."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    after: Annotated[int, Field(ge=0, le=MAX_SEQ)] = 0
    """Show the events behind this number; 0 begins at the first one."""
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    """How many events a page of JSON holds; a stream has no pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    """Something that happened in a run."""

    __pydantic_config__ = _DOCUMENTED

    run_id: str
    seq: int
    """1 to n in each run, without a gap."""
    ts: datetime
    type: str
    """Such as ``step.started``; the last one is ``run.`` and the run's status, and nothing but
    ``late_result`` follows it."""
    step_id: str | None
    """The path of the step inside the run."""
    node_id: str | None
    """Its CallNode in the trace."""
    data: Mapping[str, Any]

    @classmethod
    def of(cls, run_id: str, record: EventRecord) -> Self:
        """Return the view of an event."""
        return cls(
            run_id=run_id,
            seq=record.seq,
            ts=record.ts,
            type=record.type,
            step_id=record.step_id,
            node_id=record.node_id,
            data=record.data,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPage:
    """Some events of a run, in order."""

    __pydantic_config__ = _DOCUMENTED

    events: Sequence[EventView]
    next_after: int | None
    """Ask with it as ``after`` for what comes next; null once the run has ended and all is told."""

    @classmethod
    def of(cls, run_id: str, page: EventPage, *, after: int, limit: int) -> Self:
        """Return the view of a page of at most ``limit`` events behind ``after``."""
        last = page.events[-1].seq if page.events else after
        over = page.finished and len(page.events) < limit
        views = [EventView.of(run_id, record) for record in page.events]
        return cls(events=views, next_after=None if over else last)


def last_event_id(headers: Headers) -> int | None:
    """Return the number of the last event that a client has seen, if it says so.

    Raises:
        ProblemError: it is not one of ours.
    """
    given = headers.get("last-event-id")
    if given is None:
        return None
    if not _VALID_SEQ.fullmatch(given):
        violation = Violation("Last-Event-ID", "This must be the id of an event: a whole number.")
        raise ProblemError(INVALID_REQUEST, violations=[violation])
    return min(int(given), MAX_SEQ)


def wants_page(headers: Headers) -> bool:
    """Tell whether a client asks for JSON, and not for a stream."""
    accepted = headers.get("accept", "")
    return "application/json" in accepted and "text/event-stream" not in accepted
