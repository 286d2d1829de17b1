"""Contract for the order in which queued runs are claimed, tested on every store."""

from dataclasses import replace
from typing import Any

from caseworker.runs.run import NewRun, Queueing, RunStatus
from tests.support.ports import Ports
from tests.support.stores import end_of, new_run


def queued(run_id: str, tenant: str = "default", **queueing: Any) -> NewRun:
    return replace(new_run(run_id, tenant=tenant), queueing=Queueing(**queueing))


async def claimed(ports: Ports) -> str | None:
    run = await ports.runs.claim(None, "w1")
    return None if run is None else run.key.run_id


async def test_tenants_take_turns_whatever_one_of_them_has_queued(ports: Ports) -> None:
    """A single late run of one tenant is claimed before a hundred earlier ones of another."""
    for number in range(5):
        await ports.runs.accept(queued(f"a{number}", "a"), worker_id=None)
    await ports.runs.accept(queued("b0", "b"), worker_id=None)

    assert [await claimed(ports) for _ in range(3)] == ["a0", "b0", "a1"]


async def test_priority_comes_before_age_within_a_tenant_alone(ports: Ports) -> None:
    """A higher number is claimed first, but only among runs of the same tenant."""
    await ports.runs.accept(queued("old", "a"), worker_id=None)
    await ports.runs.accept(queued("urgent", "a", priority=100), worker_id=None)
    await ports.runs.accept(queued("other", "b", priority=-100), worker_id=None)

    assert [await claimed(ports) for _ in range(4)] == ["urgent", "other", "old", None]


async def test_runs_of_a_concurrency_key_wait_in_order(ports: Ports) -> None:
    """A run waits behind earlier runs of its key, while other runs of the tenant pass it."""
    key: dict[str, Any] = {"concurrency_key": "customer 7", "concurrency_limit": 2}
    runs = [await ports.runs.accept(queued(f"k{n}", **key), worker_id="w1") for n in range(4)]
    await ports.runs.accept(queued("free"), worker_id=None)

    statuses = [each.run.status for each in runs]
    assert statuses == [RunStatus.RUNNING] * 2 + [RunStatus.QUEUED] * 2
    assert [await claimed(ports) for _ in range(2)] == ["free", None]
    assert (await ports.journal.finish(end_of(runs[1].run))).done
    assert [await claimed(ports) for _ in range(2)] == ["k2", None]


async def test_a_run_that_has_begun_keeps_its_place_under_its_key(ports: Ports) -> None:
    """A released run is claimed again before the other runs of its key."""
    key: dict[str, Any] = {"concurrency_key": "one at a time"}
    first = (await ports.runs.accept(queued("first", **key), worker_id="w1")).run
    await ports.runs.accept(queued("second", priority=9, **key), worker_id="w1")
    await ports.runs.release(first, active_seconds=1.0, calls=(), counted=False)

    assert [await claimed(ports) for _ in range(2)] == ["first", None]
