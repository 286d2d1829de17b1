"""Random graph runs, and forks at every one of their nodes."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from caseworker.core.trace.node import TAKEN_OVER
from caseworker.engine.events import STEP_STARTED
from caseworker.runs.run import CallRecord, NewRun, Run, RunKey, RunKind, RunRequest, RunSource
from tests.property.resumed_stories import LOOK_ON_SECONDS, Tale
from tests.support.event_log import event_problems
from tests.support.graph_invariants import violations
from tests.support.memory_rows import journal_of
from tests.support.runs import KEY

SAME = ("node_id", "parent_id", "kind", "name", "status", "model", "retries_used")
"""The fields of a node that a fork keeps unchanged."""


class Forks:
    """Forks of one run, played one after the other."""

    def __init__(self, tale: Tale, seed: int) -> None:
        self.tale = tale
        self._draw = random.Random(seed)
        self.problems: list[str] = []
        self.made = 0
        self.taken_over = 0
        self._first = 0
        """The number of the first process that executes a fork."""
        self.lost = 0
        """The number of forks that another process had to finish."""

    async def play(self) -> None:
        """Play the run, then forks at its nodes, a fork of the whole run, and forks of forks."""
        await self.tale.play()
        nodes = [record.node_id for record in journal_of(self.tale.store.rows[KEY])]
        for number, until in enumerate([None, *nodes]):
            fork = await self._fork(KEY, f"fork-{number}", until)
            if number % 5 == 0:
                of_it = [record.node_id for record in journal_of(self.tale.store.rows[fork.key])]
                await self._fork(fork.key, f"{fork.key.run_id}-again", self._draw.choice(of_it))
        await asyncio.sleep(LOOK_ON_SECONDS)

    async def _fork(self, old: RunKey, run_id: str, until: str | None) -> Run:
        tale, process = self.tale, self.tale.process()
        self._first = len(tale.processes)
        tale.begun.clear()
        tale.made.clear()
        request = RunRequest(kind=RunKind.GRAPH, graph={}, source=RunSource(old.run_id, until))
        new = NewRun(key=replace(old, run_id=run_id), request=request, request_hash=run_id)
        await process.post(new)
        if self._draw.random() < 0.2:
            await asyncio.sleep(self._draw.choice([0, 0.1, 0.6, 2]))
            tale.store.lose(process.name)
            process.executor.lose(new.key)
        await process.executor.ended(new.key)
        if await tale.process().take(new.key) is not None:
            self.lost += 1
            await tale.processes[-1].executor.ended(new.key)
        run = await tale.store.get(new.key)
        assert run is not None
        found = [*self._problems(old, run, until)]
        self.problems += [f"{run_id} from {old.run_id} until {until}: {each}" for each in found]
        return run

    def _problems(self, old: RunKey, run: Run, until: str | None) -> Iterator[str]:
        before = {each.node_id: each for each in journal_of(self.tale.store.rows[old])}
        row = self.tale.store.rows[run.key]
        after = {each.node_id: each for each in journal_of(row)}
        taken = {id_ for id_, each in after.items() if TAKEN_OVER in each.node["metadata"]}
        self.made += len(self.tale.made)
        self.taken_over += len(taken)
        yield from violations(row.snapshots[0])
        yield from event_problems([row.events[seq] for seq in sorted(row.events)], run.status)
        for node_id in taken:
            yield from changed(before[node_id].node, after[node_id].node, old.run_id)
        missing = expected(before, until) - taken
        if missing:
            yield f"{missing} had ended well, and is not taken over"
        answered = {before[node_id].call_key for node_id in taken & ended_well(before)}
        for key, process in self.tale.made:  # abandoned work of an earlier fork may end only now
            if key in answered and process >= self._first:
                yield f"{key} was called again"
        for path, process in self.tale.begun:
            if f"step:{path}" in answered and process >= self._first:
                yield f"{path} was executed again"
        assert run.usage is not None
        started = sum(event.type == STEP_STARTED for event in row.events.values())
        if run.usage["steps"] != started:
            yield f"{run.usage} was charged, and {started} steps have started"
        calls = sum(
            each.node["kind"] != "system" for id_, each in after.items() if id_ not in taken
        )
        charged = run.usage.get("llm_calls_small", 0), run.usage.get("tokens", 0)
        own = {key for key, process in self.tale.made if process >= self._first}
        if not len(own) <= charged[0] <= calls or charged[1] > 100 * calls:
            yield f"{run.usage} for {calls} calls, of which {len(own)} reached the outside"


def ended_well(records: Mapping[str, CallRecord]) -> set[str]:
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
        return ended_well(records) - cut
    last = records[until].node
    around, parent = set(), last["parent_id"]
    while parent is not None:
        around.add(parent)
        parent = records[parent].node["parent_id"]
    early = {id_ for id_, each in records.items() if each.node["end_ts_ms"] < last["end_ts_ms"]}
    itself = {until} if last["status"] == "success" and last["name"] != "attempt" else set()
    return (ended_well(records) & early | itself & ended_well(records)) - around - cut


def changed(old: Mapping[str, Any], new: Mapping[str, Any], run_id: str) -> Iterator[str]:
    for name in SAME:
        if old[name] != new[name]:
            yield f"{old['node_id']}.{name} was {old[name]}, and is {new[name]}"
    if new["cost_usd"] or new["tokens_in"] or new["end_ts_ms"] != new["start_ts_ms"]:
        yield f"{new['node_id']} has used something again"
    mark = new["metadata"][TAKEN_OVER]
    if TAKEN_OVER in old["metadata"]:
        if mark != old["metadata"][TAKEN_OVER]:
            yield f"{new['node_id']} is not said to come from where it was made"
    elif (mark["run_id"], mark["node_id"]) != (run_id, old["node_id"]):
        yield f"{new['node_id']} comes from {run_id}, not from {mark}"
    elif mark["usage"] != {name: old[name] for name in ("cost_usd", "tokens_in", "tokens_out")}:
        yield f"{new['node_id']} had used {old}, not {mark['usage']}"
