"""Requests that are under way when their process ends."""

import asyncio

from app.runs.run import Run, RunKey
from tests.support.asgi_calls import streamed
from tests.support.memory_api import client_of, memory_api
from tests.support.memory_runs import MemoryRuns


class SilentStore(MemoryRuns):
    """Says nothing until the server, which has no more time to wait, cuts the request off."""

    async def get(self, key: RunKey) -> Run | None:
        raise asyncio.CancelledError


async def test_a_request_that_the_end_of_a_process_cuts_off_is_told_to_come_again() -> None:
    """503 as a problem document, and not the server's own 500."""
    async with client_of(memory_api(SilentStore())) as client:
        answer = await client.get("/runs/a")

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"].endswith("store-unavailable")


async def test_a_stream_that_the_end_of_a_process_cuts_off_has_ended() -> None:
    """Its client comes again elsewhere, as after every end; it is no error of the application."""
    app = memory_api(MemoryRuns())
    async with client_of(app) as client:
        await client.post("/runs", json={"run_id": "a", "input": "2+2?"})
        async with streamed(app, "/runs/a/events") as stream:
            assert (await stream.answered(), stream.whole) == (200, False)
            stream.task.cancel()
            await stream.ended()
            assert stream.whole
