"""Limits of connections for size and waiting time, tested over real sockets."""

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from caseworker.platform.http.problems import URN
from tests.support.api import Api, client_of
from tests.support.limits import api_limits
from tests.support.served import Served, Talk, served
from tests.support.stores import eventually
from tests.support.tenants import OPERATOR_KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")


PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = (
    b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)
SOON = {"head_seconds": 0.2, "rate_seconds": 0.2}


def problem(said: bytes) -> tuple[int, str]:
    """Return status and type of a problem document, and check that it has the request ID."""
    head, _, body = said.partition(b"\r\n\r\n")
    lines = [line.partition(b": ") for line in head.split(b"\r\n")[1:]]
    headers = {name.lower().decode(): text.decode() for name, _, text in lines}
    document: dict[str, Any] = json.loads(body)
    assert headers["content-type"] == "application/problem+json"
    assert headers["x-request-id"] == document["request_id"]
    assert headers["connection"] == "close"
    status = int(said.split(b" ")[1])
    assert document["status"] == status
    return status, document["type"].removeprefix(URN)


@pytest_asyncio.fixture(loop_scope="module")
async def hasty(api: Api) -> AsyncIterator[Served]:
    """Run a server with short timeouts."""
    async with served(api.app(), **SOON) as server:
        yield server


@pytest.mark.parametrize(
    "request_of",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 1_000_000,
        b"GET /" + b"a" * 1_000_000,
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"x-aaa: b\r\n" * 101 + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 33_000 + b"\r\n\r\n",
        b"POST /runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: "
        + b"a" * 1_000_000,
    ],
    ids=["a header", "a URL", "many headers", "a whole header", "a trailer"],
)
async def test_a_head_that_is_too_large_is_refused_before_it_is_whole(
    request_of: bytes, api: Api
) -> None:
    """The server does not buffer the oversized head."""
    async with served(api.app()) as server:
        assert problem(await server.ask(request_of)) == (431, "head-too-large")


async def test_a_usual_request_with_a_long_body_is_not_taken_for_a_long_head(api: Api) -> None:
    """Only the head counts against the limit, in whatever pieces it arrives."""
    body = json.dumps({"input": "2+2?", "metadata": {"a": "x" * 15_000}}).encode()
    async with served(api.app()) as server:
        talk = await server.connect((POST % len(body) + body) * 4)
        answers = [await talk.answer() for _ in range(4)]

    assert all(answer.startswith(b"HTTP/1.1 202") for answer in answers)


async def test_what_is_no_http_is_answered_with_a_problem_document(hasty: Served) -> None:
    """The server itself answers with a problem document before any route."""
    assert problem(await hasty.ask(b"\x16\x03\x01 hello\r\n\r\n")) == (400, "malformed-request")


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-",
        POST % 100 + b"{",
        POST.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") + b"1\r\n{\r\n",
    ],
    ids=["a head", "a body", "a chunked body"],
)
async def test_a_request_that_does_not_go_on_is_ended(hasty: Served, begun: bytes) -> None:
    """The client gets a 408 with a problem document."""
    assert problem(await hasty.ask(begun)) == (408, "request-timeout")


@pytest.mark.parametrize("begun", [b"", b"\r\n"], ids=["nothing", "an empty line"])
async def test_a_connection_that_asks_nothing_is_closed(hasty: Served, begun: bytes) -> None:
    """The connection closes without an answer, because there is no request to answer."""
    assert await hasty.ask(begun) == b""


@pytest.mark.parametrize(
    ("more", "status"), [(b"\r\n", None), (b"GET /healthz HTTP/1.1\r\nX-", 408)]
)
async def test_a_connection_that_was_answered_waits_no_longer_for_the_next_head(
    hasty: Served, more: bytes, status: int | None
) -> None:
    """Bytes after an answer stop the timer of the idle connection, so another one must start."""
    talk = await hasty.connect(PROBE)
    await talk.answer()
    await talk.send(more)
    async with asyncio.timeout(60):
        said = await talk.rest()

    assert (problem(said)[0] if said else None) == status


async def test_dribbling_does_not_keep_a_connection_open(hasty: Served) -> None:
    """A byte now and then is too slow for a head and for a body."""
    for begun in (b"GET /healthz HTTP/1.1\r\nX-A: ", POST % 10_000):
        talk = await hasty.connect(begun)
        dribble = asyncio.create_task(drip(talk))
        said = await talk.rest()
        dribble.cancel()
        assert problem(said) == (408, "request-timeout")


async def drip(talk: Talk) -> None:
    while True:
        await talk.send(b"a")
        await asyncio.sleep(0.02)


