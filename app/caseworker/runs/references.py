"""Call references in results and events of runs; see :mod:`caseworker.nodes.agent.references`."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import orjson

from caseworker.nodes.agent.references import key_in_event, key_in_message, whole_message
from caseworker.runs.run import EventRecord, Run


def call_references_in(run: Run) -> Set[str]:
    """Return the keys of the calls that the messages in the result refer to."""
    return {
        key
        for each in _agent_results(run.result)
        for message in each["messages"]
        if (key := key_in_message(message)) is not None
    }


def resolved(run: Run, values: Mapping[str, Any]) -> Run:
    """Return the run with the references in its result replaced by the texts.

    ``values`` maps keys of calls to their journaled values. References without a value stay.
    """
    if not values:
        return run
    result = dict(run.result or {})
    if isinstance(steps := result.get("outputs"), dict):
        result["outputs"] = {step_id: _copied(output) for step_id, output in steps.items()}
    for each in _agent_results(result):
        each["messages"] = [_message(one, values) for one in each["messages"]]
    return replace(run, result=result)


def _copied(output: Any) -> Any:
    """Return the output of a step in which the result of an agent may be changed."""
    if not isinstance(output, dict) or not isinstance(output.get("result"), dict):
        return output
    return {**output, "result": dict(output["result"])}


def known_whole(events: Sequence[EventRecord]) -> Sequence[EventRecord]:
    """Return the events with their texts, as they are read from the store.

    Returns an empty list if only the store has one of the texts, or may have changed it.
    """
    full_events = [
        event if event.full_data is None else replace(event, data=event.full_data, full_data=None)
        for event in events
    ]
    if any(key_in_event(event.type, event.data) is not None for event in full_events):
        return ()
    return full_events if is_stored_unchanged([event.data for event in full_events]) else ()


def is_stored_unchanged(value: Any) -> bool:
    """Return whether the store surely changes no text in a JSON value.

    It replaces NUL and lone surrogates. No response could contain the latter.
    """
    try:
        return b"\\u0000" not in orjson.dumps(value)
    except orjson.JSONEncodeError:  # lone surrogates, long integers, keys that are numbers
        return False


def _agent_results(result: Any) -> Iterator[dict[str, Any]]:
    """Yield every agent result in a run's result, for the run itself or for its steps.

    The dicts are not copies: callers may modify them to change ``result``.
    """
    if not isinstance(result, dict):
        return
    outputs = result.get("outputs")
    steps = outputs.values() if isinstance(outputs, dict) else ()
    for each in (result, *(step.get("result") for step in steps if isinstance(step, dict))):
        if isinstance(each, dict) and isinstance(each.get("messages"), list):
            yield each


def _message(message: Any, values: Mapping[str, Any]) -> Any:
    key = key_in_message(message)
    return message if key is None or key not in values else whole_message(message, values[key])
