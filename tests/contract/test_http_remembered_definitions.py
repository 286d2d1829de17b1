"""A definition that a process has prepared before is not read again, but never outdated."""

from unittest.mock import AsyncMock, patch

import httpx
import pytest

from caseworker.runs.accept.postgres.definitions import PostgresDefinitions
from tests.support.api import Api
from tests.support.graph_documents import flat
from tests.support.graph_requests import fields, register

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def post(client: httpx.AsyncClient, version: int | None = None) -> httpx.Response:
    named = {"name": "g"} if version is None else {"name": "g", "version": version}
    return await client.post("/runs", json={"kind": "graph", "graph": named})


async def version_of(client: httpx.AsyncClient, version: int | None = None) -> int:
    posted = await post(client, version)
    assert posted.status_code == 202, posted.text
    return int(posted.json()["graph"]["version"])


async def steps_of(api: Api, posted: httpx.Response) -> list[str]:
    """Return the IDs of the steps that a run will execute."""
    run = await api.stored(posted.json()["run_id"])
    return [step["id"] for step in (run.request.graph or {})["steps"]]


async def test_a_prepared_definition_is_not_read_again(client: httpx.AsyncClient) -> None:
    """The statement that stores a run checks its definition as well."""
    await register(client, "g", flat("a"))
    assert await version_of(client) == 1

    with patch.object(PostgresDefinitions, "get", AsyncMock()) as read:
        assert [await version_of(client), await version_of(client)] == [1, 1]

    read.assert_not_called()


async def test_a_run_gets_the_newest_version_at_once(client: httpx.AsyncClient, api: Api) -> None:
    """The version that the process remembers is replaced, unless the request names it."""
    await register(client, "g", flat("a"))
    assert [await version_of(client), await version_of(client, 1)] == [1, 1]
    await register(client, "g", flat("b"))

    newest, first = await post(client), await post(client, 1)

    assert [each.json()["graph"]["version"] for each in (newest, first)] == [2, 1]
    assert [await steps_of(api, newest), await steps_of(api, first)] == [["b"], ["a"]]


async def test_a_deleted_definition_does_not_run(client: httpx.AsyncClient) -> None:
    """Another version replaces it, or the request is refused."""
    for step in ("a", "b"):
        await register(client, "g", flat(step))
    assert [await version_of(client), await version_of(client, 2)] == [2, 2]

    await client.delete("/graphs/g/versions/2")
    assert await version_of(client) == 1
    assert fields(await post(client, 2)) == ["graph.version"]
    await client.delete("/graphs/g")
    assert fields(await post(client)) == ["graph.name"]


async def test_a_schedule_gets_the_newest_version(client: httpx.AsyncClient) -> None:
    """The statement that checks the version stores runs, not schedules."""
    await register(client, "g", flat("a"))
    assert await version_of(client) == 1
    await register(client, "g", flat("b"))
    run = {"kind": "graph", "graph": {"name": "g"}}

    made = await client.put("/schedules/s", json={"cron": "0 3 * * *", "run": run})
    begun = await client.post("/schedules/s/run")

    assert (made.status_code, begun.status_code) == (201, 202), (made.text, begun.text)
    assert begun.json()["graph"] == {"name": "g", "version": 2}
