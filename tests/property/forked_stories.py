"""Random graph runs, and forks at every one of their nodes."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from caseworker.core.trace.node import IMPORTED_FROM
from caseworker.engine.events import STEP_STARTED
from caseworker.runs.run import CallRecord, NewRun, Run, RunKey, RunKind, RunRequest, RunSource
from tests.property.resumed_stories import LOOK_ON_SECONDS, GraphRun
from tests.support.event_log import event_problems
from tests.support.graph_invariants import violations
from tests.support.memory_rows import Row, journal_of
from tests.support.memory_runs import MemoryRuns
from tests.support.runs import KEY

SAME = ("node_id", "parent_id", "kind", "name", "status", "model", "retries_used")
"""The fields of a node that a fork keeps unchanged."""


@dataclass(frozen=True)
class ForkedJournal:
    """The journal of a run, and that of its fork, by node ID."""

    source: RunKey
    before: Mapping[str, CallRecord]
    after: Mapping[str, CallRecord]

    @classmethod
    def of(cls, store: MemoryRuns, source: RunKey, fork: RunKey) -> Self:
        """Read both journals."""
        before, after = (
            {each.node_id: each for each in journal_of(store.rows[key])} for key in (source, fork)
        )
        return cls(source, before, after)

    @cached_property
    def imported(self) -> set[str]:
        """Return the IDs of the nodes that the fork imported."""
        return {id_ for id_, each in self.after.items() if IMPORTED_FROM in each.node["metadata"]}

    @property
    def imported_results(self) -> set[str | None]:
        """Return the keys of the calls that succeeded and were imported."""
        return {self.before[id_].call_key for id_ in self.imported & succeeded(self.before)}

    def problems(self, row: Row, run: Run, until: str | None) -> Iterator[str]:
        """Yield each fault of the fork's trace, events and imports."""
        yield from violations(row.snapshots[0])
        yield from event_problems([row.events[seq] for seq in sorted(row.events)], run.status)
        for node_id in self.imported:
            source, fork = self.before[node_id].node, self.after[node_id].node
            yield from changed(source, fork, self.source.run_id)
        missing = expected(self.before, until) - self.imported
        if missing:
            yield f"{missing} had succeeded, and is not imported"


