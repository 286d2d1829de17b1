"""Streams of server-sent events: how many may be open, and how one is sent."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import structlog
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import TypeAdapter
from starlette.types import Receive, Scope, Send

from app.api.event_views import EventView
from app.api.problem_types import TOO_MANY_STREAMS
from app.api.problems import ProblemError
from app.runs.errors import RunNotFoundError, StoreUnavailableError
from app.runs.run import EventRecord

log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 15.0
"""How long a stream may say nothing; then a comment shows that it lives."""

Batches = AsyncGenerator[Sequence[EventRecord], None]

_EVENT = TypeAdapter(EventView)


class OpenStreams:
    """Counts the open streams of this process, and refuses more than it admits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = 0

    def enter(self) -> None:
        """Count a stream that is about to be opened.

        Raises:
            ProblemError: too many are open.
        """
        if self._open >= self._limit:
            raise ProblemError(TOO_MANY_STREAMS)
        self._open += 1

    def leave(self) -> None:
        """Forget a stream that is over."""
        self._open -= 1


class EventStream(EventSourceResponse):
    """The events of a run as they come, in batches of which the first was read already.

    It ends with the batches, or when its client is gone, and leaves ``streams`` then.
    """

    def __init__(
        self,
        run_id: str,
        first: Sequence[EventRecord],
        rest: Batches,
        streams: OpenStreams,
    ) -> None:
        super().__init__(_sent(run_id, first, rest), headers={"X-Accel-Buffering": "no"})
        self._rest = rest
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is until it ends."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.leave()
            await self._rest.aclose()


async def _sent(run_id: str, first: Sequence[EventRecord], rest: Batches) -> AsyncIterator[bytes]:
    """Yield what is sent; a database that goes away ends it, and the client comes again."""
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
    except (StoreUnavailableError, RunNotFoundError) as error:
        log.warning("events.cut_off", error=type(error).__name__)


def _lines(run_id: str, batch: Sequence[EventRecord]) -> bytes:
    return b"".join(
        format_sse_event(data_str=_json(run_id, record), event=record.type, id=str(record.seq))
        for record in batch
    )


def _json(run_id: str, record: EventRecord) -> str:
    """Return an event as ASCII: some clients break lines at U+2028 and the like."""
    return _EVENT.dump_json(EventView.of(run_id, record), ensure_ascii=True).decode()
