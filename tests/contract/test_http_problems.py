"""Every error is a problem document, and no input makes a 5xx (proofs, row 17)."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caseworker.main.features import PROBLEM_TYPES
from caseworker.runs.execute.postgres.runs import PostgresRuns
from tests.support.api import Api, client_of
from tests.support.limits import api_limits

pytestmark = pytest.mark.asyncio(loop_scope="module")


CANARY = "canary-7d1e42b9"
JSON = {"content-type": "application/json"}
URIS = {kind.uri: kind for kind in PROBLEM_TYPES}
SMALL = api_limits(max_body_bytes=4096, max_graph_bytes=0)


@pytest_asyncio.fixture(loop_scope="module")
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(api.app(limits=SMALL)) as client:
        yield client


def assert_problem(answer: httpx.Response, slug: str | None = None) -> None:
    """Check the format that all errors share."""
    document = answer.json()
    assert answer.status_code >= 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == document["request_id"]
    kind = URIS[document["type"]]
    assert (document["status"], document["title"]) == (answer.status_code, kind.title)
    assert document["detail"]
    assert kind.status == answer.status_code
    assert CANARY not in answer.text
    if slug is not None:
        assert kind.slug == slug


@pytest.mark.parametrize(
    ("method", "path", "status", "slug"),
    [
        ("GET", "/", 404, "route-not-found"),
        ("GET", f"/{CANARY}", 404, "route-not-found"),
        ("GET", "/runs/", 404, "route-not-found"),
        ("GET", "/runs/a/trace/", 404, "route-not-found"),
        ("GET", f"/runs/a%2F{CANARY}", 404, "route-not-found"),
        ("GET", "/runs/a", 404, "run-not-found"),
        ("PUT", "/runs", 405, "method-not-allowed"),
        ("GET", "/runs/a/cancel", 405, "method-not-allowed"),
        ("POST", "/docs", 405, "method-not-allowed"),
        ("DELETE", "/healthz", 405, "method-not-allowed"),
    ],
)
async def test_what_is_not_there_is_a_problem_document(
    client: httpx.AsyncClient, method: str, path: str, status: int, slug: str
) -> None:
    """This includes errors that the framework returns before any route."""
    answer = await client.request(method, path)

    assert answer.status_code == status
    assert_problem(answer, slug)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/runs", "GET, HEAD, POST"),
        ("PUT", "/runs/a", "DELETE, GET, HEAD"),
        ("GET", "/runs/a/cancel", "POST"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
async def test_a_refused_method_names_those_that_work(
    client: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    """The header lists the methods of all routes with this path."""
    assert (await client.request(method, path)).headers["allow"] == allowed


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        (b"", 422, "invalid-request"),
        (b" ", 400, "malformed-body"),
        (b"[]", 422, "invalid-request"),
        (b'"text"', 422, "invalid-request"),
        (b"5", 422, "invalid-request"),
        (b"null", 422, "invalid-request"),
        (b"{", 400, "malformed-body"),
        (b'{"input": "x"} x', 400, "malformed-body"),
        (b'{"input": "x", "input": "y"}', 400, "malformed-body"),
        (b'{"input": "x", "seed": NaN}', 400, "malformed-body"),
        (b'{"input": "x", "budget": {"max_seconds": Infinity}}', 400, "malformed-body"),
        (b'{"input": "x", "budget": {"max_seconds": 1e999}}', 400, "malformed-body"),
        (b'{"input": "x", "metadata": {"n": ' + b"9" * 3000 + b"}}", 400, "malformed-body"),
        (b'{"input": "x", "seed": 9223372036854775808}', 400, "malformed-body"),
        (
            b'{"input": "x", "metadata": ' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"}",
            400,
            "malformed-body",
        ),
        (b"[" * 4000, 400, "malformed-body"),
        (b'{"input": "\xff"}', 400, "malformed-body"),
        (b'{"input": "\xed\xa0\x80"}', 400, "malformed-body"),
        (b'\xef\xbb\xbf{"input": "x"}', 400, "malformed-body"),
        ('{"input": "x"}'.encode("utf-16"), 400, "malformed-body"),
        (b'{"input": "\\u0000"}', 422, "invalid-request"),
        (b'{"input": "\\ud800"}', 422, "invalid-request"),
        (b'{"input": "x", "metadata": {"\\u0000": 1}}', 422, "invalid-request"),
        (b'{"input": "x", "gold_answer": "\\udfff"}', 422, "invalid-request"),
        (b'{"input": "' + b"x" * 5000 + b'"}', 413, "body-too-large"),
    ],
)
async def test_a_hostile_body_is_a_clean_refusal(
    client: httpx.AsyncClient, body: bytes, status: int, slug: str
) -> None:
    """No part of the body reaches the service."""
    answer = await client.post("/runs", content=body, headers=JSON)

    assert answer.status_code == status
    assert_problem(answer, slug)
    assert (await client.get("/runs")).json()["runs"] == []


async def test_a_body_without_a_length_is_read_up_to_the_limit(client: httpx.AsyncClient) -> None:
    """A chunked body costs at most the limit."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'{"input": "'
        while True:
            sent += 1024
            yield b"x" * 1024

    answer = await client.post("/runs", content=endless(), headers=JSON)

    assert "content-length" not in answer.request.headers
    assert_problem(answer, "body-too-large")
    assert sent <= 4096 + 1024


