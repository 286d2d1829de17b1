"""Stream the events of a run, and reconnect when the stream is interrupted.

Each event has a sequence number, ``seq``, from 1 without gaps. A connection can break at any byte,
and the service can be restarted at any moment. After a reconnect, the stream resumes after the last
number received, and duplicates are dropped. So every event is yielded exactly once, in order.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, unquote

import httpx

from caseworker_client.errors import ApiError
from caseworker_client.flow import Emit, Feed, ReadChunk, Request, Sleep, ask, fetch
from caseworker_client.models import Event, EventPage
from caseworker_client.settings import Patience, Settings

SILENCE_SECONDS: Final = 60.0
"""Maximum time, in seconds, without data from a stream; the service sends comments to keep it
open."""
LAST_SEQ: Final = 2**31 - 1
"""The maximum sequence number of an event."""


class SseParser:
    """Extracts the data of server-sent events from chunks of bytes split at any position.

    Incomplete events at the end of a stream are dropped.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of each event that is completed by this chunk."""
        # A chunk may end between "\\r" and "\\n", so a trailing "\\r" is held back.
        text = self._rest + chunk
        held = len(text) - 1 if text.endswith(b"\r") else len(text)
        *lines, rest = text[:held].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = rest + text[held:]
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                yield data


def stream_events(settings: Settings, run_id: str, *, after: int = 0) -> Feed[Event]:
    """Yield the events of a run after sequence number ``after``, in order, until the run ends.

    An interrupted stream is resumed without duplicates, after pauses that grow while no events
    arrive. ``Event.ends`` states whether an event ends the run.

    Raises:
        ServiceUnreachableError: the service was gone for ``RetryPolicy.reconnect_seconds``.
        ApiError: the service returned an error.
    """
    yield from _followed(settings, run_id, after, None)


def stream_answer(settings: Settings, posting: Request) -> Feed[Event]:
    """Yield the events of the run that ``posting`` creates and whose events its response streams.

    Raises:
        ServiceUnreachableError, ApiError: as for :func:`stream_events`.
    """
    yield from _followed(settings, "", 0, posting)


def _followed(settings: Settings, run_id: str, after: int, posting: Request | None) -> Feed[Event]:
    """Yield events after ``after``; ``posting`` opens the first stream and determines the run."""
    patience = Patience(settings.retry)
    ended = False
    while not ended:
        seen = after
        request = posting or stream_request(run_id, after, timeout_seconds=SILENCE_SECONDS)
        response = yield from ask(settings, request, patience, stream=True)
        if posting is not None:
            run_id, posting = _run_of(response), None
        parser = SseParser()
        while (chunk := (yield ReadChunk())) is not None:
            for data in parser.feed(chunk):
                event = Event.model_validate_json(data)
                if event.seq > after:
                    after, ended = event.seq, ended or event.ends
                    yield Emit(event)
        if after > seen:
            patience.progressed()
        elif not ended:  # no events: the run may have ended before ``after``
            page = yield from fetch(settings, _page_request(run_id, after), EventPage, patience)
            if page.next_after is None and not page.events:
                return
        if not ended:
            yield Sleep(patience.pause())


def _run_of(response: httpx.Response) -> str:
    """Return the run ID in the Location header of a response."""
    run_id = unquote(response.headers.get("location", "").rpartition("/")[2])
    if not run_id:
        problem = {"title": "This is not an answer of Caseworker", "detail": "It names no run."}
        raise ApiError(response.status_code, problem)
    return run_id


def stream_request(run_id: str, after: int, *, timeout_seconds: float) -> Request:
    """Return the request that streams the events after a sequence number."""
    return Request(
        method="GET",
        path=_path(run_id),
        headers={"Accept": "text/event-stream", "Last-Event-ID": str(after)},
        timeout_seconds=timeout_seconds,
    )


def _page_request(run_id: str, after: int) -> Request:
    return Request(
        method="GET",
        path=_path(run_id),
        params={"after": str(after), "limit": "1"},
        headers={"Accept": "application/json"},
    )


def _path(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='')}/events"
