"""GET /runs/{id}/events: a stream that can be taken up anywhere, or a page."""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.execute.postgres.runs import PostgresRuns
from caseworker.runs.http import event_stream
from caseworker.runs.journal.journal import EventLog, run_ended
from caseworker.runs.ports import JournalWrite
from caseworker.runs.run import EventRecord, RunKey, RunStatus
from tests.support.api import Api, client_of
from tests.support.asgi_calls import parsed, streamed
from tests.support.limits import api_limits
from tests.support.runs import run_service
from tests.support.stores import end_of, new_run

pytestmark = pytest.mark.asyncio(loop_scope="module")


KEY = RunKey("default", "a")
AT = datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
PAGE = {"Accept": "application/json"}


@pytest.fixture
def app(api: Api) -> FastAPI:
    return api.app()


@pytest_asyncio.fixture(loop_scope="module")
async def client(app: FastAPI, api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client, with a run that a worker has claimed."""
    async with client_of(app) as client:
        await client.post("/runs", json={"run_id": "a", "input": "2+2?"})
        assert await api.store.claim(KEY, "worker") is not None
        yield client


async def tell(api: Api, *numbers: int, **values: Any) -> None:
    events = tuple(
        EventRecord(seq=number, ts=AT, type="text.delta", **values) for number in numbers
    )
    await api.journal.write(JournalWrite(key=KEY, fence=1, events=events))


async def end(api: Api, last_seq: int) -> None:
    run = await api.store.get(KEY)
    assert run is not None
    told = EventLog(last_seq=last_seq).followed_by(run_ended(RunStatus.COMPLETED, "success", None))
    await api.journal.finish(end_of(run, events=told))


def numbers(events: list[dict[str, Any]]) -> list[int]:
    return [event["seq"] for event in events]


async def test_an_event_is_sent_with_its_number_its_type_and_its_envelope(
    app: FastAPI, client: httpx.AsyncClient, api: Api
) -> None:
    """Events follow the format of server-sent events, and line breaks in the data stay intact."""
    await tell(api, 1, step_id="a/b", node_id="n000002", data={"text": "one\n\ntwo\u2028three"})
    await end(api, 1)

    answer = await client.get("/runs/a/events")

    first, last = [parsed(block) for block in answer.text.split("\n\n")[:-1]]
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert (first["id"], first["event"]) == ("1", "text.delta")
    assert (last["id"], last["event"]) == ("2", "run.completed")
    async with streamed(app, "/runs/a/events") as call:
        event = (await call.ended())[0]
    assert event == {
        "run_id": "a",
        "seq": 1,
        "ts": "2026-01-01T12:00:00.250000Z",
        "type": "text.delta",
        "step_id": "a/b",
        "node_id": "n000002",
        "data": {"text": "one\n\ntwo\u2028three"},
    }


async def test_a_stream_shows_what_happens_while_it_happens_and_ends_with_the_run(
    app: FastAPI, client: httpx.AsyncClient, api: Api
) -> None:
    """Every event arrives once, in order."""
    await tell(api, 1)
    async with streamed(app, "/runs/a/events") as call:
        assert numbers(await call.seen(1)) == [1]
        await tell(api, 2, 3)
        assert numbers(await call.seen(3)) == [1, 2, 3]
        await end(api, 3)
        assert [event["type"] for event in await call.ended()][3:] == ["run.completed"]
    assert numbers(call.events()) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("query", "headers", "expected"),
    [
        ("", {}, [1, 2, 3]),
        ("?after=1", {}, [2, 3]),
        ("", {"Last-Event-ID": "2"}, [3]),
        ("?after=1", {"Last-Event-ID": "2"}, [3]),
    ],
)
async def test_a_stream_is_taken_up_where_it_broke_off(
    app: FastAPI,
    client: httpx.AsyncClient,
    api: Api,
    query: str,
    headers: Mapping[str, str],
    expected: list[int],
) -> None:
    """The header ``Last-Event-ID`` of a browser overrides the position in the URL."""
    await tell(api, 1, 2)
    await end(api, 2)

    async with streamed(app, f"/runs/a/events{query}", headers) as call:
        assert numbers(await call.ended()) == expected


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("", {"Last-Event-ID": "3"}, 204),
        ("?after=1", {"Last-Event-ID": "3"}, 204),
        ("", {"Last-Event-ID": "9999999999"}, 204),
        ("?after=3", {}, 204),
        ("?after=2147483647", {}, 204),
        ("?after=3", {"Last-Event-ID": "2"}, 200),
        ("?after=3", PAGE, 200),
    ],
)
async def test_a_stream_without_a_further_event_tells_browsers_not_to_reconnect(
    client: httpx.AsyncClient, api: Api, query: str, headers: Mapping[str, str], status: int
) -> None:
    """An EventSource reconnects after the end of every stream, except after 204."""
    await tell(api, 1, 2)
    live = await client.head("/runs/a/events", headers={"Last-Event-ID": "2"})
    await end(api, 2)

    answer = await client.get(f"/runs/a/events{query}", headers=headers)

    assert (live.status_code, answer.status_code) == (200, status)
    assert (status == 204) is not ("content-type" in answer.headers)


async def test_the_first_event_says_when_to_reconnect(
    app: FastAPI, client: httpx.AsyncClient, api: Api
) -> None:
    """The field belongs to the event, so that no client takes it for an event without data."""
    async with streamed(app, "/runs/a/events") as call:
        await tell(api, 1)
        await call.seen(1)
        await tell(api, 2)
        await call.seen(2)
        blocks = [parsed(block) for block in call.body.decode().split("\n\n")[:-1]]

    assert [block.get("retry") for block in blocks if "data" in block] == ["2000", None]


async def test_a_page_holds_as_many_as_are_asked_for_and_says_where_to_go_on(
    client: httpx.AsyncClient, api: Api
) -> None:
    """Each page gives the next cursor until the run has ended and all events are read."""
    await tell(api, 1, 2, 3)
    queries = {"limit": 2}, {"after": 2, "limit": 2}
    pages = [
        (await client.get("/runs/a/events", params=query, headers=PAGE)).json() for query in queries
    ]
    await end(api, 3)
    last = await client.get("/runs/a/events", params={"after": 3}, headers=PAGE)
    over = await client.get("/runs/a/events", params={"after": 4}, headers=PAGE)

    assert [numbers(page["events"]) for page in pages] == [[1, 2], [3]]
    assert [page["next_after"] for page in pages] == [2, 3]
    assert last.headers["content-type"] == "application/json"
    assert (numbers(last.json()["events"]), last.json()["next_after"]) == ([4], None)
    assert over.json() == {"events": [], "next_after": None}


@pytest.mark.parametrize("headers", [{}, PAGE])
async def test_a_run_that_the_caller_does_not_have_has_no_events(
    client: httpx.AsyncClient, api: Api, headers: Mapping[str, str]
) -> None:
    """A missing run, an early cancel request and another tenant's run get a 404, not a stream."""
    await client.delete("/runs/early")
    await api.store.accept(new_run("b", tenant="other"), worker_id=None)
    for run_id in ("nobody", "early", "b"):
        answer = await client.get(f"/runs/{run_id}/events", headers=headers)
        assert answer.status_code == 404
        assert answer.json()["type"] == "urn:caseworker:problem:run-not-found"


@pytest.mark.parametrize(
    ("query", "headers", "field"),
    [
        ("after=-1", {}, "after"),
        ("after=2147483648", {}, "after"),
        ("after=x", {}, "after"),
        ("limit=0", PAGE, "limit"),
        ("limit=1001", PAGE, "limit"),
        ("from=1", {}, "from"),
        ("", {"Last-Event-ID": "x"}, "Last-Event-ID"),
        ("", {"Last-Event-ID": "-1"}, "Last-Event-ID"),
        ("", {"Last-Event-ID": ""}, "Last-Event-ID"),
    ],
)
async def test_a_place_that_is_none_is_refused(
    client: httpx.AsyncClient, query: str, headers: Mapping[str, str], field: str
) -> None:
    """The answer is 422 and names the field."""
    answer = await client.get(f"/runs/a/events?{query}", headers=headers)

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]


