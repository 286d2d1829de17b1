"""Refused graphs and their messages, for every route that accepts a graph."""

from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from caseworker.core.graph.validation import Problem
from caseworker.nodes.catalog import NodeCatalog
from caseworker.runs.http.limits import ApiLimits
from tests.support.api import Api, client_of
from tests.support.graph_documents import containing, edge, flat, graph_ref, half_used
from tests.support.graph_requests import fields, problem_of, register
from tests.support.limits import api_limits

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_invalid_graph_is_not_registered(client: httpx.AsyncClient) -> None:
    """The answer is 422 with every problem at its place, and nothing is stored."""
    graph = {"steps": [*flat("a", "a")["steps"], 5], "edges": [edge("a", "a")]}

    refused = await register(client, "g", graph)

    assert fields(refused) == ["graph.steps.2", "graph.edges.0.data.channel", "graph.steps.1.id"]
    assert (await client.get("/graphs")).json()["graphs"] == []


@pytest.mark.req("004/channel")
@pytest.mark.parametrize(
    "data", [{}, {"channel": None}, {"channel": "Flow"}, {"channel": ["flow"]}, {"kind": "flow"}]
)
@pytest.mark.parametrize("path", ["/graphs", "/graphs/validate", "/runs"])
async def test_an_edge_without_a_channel_is_refused_at_the_door(
    client: httpx.AsyncClient, path: str, data: dict[str, Any]
) -> None:
    """The channel must be flow or link, also in nested graphs; there is no default."""
    bad = {**flat("a", "b"), "edges": [edge("a", "b", **data)]}
    bodies = {
        "/graphs": {"name": "g"},
        "/graphs/validate": {},
        "/runs": {"kind": "graph"},
    }
    for graph, place in (
        (bad, "edges.0.data.channel"),
        (containing(bad), "steps.0.data.graph.edges.0.data.channel"),
    ):
        answer = await client.post(path, json={**bodies[path], "graph": graph})
        if path == "/graphs/validate":
            found = answer.json()
            assert (found["valid"], found["problems"][0]["place"]) == (False, place)
        else:
            assert fields(answer)[0] == f"graph.{place}"
    assert (await client.get("/runs")).json()["runs"] == []
    assert (await client.get("/graphs")).json()["graphs"] == []


@pytest.mark.req("004/pipeline")
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("agent", {"agent": {"name": "helper", "prompt": {"system": "Help."}}}),
        ("llm", {"prompt": "Say ${default}."}),
        ("case", {}),
    ],
)
async def test_a_flow_edge_into_the_tools_of_a_step_is_refused(
    client: httpx.AsyncClient, kind: str, data: dict[str, Any]
) -> None:
    """Tools are dependencies, so a value cannot be one."""
    user = {"id": "b", "type": kind, "data": data}
    into = {**edge("a", "b", channel="flow"), "target_handle": "tools"}
    graph = {"steps": [*flat("a")["steps"], user], "edges": [into]}

    refused = await register(client, "g", graph)

    assert fields(refused) == ["graph.edges.0.data.channel"]
    assert "only edges on channel link" in refused.json()["errors"][0]["message"]


async def test_a_graph_inside_must_be_registered_and_may_not_be_the_graph_itself(
    client: httpx.AsyncClient,
) -> None:
    """The error names each place, and a cycle with its path."""
    await register(client, "b", flat("a"))
    await register(client, "a", containing(graph_ref("b")))

    gone = await register(
        client, "g", containing(graph_ref("b"), graph_ref("b", 2), graph_ref("x"))
    )
    circle = await register(client, "b", containing(graph_ref("a")))

    assert fields(gone) == [
        "graph.steps.1.data.graph.version",
        "graph.steps.2.data.graph.name",
    ]
    assert fields(circle) == ["graph.steps.0.data.graph.steps.0.data.graph"]
    message = circle.json()["errors"][0]["message"]
    assert message == "Circular reference: b -> a@1 -> b."


async def test_a_hundred_places_are_named_and_the_rest_is_counted(
    client: httpx.AsyncClient,
) -> None:
    """The answer lists 100 errors and counts the others."""
    refused = await register(client, "g", {"steps": [5] * 130, "edges": []})

    assert len(refused.json()["errors"]) == 100
    assert "30 more problems" in refused.json()["detail"]


async def test_a_validated_graph_is_not_stored(client: httpx.AsyncClient) -> None:
    """Validation reports every problem, including warnings, without a limit."""
    await register(client, "part", flat("a"))

    good = await client.post("/graphs/validate", json={"graph": containing(graph_ref("part"))})
    odd = await client.post("/graphs/validate", json={"graph": half_used()})
    bad = await client.post("/graphs/validate", json={"graph": {"steps": [5] * 130, "edges": []}})

    assert good.json() == {"valid": True, "problems": []}
    unused = "Step 'b' is never executed: no path leads to it from an entry."
    assert odd.json() == {
        "valid": True,
        "problems": [{"place": "steps.1", "message": unused, "severity": "warning"}],
    }
    assert (bad.status_code, bad.json()["valid"], len(bad.json()["problems"])) == (200, False, 130)
    assert len((await client.get("/graphs")).json()["graphs"]) == 1


