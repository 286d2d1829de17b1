"""Events of a run: their schemas, the routes that stream or list them, and the streams."""

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, Self

import structlog
from fastapi import Query, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import Field
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from caseworker.platform.caller import AccessRefusedError, KeyScope
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.http.bodies import QueryModel, View
from caseworker.platform.http.openapi import EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import invalid
from caseworker.platform.http.request import ApiRequest, Shares, accepted_types, api_router
from caseworker.runs.errors import RunNotFoundError
from caseworker.runs.http.fields import RunIdPath
from caseworker.runs.http.problems import RUN_NOT_FOUND, TOO_MANY_STREAMS, rate_headers
from caseworker.runs.http.views import Links
from caseworker.runs.ports import Accepted, EventPage
from caseworker.runs.read.event_followers import Batch
from caseworker.runs.run import EventRecord, Run, RunKey
from caseworker.runs.service import RunService

log = structlog.get_logger(__name__)

RETRY: Final = b"retry: 2000\n"
"""Field of the first event: the milliseconds after which a browser reconnects."""
HEARTBEAT_SECONDS = 15.0
"""Seconds without an event after which a stream sends a comment to keep the connection open."""
MAX_SEQ = 2**31 - 1

Batches = AsyncGenerator[Batch, None]

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
"""OpenAPI description of the request headers for event routes."""


SERVER_SENT_EVENT_SCHEMA: Mapping[str, Any] = {
    "title": "ServerSentEvent",
    "type": "object",
    "description": "A server-sent event with the fields `id`, `event` and `data`.",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "description": "Sequence number of the event (`seq`)."},
        "event": {"type": "string", "description": "Type of the event, such as `step.started`."},
        "data": {
            "type": "string",
            "description": "The event as JSON.",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/EventView"},
        },
    },
}

EVENT_STREAM: Mapping[str, Any] = {
    "schema": {
        "type": "string",
        "description": "Events until the run ends. Comments between events keep the connection "
        "open.",
        "contentMediaType": "text/event-stream",
        "contentSchema": {
            "type": "array",
            "items": {"$ref": "#/components/schemas/ServerSentEvent"},
        },
    }
}
"""OpenAPI description of a stream of server-sent events."""


class EventStreams(Shares):
    """Limits the number of event streams that a process serves concurrently."""

    def __init__(self, size: int) -> None:
        super().__init__(size, TOO_MANY_STREAMS)


class EventsQuery(QueryModel):
    """Query parameters that select events of a run."""

    after: Annotated[int, Field(ge=0, le=MAX_SEQ)] = 0
    """Sequence number after which to start; 0 starts at the first event."""
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    """Maximum number of events on a JSON page. Streams ignore it."""


class EventView(View):
    """An event of a run."""

    run_id: str
    seq: int
    """Sequence number of the event within the run. It starts at 1 and has no gaps."""
    ts: datetime
    type: str
    """Event type, such as ``step.started``. The last event is ``run.`` plus the final status; only
    ``late_result`` may follow it."""
    step_id: str | None
    """Path of the step within the run; null for events that belong to no step."""
    node_id: str | None
    """ID of the CallNode that the event is about; null if there is none."""
    data: dict[str, Any]


class EventsPage(View):
    """A page of a run's events, in the order of their sequence numbers."""

    events: list[EventView]
    next_after: int | None
    """Value of ``after`` for the next page; null if the run has ended and this is its last page."""

    @classmethod
    def of(cls, run_id: str, page: EventPage, *, after: int, limit: int) -> Self:
        """Return the view of a page that was requested with ``after`` and ``limit``."""
        last = page.events[-1].seq if page.events else after
        over = page.finished and len(page.events) < limit
        views = [EventView.of_parts(record, run_id=run_id) for record in page.events]
        return cls(events=views, next_after=None if over else last)


def last_event_id(headers: Headers) -> int | None:
    """Return the sequence number in the Last-Event-ID header; None if the header is missing.

    Raises:
        ProblemError: the value is not a valid event ID.
    """
    header = headers.get("last-event-id")
    if header is None:
        return None
    if not _VALID_SEQ.fullmatch(header):
        raise invalid("Last-Event-ID", "This must be an event ID (an integer).")
    return min(int(header), MAX_SEQ)


def wants_page(headers: Headers) -> bool:
    """Return whether the client accepts JSON but not an event stream."""
    accepted = accepted_types(headers)
    return bool(accepted.get("application/json")) and not accepted.get("text/event-stream")


