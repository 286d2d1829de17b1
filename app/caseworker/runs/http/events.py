"""Routes for events: follow a run live, or read its events later."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated

from fastapi import Query, Response

from caseworker.platform.caller import KeyScope
from caseworker.platform.http.openapi import EVERY_RUN_ROUTE, answers
from caseworker.platform.http.request import ApiRequest, api_router
from caseworker.runs.http.event_stream import (
    EVENT_HEADERS,
    Batches,
    EventsPage,
    EventsQuery,
    EventStream,
    EventStreams,
    last_event_id,
    opening_event,
    wants_page,
)
from caseworker.runs.http.fields import RunIdPath
from caseworker.runs.http.openapi import EVENT_STREAM
from caseworker.runs.http.problems import RUN_NOT_FOUND, TOO_MANY_STREAMS, rate_headers
from caseworker.runs.http.views import Links
from caseworker.runs.ports import Accepted
from caseworker.runs.read.event_followers import Batch
from caseworker.runs.run import RunKey
from caseworker.runs.service import RunService

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

    The caller must have acquired a stream slot for the request. ``opening`` is sent first.
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
