"""Threads over HTTP where the store of runs refuses."""

import pytest

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
