"""Rebuilds the prompt of a call in a long conversation from the stored calls.

Each call stores only the messages that it adds, and the number of messages before them. A message
with the reply or result of another call stores a reference to that call.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from caseworker.engine.ports import CallOutcome
from caseworker.models.message_log import OF_BRANCH
from caseworker.nodes.agent.references import REPLY_OF, key_in_message, whole_message
from caseworker.runs.run import CallRecord

AFTER = "after"
"""Key in a stored request that describes the preceding messages: ``call_key`` is the first call of
the conversation, ``messages`` is the number of preceding messages."""


def beginning_of(request: Any) -> str | None:
    """Return the key of the conversation's first call; None if ``request`` is complete."""
    after = request.get(AFTER) if isinstance(request, Mapping) else None
    return None if after is None else after["call_key"]


def names_branch(request: Any) -> bool:
    """Return whether a request names messages that a thread stores."""
    messages = request.get("messages") if isinstance(request, Mapping) else None
    return isinstance(messages, list) and any(
        isinstance(each, Mapping) and OF_BRANCH in each for each in messages
    )


def with_branch(request: Mapping[str, Any], branch: Sequence[Any]) -> dict[str, Any]:
    """Return a request with the messages that a thread stores.

    ``branch`` are the messages of the thread. Those that it lacks are counted in
    ``messages_left_out``.
    """
    stated = request["messages"]
    messages = [message for _, message in _numbered(stated, 0, branch)]
    count = sum(each["count"] if OF_BRANCH in each else 1 for each in stated)
    left_out = count - len(messages)
    return {**request, "messages": messages} | ({"messages_left_out": left_out} if left_out else {})


def _numbered(
    stated: Sequence[Any], start: int, branch: Sequence[Any]
) -> Iterator[tuple[int, Any]]:
    """Yield the messages of a request by their positions, from ``start``."""
    for each in stated:
        if not (isinstance(each, Mapping) and OF_BRANCH in each):
            yield start, each
            start += 1
            continue
        first, count = each[OF_BRANCH], each["count"]
        yield from enumerate(branch[first : first + count], start)
        start += count


def whole_request(
    record: CallRecord,
    stored: Sequence[CallRecord],
    display: Callable[[Any], Any],
    branch: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return the complete request of a call, including the messages before its own.

    ``stored`` holds the calls of the conversation and the calls that they reference, in order.
    Messages of missing calls are counted in ``messages_left_out``. ``display`` redacts a result for
    display. ``branch`` are the messages of the run's thread, if it has one.
    """
    request_of_call: Mapping[str, Any] = record.request or {}
    root = beginning_of(request_of_call)
    values = {each.call_key: each.value for each in stored if each.outcome == CallOutcome.RESULT}
    messages: dict[int, Any] = {}
    request: dict[str, Any] = {}
    for each in (*stored, record):
        earlier = each.request
        if earlier is None or (each.call_key != root and beginning_of(earlier) != root):
            continue
        if each is record or each.outcome == CallOutcome.RESULT:
            # unchanged parameters are stored only once: an empty request inherits them
            request = {n: earlier[n] for n in earlier if n not in (AFTER, "messages")} or request
        start = earlier.get(AFTER, {}).get("messages", 0)
        messages |= _numbered(earlier["messages"], start, branch)
    last = request_of_call[AFTER]["messages"] + len(request_of_call["messages"])
    present = [_full(messages[at], values, display) for at in range(last) if at in messages]
    left_out = last - len(present)
    return {"messages": present, **request} | ({"messages_left_out": left_out} if left_out else {})


def _full(message: Any, values: Mapping[Any, Any], display: Callable[[Any], Any]) -> Any:
    """Return a message with its referenced result inserted, if that is available."""
    key = key_in_message(message)
    if key not in values:
        return message
    value = display(values[key]) or {}
    state = value.get("provider_state") if REPLY_OF in message else None
    return whole_message(message, value) | ({"provider_state": state} if state else {})
