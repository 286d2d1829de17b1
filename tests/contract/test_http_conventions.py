"""HTTP as clients, browsers, monitors and proxies use it, on every route."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.api import Api, all_ready, client_of
from tests.support.served import Served, served
from tests.support.threads import AGENT, ThreadClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

CASE = {"input": "2+2?"}
GRAPH = {"steps": [{"id": "chat", "type": "chat_start", "data": {}}], "edges": []}


@pytest_asyncio.fixture(loop_scope="module")
async def server(api: Api) -> AsyncIterator[Served]:
    """Serve the application on a socket."""
    async with served(api.app(readiness=all_ready)) as server:
        yield server


@pytest.mark.parametrize(
    "path",
    [
        *("/healthz", "/runs", "/runs/a", "/runs/a/trace", "/agents", "/tools", "/threads"),
        *(
            "/statistics",
            "/spend?group_by=agent",
            "/openapi.json",
            "/docs",
            "/docs/extending.md",
            "/whoami",
        ),
    ],
)
async def test_head_is_answered_like_get_without_the_body(
    client: httpx.AsyncClient, path: str
) -> None:
    """Monitors and load balancers use HEAD, and take another status for a service that is down."""
    await client.post("/runs", json={**CASE, "run_id": "a"})
    read, head = await client.get(path), await client.head(path)

    assert head.status_code == read.status_code == 200
    assert (head.content, head.headers["content-type"]) == (b"", read.headers["content-type"])


async def test_head_of_a_stream_ends_while_the_run_goes_on(client: httpx.AsyncClient) -> None:
    """The headers are those of the stream, which stays open for GET."""
    await client.post("/runs", json={**CASE, "run_id": "a"})

    head = await client.head("/runs/a/events")

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("path", "status"), [("/runs/none", 404), ("/runs?limit=x", 422), ("/runs/a/cancel", 405)]
)
async def test_head_has_the_errors_of_get(
    client: httpx.AsyncClient, path: str, status: int
) -> None:
    """A route without GET names its methods."""
    head = await client.head(path)

    assert (head.status_code, head.content) == (status, b"")
    assert head.headers.get("allow") == ("POST" if status == 405 else None)


REPEATED = [
    ("/runs?status=failed&status=completed", "status"),
    ("/runs?kind=agent&kind=graph", "kind"),
    ("/runs?limit=1&limit=200", "limit"),
    ("/runs?agent=a&%61gent=b", "agent"),
    ("/runs?created_after=2999-01-01T00:00:00Z&created_after=2020-01-01T00:00:00Z", None),
    ("/runs?metadata.a=1&metadata.a=2", "metadata.a"),
    ("/runs?status=failed&status=failed", "status"),
    ("/runs/a/events?after=1&after=2", "after"),
    ("/runs/a/trace?format=json&format=otlp", "format"),
    ("/spend?group_by=agent&group_by=model", "group_by"),
    ("/audit?action=key.created&action=key.revoked", "action"),
    ("/webhooks/deliveries?status=dead&status=pending", "status"),
    ("/threads?cursor=a&cursor=b", "cursor"),
    ("/approvals?limit=1&limit=2", "limit"),
    ("/statistics?after=2020-01-01T00:00:00Z&after=2999-01-01T00:00:00Z", "after"),
]


@pytest.mark.parametrize(("path", "field"), REPEATED)
async def test_a_repeated_parameter_is_refused_by_name(
    client: httpx.AsyncClient, path: str, field: str | None
) -> None:
    """Otherwise only its last value would count, and the list would show other runs."""
    answer = await client.get(path)

    assert answer.status_code == 422
    assert [each["field"] for each in answer.json()["errors"]] == [field or "created_after"]


@pytest.mark.parametrize(
    "path", ["/runs/a", "/whoami", "/tools", "/models", "/node-types", "/quotas", "/runs/a/record"]
)
async def test_a_parameter_of_a_route_without_any_is_refused_by_name(
    client: httpx.AsyncClient, path: str
) -> None:
    """It may be a filter that the caller relies on."""
    method = "DELETE" if path.endswith("record") else "GET"
    answer = await client.request(method, f"{path}?tenant=other&x=1")

    assert answer.status_code == 422
    assert [each["field"] for each in answer.json()["errors"]] == ["tenant", "x"]


async def test_a_repeated_reason_of_a_cancel_is_refused(client: httpx.AsyncClient) -> None:
    """This also holds for requests that change something."""
    answer = await client.delete("/runs/a?reason=one&reason=two")

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "reason")
    assert (await client.post("/runs", json={**CASE, "run_id": "a"})).json()["status"] == "queued"


JSON_TYPES = [
    *("application/json", "application/json;", "application/json; ;", "APPLICATION/JSON ;"),
    *("application/json; odata=verbose", 'application/json; profile="https://example.com/p;q"'),
    *("application/json; charset=utf-8; version=1", "application/json;version=1;CHARSET=UTF8"),
    *('application/json; charset="utf-8"', "application/vnd.api+json; ext=bulk"),
    *("application/json; charset=us-ascii", 'application/json; a="\\"charset=utf-16"'),
]
OTHER_TYPES = [
    *("text/plain", "text/json", "application/jsonp", "application/json; charset=utf-16"),
    *("application/json; v=1; charset=latin-1", "application/json, text/plain", "application/"),
    *("application/json charset=utf-8", "application/json; charset=utf-8; charset=utf-16"),
]


@pytest.mark.parametrize(
    ("media_type", "status"),
    [*((each, 202) for each in JSON_TYPES), *((each, 415) for each in OTHER_TYPES)],
)
async def test_parameters_of_json_have_no_effect_except_for_another_charset(
    client: httpx.AsyncClient, media_type: str, status: int
) -> None:
    """RFC 8259 gives JSON no parameters, and RFC 9110 permits empty ones."""
    headers = {"Content-Type": media_type}
    for path, body, accepted in (
        ("/runs", b'{"input": "2+2?"}', 202),
        (
            "/threads",
            b'{"graph": {"steps": [{"id": "c", "type": "chat_start", "data": {}}], "edges": []}}',
            201,
        ),
    ):
        answer = await client.post(path, content=body, headers=headers)
        assert answer.status_code == (accepted if status == 202 else 415), answer.text


async def test_a_long_media_type_is_read_quickly(client: httpx.AsyncClient) -> None:
    """No text makes the comparison slow: each character is read once."""
    for text in ("; " * 15_000, ";" + " " * 30_000, ';a="' + '\\"' * 15_000, "; a=b" * 6_000):
        headers = {"Content-Type": f"application/json{text}/"}
        answer = await client.post("/runs", content=b"{}", headers=headers)
        assert answer.status_code == 415


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/event-stream", "text/event-stream"),
        ("TEXT/Event-Stream; charset=utf-8", "text/event-stream"),
        ("application/json", "application/json"),
        ("Application/JSON;q=0.9", "application/json"),
        ("application/json, text/event-stream;q=0", "application/json"),
        ("application/json;q=0, */*", "text/event-stream"),
        ("*/*", "text/event-stream"),
    ],
)
async def test_the_accept_header_selects_a_page_or_a_stream_of_events(
    client: httpx.AsyncClient, accept: str, kind: str
) -> None:
    """Case, parameters and qualities of media types count as in RFC 9110."""
    await client.post("/runs", json={**CASE, "run_id": "a"})

    head = await client.head("/runs/a/events", headers={"Accept": accept})

    assert head.headers["content-type"].partition(";")[0] == kind


@pytest.mark.parametrize("name", [".", ".."])
async def test_no_resource_gets_a_name_that_is_no_url_segment(
    client: httpx.AsyncClient, name: str
) -> None:
    """Clients and proxies remove the segments . and .. of a path, also if they are encoded."""
    schedule = {"cron": "* * * * *", "run": CASE}
    escaped = name.replace(".", "%2E")
    for method, path, body in (
        ("POST", "/runs", {**CASE, "run_id": name}),
        ("POST", "/threads", {"graph": GRAPH, "thread_id": name}),
        ("POST", "/agents", {"agent": {**AGENT, "name": name}}),
        ("POST", "/graphs", {"graph": GRAPH, "name": name}),
        ("POST", "/keys", {"name": "k", "tenant": name}),
        ("PUT", f"/schedules/{escaped}", schedule),
        ("PUT", f"/quotas/{escaped}", {}),
        ("PUT", f"/mcp-credentials/{escaped}", {"headers": {"a": "b"}}),
    ):
        answer = await client.request(method, path, json=body)
        assert answer.status_code in (404, 422), (path, answer.text)
    assert (await client.put("/schedules/...", json=schedule)).status_code == 201
    assert (await client.put("/quotas/a..", json={})).status_code == 200


HOSTS = [
    ((), 400),
    (("Host: localhost",), 200),
    (("host: LOCALHOST:80",), 200),
    (("Host: [::1]:80",), 200),
    (("Host: localhost", "Host: localhost"), 400),
    (("Host: localhost", "Host: evil.example"), 400),
    (("Host: evil.example", "hOST: localhost"), 400),
    (("Host: local host",), 400),
    (("Host: user@localhost",), 400),
    (("Host: localhost/",), 400),
    (("Host: localhost:http",), 400),
    (("Host: evil.example",), 421),
]


@pytest.mark.parametrize("path", ["/runs", "/healthz", "/nothing"])
@pytest.mark.parametrize(("lines", "status"), HOSTS)
async def test_a_request_has_one_host(
    server: Served, path: str, lines: tuple[str, ...], status: int
) -> None:
    """RFC 9112 requires 400 without a host, with two, and with one that is malformed."""
    expected = {
        ("/healthz", 421): 200,  # probes may use any name
        ("/nothing", 200): 404,
    }.get((path, status), status)

    assert await status_of(server, f"GET {path} HTTP/1.1", *lines) == expected


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost/runs", "evil.example", 200),
        ("http://evil.example/runs", "localhost", 421),
        ("HTTP://evil.example:80?limit=1", "localhost", 421),
        ("http://localhost", "localhost", 404),
        ("http://user@localhost/runs", "localhost", 400),
        ("/runs?next=http://evil.example", "localhost", 422),
    ],
)
async def test_the_host_of_an_absolute_target_counts(
    server: Served, target: str, host: str, status: int
) -> None:
    """RFC 9112: the Host header is ignored if the request target has a host."""
    assert await status_of(server, f"GET {target} HTTP/1.1", f"Host: {host}") == status


async def test_older_clients_need_no_host(server: Served) -> None:
    """HTTP/1.0 has no Host header; health checks of load balancers use it."""
    assert await status_of(server, "GET /healthz HTTP/1.0") == 200


async def status_of(server: Served, *lines: str) -> int:
    head = "\r\n".join([*lines, "Connection: close", "", ""])
    return int((await server.ask(head.encode())).split(b" ")[1])


async def test_a_cursor_of_another_list_is_refused(api: Api) -> None:
    """It would name a position that its list does not have."""
    async with client_of(api.app()) as client:
        for number in range(2):
            name = f"n{number}"
            await client.post("/runs", json={**CASE, "run_id": name})
            await client.post("/threads", json={"agent": AGENT, "thread_id": name})
            await client.post("/agents", json={"agent": {**AGENT, "name": name}})
            await client.post("/agents", json={"agent": {**AGENT, "prompt": {"system": name}}})
            await client.post("/graphs", json={"graph": GRAPH, "name": name})
            await client.put(f"/schedules/{name}", json={"cron": "* * * * *", "run": CASE})
            await client.put(f"/quotas/{name}", json={})
        agent = f"/agents/{AGENT['name']}/versions"
        lists = ("/runs", "/threads", "/agents", agent, "/graphs", "/schedules", "/audit")
        cursors: dict[str, Any] = {}
        for path in lists:
            page = (await client.get(path, params={"limit": 1})).json()
            cursors[path] = page["next_cursor"]
        assert None not in cursors.values(), cursors

        for path in (*lists, "/approvals", "/webhooks/deliveries", "/agents/n0/versions"):
            for other, cursor in cursors.items():
                answer = await client.get(path, params={"cursor": cursor})
                expected = 200 if path == other else 422
                assert answer.status_code == expected, (path, other, answer.text)


async def test_a_thread_id_that_is_used_again_lists_only_new_runs(
    client: httpx.AsyncClient,
) -> None:
    """The runs of the deleted thread remain, and are not listed as those of the new thread."""

    async def listed() -> list[str]:
        runs = (await client.get("/runs", params={"thread_id": "talk"})).json()["runs"]
        return [run["run_id"] for run in runs]

    thread = await ThreadClient.begin(client, "talk", graph=GRAPH)
    await thread.post(content="1?", run_id="first")
    await client.delete("/threads/talk")
    assert await listed() == ["first"]
    again = await ThreadClient.begin(client, "talk", graph=GRAPH)
    assert await listed() == []
    await again.post(content="2?", run_id="second")

    assert await listed() == ["second"]
    assert (await client.get("/runs/first")).status_code == 200
