"""Builds the chat history that a model receives: messages, and the tool calls behind answers.

An answer is one message. Its agent may have called tools before answering, and the next answer may
depend on their results. Those calls are stored with the answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from caseworker.features.threads.answers import StoredAnswer
from caseworker.features.threads.thread import Role, ThreadMessage
from caseworker.models.ports import Message, ToolCall
from caseworker.nodes.agent.definition import FINISH
from caseworker.runs.run import RunStatus

CONTINUE_TEXT = "Go on."
"""User message that is inserted if a model must continue although its last answer was complete."""
MAX_ANSWERS_WITH_CALLS = 20
"""Number of most recent answers that include their tool calls. Older answers are text only."""
MAX_CALL_BYTES = 256 * 1024
"""Maximum total size, in bytes of UTF-8, of all tool calls and results in a history."""


def spoken(
    branch: Sequence[ThreadMessage], calls: Mapping[str, Sequence[Message]]
) -> Iterator[Message]:
    """Yield a branch's messages for the model; :data:`CONTINUE_TEXT` separates two answers.

    ``calls`` maps the ID of an answer to the tool calls that it made and their results, which come
    before it. Messages without text are skipped. So is the text of a stopped answer if its last
    message with tool calls contains the same text.
    """
    last: Role | None = None
    for message in branch:
        if not message.content:
            continue
        if last is message.role is Role.ASSISTANT:
            yield Message(role="user", content=CONTINUE_TEXT)
        tool_messages = calls.get(message.message_id, ())
        yield from tool_messages
        texts = [one.content for one in tool_messages if one.role == "assistant"]
        if message.status is RunStatus.COMPLETED or message.content not in texts[-1:]:
            yield Message(role=message.role.value, content=message.content)
        last = message.role


def history_of(
    branch: Sequence[ThreadMessage], answers: Mapping[str, StoredAnswer]
) -> list[Message]:
    """Return the messages for the model, ending with one from the user.

    ``answers`` are the stored answers of the branch by message ID. The newest ones include their
    tool calls.
    """
    history = list(spoken(branch, _calls_in(branch, answers)))
    if not history or history[-1].role != "user":
        history.append(Message(role="user", content=CONTINUE_TEXT))
    return history


def _calls_in(
    branch: Sequence[ThreadMessage], answers: Mapping[str, StoredAnswer]
) -> Mapping[str, Sequence[Message]]:
    """Return the tool calls behind the newest answers of a branch, by message ID."""
    newest = [one.message_id for one in reversed(branch) if one.message_id in answers]
    called = [each for each in newest if answers[each].calls != ()]
    calls_by_answer: dict[str, Sequence[Message]] = {}
    bytes_left = MAX_CALL_BYTES
    for message_id in called[:MAX_ANSWERS_WITH_CALLS]:
        stored = answers[message_id].calls
        calls = None if stored is None else tool_calls_of(stored)
        if calls is None or (bytes_left := bytes_left - size_of(calls)) < 0:
            break
        calls_by_answer[message_id] = calls
    return calls_by_answer


def tool_calls_of(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the tool calls and results in the messages of an agent."""
    try:
        return list(_rounds(messages))
    except (LookupError, TypeError, AttributeError):
        return []  # a step that is not an agent may use these names differently


def size_of(messages: Sequence[Message]) -> int:
    """Return the size of messages in bytes of UTF-8, including the arguments of tool calls."""
    return sum(
        len(message.content.encode()) + sum(len(it.arguments.encode()) for it in message.tool_calls)
        for message in messages
    )


def _rounds(messages: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
    """Yield each message that calls tools, followed by its results.

    Calls without a result are left out, and so is the call that submits the final answer.
    """
    for at, message in enumerate(messages):
        behind = takewhile(lambda one: one["role"] == "tool", messages[at + 1 :])
        results = {one["tool_call_id"]: one["content"] for one in behind if "content" in one}
        tool_calls = [
            ToolCall(id=call["id"], name=call["name"], arguments=call["arguments"])
            for call in message.get("tool_calls", ())
            if call["name"] != FINISH and call["id"] in results
        ]
        if not tool_calls:
            continue
        content = message.get("content", "")
        yield Message(role="assistant", content=content, tool_calls=tuple(tool_calls))
        for call in tool_calls:
            result = results[call.id]
            yield Message(role="tool", content=result, tool_call_id=call.id, tool_name=call.name)
