"""Client libraries and agents of other projects need a base URL and a standing key, and no run."""

from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.agent_clients.processes import (
    CLIENTS,
    MESSAGES,
    MORE_CLIENTS,
    PART,
    WHOLE,
    Client,
    execute,
)
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, claude_settings, model_settings
from tests.support.standing import Holder, create_key
from tests.support.tenants import OPERATOR_KEY

pytestmark = [pytest.mark.proof, pytest.mark.req("cw/19.key")]

WITH_SESSIONS: Final = ("Claude Code", "Codex", "Codex with web search")
"""Agents that name their sessions."""


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    return {
        **model_settings(running_provider.openai_url),
        **claude_settings(running_provider.url),
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
    }


async def holder_of(http: httpx.AsyncClient, client: Client, calls: int) -> Holder:
    """Return the holder of a key with a number of calls a day, for any name of a model."""
    models = {"*": "claude" if client.api == MESSAGES else "small"}
    limits = {"max_llm_calls": calls}
    return await create_key(
        http, OPERATOR_KEY, name=repr(client), models=models, budget_per_day=limits
    )


@pytest.mark.parametrize("client", [*CLIENTS, *MORE_CLIENTS], ids=repr)
async def test_a_client_works_with_a_standing_key_until_its_budget_is_spent(
    client: Client, service: ServiceProcess, provider: FakeProvider, tmp_path: Path
) -> None:
    """It prints the answer; with a spent budget, it ends without one and no call is made."""
    await provider.script("WHOLE", [Step(text=WHOLE)], repeat_last=True)
    urls = {
        "openai_base_url": f"{service.url}/gateway/openai/v1",
        "anthropic_base_url": f"{service.url}/gateway/anthropic",
    }
    async with service.http() as http:
        outputs, calls = [], []
        for limit in (50, 0):
            holder = await holder_of(http, client, limit)
            run: Any = {"access": {"key": holder.key["key"], **urls}}
            folder = tmp_path / str(limit)
            outputs.append(await execute(client, run, "WHOLE", folder, stream=True))
            calls.append(await provider.count("WHOLE"))
        query, headers = {"agent": repr(client)}, {"Authorization": f"Bearer {OPERATOR_KEY}"}
        listed = (await http.get("/runs", params=query, headers=headers)).json()["runs"]
        paths = [f"/runs/{each['run_id']}" for each in listed]
        runs = [(await http.get(path, headers=headers)).json() for path in paths]

    (answer, _), (refused, _) = outputs
    assert PART.strip() in answer, outputs[0]
    assert PART.strip() not in refused
    assert calls[0] == calls[1] >= 1
    (run,) = runs  # none was opened with the spent budget
    assert (run["status"], run["usage"]["llm_calls"]) == ("running", calls[0])
    assert (run["client"]["conversation"] is not None) == (client.name in WITH_SESSIONS)
