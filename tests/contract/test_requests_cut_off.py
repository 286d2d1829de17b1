"""Requests that are under way when their process ends."""

import asyncio
from unittest.mock import AsyncMock

import httpx
import pytest

from caseworker.runs.execute.postgres.runs import PostgresRuns
from tests.support.api import Api, client_of
from tests.support.asgi_calls import streamed

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_request_that_the_end_of_a_process_cuts_off_is_told_to_come_again(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets a 503 problem document instead of the server's own 500."""
    monkeypatch.setattr(PostgresRuns, "get", AsyncMock(side_effect=asyncio.CancelledError))
    answer = await client.get("/runs/a")

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"].endswith("store-unavailable")


async def test_a_stream_that_the_end_of_a_process_cuts_off_has_ended(api: Api) -> None:
    """The client reconnects to another replica, and no application error is logged."""
    app = api.app()
    async with client_of(app) as client:
        await client.post("/runs", json={"run_id": "a", "input": "2+2?"})
        async with streamed(app, "/runs/a/events") as stream:
            assert (await stream.answered(), stream.whole) == (200, False)
            stream.task.cancel()
            await stream.ended()
            assert stream.whole
