"""A process claims only runs of the kinds that it executes."""

from dataclasses import replace

from caseworker.runs.execute.postgres.runs import PostgresRuns
from caseworker.runs.run import NewRun, RunKind
from tests.support.stores import CANCEL_REQUEST, Stores, new_run

OTHERS = ["graph", "agent", "external"]


def _of(stores: Stores, kinds: list[str]) -> PostgresRuns:
    """Return the store of a process that executes some kinds of runs."""
    of = stores.runs
    return PostgresRuns(of.engines, of.journal, of.limits, kinds=kinds)


def _graph(run_id: str, tenant: str = "default") -> NewRun:
    new = new_run(run_id, tenant=tenant)
    return replace(new, request=replace(new.request, kind=RunKind.GRAPH, graph={"steps": []}))


async def test_runs_of_other_kinds_are_left_for_processes_that_execute_them(
    stores: Stores,
) -> None:
    """Neither the next run nor a given one is claimed, and a tenant with such runs is kept."""
    limited = _of(stores, OTHERS)
    for number in range(3):
        await stores.runs.accept(new_run(f"case-{number}"), worker_id=None)
    await stores.runs.accept(new_run("alone", tenant="other"), worker_id=None)
    await stores.runs.accept(_graph("graph"), worker_id=None)

    claimed = [await limited.claim(None, "limited") for _ in range(3)]
    given = await limited.claim(new_run("case-0").key, "limited")
    suspect = await limited.claim_suspect("limited")
    all_kinds = [await stores.runs.claim(None, "full") for _ in range(5)]

    assert [run and run.key.run_id for run in claimed] == ["graph", None, None]
    assert (given, suspect) == (None, None)
    assert {run.key.run_id for run in all_kinds if run is not None} == {
        *("case-0", "case-1", "case-2", "alone")
    }


async def test_a_later_run_is_found_behind_many_of_other_kinds(stores: Stores) -> None:
    """A claim examines more runs of a tenant than the first 100."""
    for number in range(120):
        await stores.runs.accept(new_run(f"case-{number}"), worker_id=None)
    await stores.runs.accept(_graph("graph"), worker_id=None)

    claimed = await _of(stores, OTHERS).claim(None, "limited")

    assert claimed is not None
    assert claimed.key.run_id == "graph"


async def test_a_started_run_of_another_kind_can_be_stopped(stores: Stores) -> None:
    """Any process may claim a stopped run to end it."""
    new = new_run("stopped")
    accepted = await stores.runs.accept(new, worker_id="w1")
    await stores.runs.release(accepted.run, active_seconds=0, calls=(), counted=False)
    await stores.runs.cancel(new.key, CANCEL_REQUEST)

    claimed = await _of(stores, OTHERS).claim_stopped(new.key, "limited")

    assert claimed is not None
