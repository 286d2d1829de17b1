"""Standing keys, the runs of their sessions, and calls that reserve in their accounts."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

from caseworker.core.budget.accounts import Hold
from caseworker.core.budget.budget import Budget
from caseworker.features.access.agent_keys import AgentTerms
from caseworker.features.access.keys import sha256_of
from caseworker.features.access.postgres import PostgresKeys
from caseworker.features.external.key_sessions import UNNAMED, StandingKey
from caseworker.features.external.postgres import PostgresStandingKeys
from caseworker.platform.caller import OPERATOR, KeyScope
from caseworker.runs.kinds import KINDS
from caseworker.runs.ports import JournalWrite
from caseworker.runs.run import Run, RunKind, RunRequest
from tests.support.stores import Stores, new_run


async def standing_key(stores: Stores, **terms: Any) -> StandingKey:
    """Return a new standing key with these terms."""
    keys = PostgresKeys(stores.engines.work)
    issued = await keys.create(
        OPERATOR, name="agent", scopes=frozenset({KeyScope.READ}), agent=AgentTerms(**terms)
    )
    key_id, sha256 = issued.key.key_id, sha256_of(issued.secret)
    current = await PostgresStandingKeys(stores.engines.work).find(key_id, sha256, UNNAMED)
    assert current is not None
    return current[0]


async def begun(stores: Stores, key: StandingKey, session: str, run_id: str) -> Run:
    """Return a run of a session that a worker executes."""
    client = {"account": key.account, "session": session, "key_id": key.key_id}
    graph = KINDS[RunKind.EXTERNAL].graph_of({"client": client})
    request = RunRequest(kind=RunKind.EXTERNAL, budget=Budget(), graph=graph)
    new = replace(new_run(run_id), request=request)
    return (await stores.runs.accept(new, worker_id="w1")).run


def hold(seq: int, cost: str = "0", *, tokens: int = 0, calls: int = 1) -> Hold:
    return Hold(
        node_id=f"n{seq:06d}",
        attempt=1,
        cost_usd=Decimal(cost),
        tokens=tokens,
        llm_calls=calls,
        api_calls=calls,
    )


async def write(stores: Stores, run: Run, *holds: Hold, settled: tuple[Hold, ...] = ()) -> Any:
    """Pass a barrier; return the answers to the holds."""
    written = JournalWrite(
        key=run.key, fence=run.fence, accounts=run.accounts, holds=holds, settled=settled
    )
    permission = await stores.journal.write(written)
    assert permission.owned
    return [permission.holds[each.key] for each in holds]
