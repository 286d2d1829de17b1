"""The rows of the runs in memory, and the functions that write them."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from caseworker.core.trace.frozen_json import thawed
from caseworker.core.trace.node import (
    CONTINUES,
    ESTIMATED,
    IMPORTED_FROM,
    WAITED_FOR_MODEL_MS,
    WAITED_MS,
)
from caseworker.engine.events import (
    STEP_CANCELLED,
    STEP_COMPLETED,
    STEP_ERROR,
    STEP_STARTED,
    Event,
)
from caseworker.nodes.agent.references import TEXT_OF
from caseworker.runs.accept.resume import ImportRow, rows_to_import
from caseworker.runs.errors import SourceNotEndedError, SourceNotFoundError
from caseworker.runs.journal.event_log import OpenStarts
from caseworker.runs.journal.replay import spent_before
from caseworker.runs.ports import SpentSoFar
from caseworker.runs.run import (
    TERMINAL,
    CallRecord,
    CancelRequest,
    EventRecord,
    NewRun,
    Run,
    RunKey,
    RunStatus,
)

RUN_ENDS = frozenset(f"run.{status.value}" for status in TERMINAL)
STEP_ENDS = frozenset({STEP_COMPLETED, STEP_ERROR, STEP_CANCELLED})
ONCE = RUN_ENDS | STEP_ENDS | {STEP_STARTED}
"""Types of events that unique indexes allow once."""
OPEN_CALL = frozenset({"created", "running"})


_JSON = json.JSONEncoder(allow_nan=False)


@dataclass(slots=True)
class Row:
    """The row of one key: a run or a pending cancel."""

    run: Run | None = None
    pending_cancel: CancelRequest | None = None
    pending_cancel_expires_at: datetime | None = None
    ended_calls: int = 0
    """How many calls and steps had a result when the run was last lost."""
    not_before: datetime | None = None
    """The earliest time of a claim."""
    given_back: int = 0
    """How often its owner released it without counting the attempt."""
    broken: int = 0
    """How often its owner released it with a counted attempt."""
    calls: dict[str, CallRecord] = field(default_factory=dict)
    events: dict[int, EventRecord] = field(default_factory=dict)
    approvals: dict[str, Any] = field(default_factory=dict)
    """The approvals of the run in ``MemoryApprovals``, by ID."""
    snapshots: list[Mapping[str, Any]] = field(default_factory=list)
    history: list[RunStatus] = field(default_factory=list)
    """Every status of the run so far, for assertions."""


def run_of(row: Row) -> Run:
    assert row.run is not None
    return row.run


def journal_of(row: Row) -> list[CallRecord]:
    return [row.calls[node_id] for node_id in sorted(row.calls, key=lambda id_: int(id_[1:]))]


def ended_calls_of(row: Row) -> int:
    ended = (record for record in row.calls.values() if record.outcome == "result")
    own = (record for record in ended if IMPORTED_FROM not in record.node["metadata"])
    return len({record.call_key for record in own})


def spent_of(row: Row) -> SpentSoFar:
    charge = spent_before(journal_of(row))
    return SpentSoFar(charge=charge, seconds=run_of(row).active_seconds)


def write_calls(row: Row, records: Iterable[CallRecord]) -> None:
    """Write journal rows; a finished call keeps its end, and every call keeps its key."""
    for record in records:
        old = row.calls.get(record.node_id)
        stored = replace(
            record,
            node=as_json(record.node),
            charge=as_json(record.charge),
            value=as_json(thawed(record.value)),
            request=as_json(record.request) if old is None or not old.request else old.request,
        )
        if old is None:
            row.calls[record.node_id] = stored
        elif old.node["status"] in OPEN_CALL or old.node["status"] == record.node["status"]:
            named = record if old.call_key is None else old
            row.calls[record.node_id] = replace(
                stored, call_key=named.call_key, request_hash=named.request_hash
            )


def write_events(row: Row, records: Iterable[EventRecord]) -> None:
    """Write events; stored events stay unchanged, and conflicts fail as in the database."""
    kept = dict(row.events)
    for record in records:
        if record.seq in kept:
            if TEXT_OF in record.data and TEXT_OF not in kept[record.seq].data:
                kept[record.seq] = replace(kept[record.seq], data=as_json(record.data))
            continue
        if record.type in ONCE:
            for stored in kept.values():
                assert not _contradict(stored, record), f"{stored} and {record}"
        kept[record.seq] = replace(record, data=as_json(record.data))
    row.events = kept


def _contradict(one: EventRecord, other: EventRecord) -> bool:
    """Return whether the unique indexes of the database exclude two events together."""
    if one.type == other.type == STEP_STARTED:
        return one.step_id == other.step_id
    if one.type in STEP_ENDS and other.type in STEP_ENDS:
        return one.node_id is not None and one.node_id == other.node_id
    return one.type in RUN_ENDS and other.type in RUN_ENDS


def begin_row(rows: Mapping[RunKey, Row], new: NewRun) -> Row:
    """Return the row of a new run with the imported calls of its source."""
    row, wanted = rows.get(new.key, Row()), new.request.source
    if wanted is None:
        return row
    old = replace(new.key, run_id=wanted.run_id)
    source = rows.get(old)
    if source is None or source.run is None:
        raise SourceNotFoundError
    if not source.run.finished:
        raise SourceNotEndedError
    take_over(source, row, new.key, wanted.until, time.time_ns() // 1_000_000)
    return row


def take_over(source: Row, row: Row, key: RunKey, until: str | None, at_ms: int) -> None:
    """Copy the imported calls of a source run, as the SQL statement does."""
    old, run_id = journal_of(source), run_of(source).key.run_id
    chosen = rows_to_import([_line_of(record) for record in old], until)
    for record in old:
        seq, node = int(record.node_id[1:]), as_json(record.node)
        if seq not in {*chosen.known, *chosen.unknown, *chosen.open}:
            continue
        goes_on, known = seq in chosen.open, seq in chosen.known
        where = {"run_id": run_id, "node_id": record.node_id}
        usage = {name: node[name] for name in ("cost_usd", "tokens_in", "tokens_out")}
        times = {name: node[name] for name in ("start_ts_ms", "end_ts_ms")}
        made = node["metadata"].get(IMPORTED_FROM, {**where, **times, "usage": usage})
        dropped = (ESTIMATED, WAITED_MS, WAITED_FOR_MODEL_MS, CONTINUES, IMPORTED_FROM)
        about = {name: it for name, it in node["metadata"].items() if name not in dropped}
        about |= {CONTINUES: where} if goes_on else {IMPORTED_FROM: made}
        node |= {"start_ts_ms": at_ms, "end_ts_ms": at_ms, "cost_usd": 0}
        node |= {"tokens_in": None, "tokens_out": None}
        if goes_on:
            node |= {"status": "created", "end_ts_ms": None, "retries_used": 0}
            node |= {"stop_reason": None, "error_class": None}
        node["metadata"] = about | ({"run_id": key.run_id} if seq == 1 else {})
        row.calls[record.node_id] = CallRecord(
            node=node,
            call_key=record.call_key,
            request_hash=record.request_hash,
            outcome=record.outcome if known else None,
            value=record.value if known else None,
            request=None if goes_on else record.request,
        )


def _line_of(record: CallRecord) -> ImportRow:
    node = record.node
    same = ("node_id", "parent_id", "kind", "name", "status", "start_ts_ms", "end_ts_ms")
    return ImportRow(
        error_class=node["error_class"],
        incomplete=isinstance(record.value, dict) and bool(record.value.get("incomplete")),
        seq=int(record.node_id[1:]),
        call_key=record.call_key,
        outcome=record.outcome,
        imported=IMPORTED_FROM in node["metadata"],
        **{name: node[name] for name in same},
    )


def last_seq_of(row: Row) -> int:
    return max(row.events, default=0)


def stored_once(row: Row) -> frozenset[str]:
    return frozenset(event.once_key for event in row.events.values() if event.once_key is not None)


def streamed_in(row: Row) -> dict[tuple[str | None, str], tuple[int, str]]:
    found: dict[tuple[str | None, str], tuple[int, str]] = {}
    for _, event in sorted(row.events.items()):
        of, data = (event.step_id, "content_chunk"), event.data
        if event.type == "usage":
            found.pop(of, None)
        elif event.type == "content_chunk" and "content" in data:
            before = found.get(of, (0, ""))[1][: data["offset"]]
            found[of] = data["turn_number"], before + data["content"]
    return found


def open_starts(row: Row) -> tuple[Event, ...]:
    found = OpenStarts()
    for _, each in sorted(row.events.items()):
        found.add(
            Event(
                type=each.type,
                step_id=each.step_id,
                node_id=each.node_id,
                data=each.data,
                once_key=each.once_key,
            )
        )
    return tuple(reversed(found.all()))


def has_begun(record: CallRecord) -> bool:
    return record.node["kind"] in ("llm", "tool") and record.outcome != "not_made"


def as_json(value: Any) -> Any:
    """Return ``value`` after a round trip through JSON, as from a database."""
    if value is None or value == {}:
        return value if value is None else {}
    return json.loads(_JSON.encode(value))