async def test_streams_are_bounded_and_give_their_places_back(api: Api) -> None:
    """A slot is released when the client hangs up, the run ends or no run exists."""
    app = api.app(limits=api_limits(max_event_streams=3))
    async with client_of(app) as client:
        await client.post("/runs", json={"run_id": "a", "input": "2+2?"})
        await api.store.claim(KEY, "worker")
        for _ in range(5):
            assert (await client.get("/runs/nobody/events")).status_code == 404
        async with streamed(app, "/runs/a/events") as first:
            await first.answered()
            async with streamed(app, "/runs/a/events") as second:
                await second.answered()
                refused = await client.get("/runs/a/events")
                page = await client.get("/runs/a/events", headers=PAGE)
            async with streamed(app, "/runs/a/events") as third:
                assert await third.answered() == 200
                await end(api, 0)
                assert numbers(await third.ended()) == [1]
        for _ in range(3):
            assert (await client.get("/runs/a/events")).status_code == 200

    assert refused.status_code == 429
    assert refused.json()["type"] == "urn:caseworker:problem:too-many-streams"
    assert int(refused.headers["retry-after"]) > 0
    assert page.status_code == 200


async def test_a_client_that_hangs_up_is_not_followed_any_more(
    app: FastAPI, client: httpx.AsyncClient, api: Api
) -> None:
    """The stream removes its listener when its client hangs up."""
    async with streamed(app, "/runs/a/events") as call:
        await call.answered()
        assert len(api.journal.notifier._listeners) == 1
        await call.hang_up()
        assert api.journal.notifier._listeners == {}


