"""Threads over HTTP where the store of runs refuses."""

from typing import Any

import pytest

from app.chats.service import Chats
from app.runs.errors import StoreUnavailableError, TooManyPendingCancelsError
from tests.support.memory_api import client_of, memory_api
from tests.support.memory_runs import MemoryRuns
from tests.support.threads import AGENT, ThreadClient


@pytest.mark.parametrize(
    ("error", "status"), [(TooManyPendingCancelsError, 429), (StoreUnavailableError, 503)]
)
async def test_a_cancel_that_is_refused_says_why(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], status: int
) -> None:
    """As for a single run, also where a thread has several answers under way."""
    store = MemoryRuns()
    async with client_of(memory_api(store)) as http:
        thread = await ThreadClient.begin(http, "talk", agent=AGENT)
        asked = await thread.post(content="1?")
        await thread.post(f"{asked['user']['message_id']}/retry")

        async def refuse(*_: object) -> None:
            raise error

        monkeypatch.setattr(store, "cancel", refuse)
        refused = await http.post("/threads/talk/cancel")

    assert refused.status_code == status
    assert "retry-after" in refused.headers


async def test_a_repeat_that_overtakes_its_request_is_answered_as_that_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The repeat found nothing, and before it looks at the thread, the first one is stored."""
    key = {"Idempotency-Key": "k"}
    earlier = Chats.earlier
    async with client_of(memory_api(MemoryRuns())) as http:
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
