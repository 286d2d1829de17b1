"""The work of steps in tests of runs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog

from caseworker.engine.context import FlowContext
from caseworker.runs.run import CancelRequest, Run
from tests.support.graph_invariants import violations
from tests.support.runs import Process, answering, call
from tests.support.seeded_loop import deaf, play

CANCEL_REQUEST = CancelRequest(requested_by="ops", reason="enough")


Story = Callable[[], Awaitable[None]]


def run_story(story: Story, seed: int = 0) -> None:
    """Run a story, and let its abandoned work end."""

    async def main() -> None:
        await story()
        await asyncio.sleep(2000)

    with structlog.testing.capture_logs():
        play(main, seed)


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


def trace_of(process: Process, run: Run) -> dict[str, tuple[str, str | None]]:
    """Return status and reason of each node in the last snapshot, after validating it."""
    snapshot = process.store.rows[run.key].snapshots[-1]
    assert violations(snapshot) == []
    nodes = snapshot["nodes"].values()
    return {node["name"]: (node["status"], node["stop_reason"]) for node in nodes}
