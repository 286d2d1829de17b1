"""The events of a run: what callers may ask for, and how pages and streams of them are sent."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Self

import structlog
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import Field
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from caseworker.access.errors import AccessRefusedError
from caseworker.api.field_types import Query, View
from caseworker.api.problems import invalid
from caseworker.runs.errors import RunNotFoundError, StoreUnavailableError
from caseworker.runs.ports import EventPage
from caseworker.runs.run import EventRecord

log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 15.0
"""How long a stream may send nothing; then it sends a comment, which keeps it open."""
MAX_SEQ = 2**31 - 1

Batches = AsyncGenerator[Sequence[EventRecord], None]

_SEQ = "^[0-9]{1,10}$"
_VALID_SEQ = re.compile(_SEQ[1:-1], re.ASCII)

EVENT_HEADERS: list[dict[str, Any]] = [
    {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "ID of the last received event; takes precedence over `after`. Browsers "
        "send it automatically on reconnect.",
        "schema": {"type": "string", "pattern": _SEQ},
    },
]
"""How the OpenAPI document describes them."""


class EventsQuery(Query):
    """Which events of a run to show."""

    after: Annotated[int, Field(ge=0, le=MAX_SEQ)] = 0
    """Show the events behind this number; 0 begins at the first one."""
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    """How many events a page of JSON holds; a stream has no pages."""


class EventView(View):
    """Something that happened in a run."""

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
    data: dict[str, Any]

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


class EventsPage(View):
    """Some events of a run, in order."""

    events: list[EventView]
    next_after: int | None
    """Ask with it as ``after`` for what comes next; null after the last event of a run."""

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
        raise invalid("Last-Event-ID", "This must be an event ID (an integer).")
    return min(int(given), MAX_SEQ)


def wants_page(headers: Headers) -> bool:
    """Tell whether a client asks for JSON, and not for a stream."""
    accepted = headers.get("accept", "")
    return "application/json" in accepted and "text/event-stream" not in accepted


class EventStream(EventSourceResponse):
    """The events of a run as they come, in batches of which the first was read already.

    It ends with the batches, or when its client is gone.
    """

    def __init__(self, run_id: str, first: Sequence[EventRecord], rest: Batches) -> None:
        super().__init__(_sent(run_id, first, rest), headers={"X-Accel-Buffering": "no"})
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is until it ends; the end of the process is one as well."""
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            log.warning("events.cut_off", error="ProcessEnds")
            await send({"type": "http.response.body", "body": b""})
        finally:
            await self._rest.aclose()


async def _sent(run_id: str, first: Sequence[EventRecord], rest: Batches) -> AsyncIterator[bytes]:
    """Yield what is sent.

    A database that goes away ends it, and so does a key that is revoked; the client comes again.
    """
    spoke_at = time.monotonic()
    yield _lines(run_id, first) or KEEPALIVE_COMMENT
    try:
        async for batch in rest:
            if batch:
                yield _lines(run_id, batch)
            elif time.monotonic() - spoke_at < HEARTBEAT_SECONDS:
                continue
            else:
                yield KEEPALIVE_COMMENT
            spoke_at = time.monotonic()
    except (StoreUnavailableError, RunNotFoundError, AccessRefusedError) as error:
        log.warning("events.cut_off", error=type(error).__name__)


def _lines(run_id: str, batch: Sequence[EventRecord]) -> bytes:
    return b"".join(
        format_sse_event(data_str=_json(run_id, record), event=record.type, id=str(record.seq))
        for record in batch
    )


def _json(run_id: str, record: EventRecord) -> str:
    """Return an event as ASCII: some clients break lines at U+2028 and the like."""
    return EventView.of(run_id, record).model_dump_json(ensure_ascii=True)