class GraphForks:
    """Forks of one graph run, executed one after the other."""

    def __init__(self, graph_run: GraphRun, seed: int) -> None:
        self.graph_run = graph_run
        self._draw = random.Random(seed)
        self.problems: list[str] = []
        self.new_calls = 0
        """The number of external calls of all forks."""
        self.imported = 0
        """The number of nodes that all forks imported."""
        self.recovered = 0
        """The number of forks that another process had to finish."""
        self._first = 0
        """The number of the first process that executes a fork."""

    async def play(self) -> None:
        """Play the run, then forks at its nodes, a fork of the whole run, and forks of forks."""
        await self.graph_run.play()
        rows = self.graph_run.store.rows
        nodes = [record.node_id for record in journal_of(rows[KEY])]
        for number, until in enumerate([None, *nodes]):
            fork = await self._fork(KEY, f"fork-{number}", until)
            if number % 5 == 0:
                of_fork = [record.node_id for record in journal_of(rows[fork.key])]
                until = self._draw.choice(of_fork)
                await self._fork(fork.key, f"{fork.key.run_id}-again", until)
        await asyncio.sleep(LOOK_ON_SECONDS)

    async def _fork(self, source: RunKey, run_id: str, until: str | None) -> Run:
        graph_run, process = self.graph_run, self.graph_run.process()
        self._first = len(graph_run.processes)
        graph_run.attempts.clear()
        graph_run.external_calls.clear()
        request = RunRequest(kind=RunKind.GRAPH, graph={}, source=RunSource(source.run_id, until))
        new = NewRun(key=replace(source, run_id=run_id), request=request, request_hash=run_id)
        await process.post(new)
        if self._draw.random() < 0.2:
            await asyncio.sleep(self._draw.choice([0, 0.1, 0.6, 2]))
            graph_run.store.lose(process.name)
            process.executor.lose(new.key)
        await process.executor.ended(new.key)
        if await graph_run.process().take(new.key) is not None:
            self.recovered += 1
            await graph_run.processes[-1].executor.ended(new.key)
        run = await graph_run.store.get(new.key)
        assert run is not None
        fork = f"{run_id} from {source.run_id} until {until}"
        self.problems += [f"{fork}: {each}" for each in self._problems(source, run, until)]
        return run

    def _problems(self, source: RunKey, run: Run, until: str | None) -> Iterator[str]:
        journal = ForkedJournal.of(self.graph_run.store, source, run.key)
        row = self.graph_run.store.rows[run.key]
        self.new_calls += len(self.graph_run.external_calls)
        self.imported += len(journal.imported)
        yield from journal.problems(row, run, until)
        imported = journal.imported_results
        # Abandoned work of an earlier fork may end only now.
        for key, process in self.graph_run.external_calls:
            if key in imported and process >= self._first:
                yield f"{key} was called again"
        for path, process in self.graph_run.attempts:
            if f"step:{path}" in imported and process >= self._first:
                yield f"{path} was executed again"
        assert run.usage is not None
        started = sum(event.type == STEP_STARTED for event in row.events.values())
        if run.usage["steps"] != started:
            yield f"{run.usage} was charged, and {started} steps have started"
        calls = sum(
            each.node["kind"] != "system"
            for id_, each in journal.after.items()
            if id_ not in journal.imported
        )
        charged = run.usage.get("llm_calls_small", 0), run.usage.get("tokens", 0)
        own = {key for key, process in self.graph_run.external_calls if process >= self._first}
        if not len(own) <= charged[0] <= calls or charged[1] > 100 * calls:
            yield f"{run.usage} for {calls} calls, of which {len(own)} reached the outside"


def succeeded(records: Mapping[str, CallRecord]) -> set[str]:
    """Return the node IDs of the calls that succeeded."""
    return {
        id_ for id_, each in records.items() if each.call_key and each.node["status"] == "success"
    }


def expected(records: Mapping[str, CallRecord], until: str | None) -> set[str]:
    """Return the calls to import: successful, and finished before the millisecond of the fork.

    An incomplete reply may be requested again if nothing came after it.
    """
    cut = {
        id_
        for id_, each in records.items()
        if isinstance(each.value, dict) and each.value.get("incomplete")
    }
    if until is None:
        return succeeded(records) - cut
    last = records[until].node
    around, parent = set(), last["parent_id"]
    while parent is not None:
        around.add(parent)
        parent = records[parent].node["parent_id"]
    early = {id_ for id_, each in records.items() if each.node["end_ts_ms"] < last["end_ts_ms"]}
    itself = {until} if last["status"] == "success" and last["name"] != "attempt" else set()
    return (succeeded(records) & early | itself & succeeded(records)) - around - cut


def changed(old: Mapping[str, Any], new: Mapping[str, Any], run_id: str) -> Iterator[str]:
    """Yield each difference between the node ``old`` of the run ``run_id`` and its import."""
    for name in SAME:
        if old[name] != new[name]:
            yield f"{old['node_id']}.{name} was {old[name]}, and is {new[name]}"
    if new["cost_usd"] or new["tokens_in"] or new["end_ts_ms"] != new["start_ts_ms"]:
        yield f"{new['node_id']} has used something again"
    mark = new["metadata"][IMPORTED_FROM]
    if IMPORTED_FROM in old["metadata"]:
        if mark != old["metadata"][IMPORTED_FROM]:
            yield f"{new['node_id']} does not name the run that made the call"
    elif (mark["run_id"], mark["node_id"]) != (run_id, old["node_id"]):
        yield f"{new['node_id']} comes from {run_id}, not from {mark}"
    elif mark["usage"] != {name: old[name] for name in ("cost_usd", "tokens_in", "tokens_out")}:
        yield f"{new['node_id']} had used {old}, not {mark['usage']}"
