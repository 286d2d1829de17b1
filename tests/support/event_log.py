"""The oracle for the events of a run: the allowed events and their order.

An executing step starts once, even across several workers (later ones resume it), and ends once, at
the latest with its run. The same is true of turns, tool calls and calls; a lost call is repeated as
another call. The last event of a run is its end, followed only by late results.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import psycopg
from psycopg.rows import dict_row

from caseworker.engine.events import (
    LATE_RESULT,
    LIFECYCLE,
    STEP_RESUMED,
    STEP_SKIPPED,
    STEP_STARTED,
)
from caseworker.platform.postgres.connections import driver_url
from caseworker.runs.journal.postgres.journal_rows import event_from_row
from caseworker.runs.run import TERMINAL, EventRecord, RunKey
from tests.support.memory_rows import RUN_ENDS, STEP_ENDS


def event_problems(events: Sequence[EventRecord], status: str) -> list[str]:
    """Return one sentence for each error in the log of a run with this status."""
    return [
        *_about_numbers(events),
        *_about_the_end(events, status),
        *(
            f"step {step}: {problem}"
            for step, types in _by_step(events).items()
            for problem in _about_a_step(types, status)
        ),
        *(unpaired(map(asdict, events)) if status in TERMINAL else ()),
    ]


def unpaired(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return each turn, tool call or call that did not start once and end once, as in JSON."""
    counts: Counter[tuple[str, ...]] = Counter()
    for event in events:
        kind, _, edge = event["type"].replace(".", "_").rpartition("_")
        if kind in ("turn", "tool_call", "call"):
            data = event["data"]
            called = data.get("tool_call_id") or data.get("tool_call", {}).get("id")
            place = (event["step_id"], data.get("turn_number"), called)
            pair = (event["node_id"],) if kind == "call" else place
            counts[kind, *map(str, pair), "start" if edge.startswith("start") else "end"] += 1
    pairs = {pair[:-1] for pair in counts}
    return [
        f"{' '.join(pair)}: {counts[*pair, 'start']} starts, {counts[*pair, 'end']} ends"
        for pair in sorted(pairs)
        if (counts[*pair, "start"], counts[*pair, "end"]) != (1, 1)
    ]


def _about_numbers(events: Sequence[EventRecord]) -> Iterator[str]:
    numbers = [event.seq for event in events]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the numbers are {numbers}"


def _about_the_end(events: Sequence[EventRecord], status: str) -> Iterator[str]:
    types = [event.type for event in events]
    ends = [type_ for type_ in types if type_ in RUN_ENDS]
    told = [f"run.{status}"] if status in TERMINAL else []
    if ends != told:
        yield f"the run is {status}, and its log tells of {ends or 'no end'}"
    if ends and set(types[types.index(ends[0]) + 1 :]) - {LATE_RESULT}:
        yield f"behind the run's end there are {types[types.index(ends[0]) + 1 :]}"


def _by_step(events: Iterable[EventRecord]) -> Mapping[str, list[str]]:
    steps: dict[str, list[str]] = {}
    for event in events:
        if event.type in LIFECYCLE:
            steps.setdefault(str(event.step_id), []).append(event.type)
    return steps


def _about_a_step(types: Sequence[str], status: str) -> Iterator[str]:
    counted = Counter(types)
    ends = sum(counted[end] for end in STEP_ENDS)
    if counted[STEP_SKIPPED] and len(types) > 1:
        yield f"it was skipped, and more: {types}"
    elif counted[STEP_SKIPPED]:
        return
    if counted[STEP_STARTED] != 1 or types[0] != STEP_STARTED:
        yield f"it was not started once and first: {types}"
    if ends > 1 or (ends and types[-1] not in STEP_ENDS):
        yield f"its end is not one, or not the last: {types}"
    if not ends and status in TERMINAL:
        yield f"it has no end, and the run is {status}: {types}"
    if set(types) - STEP_ENDS - {STEP_STARTED, STEP_RESUMED, STEP_SKIPPED}:
        yield f"it has events of an unknown kind: {types}"


def stored_events(url: str) -> dict[RunKey, tuple[str, list[EventRecord]]]:
    """Return the status and the events of every run in a database."""
    query = """
        SELECT tenant_id, run_id, status, seq, ts, type, step_id, node_id, data, brief
        FROM runs LEFT JOIN events USING (tenant_id, run_id)
        WHERE request IS NOT NULL ORDER BY tenant_id, run_id, seq
    """
    found: dict[RunKey, tuple[str, list[EventRecord]]] = {}
    with psycopg.connect(driver_url(url), row_factory=dict_row) as connection:
        for row in connection.execute(query):
            key = RunKey(row["tenant_id"], row["run_id"])
            _, events = found.setdefault(key, (row["status"], []))
            if row["seq"] is not None:
                events.append(event_from_row(row))
    return found


def require_sound_events(url: str) -> None:
    """Check the event log of every run in a database; at least one must exist (proofs, row 5)."""
    runs = stored_events(url)
    assert runs, "there is no run to check"
    for key, (status, events) in runs.items():
        assert event_problems(events, status) == [], key
