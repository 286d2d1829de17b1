"""The prompt of a call in a long conversation, put together from what its calls have stored.

Each call stores the messages that it adds, and after how many messages they stand; a message that
is the answer of a call, or the result of one, names that call.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caseworker.engine.ports import CallOutcome
from caseworker.nodes.agent.references import REPLY_OF, key_in_message, whole_message
from caseworker.runs.run import CallRecord

AFTER = "after"
"""Key of what a request says of the messages before its own: ``call_key`` is the call that has
stored the first ones, ``messages`` is how many there are."""


def beginning_of(request: Any) -> str | None:
    """Return the key of the call that began a request's conversation; None if it is whole."""
    after = request.get(AFTER) if isinstance(request, Mapping) else None
    return None if after is None else after["call_key"]


def whole_request(
    record: CallRecord, stored: Sequence[CallRecord], shown: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return what a call has asked, with the messages before its own.

    ``stored`` are the calls of its conversation and those that they name, in their order; messages
    of calls that are not among them are counted as left out. ``shown`` returns a result as it may
    be shown.
    """
    own: Mapping[str, Any] = record.request or {}
    root = beginning_of(own)
    values = {each.call_key: each.value for each in stored if each.outcome == CallOutcome.RESULT}
    messages: dict[int, Any] = {}
    request: dict[str, Any] = {}
    for each in (*stored, record):
        asked = each.request
        if asked is None or (each.call_key != root and beginning_of(asked) != root):
            continue
        if each is record or each.outcome == CallOutcome.RESULT:
            # Parameters are left out where they are those of the last call that was answered.
            request = {n: asked[n] for n in asked if n not in (AFTER, "messages")} or request
        start = asked.get(AFTER, {}).get("messages", 0)
        messages |= enumerate(asked["messages"], start)
    last = own[AFTER]["messages"] + len(own["messages"])
    there = [_full(messages[at], values, shown) for at in range(last) if at in messages]
    left_out = last - len(there)
    return {"messages": there, **request} | ({"messages_left_out": left_out} if left_out else {})


def _full(message: Any, values: Mapping[Any, Any], shown: Callable[[Any], Any]) -> Any:
    """Return a message with the result of the call that it names, if that can be shown."""
    key = key_in_message(message)
    if key not in values:
        return message
    value = shown(values[key]) or {}
    state = value.get("provider_state") if REPLY_OF in message else None
    return whole_message(message, value) | ({"provider_state": state} if state else {})
