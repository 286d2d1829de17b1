"""The client sends and returns graphs as the service defines them."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from caseworker_client import ApiError, AsyncCaseworkerClient

from tests.support.api import Api
from tests.support.graph_documents import containing, flat, graph_ref

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def client(api: Api) -> AsyncIterator[AsyncCaseworkerClient]:
    transport = httpx.ASGITransport(api.app())
    async with AsyncCaseworkerClient("http://localhost", transport=transport) as client:
        yield client


async def test_definitions_are_registered_shown_listed_and_deleted(
    client: AsyncCaseworkerClient,
) -> None:
    """The client supports every operation of the resource."""
    for step in ("a", "b"):
        await client.register_graph("g", flat(step), description="parts")
    await client.register_graph("h.1", containing(graph_ref("g", 1)))

    assert (await client.get_graph("g")).graph == flat("b")
    assert (await client.get_graph("g", 1)).graph == flat("a")
    first = await client.list_graphs(limit=1)
    rest = await client.list_graphs(cursor=first.next_cursor)
    names = [graph.name for graph in (*first.graphs, *rest.graphs)]
    assert names == ["g", "h.1"]
    versions = await client.list_graph_versions("g", limit=1)
    assert [graph.version for graph in versions.graphs] == [2]
    assert versions.next_cursor is not None
    await client.delete_graph("g", 2)
    with pytest.raises(ApiError, match=r"h\.1@1"):
        await client.delete_graph("g")
    await client.delete_graph("h.1")
    await client.delete_graph("g")
    assert (await client.list_graphs()).graphs == []


async def test_a_graph_is_run_and_validated(client: AsyncCaseworkerClient) -> None:
    """The graph is sent itself or by its name, and an error names the place."""
    await client.register_graph("g", flat("a"))

    run = await client.run_graph(graph_ref("g"), inputs={"default": 1}, run_id="r", budget={})
    inline = await client.run_graph(flat("a"), idempotency_key="k")
    checked = await client.validate_graph({"steps": [5], "edges": []})

    assert (run.run_id, run.as_json()["graph"]) == ("r", {"name": "g", "version": 1})
    assert (inline.kind, inline.as_json()["graph"]) == ("graph", None)
    assert (checked.valid, checked.problems[0].place) == (False, "steps.0")
    with pytest.raises(ApiError, match=r"graph\.version"):
        await client.run_graph(graph_ref("g", 9))


async def test_no_name_leads_to_another_resource(client: AsyncCaseworkerClient) -> None:
    """The client encodes a name as one path segment, whatever it contains."""
    with pytest.raises(ApiError) as refused:
        await client.get_graph("../runs")

    assert refused.value.status in (404, 422)
