"""The resource /graphs: register, look at, list, delete, validate (spec, section 10)."""

from unittest.mock import AsyncMock

import httpx
import pytest

from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.accept.postgres.definitions import PostgresDefinitions
from tests.support.api import Api, client_of
from tests.support.graph_documents import containing, flat, named
from tests.support.graph_requests import problem_of, register

pytestmark = pytest.mark.asyncio(loop_scope="module")


SUMMARY = {"name", "version", "description", "sha256", "size_bytes", "created_at", "links"}


async def test_a_graph_is_registered_and_can_be_read(client: httpx.AsyncClient) -> None:
    """The answer is 201 with a location, which returns the graph as it was sent."""
    graph = flat("a", entry=["a"])
    body = {"name": "invoice-check", "graph": graph, "description": "Checks invoices"}

    posted = await client.post("/graphs", json=body)

    there = posted.headers["location"]
    assert posted.status_code == 201
    assert set(posted.json()) == SUMMARY | {"warnings"}
    assert there == posted.json()["links"]["self"] == "/graphs/invoice-check/versions/1"
    for path in (there, "/graphs/invoice-check"):
        read = (await client.get(path)).json()
        assert set(read) == SUMMARY | {"graph", "shape"}
        assert (read["graph"], read["version"]) == (graph, 1)
        assert read["shape"]["layers"] == [["a"]]
        assert read["description"] == "Checks invoices"


async def test_the_shape_of_a_graph_holds_those_inside_it(client: httpx.AsyncClient) -> None:
    """The shape covers nested graphs, but not references, whose newest version may change."""
    await register(client, "other", flat("a"))
    outer = containing(containing(flat("deep")), named("other"))
    await register(client, "outer", outer)

    shape = (await client.get("/graphs/outer")).json()["shape"]

    whole, only_named = (step["graph"] for step in shape["steps"])
    (inner,) = whole["steps"]
    assert inner["graph"]["layers"] == [["deep"]]
    assert inner["graph"]["steps"][0]["graph"] is None
    assert only_named is None


async def test_every_change_is_a_version_and_none_ever_changes(client: httpx.AsyncClient) -> None:
    """Sending the newest version again returns it with 200."""
    answers = [await register(client, "g", flat(step)) for step in ("a", "b", "b", "a")]

    assert [answer.status_code for answer in answers] == [201, 201, 200, 201]
    assert [answer.json()["version"] for answer in answers] == [1, 2, 2, 3]
    assert answers[2].headers["location"] == answers[1].headers["location"]
    assert (await client.get("/graphs/g/versions/1")).json()["graph"] == flat("a")
    assert (await client.get("/graphs/g")).json()["version"] == 3


async def test_graphs_are_listed_by_name_and_versions_newest_first(
    client: httpx.AsyncClient,
) -> None:
    """The pages do not contain the graphs themselves."""
    for name in ("c", "a", "b"):
        for step in ("x", "y"):
            await register(client, name, flat(step))

    first = (await client.get("/graphs", params={"limit": 2})).json()
    rest = await client.get("/graphs", params={"limit": 2, "cursor": first["next_cursor"]})
    versions = (await client.get("/graphs/a/versions")).json()

    shown = [*first["graphs"], *rest.json()["graphs"]]
    assert [(graph["name"], graph["version"]) for graph in shown] == [("a", 2), ("b", 2), ("c", 2)]
    assert {frozenset(graph) for graph in shown} == {frozenset(SUMMARY)}
    assert rest.json()["next_cursor"] is None
    assert [graph["version"] for graph in versions["graphs"]] == [2, 1]
    assert versions["next_cursor"] is None


async def test_a_deleted_graph_is_gone_and_its_number_too(client: httpx.AsyncClient) -> None:
    """The answer is 204, then 404; the next graph of the name gets the next number."""
    await register(client, "g", flat("a"))
    await register(client, "g", flat("b"))

    one = await client.delete("/graphs/g/versions/2")
    newest = await client.get("/graphs/g")
    rest = await client.delete("/graphs/g")
    next_one = await register(client, "g", flat("c"))

    assert (one.status_code, one.content) == (204, b"")
    assert (newest.json()["version"], rest.status_code) == (1, 204)
    assert next_one.json()["version"] == 3


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/graphs/x"),
        ("GET", "/graphs/x/versions"),
        ("GET", "/graphs/g/versions/2"),
        ("DELETE", "/graphs/x"),
        ("DELETE", "/graphs/g/versions/2"),
    ],
)
async def test_what_is_not_registered_is_not_found(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    """An unknown name or version gets a 404."""
    await register(client, "g", flat("a"))

    answer = await client.request(method, path)

    assert (answer.status_code, problem_of(answer)) == (404, "graph-not-found")


async def test_a_database_that_is_away_is_a_problem_to_come_back_with(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is 503 with a retry delay."""
    monkeypatch.setattr(PostgresDefinitions, "find", AsyncMock(side_effect=StoreUnavailableError))
    answer = await client.get("/graphs")

    assert (answer.status_code, problem_of(answer)) == (503, "store-unavailable")
    assert int(answer.headers["retry-after"]) > 0


async def test_links_stand_below_the_path_of_a_proxy(api: Api) -> None:
    """Links include the path prefix of the service."""
    transport = httpx.ASGITransport(api.app(), root_path="/cases")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        posted = await client.post("/cases/graphs", json={"name": "g", "graph": flat("a")})

    assert posted.headers["location"] == "/cases/graphs/g/versions/1"


async def test_a_map_has_an_output_for_what_became_of_its_items(api: Api) -> None:
    """An edge can start at that output, in a nested graph too."""
    item = {"type": "llm", "data": {"prompt": "${default}"}}
    one = {"id": "m", "type": "map", "data": {"step": item}}
    ask = {"id": "a", "type": "llm", "data": {"prompt": "${default}"}}
    edge = {"source": "m", "source_handle": "items", "target": "a", "data": {"channel": "flow"}}
    whole = {"steps": [one, ask], "edges": [edge]}
    outputs = {"told": {"step": "m", "handle": "items"}}
    inner = {"id": "s", "type": "subgraph", "data": {"graph": whole, "outputs": outputs}}

    async with client_of(api.app()) as client:
        for graph in (whole, {"steps": [inner], "edges": []}):
            answer = await client.post("/graphs/validate", json={"graph": graph})
            assert (answer.status_code, answer.json()["valid"]) == (200, True), answer.text