async def test_a_body_that_nobody_reads_does_not_keep_a_connection_open(hasty: Served) -> None:
    """The route has already answered, so the server does not wait for the rest of the body."""
    said = await hasty.ask(PROBE.replace(b"\r\n\r\n", b"\r\nContent-Length: 100\r\n\r\n{"))

    assert said.startswith(b"HTTP/1.1 200")


async def test_a_body_that_comes_slowly_but_fast_enough_is_read(api: Api) -> None:
    """Only the rate of a body is limited: one byte a second is enough here."""
    body = json.dumps({"input": "2+2?", "metadata": {"a": "x" * 5_000}}).encode()
    async with served(api.app(), rate_seconds=1, bytes_per_second=1) as server:
        talk = await server.connect(POST % len(body))
        for start in range(0, len(body), 500):
            await talk.send(body[start : start + 500])
            await asyncio.sleep(0.2)
        answer = await talk.answer()

    assert answer.startswith(b"HTTP/1.1 202")


async def test_a_client_that_does_not_read_is_cut_off(api: Api) -> None:
    """The server would otherwise buffer many answers for it."""
    async with served(api.app(), rate_seconds=0.2) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with suppress(ConnectionError):
            while reader.exception() is None:
                writer.write(ask)
                await writer.drain()
                await asyncio.sleep(0.001)
        writer.close()


async def test_requests_that_are_sent_without_waiting_are_limited(api: Api) -> None:
    """A few pipelined requests wait and are answered in order."""
    async with served(api.app()) as server:
        talk = await server.connect(PROBE * 4)
        answers = [await talk.answer() for _ in range(4)]
        flood = await server.ask(PROBE * 1000)

    assert all(b"alive" in answer for answer in answers)
    assert flood.count(b"alive") <= 5


async def test_an_idle_connection_makes_room_for_a_new_one(api: Api) -> None:
    """The oldest idle connection closes, so idle clients cannot block new ones."""
    async with served(api.app(), max_connections=3) as server:
        idle = [await server.connect() for _ in range(3)]
        said = await (await server.connect(PROBE)).answer()
        first = await idle[0].rest()

    assert said.startswith(b"HTTP/1.1 200")
    assert first == b""


async def test_unidentified_connections_keep_no_caller_out(api: Api) -> None:
    """Unidentified connections use at most nine tenths, and a new one replaces the oldest."""
    async with served(api.app(bootstrap_key=OPERATOR_KEY), max_connections=10) as server:
        held = [await server.connect(POST % 100 + b"{") for _ in range(30)]
        asked = PROBE.replace(b"/healthz", b"/runs").replace(
            b"\r\n\r\n", b"\r\nAuthorization: Bearer %s\r\n\r\n" % OPERATOR_KEY.encode()
        )
        said = await (await server.connect(asked)).answer()
        ended = [await each.rest() for each in held[:20]]

    assert said.startswith(b"HTTP/1.1 200")
    assert not any(b"too-many-connections" in each for each in ended)


async def test_bodies_that_do_not_end_are_limited_together(api: Api) -> None:
    """Each body is within its own limit, but the process limits the total of all bodies."""
    half = b'{"input": "' + b"a" * 150_000
    async with served(api.app(limits=api_limits(max_bodies_bytes=400_000))) as server:
        held = [await server.connect(POST % 250_000 + half) for _ in range(3)]
        answers = [asyncio.create_task(each.answer()) for each in held]
        [refused], open_ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert b"too-many-bodies" in refused.result()
        for answer in open_:
            answer.cancel()
        await asyncio.wait(open_)
        for each in held:
            await each.close()
        body = b'{"input": "' + b"2" * 150_000 + b'"}'

        async def accepted() -> bool:
            answer = await (await server.connect(POST % len(body) + body)).answer()
            return b"too-many-bodies" not in answer

        await eventually(accepted)


async def test_a_body_that_comes_in_crumbs_counts_what_it_takes(api: Api) -> None:
    """Memory is counted, which is many times the length of such a body."""

    async def crumbs() -> AsyncIterator[bytes]:
        for _ in range(10_000):
            yield b"  "

    async with client_of(api.app(limits=api_limits(max_bodies_bytes=100_000))) as client:
        headers = {"content-type": "application/json"}
        refused = await client.post("/runs", content=crumbs(), headers=headers)
        whole = await client.post(
            "/runs", content=b'{"input": "2+2?"}' + b" " * 20_000, headers=headers
        )

    assert refused.json()["type"] == f"{URN}too-many-bodies"
    assert whole.status_code == 202


async def test_what_holding_connections_costs_is_bounded(api: Api) -> None:
    """Three hundred unfinished heads of the maximum size stay within the memory limit."""
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 30_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with served(api.app()) as server:
        for _ in range(300):
            await server.connect(head)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert grown_kib < 100_000
