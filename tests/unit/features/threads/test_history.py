"""The tool calls of an answer, as the next answer's prompt contains them."""

from dataclasses import replace
from typing import Any

import pytest

from caseworker.features.threads.answers import StoredAnswer
from caseworker.features.threads.history import (
    CONTINUE_TEXT,
    MAX_ANSWERS_WITH_CALLS,
    MAX_CALL_BYTES,
    history_of,
    spoken,
    tool_calls_of,
)
from caseworker.features.threads.thread import Role, ThreadMessage
from caseworker.models.ports import Message, ToolCall
from caseworker.runs.run import RunStatus


def call(call_id: str, name: str = "calculator") -> dict[str, str]:
    return {"id": call_id, "name": name, "arguments": "{}"}


def calling(*calls: dict[str, str]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def result(call_id: str, content: str) -> dict[str, str]:
    named = {"tool_call_id": call_id, "tool_name": "calculator"}
    return {"role": "tool", "content": content, **named}


def said(*messages: Any) -> list[tuple[str, str]]:
    """Return roles and contents of the calls in the messages of an agent."""
    found = tool_calls_of(messages)
    for message in found:
        assert (message.tool_call_id is not None) == (message.role == "tool")
    return [(one.role, one.content or ",".join(it.id for it in one.tool_calls)) for one in found]


def test_results_belong_to_the_calls_before_them_although_ids_repeat() -> None:
    """Results are matched to the preceding calls, because some models reuse call IDs."""
    messages = [calling(call("1")), result("1", "a"), calling(call("1")), result("1", "b")]

    assert said(*messages) == [
        *(("assistant", "1"), ("tool", "a"), ("assistant", "1"), ("tool", "b"))
    ]


def test_a_call_without_a_result_is_left_out() -> None:
    """Calls without a result are left out, as is the call that returns the answer."""
    handing_in = calling(call("2"), call("3", "finish"))

    assert said(calling(call("1")), handing_in, result("2", "b"), result("3", "c")) == [
        *(("assistant", "2"), ("tool", "b"))
    ]


@pytest.mark.parametrize("messages", [["text"], [5, None], [{"role": "tool"}], [5]])
def test_what_is_no_conversation_has_no_calls(messages: list[Any]) -> None:
    """Invalid messages, as steps other than agents may return, contain no calls."""
    assert said(*messages) == []


def answered(
    message_id: str, parent_id: str, calls: Any = ()
) -> tuple[ThreadMessage, StoredAnswer]:
    message = ThreadMessage(
        message_id=message_id, parent_id=parent_id, role=Role.ASSISTANT, content="Yes."
    )
    return message, StoredAnswer(status=RunStatus.COMPLETED, content="Yes.", calls=calls)


QUESTION = ThreadMessage(message_id="q", parent_id=None, role=Role.USER, content="Q")


def test_only_the_newest_answers_bring_their_calls() -> None:
    """Older answers than the newest twenty with calls are text only."""
    calls = [calling(call("1")), result("1", "42")]
    pairs = [answered(f"a{n}", "q", calls) for n in range(MAX_ANSWERS_WITH_CALLS + 1)]
    branch = [QUESTION, *(message for message, _ in pairs)]

    found = history_of(branch, {message.message_id: answer for message, answer in pairs})

    assert sum(one.role == "tool" for one in found) == MAX_ANSWERS_WITH_CALLS
    assert [one.content for one in found[:4]] == ["Q", "Yes.", CONTINUE_TEXT, ""]


@pytest.mark.parametrize("calls", [None, [calling(call("1")), result("1", "x" * MAX_CALL_BYTES)]])
def test_calls_that_are_too_long_end_the_calls_of_older_answers_too(calls: Any) -> None:
    """The total size is counted from the newest answer to the oldest."""
    first, last = answered("a1", "q", [calling(call("1")), result("1", "42")]), answered("a2", "q")
    longest = (last[0], replace(last[1], calls=calls))
    stored = {message.message_id: answer for message, answer in (first, longest)}

    found = history_of([QUESTION, first[0], longest[0]], stored)

    assert {one.role for one in found} == {"user", "assistant"}


def test_a_history_ends_with_a_message_from_the_user() -> None:
    """A request to continue follows an answer, and an answer without text is left out."""
    message, answer = answered("a", "q")
    silent = replace(message, content=None)

    assert [one.content for one in history_of([QUESTION], {})] == ["Q"]
    assert [one.content for one in history_of([QUESTION, message], {"a": answer})][
        -1
    ] == CONTINUE_TEXT
    assert [one.content for one in history_of([QUESTION, silent], {})] == ["Q"]


@pytest.mark.parametrize(
    ("status", "content", "told"),
    [
        (RunStatus.CANCELLED, "First text.", ["Q", "First text.", "42"]),
        (RunStatus.HALTED, "First text.", ["Q", "First text.", "42"]),
        (RunStatus.CANCELLED, "Half a", ["Q", "First text.", "42", "Half a"]),
        (RunStatus.COMPLETED, "First text.", ["Q", "First text.", "42", "First text."]),
    ],
)
def test_text_of_a_stopped_answer_that_came_with_a_call_is_told_once(
    status: RunStatus, content: str, told: list[str]
) -> None:
    """A stopped answer does not repeat the text of its tool call; a completed one may."""
    one = ToolCall(id="1", name="calculator", arguments="{}")
    calls = [
        Message(role="assistant", content="First text.", tool_calls=(one,)),
        Message(role="tool", content="42", tool_call_id="1", tool_name="calculator"),
    ]
    asked = ThreadMessage(message_id="q", parent_id=None, role=Role.USER, content="Q")
    answer = ThreadMessage(
        message_id="a", parent_id="q", role=Role.ASSISTANT, content=content, status=status
    )

    assert [one.content for one in spoken([asked, answer], {"a": calls})] == told
