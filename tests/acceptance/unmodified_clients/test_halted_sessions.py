"""Claude Code and Codex, halted by the budget of a standing key in the middle of a session.

``make proofs ARGS="-k halted_sessions -rP"`` prints the model calls and the usage of each session.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.agent_clients.processes import (
    CLAUDE_CODE,
    CODEX,
    MESSAGES,
    RESPONSES,
    Client,
    claude_code_session,
    codex_session,
    finish,
)
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, claude_settings, model_settings
from tests.support.standing import create_key
from tests.support.tenants import OPERATOR_KEY

pytestmark = [pytest.mark.proof, pytest.mark.req("cw/19.key")]

CALLS: Final = 3
"""Model calls that the budget of a session allows."""
COMMAND: Final = "echo called >> calls.txt"
PRICES: Final = {"IN": 2, "OUT": 10}
"""Dollars per million tokens."""
DOLLARS: Final = 0.3


@dataclass(frozen=True)
class Session:
    """A client, and the tool with which it executes shell commands."""

    client: Client
    tool: str
    argument: str

    def __repr__(self) -> str:
        return self.client.name

    @property
    def call(self) -> dict[str, str]:
        """A call of the tool that leaves a trace in the folder of the session."""
        arguments = json.dumps({self.argument: COMMAND})
        return {"id": "call_1", "name": self.tool, "arguments": arguments}


SESSIONS: Final = [
    Session(
        Client(name="Claude Code", api=MESSAGES, packages=CLAUDE_CODE, command=claude_code_session),
        *("Bash", "command"),
    ),
    Session(
        Client(name="Codex", api=RESPONSES, packages=CODEX, command=codex_session),
        *("exec_command", "cmd"),
    ),
]


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    prices = {f"price_per_million_{side.lower()}_usd": price for side, price in PRICES.items()}
    return {
        **model_settings(running_provider.openai_url),
        **claude_settings(running_provider.url, **prices),
        **{f"MODELS_SMALL_{name.upper()}": str(price) for name, price in prices.items()},
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
    }


@pytest.mark.parametrize("session", SESSIONS, ids=repr)
@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        ({"max_llm_calls": CALLS}, f"LLM call limit exceeded: {CALLS} used, limit {CALLS}"),
        ({"max_cost_usd": DOLLARS}, "The run was halted: "),
    ],
    ids=["calls", "dollars"],
)
async def test_a_session_that_executes_commands_ends_with_its_budget(
    session: Session,
    budget: dict[str, Any],
    reason: str,
    service: ServiceProcess,
    provider: FakeProvider,
    tmp_path: Path,
) -> None:
    """The model never stops calling the tool. The client shows the reason and exits with 1.

    Each allowed call but the last one was followed by its command, and no call reached the provider
    after the halt.
    """
    await provider.script("CONTINUE", [Step(tool_calls=[session.call])], repeat_last=True)
    models = {"*": "claude" if session.client.api == MESSAGES else "small"}
    async with service.http() as http:
        holder = await create_key(
            http, OPERATOR_KEY, name=tmp_path.name, models=models, budget=budget
        )
        access: Any = {
            "key": holder.key["key"],
            "openai_base_url": f"{service.url}/gateway/openai/v1",
            "anthropic_base_url": f"{service.url}/gateway/anthropic",
        }
        run = {"access": access}
        code, out, err = await finish(session.client, run, "CONTINUE", tmp_path, stream=True)
        headers = {"Authorization": f"Bearer {OPERATOR_KEY}"}
        [listed] = (
            await http.get("/runs", params={"agent": tmp_path.name}, headers=headers)
        ).json()["runs"]
        ended = (await http.get(f"/runs/{listed['run_id']}", headers=headers)).json()

    arrivals = await provider.arrivals("CONTINUE")
    commands = (tmp_path / "calls.txt").read_text().splitlines()
    sys.stdout.write(f"| {session} | {budget} | {len(arrivals)} | {ended['usage']} |\n")
    assert code == 1, out + err
    assert reason in " ".join((out + err).split())
    assert {arrival.outcome for arrival in arrivals} == {"answered"}
    assert len(arrivals) == len(commands) == ended["usage"]["llm_calls"]
    assert (ended["status"], ended["stop"]["kind"]) == ("halted", "budget")
    if "max_llm_calls" in budget:
        assert len(arrivals) == CALLS
    else:
        assert len(arrivals) > 1
        assert 0 < ended["usage"]["cost_usd"] <= DOLLARS
