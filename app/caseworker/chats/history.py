"""What was said in a branch as a model sees it: texts, and the calls of tools behind answers.

An answer is one message. The agent that gave it may have called tools on the way there, and the
next answer may rest on what those calls brought. They stand in the result of the answer's run: from
the message of the user on, which is the last one that the agent was given.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from caseworker.chats.thread import ChatMessage, Role
from caseworker.llm.ports import Message, ToolCall
from caseworker.nodes.agent.output import FINISH
from caseworker.runs.run import Run, RunStatus

GO_ON = "Go on."
"""What an assistant is told who is to go on after an answer that had come to its end."""
MAX_ANSWERS_WITH_CALLS = 20
"""So many answers, the newest, come with their calls of tools; those before them as texts alone."""
MAX_CALL_BYTES = 256 * 1024
"""Of all calls and results in a history, in UTF-8."""


def spoken(
    branch: Sequence[ChatMessage], calls: Mapping[str, Sequence[Message]]
) -> Iterator[Message]:
    """Yield what was said, and between two answers what made the assistant go on.

    ``calls`` are the calls of tools, with their results, that come before answers, by the ids of
    these. An answer that was stopped before it said more than with the last call is not repeated.
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
    """Return the calls of tools that the agent of a step has made in a run, with their results.

    There are none where what the agent was asked is not what the user had said.
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
        return []  # a step that is no agent may give anything under these names


def size_of(messages: Sequence[Message]) -> int:
    """Return the bytes of messages in UTF-8, the arguments of their calls included."""
    return sum(
        len(message.content.encode()) + sum(len(it.arguments.encode()) for it in message.tool_calls)
        for message in messages
    )


def _rounds(messages: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
    """Yield the messages that call tools, and the results behind each of them.

    A call without a result is left out, and the one that hands in the answer, which follows.
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
