"""Builds the chat history that a model receives: messages, and the tool calls behind answers.

An answer is one message. Its agent may have called tools before answering, and the next answer may
depend on their results. Those calls are stored in the result of the answer's run, after the last
user message that the agent received.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from caseworker.features.threads.thread import Role, ThreadMessage
from caseworker.models.ports import Message, ToolCall
from caseworker.nodes.agent.output import FINISH
from caseworker.runs.run import Run, RunStatus

GO_ON = "Go on."
"""User message that is inserted if a model must continue although its last answer was complete."""
MAX_ANSWERS_WITH_CALLS = 20
"""Number of most recent answers that include their tool calls. Older answers are text only."""
MAX_CALL_BYTES = 256 * 1024
"""Maximum total size, in bytes of UTF-8, of all tool calls and results in a history."""


def spoken(
    branch: Sequence[ThreadMessage], calls: Mapping[str, Sequence[Message]]
) -> Iterator[Message]:
    """Yield a branch's messages for the model, with :data:`GO_ON` between consecutive answers.

    ``calls`` maps the ID of an answer to the tool calls that it made and their results, which come
    before it. Messages without text are skipped. So is the text of a stopped answer if its last
    message with tool calls contains the same text.
    """
    last: Role | None = None
    for message in branch:
        if not message.content:
            continue
        if last is message.role is Role.ASSISTANT:
            yield Message(role="user", content=GO_ON)
        made = calls.get(message.message_id, ())
        yield from made
        said = [one.content for one in made if one.role == "assistant"]
        if message.status is RunStatus.COMPLETED or message.content not in said[-1:]:
            yield Message(role=message.role.value, content=message.content)
        last = message.role


def calls_of(run: Run, step_id: str) -> list[Message]:
    """Return the tool calls and results of the agent that a run executed as step ``step_id``.

    The list is empty if the last user message is not among the agent's messages.
    """
    chat, result = run.request.chat, run.result
    if chat is None or result is None:
        return []
    asked = {"role": "user", "content": chat.messages[-1].content}
    try:
        messages = result["outputs"][step_id]["result"]["messages"]
        starts = [at for at, message in enumerate(messages) if message == asked]
        return list(_rounds(messages[starts[-1] + 1 :])) if starts else []
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
        made = [
            ToolCall(id=call["id"], name=call["name"], arguments=call["arguments"])
            for call in message.get("tool_calls", ())
            if call["name"] != FINISH and call["id"] in results
        ]
        if not made:
            continue
        content = message.get("content", "")
        yield Message(role="assistant", content=content, tool_calls=tuple(made))
        for call in made:
            told = results[call.id]
            yield Message(role="tool", content=told, tool_call_id=call.id, tool_name=call.name)
