"""The deadline of a request: a response in time, whatever its handler waits for."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from caseworker.platform.http.application import RequestEnvelope
from caseworker.platform.http.deadline import DEADLINE, extend_deadline, paused_deadline

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

SECONDS = 0.05


async def reply_of(handler: Handler, *, max_seconds: float | None = SECONDS) -> httpx.Response:
    """Return the response to a request that ``handler`` answers."""

    async def started(scope: Scope, receive: Receive, send: Send) -> None:
        extend_deadline(scope)
        await handler(scope, receive, send)

    app = RequestEnvelope(started, hosts=None, max_seconds=max_seconds)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
        return await http.get("/runs")


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("done")(scope, receive, send)


async def test_a_handler_that_waits_for_the_database_is_cancelled() -> None:
    """The client gets 503, which names the database and the setting."""
    cancelled = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    reply = await reply_of(waits)

    assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
    assert reply.json()["code"] == "store-unavailable"
    assert "server.request_timeout_seconds" in reply.json()["detail"]
    assert "database" in reply.json()["detail"]
    assert reply.headers["x-request-id"] == reply.json()["request_id"]
    assert cancelled.is_set()


async def test_the_response_does_not_wait_for_a_write_that_finishes_first() -> None:
    """The late response of the handler is dropped."""
    released, sent = asyncio.Event(), list[object]()

    async def writes(scope: Scope, receive: Receive, send: Send) -> None:
        extend_deadline(scope)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await released.wait()
            await answer(scope, receive, send)

    async def noted(message: dict[str, object]) -> None:
        sent.append(message.get("status", message["type"]))
        released.set()

    app = RequestEnvelope(writes, hosts=None, max_seconds=SECONDS)
    request = {"method": "GET", "path": "/", "headers": [], "query_string": b""}
    scope = {"type": "http", "http_version": "1.0", **request}
    await app(scope, asyncio.Event().wait, noted)  # type: ignore[arg-type]

    assert sent == [503, "http.response.body"]


@pytest.mark.parametrize("how", ["none", "extended", "paused", "lifted", "not silent"])
async def test_a_request_that_may_take_longer_is_not_interrupted(how: str) -> None:
    """A body in transfer, a wait for a run and a model call may exceed the deadline."""

    async def takes_longer(scope: Scope, receive: Receive, send: Send) -> None:
        if how == "extended":
            extend_deadline(scope, 100)
        elif how == "paused":
            with paused_deadline(scope):
                await asyncio.sleep(2 * SECONDS)
            await answer(scope, receive, send)
            return
        elif how == "lifted":
            scope[DEADLINE].lift()
            extend_deadline(scope)  # has no effect any more
        elif how == "not silent":
            scope[DEADLINE].count_only(lambda: 0.0)
        await asyncio.sleep(3 * SECONDS)
        await answer(scope, receive, send)

    reply = await reply_of(takes_longer, max_seconds=None if how == "none" else SECONDS)

    assert (reply.status_code, reply.text) == (200, "done")


async def test_a_response_that_has_started_is_not_interrupted() -> None:
    """Streams may last as long as their run."""

    async def streams(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(3 * SECONDS)
        await send({"type": "http.response.body", "body": b"late"})

    reply = await reply_of(streams)

    assert (reply.status_code, reply.text) == (200, "late")


async def test_a_call_is_refused_once_the_database_is_silent_for_too_long() -> None:
    """Only the time without progress counts, and the refusal has the form of the route."""
    asked = list[float]()

    def silent_seconds() -> float:
        asked.append(len(asked) * SECONDS / 2)
        return asked[-1]

    async def calls(scope: Scope, receive: Receive, send: Send) -> None:
        scope[DEADLINE].count_only(silent_seconds)
        scope[DEADLINE].form = lambda problem: PlainTextResponse(problem.kind.title, 503)
        await asyncio.Event().wait()

    reply = await reply_of(calls)

    assert (reply.status_code, reply.text) == (503, "Database unavailable")
    assert len(asked) == 3
