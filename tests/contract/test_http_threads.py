"""Threads over HTTP whose request or run is refused."""

from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from caseworker.features.threads.service import Chats
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.errors import TooManyPendingCancelsError
from caseworker.runs.execute.postgres.runs import PostgresRuns
from tests.support.api import Api, client_of
from tests.support.tenant_requests import GRAPH
from tests.support.threads import AGENT, ThreadClient

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("error", "status"), [(TooManyPendingCancelsError, 429), (StoreUnavailableError, 503)]
)
async def test_a_cancel_that_is_refused_says_why(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], status: int, api: Api
) -> None:
    """The reason is given as for a single run, also with several running answers."""
    async with client_of(api.app()) as http:
        thread = await ThreadClient.begin(http, "talk", agent=AGENT)
        asked = await thread.post(content="1?")
        await thread.post(f"{asked['user']['message_id']}/retry")

        monkeypatch.setattr(PostgresRuns, "cancel", AsyncMock(side_effect=error))
        refused = await http.post("/threads/talk/cancel")

    assert refused.status_code == status
    assert "retry-after" in refused.headers


async def test_a_repeat_that_overtakes_its_request_is_answered_as_that_was(
    monkeypatch: pytest.MonkeyPatch, api: Api
) -> None:
    """The repeat finds nothing at first, but the original is stored before it reads the thread."""
    key = {"Idempotency-Key": "k"}
    earlier = Chats.earlier
    async with client_of(api.app()) as http:
        await ThreadClient.begin(http, "talk", agent=AGENT)
        stored: list[dict[str, Any]] = []

        async def overtaken(service: Chats, *about: Any) -> Any:
            found = await earlier(service, *about)
            if not stored:
                stored.append({})
                stored[0] = (await http.post(path, json=body, headers=key)).json()
            return found

        path, body = "/threads/talk/messages", {"content": "1?"}
        monkeypatch.setattr(Chats, "earlier", overtaken)
        repeated = await http.post(path, json=body, headers=key)

    assert repeated.is_success, repeated.text
    assert repeated.json()["run"]["run_id"] == stored[0]["run"]["run_id"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"version": 3.0}, "graph.version"),
        ({"version": "3"}, "graph.version"),
        ({"version": 0}, "graph.version"),
        ({"version": 2**31}, "graph.version"),
        ({"version": [1]}, "graph.version"),
        ({"name": 5}, "graph.name"),
        ({"name": "\x00"}, "graph.name"),
    ],
)
async def test_an_invalid_reference_to_a_graph_is_refused_and_the_field_is_named(
    client: httpx.AsyncClient, wrong: dict[str, Any], field: str
) -> None:
    """The name and the version of a thread's graph are checked before the database sees them."""
    refused = await client.post("/threads", json={"graph": {"name": "talk"} | wrong})

    assert refused.status_code == 422
    assert [each["field"] for each in refused.json()["errors"]] == [field]


@pytest.mark.parametrize(
    ("path", "body"), [("/threads", {"agent": AGENT}), ("/runs", {"input": "?"})]
)
async def test_metadata_has_the_same_limit_for_threads_and_runs(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    """Metadata of more than 16 KiB as JSON is refused."""
    refused = await client.post(path, json={**body, "metadata": {"a": "x" * 16_384}})

    assert refused.status_code == 422
    assert refused.json()["errors"] == [
        {"field": "metadata", "message": "Metadata must not exceed 16384 bytes as JSON."}
    ]


@pytest.mark.parametrize("kind", ["agent", "graph"])
async def test_a_thread_shows_its_agent_or_its_graph_as_it_was_sent(api: Api, kind: str) -> None:
    """The other field is null, and lists show neither."""
    sent = {"agent": AGENT, "graph": GRAPH}[kind]
    async with client_of(api.app()) as http:
        made = await http.post("/threads", json={"thread_id": "talk", kind: sent})
        thread = (await http.get("/threads/talk")).json()
        (listed,) = (await http.get("/threads")).json()["threads"]

    assert made.status_code == 201, made.text
    assert {name: thread[name] for name in ("agent", "graph")} == {
        "agent": None,
        "graph": None,
        kind: sent,
    }
    assert (listed["agent"], listed["graph"]) == (None, None)