async def test_the_end_of_the_process_ends_every_stream(api: Api) -> None:
    """The stream ends cleanly at once, so that the client can reconnect to another replica."""
    runs = run_service(api.store)
    app = api.app(runs)
    async with client_of(app) as client:
        await client.post("/runs", json={"run_id": "a", "input": "2+2?"})
        async with streamed(app, "/runs/a/events") as call:
            await call.answered()
            runs.stop_waiting()
            assert await call.ended() == []


async def test_a_stream_that_has_nothing_to_say_shows_that_it_lives(
    app: FastAPI, client: httpx.AsyncClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle stream sends comments, which clients ignore."""
    monkeypatch.setattr(event_stream, "HEARTBEAT_SECONDS", 0.0)
    async with streamed(app, "/runs/a/events") as call:
        await call.answered()
        await tell(api, 1)
        await call.seen(1)
        await end(api, 1)
        await call.ended()

    assert call.body.startswith(b": ping\n\n")
    assert numbers(call.events()) == [1, 2]


async def test_a_database_that_goes_away_ends_a_stream_and_refuses_the_next(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refused client gets ``Retry-After`` and can reconnect with its last sequence number."""
    app = api.app()
    async with client_of(app) as client:
        await client.post("/runs", json={"run_id": "a", "input": "2+2?"})
        await api.store.claim(KEY, "worker")
        await tell(api, 1)
        async with streamed(app, "/runs/a/events") as call:
            await call.seen(1)
            monkeypatch.setattr(
                PostgresRuns, "events", AsyncMock(side_effect=StoreUnavailableError)
            )
            api.journal.notifier.notify(KEY)
            assert numbers(await call.ended()) == [1]
        refused = await client.get("/runs/a/events", headers={"Last-Event-ID": "1"})

    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0


async def test_a_run_says_where_its_events_are(client: httpx.AsyncClient) -> None:
    """The links of a run include its events."""
    run = (await client.get("/runs/a")).json()

    assert run["links"]["events"] == "/runs/a/events"


async def test_a_process_that_closes_answers_with_an_empty_stream(api: Api) -> None:
    """The client can reconnect to another replica."""
    runs = run_service(api.store)
    async with client_of(api.app(runs)) as client:
        await client.post("/runs", json={"run_id": "a", "input": "2+2?"})
        runs.stop_waiting()
        answer = await client.get("/runs/a/events")

    assert answer.status_code == 200
    assert parsed(answer.text.strip()).get("event") is None
