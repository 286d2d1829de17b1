"""How bodies of OpenAI's requests become runs of agents."""

from collections.abc import Mapping
from typing import Any

import pytest
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as response_params

from caseworker.faces.openai_api.bodies import (
    CHAT_FIELDS,
    RESPONSE_FIELDS,
    Fields,
    chat_call,
    response_call,
)
from caseworker.gateway.refusals import RefusedError
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "faces" / "openai.md").read_text(encoding="utf-8")
CHAT: dict[str, Any] = {"model": "support", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("fields", "typed"),
    [
        (CHAT_FIELDS, chat_params.CompletionCreateParamsStreaming),
        (RESPONSE_FIELDS, response_params.ResponseCreateParamsStreaming),
    ],
)
def test_each_field_of_the_installed_client_is_in_one_table_and_on_the_page(
    fields: Fields, typed: Any
) -> None:
    """A new version of the client fails this test if its API has a new field."""
    tables = [*fields.honoured, *fields.without_effect, *fields.refused]

    assert sorted(tables) == sorted(typed.__annotations__ | _inherited(typed))
    assert [name for name in tables if f"`{name}`" not in PAGE] == []


def _inherited(typed: Any) -> Mapping[str, Any]:
    return {name: None for base in typed.__orig_bases__ for name in base.__annotations__}


@pytest.mark.parametrize("appends", [True, False])
def test_the_system_message_of_a_client_is_appended_or_ignored(*, appends: bool) -> None:
    """It is in the first user message of the request, or nowhere; never a system message."""
    system = {"role": "developer", "content": "Be brief."}
    call = chat_call({**CHAT, "messages": [system, *CHAT["messages"]]})

    body = call.run_body([], appends_system=appends, about={})

    [message] = body["messages"]
    assert message["role"] == "user"
    assert ("Be brief." in message["content"]) is appends
    assert message["content"].endswith("Hello")


@pytest.mark.parametrize(
    ("model", "agent"),
    [("support", {"name": "support"}), ("a_b-1@12", {"name": "a_b-1", "version": 12})],
)
def test_a_model_names_an_agent_and_its_version(model: str, agent: Mapping[str, Any]) -> None:
    """A name without a version is the newest one."""
    assert chat_call({**CHAT, "model": model}).agent == agent


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": "a@0"}, "model"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages[0].tool_call_id"),
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content"),
        ({"stream": "yes"}, "stream"),
        ({"metadata": {"openai": "x"}}, "metadata"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
    ],
)
def test_an_invalid_field_is_named(changes: Mapping[str, Any], field: str) -> None:
    """The error has the field in `param`."""
    with pytest.raises(RefusedError) as refused:
        chat_call({**CHAT, **changes})

    assert refused.value.refusal.field == field


def test_items_of_earlier_responses_are_messages() -> None:
    """A client that keeps the conversation itself sends them back."""
    said = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
        {"role": "user", "content": "Bye"},
    ]

    call = response_call({"model": "support", "input": said, "text": {"verbosity": "low"}})

    assert [each.content for each in call.messages] == ["Hi", "Hello.", "Bye"]