async def test_a_graph_that_is_only_odd_is_registered_with_its_warnings(
    client: httpx.AsyncClient,
) -> None:
    """Warnings do not prevent the registration."""
    posted = await register(client, "g", half_used())

    assert posted.status_code == 201
    assert [warning["severity"] for warning in posted.json()["warnings"]] == ["warning"]


@pytest.mark.parametrize(
    ("limits", "graph", "name"),
    [
        (api_limits(max_graph_steps=2), flat("a", "b", "c"), "at most 2 steps"),
        (
            api_limits(max_graph_edges=1),
            {**flat("a", "b"), "edges": [edge("a", "b", channel="flow")] * 2},
            "at most 1 edges",
        ),
        (api_limits(max_graph_depth=2), containing(containing(flat("a"))), "at most 2 deep"),
        (api_limits(max_graph_bytes=50), flat("a" * 60), "at most 50 bytes"),
    ],
)
async def test_a_graph_beyond_a_limit_is_refused_with_the_limit(
    limits: ApiLimits,
    graph: dict[str, Any],
    name: str,
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every route refuses an oversized graph without checking it."""
    monkeypatch.setattr(NodeCatalog, "examine", examine := Mock())
    async with client_of(api.app(limits=limits)) as client:
        answers = [
            await register(client, "g", graph),
            await client.post("/runs", json={"kind": "graph", "graph": graph}),
        ]
        validated = await client.post("/graphs/validate", json={"graph": graph})

    for answer in answers:
        assert fields(answer) == ["graph"]
        assert name in answer.json()["errors"][0]["message"]
    assert [problem["place"] for problem in validated.json()["problems"]] == [""]
    examine.assert_not_called()


@pytest.mark.parametrize("path", ["/graphs", "/graphs/validate", "/runs"])
async def test_a_body_may_be_longer_by_a_graph(path: str, api: Api) -> None:
    """A longer body gets a 413 before it is read."""
    limits = api_limits(max_body_bytes=500, max_graph_bytes=2000)
    long, longer = flat(*(f"{n:060}" for n in range(14))), flat(*(f"{n:060}" for n in range(28)))
    async with client_of(api.app(limits=limits)) as client:
        bodies = {"/graphs": {"name": "g"}, "/graphs/validate": {}, "/runs": {"kind": "graph"}}
        fits = await client.post(path, json={**bodies[path], "graph": long})
        refused = await client.post(path, json={**bodies[path], "graph": longer})

    assert fits.is_success
    assert (refused.status_code, problem_of(refused)) == (413, "body-too-large")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"graph": flat("a")}, "name"),
        ({"name": "", "graph": flat("a")}, "name"),
        ({"name": "a/b", "graph": flat("a")}, "name"),
        ({"name": "..", "graph": flat("a")}, "name"),
        ({"name": "a\n", "graph": flat("a")}, "name"),
        ({"name": "é", "graph": flat("a")}, "name"),
        ({"name": "x" * 65, "graph": flat("a")}, "name"),
        ({"name": "g"}, "graph"),
        ({"name": "g", "graph": []}, "graph"),
        ({"name": "g", "graph": None}, "graph"),
        ({"name": "g", "graph": flat("a"), "description": "x" * 1001}, "description"),
        ({"name": "g", "graph": flat("a"), "version": 1}, "version"),
        ({"name": "g", "graph": {"name": "other", "edges": []}}, "graph.steps"),
    ],
)
async def test_a_bad_definition_is_refused_by_its_field(
    client: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    """The name must fit into a path, and a reference cannot be registered."""
    assert fields(await client.post("/graphs", json=body)) == [field]


@pytest.mark.parametrize("name", ["a", "A-1_b.c", ".a", "...", "x" * 64])
async def test_a_name_may_be_anything_that_a_url_can_name(
    client: httpx.AsyncClient, name: str
) -> None:
    """Letters, digits and three punctuation marks are allowed."""
    assert (await register(client, name, flat("a"))).status_code == 201
    assert (await client.get(f"/graphs/{name}")).json()["name"] == name


@pytest.mark.parametrize("path", ["%00", "a%20b", "x" * 65, "%E2%82%AC", "a/versions/0"])
async def test_a_name_or_version_that_cannot_be_is_refused(
    client: httpx.AsyncClient, path: str
) -> None:
    """The answer is 422 without a query to the database."""
    for suffix in ("", "9" * 20) if path.endswith("0") and "/" in path else ("",):
        for method in ("GET", "DELETE"):
            answer = await client.request(method, f"/graphs/{path}{suffix}")
            assert fields(answer) == ["version" if "/" in path else "name"]


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "cursor=nonsense", "status=done"])
@pytest.mark.parametrize("path", ["/graphs", "/graphs/g/versions"])
async def test_a_bad_query_is_refused_by_name(
    client: httpx.AsyncClient, path: str, query: str
) -> None:
    """The answer is 422, also for an unknown parameter."""
    await register(client, "g", flat("a"))

    assert fields(await client.get(f"{path}?{query}")) == [query.partition("=")[0]]


async def test_a_place_that_a_caller_made_up_is_not_repeated(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only plain keys are repeated, because any other key may be a misplaced value."""
    bad = Problem("steps.12.data.sk-live-51Hx", "Bad."), Problem("9" * 5000, "Bad.")
    monkeypatch.setattr(NodeCatalog, "examine", lambda *_: (None, bad))

    refused = await register(client, "g", flat("a"))

    assert fields(refused) == ["graph.steps.12.data.*", "graph.*"]
