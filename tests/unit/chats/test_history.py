"""The calls of tools behind an answer, as the next one sees them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from app.chats.history import calls_of
from app.llm.ports import Message
from app.nodes.chat import ChatInput
from app.runs.run import Run, RunKey, RunKind, RunRequest, RunStatus

ASKED = {"role": "user", "content": "Now?"}


def call(call_id: str, name: str = "calculator") -> dict[str, str]:
    return {"id": call_id, "name": name, "arguments": "{}"}


def calling(*calls: dict[str, str]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def result(call_id: str, content: str) -> dict[str, str]:
    named = {"tool_call_id": call_id, "tool_name": "calculator"}
    return {"role": "tool", "content": content, **named}


def said(*messages: Any) -> list[tuple[str, str]]:
    """Roles and contents of what a run with these messages has called."""
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
    """Some models count their calls anew in every turn."""
    messages = [calling(call("1")), result("1", "a"), calling(call("1")), result("1", "b")]

    assert said(ASKED, *messages) == [
        *(("assistant", "1"), ("tool", "a"), ("assistant", "1"), ("tool", "b"))
    ]


def test_calls_of_earlier_answers_are_none_of_this_one() -> None:
    """What the agent was given ends with what the user said."""
    messages = [calling(call("1")), result("1", "old"), ASKED, calling(call("2")), result("2", "n")]

    assert said(*messages) == [("assistant", "2"), ("tool", "n")]
    assert said(*messages[:2]) == [], "it was asked something else"


def test_a_call_without_a_result_is_left_out() -> None:
    """And the one that hands in the answer: it is said in words."""
    handing_in = calling(call("2"), call("3", "finish"))

    assert said(ASKED, calling(call("1")), handing_in, result("2", "b"), result("3", "c")) == [
        *(("assistant", "2"), ("tool", "b"))
    ]


@pytest.mark.parametrize("messages", [["text"], [5, None], [ASKED, {"role": "tool"}], [ASKED, 5]])
def test_what_is_no_conversation_has_no_calls(messages: list[Any]) -> None:
    """A step that is no agent may give anything."""
    assert said(*messages) == []