class EventStream(EventSourceResponse):
    """Streams the events of a run to the client as they occur.

    The first batch is read before the response starts. The stream ends after the last batch, or
    when the client disconnects. If no event is left, the response is 204: browsers reconnect after
    the end of any stream, except after this status.
    """

    def __init__(self, run_id: str, first: Batch, rest: Batches, *, opening: bytes = b"") -> None:
        """Send ``opening`` before the first batch."""
        is_over = first.is_last and not first.events and not opening
        status = HTTPStatus.NO_CONTENT if is_over else HTTPStatus.OK
        super().__init__((), status_code=status, headers={"X-Accel-Buffering": "no"})
        if is_over:
            del self.headers["content-type"]
        self._run_id = run_id
        self._first = first
        self._rest = rest
        self._opening = opening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the stream ends; end it cleanly if the process shuts down."""
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            log.warning("events.cut_off", error="ProcessEnds")
            await send({"type": "http.response.body", "body": b""})
        finally:
            await self._rest.aclose()

    async def stream_response(self, send: Send) -> None:
        """Send the stream; the last batch also ends it.

        The stream ends early if the database becomes unavailable or the caller's key is revoked;
        clients are expected to reconnect.
        """
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        batch, opening, spoke_at = self._first, self._opening, -math.inf
        retry = RETRY
        try:
            while True:
                body = opening + _lines(self._run_id, batch)
                if body:
                    body, retry = retry + body, b""
                elif time.monotonic() - spoke_at >= HEARTBEAT_SECONDS:
                    body = KEEPALIVE_COMMENT
                if body or batch.is_last:
                    more, spoke_at = not batch.is_last, time.monotonic()
                    await send({"type": "http.response.body", "body": body, "more_body": more})
                if batch.is_last:
                    return
                batch, opening = await anext(self._rest), b""
        except StopAsyncIteration:
            pass  # the process shuts down
        except (StoreUnavailableError, RunNotFoundError, AccessRefusedError) as error:
            log.warning("events.cut_off", error=type(error).__name__)
        await send({"type": "http.response.body", "body": b""})


def opening_event(run: Run) -> bytes:
    """Encode the event that opens the stream of a new run. It is not stored and has no ID."""
    record = EventRecord(
        seq=0, ts=run.created_at, type="run.accepted", data={"status": run.status.value}
    )
    return format_sse_event(data_str=_json(run.key.run_id, record), event=record.type)


def _lines(run_id: str, batch: Batch) -> bytes:
    if batch.encoded is None:
        batch.encoded = b"".join(
            format_sse_event(data_str=_json(run_id, record), event=record.type, id=str(record.seq))
            for record in batch.events
        )
    return batch.encoded


def _json(run_id: str, record: EventRecord) -> str:
    """Encode an event as ASCII JSON, because some clients split lines at U+2028 and similar."""
    return EventView.of_parts(record, run_id=run_id).model_dump_json(ensure_ascii=True)


router = api_router("runs", prefix="/runs")


@router.get(
    "/{run_id}/events",
    response_model=EventsPage,
    responses={
        **answers(*EVERY_RUN_ROUTE, RUN_NOT_FOUND, TOO_MANY_STREAMS),
        200: {
            "description": "A stream of server-sent events until the run ends, or a page of "
            "events.",
            "content": {"text/event-stream": EVENT_STREAM},
        },
        204: {"description": "The run has ended, and no event follows the given one."},
    },
    openapi_extra={"parameters": EVENT_HEADERS},
)
async def get_events(
    run_id: RunIdPath, query: Annotated[EventsQuery, Query()], request: ApiRequest
) -> EventsPage | Response:
    """Stream the events of a run from any position, even after its end.

    The ID of each event is its sequence number. A client that reconnects with the last ID it
    received sees every event exactly once. With `Accept: application/json`, the response is a page
    of events. If the run has ended and no event is left, the response to a stream is 204, after
    which browsers do not reconnect.
    """
    seen = last_event_id(request.headers)
    after = query.after if seen is None else seen
    if wants_page(request.headers):
        page = await request.service(RunService).events(
            RunKey(request.caller.tenant, run_id), after=after, limit=query.limit
        )
        return EventsPage.of(run_id, page, after=after, limit=query.limit)
    await request.service(EventStreams).enter(request.caller.tenant, request.scope)
    return await stream_of(run_id, request, after=after)


async def stream_of(
    run_id: str, request: ApiRequest, *, after: int = 0, opening: bytes = b""
) -> EventStream:
    """Return a response that streams the run's events after the sequence number ``after``.

    ``after`` is exclusive; 0 starts at the first event. The caller must have acquired a stream slot
    for the request. ``opening`` is sent first.

    Raises:
        RunNotFoundError: the run does not exist.
    """
    batches = _while_allowed(
        request,
        request.service(RunService).follow(RunKey(request.caller.tenant, run_id), after=after),
    )
    return EventStream(run_id, await anext(batches, Batch(after)), batches, opening=opening)


async def stream_accepted(
    accept: Callable[[], Awaitable[Accepted]], request: ApiRequest, *, opens: bool = False
) -> EventStream:
    """Accept a run and return its events, from `Last-Event-ID` if the request is repeated.

    ``opens`` sends the event `run.accepted` first, which names the run, unless the request repeats
    one. The event has no ID, because it is not stored.
    """
    after = last_event_id(request.headers) or 0
    await request.service(EventStreams).enter(request.caller.tenant, request.scope)
    accepted = await accept()
    run_id = accepted.run.key.run_id
    opening = opening_event(accepted.run) if opens and not after else b""
    stream = await stream_of(run_id, request, after=after, opening=opening)
    stream.headers["Location"] = Links.of(run_id, request.root).self
    if accepted.rate is not None:
        stream.headers.update(rate_headers(accepted.rate))
    return stream


async def _while_allowed(request: ApiRequest, batches: Batches) -> Batches:
    """Forward batches until the caller's key or token is no longer valid."""
    async with aclosing(batches):
        async for batch in batches:
            await request.require_still(KeyScope.READ)
            yield batch
