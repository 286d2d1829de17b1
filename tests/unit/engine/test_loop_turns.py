"""Steps that never wait share the event loop: with the loop's other work, and between tenants."""

import asyncio
from collections.abc import Mapping

import pytest

from caseworker.engine import concurrency
from caseworker.engine.concurrency import LoopTurns
from caseworker.engine.context import FlowContext
from caseworker.engine.quiet import are_quiet
from caseworker.platform.fair_slots import TENANT
from tests.unit.engine.driving import GraphRun, Scripted, drive, flow, graph, statuses


@pytest.fixture(autouse=True)
def _endless_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn has ended when it begins, as if a step had just used all of its time."""
    monkeypatch.setattr(concurrency, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(concurrency, "BUSY_SECONDS", 0.0)


async def test_busy_runs_go_on_one_by_one_in_different_iterations() -> None:
    """However many runs are busy, one iteration of the loop contains the work of a single one."""
    turns, iterations = LoopTurns(), [0]
    steps: list[int] = []

    async def count_iterations() -> None:
        while True:
            iterations[0] += 1
            await asyncio.sleep(0)

    async def run() -> None:
        for _ in range(3):
            await turns.pause(object())
            steps.append(iterations[0])

    counting = asyncio.create_task(count_iterations())
    async with asyncio.TaskGroup() as runs:
        for _ in range(20):
            runs.create_task(run())
    counting.cancel()

    assert len(steps) == len(set(steps)) == 60


async def test_tenants_take_turns() -> None:
    """The run of one tenant waits for one step of another tenant, which has many runs."""
    turns, order = LoopTurns(), list[str]()

    async def run(tenant: str) -> None:
        TENANT.set(tenant)
        await turns.pause(tenant)
        order.append(tenant)

    async with asyncio.TaskGroup() as runs:
        for tenant in (*("mallory",) * 50, "acme"):
            runs.create_task(run(tenant))

    assert order.index("acme") <= 1


async def test_a_cancelled_run_leaves_its_turn_to_the_next() -> None:
    """After a cancellation while a run waits for its turn, or during it, other runs continue."""
    turns = LoopTurns()
    runs = [asyncio.create_task(turns.pause(object())) for _ in range(3)]
    await asyncio.sleep(0)
    for run in runs:
        run.cancel()
    await asyncio.wait(runs)

    await turns.pause("another")


async def test_a_loop_that_is_not_busy_costs_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a turn, runs continue in the same iteration of the loop."""
    monkeypatch.setattr(concurrency, "TURN_SECONDS", 3600.0)
    turns, other = LoopTurns(), list[str]()
    asyncio.get_running_loop().call_soon(other.append, "another callback")

    for number in range(100):
        await turns.pause(number)

    assert other == []


async def test_a_run_with_many_steps_gives_way_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with a single step in an iteration continue together, so that they share commits."""
    monkeypatch.setattr(concurrency, "TURN_SECONDS", 3600.0)
    turns, other = LoopTurns(), list[str]()
    asyncio.get_running_loop().call_soon(other.append, "another callback")

    await turns.pause("busy")
    await turns.pause("another")
    assert other == []
    await turns.pause("busy")
    assert other == ["another callback"]


def test_a_run_between_two_steps_is_not_quiet() -> None:
    """A step that waits for its turn counts as work, so the run is not suspended."""
    quiet, decided = list[bool](), asyncio.Event()

    async def waits(context: FlowContext, _: object) -> Mapping[str, str]:
        async with context.calls.activity.waits(context.path):
            await decided.wait()
        return {"default": "decided"}

    async def decides(_: object, __: object) -> Mapping[str, str]:
        decided.set()
        return {"default": "C"}

    def crowd(world: GraphRun) -> None:
        async def other() -> None:
            while not decided.is_set():
                await asyncio.sleep(1)  # as long as a step: all continue at the same instant
                await world.slots.turns.pause(object())

        async def watch() -> None:
            calls = world.gateway.calls
            while not decided.is_set():
                quiet.append(await are_quiet(calls, lambda: calls.activity.waiting))
                await asyncio.sleep(0.5)

        tasks.extend(asyncio.create_task(each()) for each in (*(other,) * 20, watch))

    tasks = list[asyncio.Task[None]]()
    steps = graph("WABC", flow("A", "B"), flow("B", "C"), max_parallel=2)
    outcome, _ = drive(steps, Scripted(W=waits, C=decides), before=crowd, after_seconds=2)

    assert set(statuses(outcome).values()) == {"completed"}
    assert set(quiet) == {False}