async def test_a_body_that_says_it_is_too_large_is_not_read_at_all(
    client: httpx.AsyncClient,
) -> None:
    """A body of 60 MB is refused by its Content-Length."""
    asked = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal asked
        asked = True
        yield b"{}"

    for length in ("60000000", "9" * 5000):
        headers = {**JSON, "content-length": length}
        assert_problem(
            await client.post("/runs", content=body(), headers=headers), "body-too-large"
        )
    assert not asked


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/jsonx"},
        {"content-type": ""},
        {"content-type": "application/json;" * 500},
        {**JSON, "content-encoding": "gzip"},
        {**JSON, "content-encoding": "identity, gzip"},
        {**JSON, "content-encoding": CANARY},
    ],
)
async def test_only_plain_json_is_read(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """Every route with a body answers 415, because decompressed bodies have no size limit."""
    for method, path in (("POST", "/runs"), ("DELETE", "/runs/a"), ("POST", "/runs/a/cancel")):
        answer = await client.request(method, path, content=b'{"input": "x"}', headers=headers)
        assert_problem(answer, "unsupported-media-type")


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        'Application/JSON;charset="UTF-8"',
        "application/merge-patch+json",
    ],
)
async def test_json_may_be_named_in_every_usual_way(
    client: httpx.AsyncClient, content_type: str
) -> None:
    """Media types are compared without case, and the charset UTF-8 is accepted."""
    answer = await client.post(
        "/runs", content=b'{"input": "x"}', headers={"content-type": content_type}
    )

    assert answer.status_code == 202


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/runs"),
        ("GET", "/runs"),
        ("GET", "/runs/a"),
        ("DELETE", "/runs/a"),
        ("POST", "/runs/a/cancel"),
        ("GET", "/runs/a/trace"),
        ("POST", "/graphs"),
        ("POST", "/graphs/validate"),
        ("GET", "/graphs"),
        ("DELETE", "/graphs/a"),
        ("GET", "/tools"),
        ("GET", "/models"),
        ("GET", "/node-types"),
    ],
)
async def test_a_stranger_is_refused_before_anything_is_read(
    method: str, path: str, api: Api
) -> None:
    """The answer is 403 on every route with data or effects."""
    asked = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal asked
        asked = True
        yield b"{}"

    async with client_of(api.app(), peer="192.0.2.1") as client:
        answer = await client.request(method, path, content=body(), headers=JSON)

    assert_problem(answer, "anonymous-refused")
    assert not asked


async def test_strangers_are_served_where_that_is_configured(api: Api) -> None:
    """The setting is ``auth.anonymous: anywhere``."""
    app = api.app(limits=api_limits(anonymous="anywhere"))
    async with client_of(app, peer="192.0.2.1") as client:
        assert (await client.get("/runs")).status_code == 200


