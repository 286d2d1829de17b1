"""The tool calls of an answer, as the next answer's prompt contains them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from caseworker.features.threads.history import calls_of, spoken
from caseworker.features.threads.thread import Role, ThreadMessage
from caseworker.models.ports import Message, ToolCall
from caseworker.nodes.chat import ChatInput
from caseworker.runs.run import Run, RunKey, RunKind, RunRequest, RunStatus

ASKED = {"role": "user", "content": "Now?"}


def call(call_id: str, name: str = "calculator") -> dict[str, str]:
    return {"id": call_id, "name": name, "arguments": "{}"}


def calling(*calls: dict[str, str]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def result(call_id: str, content: str) -> dict[str, str]:
    named = {"tool_call_id": call_id, "tool_name": "calculator"}
    return {"role": "tool", "content": content, **named}


def said(*messages: Any) -> list[tuple[str, str]]:
    """Return roles and contents of the calls found in a run with these messages."""
    run = Run(
        key=RunKey("t", "r"),
        kind=RunKind.GRAPH,
        status=RunStatus.COMPLETED,
        request=RunRequest(
            kind=RunKind.GRAPH,
            chat=ChatInput(thread_id="t", messages=(Message(role="user", content="Now?"),)),
        ),
        result={"outputs": {"a": {"result": {"messages": list(messages)}}}},
        request_hash="",
        created_at=datetime.now(UTC),
    )
    assert calls_of(run, "b") == []
    found = calls_of(run, "a")
    for message in found:
        assert (message.tool_call_id is not None) == (message.role == "tool")
    return [(one.role, one.content or ",".join(it.id for it in one.tool_calls)) for one in found]


def test_results_belong_to_the_calls_before_them_although_ids_repeat() -> None:
    """Results are matched to the preceding calls, because some models reuse call IDs."""
    messages = [calling(call("1")), result("1", "a"), calling(call("1")), result("1", "b")]

    assert said(ASKED, *messages) == [
        *(("assistant", "1"), ("tool", "a"), ("assistant", "1"), ("tool", "b"))
    ]


def test_calls_of_earlier_answers_are_none_of_this_one() -> None:
    """Calls before the last user message belong to earlier answers."""
    messages = [calling(call("1")), result("1", "old"), ASKED, calling(call("2")), result("2", "n")]

    assert said(*messages) == [("assistant", "2"), ("tool", "n")]
    assert said(*messages[:2]) == [], "it was asked something else"


def test_a_call_without_a_result_is_left_out() -> None:
    """Calls without a result are left out, as is the call that returns the answer."""
    handing_in = calling(call("2"), call("3", "finish"))

    assert said(ASKED, calling(call("1")), handing_in, result("2", "b"), result("3", "c")) == [
        *(("assistant", "2"), ("tool", "b"))
    ]


@pytest.mark.parametrize("messages", [["text"], [5, None], [ASKED, {"role": "tool"}], [ASKED, 5]])
def test_what_is_no_conversation_has_no_calls(messages: list[Any]) -> None:
    """Invalid messages, as steps other than agents may return, contain no calls."""
    assert said(*messages) == []


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
