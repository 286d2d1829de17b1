"""A decision reaches a running run at once, whichever replica received it."""

import json

import pytest

from caseworker.engine import waiting_calls
from caseworker.engine.waiting_calls import Verdict
from caseworker.features.waiting_calls.postgres import PostgresWaitingCalls
from caseworker.features.waiting_calls.waiting_calls import Deciding, RunWaitingCalls
from caseworker.runs.postgres.listener import DECISION_CHANNEL
from caseworker.runs.run import RunKey
from tests.support.configured_cases import Configured
from tests.support.fake_provider.script import Step
from tests.support.stores import eventually, open_oracle, open_stores

KEY = RunKey("default", "lanes")
AGENT = {"name": "slow", "prompt": {"system": "Think."}}
STEPS = [
    {"id": "ask", "type": "approval", "data": {"message": "Go on?"}},
    {"id": "slow", "type": "agent", "data": {"agent": AGENT}},
]
GRAPH = {"steps": STEPS, "edges": [], "max_parallel": 2}
NEVER = 3600.0


async def test_a_decision_is_heard_while_another_lane_works(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is notified without polling, and other notifications do not end its wait."""
    monkeypatch.setattr(waiting_calls, "LOOK_SECONDS", (NEVER, NEVER))
    await configured.provider.script("(lanes)", [Step(hang=True)])
    async with (
        configured.serving() as client,
        open_stores(configured.database_url) as elsewhere,
        open_oracle(configured.database_url) as oracle,
    ):
        await client.run_graph(GRAPH, run_id=KEY.run_id, inputs={"default": "Hm (lanes)"})
        await configured.provider.wait_for_arrivals(1, "(lanes)")
        desk = RunWaitingCalls(PostgresWaitingCalls(elsewhere.engines))

        async def asked() -> bool:
            return bool((await desk.store.waiting(KEY.tenant, limit=1, cursor=None)).items)

        await eventually(asked)
        for payload in ("", "{", "[]", json.dumps({"tenant": "default", "run_id": "lanes"})):
            await oracle.rows("SELECT pg_notify(%s, %s)", DECISION_CHANNEL, payload)
        (question,) = await desk.of_run(KEY)
        deciding = Deciding(approval_id=question.approval_id, verdict=Verdict.APPROVED, by="anna")
        await desk.decide(KEY, deciding)

        async def told() -> bool:
            query = "SELECT count(*) FROM events WHERE type = 'approval.approved'"
            return bool(await oracle.value(query))

        await eventually(told)
        run = await client.get_run(KEY.run_id)
        await client.cancel_run(KEY.run_id)
        await configured.provider.release()

    assert (run["status"], run["attempts"]) == ("running", 1)
