"""The work of steps in tests of runs."""

import asyncio
from typing import Any

import pytest

from caseworker.engine.context import FlowContext
from caseworker.runs.run import CancelRequest, Run
from tests.support.graph_invariants import violations
from tests.support.runs import RunProcess, answering, call
from tests.support.seeded_loop import deaf

CANCEL_REQUEST = CancelRequest(requested_by="ops", reason="enough")


async def nothing(context: FlowContext) -> str:
    """Return at once."""
    return "done"


async def waits(context: FlowContext) -> str:
    """Store a partial result, then wait."""
    context.keep(lambda: {"result": {"value": "so far"}})
    await asyncio.sleep(30)
    return "done"


async def waits_deaf(context: FlowContext) -> str:
    """Ignore cancellation during a call that costs something."""
    await call(context, "deaf", deaf_attempt)
    return "late"


async def deaf_attempt() -> Any:
    await deaf(20)
    return await answering("answer")()


async def must_not_run(context: FlowContext) -> str:
    pytest.fail("the step was executed")


def trace_of(process: RunProcess, run: Run) -> dict[str, tuple[str, str | None]]:
    """Return status and reason of each node in the last snapshot, after validating it."""
    snapshot = process.store.rows[run.key].snapshots[-1]
    assert violations(snapshot) == []
    nodes = snapshot["nodes"].values()
    return {node["name"]: (node["status"], node["stop_reason"]) for node in nodes}
