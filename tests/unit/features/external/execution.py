"""External runs on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from caseworker.engine.report import GraphOutcome
from caseworker.features.external.session import GatewaySession
from caseworker.features.external.sessions import Sessions
from caseworker.runs.kinds import KINDS
from caseworker.runs.run import CallRecord, RunKey, RunKind
from tests.support.seeded_loop import run
from tests.unit.nodes.world import NodeRun

IDLE = 60.0

KEY = RunKey("", "run-1")


async def _no_calls(_: RunKey) -> Sequence[CallRecord]:
    return ()


def executed(client: Callable[[GatewaySession], Awaitable[None]]) -> tuple[GraphOutcome, float]:
    """Execute an external run with a client; return its outcome and its duration in seconds."""

    async def main() -> tuple[GraphOutcome, float]:
        sessions = Sessions(_no_calls)
        graph = KINDS[RunKind.EXTERNAL].graph_of({"idle_seconds": IDLE})
        async with asyncio.TaskGroup() as group:
            execution = group.create_task(NodeRun(services={Sessions: sessions}).run(graph))
            session = await sessions.get_within(KEY, 1)
            assert session is not None
            began = asyncio.get_running_loop().time()
            await client(session)
            outcome = await execution
        assert sessions.get(KEY) is None
        return outcome, asyncio.get_running_loop().time() - began

    return run(main, 0).result
