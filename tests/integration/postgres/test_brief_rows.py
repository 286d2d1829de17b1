"""Rows in the compact format are read as they were written, together with older rows."""

from datetime import UTC, datetime
from typing import Any

import pytest

from caseworker.core.budget.budget import Dimension
from caseworker.core.trace.node import NEW_NODE
from caseworker.runs.journal.postgres.journal_rows import DIMENSIONS
from caseworker.runs.ports import JournalWrite
from caseworker.runs.run import CallRecord, EventRecord, Run, RunKey
from tests.support.stores import Oracle, Stores, new_run

KEY = RunKey("default", "case-1")


def node(number: int, **values: Any) -> dict[str, Any]:
    return {**NEW_NODE, "node_id": f"n{number:06d}", "metadata": {}, "start_ts_ms": 9, **values}


def call(number: int, **values: Any) -> CallRecord:
    fields = {"call_key", "request_hash", "charge", "outcome", "value", "request"}
    of_row = {name: values.pop(name) for name in fields & values.keys()}
    return CallRecord(node=node(number, **values), **of_row)


CONTINUED = {
    "messages": [
        {"role": "assistant", "reply_of": "a/turn/1"},
        {"role": "tool", "tool_call_id": "c", "tool_name": "t", "result_of": "a/turn/1/tool/1"},
    ],
    "after": {"call_key": "a/turn/1", "messages": 2},
}
IN_CALL = {"parent_id": "n000001", "kind": "llm", "name": "turn", "status": "success"}
CALLS = (
    call(1, name="agent", status="running", metadata={"run_id": "case-1"}),
    call(
        2,
        **IN_CALL,
        end_ts_ms=14,
        model="m",
        cost_usd=None,
        tokens_in=3,
        tokens_out=4,
        metadata={"call_key": "a/turn/2", "tier": "small"},
        call_key="a/turn/2",
        request_hash="0123",
        charge={name.value: n for n, name in enumerate(Dimension)} | {"cost_usd": "0.10"},
        outcome="result",
        value={"text": "Yes."},
        request=CONTINUED,
    ),
    call(3, **{**IN_CALL, "status": "fail"}, stop_reason="Why.", error_class="E", retries_used=2),
    call(4, **IN_CALL, metadata={"call_key": "another"}, call_key="a", request={"messages": []}),
    call(5, parent_id="n000002", call_key="step:a", charge={"steps": 1}, end_ts_ms=None),
    call(1234567, parent_id="n000002", cost_usd=0.25, metadata={"call_key": "of a step"}),
    call(1234568, parent_id="n1234567", kind="tool", cost_usd=0.0),
)

TEXT = {"turn_number": 3, "offset": 0, "chars": 500, "text_of": "a/b/turn/3"}
DATA: tuple[tuple[str, dict[str, Any]], ...] = (
    ("turn_start", {"turn_number": 3}),
    ("call.started", {"kind": "llm", "name": "turn", "model": None}),
    ("content_chunk", TEXT),
    ("thinking", {**TEXT, "text_of": "elsewhere"}),
    ("content_chunk", {"turn_number": 3, "offset": 500, "content": "short"}),
    ("call.completed", {"kind": "llm", "name": "turn", "model": "m", "attempts": 1}),
    (
        "call.completed",
        {"kind": "l", "name": "n", "model": "m", "attempts": 2, "tokens_in": 8, "tokens_out": 9},
    ),
    ("usage", {"turn_number": 3, "tokens_in": 8, "tokens_out": 9, "cost_usd": 0.5}),
    ("tool_call_start", {"turn_number": 3, "tool_call": {"id": "c", "arguments": '["\\u00e4"]'}}),
    (
        "tool_call_end",
        {
            "turn_number": 3,
            "tool_call_id": "c",
            "name": "t",
            "text_of": "a/b/turn/3/tool/1",
        },
    ),
    ("turn_end", {"turn_number": 3}),
    ("mine", {"text_of": "~"}),
)
EVENTS = tuple(
    EventRecord(
        seq=seq,
        ts=datetime(2026, 1, 1, tzinfo=UTC),
        type=kind,
        step_id="a/b",
        node_id="n000002",
        data=data,
        once_key=f"a/b|{kind}|3|{seq}" if seq % 2 else None,
    )
    for seq, (kind, data) in enumerate(DATA, start=1)
)
KEYS = {event.once_key for event in EVENTS if event.once_key is not None}


async def written(stores: Stores) -> Run:
    """Write all records and release the run, so that it can be claimed."""
    run = (await stores.runs.accept(new_run("case-1"), worker_id="w1")).run
    write = JournalWrite(key=KEY, fence=run.fence, calls=CALLS, events=EVENTS)
    assert (await stores.journal.write(write)).owned
    await stores.runs.release(run, active_seconds=1, calls=(), counted=False)
    return run


async def require_all(stores: Stores) -> None:
    """Check that all records are read as they were written."""
    page = await stores.runs.events(KEY, after=0, limit=100)
    assert page is not None
    assert page.events == list(EVENTS)
    shown = [(await stores.runs.call(KEY, each.node_id))[-1] for each in CALLS[1:]]
    assert shown == list(CALLS[1:])
    assert [each.node for each in await stores.runs.calls(KEY)] == [each.node for each in CALLS]
    again = await stores.runs.claim(KEY, "w2")
    assert again is not None
    assert again.stored_once == KEYS
    await stores.runs.release(again, active_seconds=1, calls=(), counted=False)


@pytest.mark.req("003/long")
async def test_what_is_stored_in_few_bytes_is_read_as_it_was_written(
    stores: Stores, oracle: Oracle
) -> None:
    """Rows that do not fit the compact format are stored unchanged."""
    await written(stores)

    await require_all(stores)
    brief = "SELECT array_agg(seq ORDER BY seq) FROM {} WHERE brief IS NOT NULL"
    assert await oracle.value(brief.format("calls")) == [1, 2, 3, 5, 1234568]
    assert await oracle.value(brief.format("events")) == [1, 2, 3, 7, 8, 9, 10, 11]
    assert await oracle.value("SELECT json_typeof(request) FROM calls WHERE seq = 2") == "array"


async def test_a_text_that_is_journaled_later_takes_the_place_of_the_text_in_the_event(
    stores: Stores,
) -> None:
    """The event is rewritten once, with a reference to the text in the journal."""
    run = (await stores.runs.accept(new_run("case-1"), worker_id="w1")).run
    data = {"turn_number": 3, "offset": 0, "content": "x" * 500}
    whole = EventRecord(
        seq=1, ts=EVENTS[0].ts, type="content_chunk", step_id="a/b", node_id="n000002", data=data
    )
    for event in (whole, EVENTS[2]):
        part = EventRecord(
            **{name: getattr(whole, name) for name in ("seq", "ts", "type", "step_id", "node_id")},
            data=event.data,
        )
        await stores.journal.write(JournalWrite(key=KEY, fence=run.fence, events=(part,)))
        page = await stores.runs.events(KEY, after=0, limit=9)
        assert page is not None
        assert [one.data for one in page.events] == [event.data]


def test_every_dimension_that_is_stored_has_a_letter_of_its_own() -> None:
    """The code that writes charges and the view that reads them use the same dimensions."""
    assert set(DIMENSIONS) == set(Dimension) - {Dimension.LLM_CALLS}  # the sum of both tiers
    assert len(set(DIMENSIONS.values())) == len(DIMENSIONS)