async def test_a_failure_of_the_service_says_nothing_of_its_cause(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is a 500 problem document; the cause is logged under the request ID."""
    broken = AsyncMock(side_effect=RuntimeError(f"{CANARY} a"))
    monkeypatch.setattr(PostgresRuns, "get", broken)
    with structlog.testing.capture_logs() as logged:
        answer = await client.get("/runs/a", headers={"x-request-id": "trace-1"})

    assert answer.status_code == 500
    assert_problem(answer, "internal-error")
    assert {line["event"] for line in logged} - {"loop.held"} == {"http.request_broke"}


@pytest.mark.parametrize("given", ["trace-1", "A:b.c_d", "x" * 128])
async def test_a_sane_request_id_is_kept(client: httpx.AsyncClient, given: str) -> None:
    """Callers can find their requests in our logs."""
    answer = await client.get("/healthz", headers={"x-request-id": given})

    assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "<script>", "é"])
async def test_another_request_id_is_replaced(client: httpx.AsyncClient, given: str) -> None:
    """Request IDs in logs and headers always have a known format."""
    answer = await client.get("/healthz", headers=[(b"x-request-id", given.encode("latin-1"))])

    assert answer.headers["x-request-id"] not in ("", given)


async def test_log_lines_of_a_request_carry_its_id(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log lines of the next request have another ID."""
    seen: list[Any] = []

    async def look(*_: object) -> None:
        seen.append(structlog.contextvars.get_contextvars().get("request_id"))

    monkeypatch.setattr(PostgresRuns, "get", look)
    await client.get("/runs/a", headers={"x-request-id": "one"})
    await client.get("/runs/a", headers={"x-request-id": "two"})

    assert seen == ["one", "two"]
    assert "request_id" not in structlog.contextvars.get_contextvars()


async def test_answers_are_kept_by_no_cache_and_guessed_at_by_no_browser(
    client: httpx.AsyncClient,
) -> None:
    """The headers are set on errors too."""
    for path in ("/healthz", "/nothing"):
        headers = (await client.get(path)).headers
        assert (headers["cache-control"], headers["x-content-type-options"]) == (
            "no-store",
            "nosniff",
        )


def canary_requests() -> Iterator[dict[str, Any]]:
    """Yield invalid requests that carry a secret in every possible position."""
    fields = ["run_id", "kind", "input", "expected_tools", "gold_answer", "mode", "budget"]
    for field in [*fields, "deadline", "seed", "timezone", "metadata", "graph", "inputs", CANARY]:
        for value in (CANARY, [CANARY], {CANARY: CANARY}, {"max_tokens": CANARY}):
            body = {"input": "2+2?", "unknown": CANARY, field: value}
            yield {"method": "POST", "url": "/runs", "json": body}
            yield {"method": "POST", "url": "/runs", "json": {**body, "kind": "graph"}}
            yield {"method": "POST", "url": "/graphs", "json": {"name": CANARY, **body}}
    yield {"method": "POST", "url": "/runs", "json": {"input": CANARY * 2000}}
    yield {"method": "POST", "url": "/runs", "content": f'{{"{CANARY}', "headers": JSON}
    yield {"method": "POST", "url": "/runs", "content": f'"{CANARY}\\u0000"', "headers": JSON}
    yield {
        "method": "POST",
        "url": "/runs",
        "json": {"input": "x"},
        "headers": {"idempotency-key": f" {CANARY}"},
    }
    yield {"method": "DELETE", "url": "/runs/a", "json": {"reason": [CANARY]}}
    yield {"method": "DELETE", "url": f"/runs/{CANARY}!"}
    yield {"method": "GET", "url": f"/runs/{CANARY}"}
    for name in ("status", "limit", "cursor", "created_after", CANARY):
        yield {"method": "GET", "url": "/runs", "params": {name: CANARY}}
    yield {"method": "GET", "url": "/runs/a/trace", "params": {"format": CANARY}}
    yield {"method": "GET", "url": f"/{CANARY}"}
    yield {"method": "PUT", "url": f"/runs/{CANARY}", "json": {CANARY: CANARY}}


@pytest.mark.req("002/23.5")
@pytest.mark.guarantee(15)
async def test_no_error_repeats_what_was_sent(client: httpx.AsyncClient) -> None:
    """Neither the document nor the headers contain the secret, wherever it was sent."""
    for request in canary_requests():
        answer = await client.request(**request)
        assert_problem(answer)
        assert CANARY not in str(answer.headers)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = "run_id kind input expected_tools gold_answer mode budget deadline seed timezone metadata"
FIELDS = st.sampled_from([*NAMES.split(), "graph", "inputs"])
NASTY = st.sampled_from(
    [
        "NaN",
        "-Infinity",
        "1e999",
        "-0",
        "9" * 30,
        '"\\u0000"',
        '"\\ud800"',
        '{"a":1,"a":2}',
        "[" * 40,
    ]
)
BODIES = st.one_of(
    st.builds(lambda name, text: f'{{"input": "x", "{name}": {text}}}'.encode(), FIELDS, NASTY),
    st.binary(max_size=200),
    ANY_JSON.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(FIELDS, ANY_JSON, max_size=5).map(
        lambda fields: json.dumps({"input": "2+2?"} | fields).encode()
    ),
    st.dictionaries(FIELDS, ANY_JSON, max_size=3).map(
        lambda fields: json.dumps({"kind": "graph", "graph": {"steps": []}} | fields).encode()
    ),
    st.text(alphabet='{}[]",:\\u0dD8eE+-.1 tfn\x00\ufeff', max_size=80).map(str.encode),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES)
@pytest.mark.guarantee(17)
async def test_no_body_makes_a_5xx(client: httpx.AsyncClient, body: bytes) -> None:
    """Every body is accepted, or refused with a problem document."""
    for method, path in (("POST", "/runs"), ("DELETE", "/runs/a")):
        answer = await client.request(method, path, content=body, headers=JSON)
        if answer.status_code >= 300:
            assert answer.status_code < 500
            assert_problem(answer)
