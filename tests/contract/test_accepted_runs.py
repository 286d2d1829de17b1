"""Contract of the run store for the data of an accepted run, tested on every implementation."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.models.ports import Message
from caseworker.nodes.chat import ChatInput
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.run import DefinitionRef, NewRun, Queueing, RunKind, RunRequest, RunStatus
from tests.support.ports import KEY, Ports
from tests.support.stores import new_run

DETAILED = NewRun(
    key=KEY,
    request=RunRequest(
        kind=RunKind.AGENT,
        graph={"steps": []},
        definition_ref=DefinitionRef("helper", 3, DefinitionKind.AGENT),
        inputs={"text": "2+2?"},
        budget=Budget(max_cost_dollars=Decimal("0.25"), max_turns=3),
        requires_prices=False,
        deadline=datetime(2100, 1, 1, tzinfo=UTC),
        seed=7,
        timezone="Europe/Rome",
        chat=ChatInput(
            thread_id="thread",
            messages=(Message(role="user", content="2+2?"),),
            user_tools=({"name": "echo"},),
        ),
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
    request_hash="hash",
    queueing=Queueing(priority=3, concurrency_key="one by one", concurrency_limit=2),
    metadata={"team": {"name": "a"}},
)
"""A run that uses every field allowed for runs."""


@pytest.mark.parametrize("new", [new_run("case-1", key="k"), DETAILED], ids=["case", "graph"])
async def test_a_run_for_a_worker_is_stored_as_it_was_accepted(ports: Ports, new: NewRun) -> None:
    """A read returns the accepted run with its whole request and the first fence."""
    accepted = await ports.runs.accept(new, worker_id="w1")
    stored = await ports.stored()

    assert accepted.created
    assert replace(accepted.run, created_at=stored.created_at, started_at=None) == replace(
        stored, started_at=None
    )
    assert (stored.status, stored.worker_id) == (RunStatus.RUNNING, "w1")
    assert (stored.fence, stored.attempts) == (1, 1)
    assert (stored.request, stored.metadata, stored.queueing) == (
        new.request,
        new.metadata,
        new.queueing,
    )


async def test_of_two_equal_requests_at_once_one_makes_the_run(ports: Ports) -> None:
    """The second request waits for the first insert and returns the same run."""
    async with asyncio.timeout(600), asyncio.TaskGroup() as posts:
        accepting = [
            posts.create_task(ports.runs.accept(new_run("case-1"), worker_id="w1"))
            for _ in range(2)
        ]

    first, second = (task.result() for task in accepting)
    assert (first.created, second.created) == (True, False)
    assert first.run.created_at == second.run.created_at
