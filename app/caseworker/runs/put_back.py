"""Replaces references to calls in results and events before callers receive them.

Results and events of agents refer to calls instead of repeating their texts; see
:mod:`caseworker.nodes.agent.references`.
"""

import copy
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from caseworker.engine.ports import CallOutcome
from caseworker.nodes.agent.references import (
    conversations_of,
    key_in_event,
    key_in_message,
    whole_event_data,
    whole_message,
)
from caseworker.runs.ports import RunStore
from caseworker.runs.run import EventRecord, Run, RunKey

EVERYTHING = 1 << 40
"""A size limit that is never reached: results and pages were limited when they were created."""


async def whole_run(store: RunStore, run: Run) -> Run:
    """Return the run with the call references in its result replaced by the texts."""
    named = {
        key
        for each in conversations_of(run.result)
        for message in each["messages"]
        if (key := key_in_message(message)) is not None
    }
    if not named:
        return run
    values = await _values(store, run.key, named)
    result = copy.copy(run.result)
    if "outputs" in (result or {}):
        result = copy.deepcopy(run.result)
    for each in conversations_of(result):
        each["messages"] = [_message(one, values) for one in each["messages"]]
    return replace(run, result=result)


async def whole_events(
    store: RunStore, key: RunKey, events: Sequence[EventRecord]
) -> Sequence[EventRecord]:
    """Return the events with call references replaced by the texts."""
    named = [key_in_event(event.type, event.data) for event in events]
    wanted = {each for each in named if each is not None}
    if not wanted:
        return events
    values = await _values(store, key, wanted)
    return [
        event
        if name is None or name not in values
        else replace(event, data=whole_event_data(event.type, event.data, values[name]))
        for event, name in zip(events, named, strict=True)
    ]


async def _values(store: RunStore, key: RunKey, named: Set[str]) -> Mapping[str, Any]:
    found = await store.payloads(key, max_bytes=EVERYTHING, call_keys=sorted(named))
    return {
        record.call_key: record.value
        for record in found
        if record.call_key is not None and record.outcome == CallOutcome.RESULT
    }


def _message(message: Any, values: Mapping[str, Any]) -> Any:
    key = key_in_message(message)
    return message if key is None or key not in values else whole_message(message, values[key])
