"""Endpoints accept the messages that are sent for any conversation."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caseworker.models.ports import Message, ModelRequest, ToolCall, ToolDefinition
from caseworker.models.wires.anthropic import Messages
from caseworker.models.wires.message_rules import NO_RESULT, OPENAI_IDS, object_in, sent_back
from caseworker.models.wires.openai import ChatCompletions
from tests.support.fake_provider.strictness import refused_by_anthropic, refused_by_openai

OPENAI = ChatCompletions("http://models.test/v1", "key")
ANTHROPIC = Messages("http://models.test", "key")
IDS = ("", "c1", "c1", "functions.add:0", "call_" + "x" * 70, "zürich", "123456789")
NAMES = ("add", "", "assistant<|channel|>analysis", "x" * 90, "mal nehmen")
ARGUMENTS = ("", "{}", '{"a": 1}', '{"a": ', "[1]", "null", '"text"', " ")
TEXTS = ("", " \n", "Said.", "Said. ")

calls = st.builds(
    ToolCall,
    id=st.sampled_from(IDS),
    name=st.sampled_from(NAMES),
    arguments=st.sampled_from(ARGUMENTS),
)
messages = st.one_of(
    st.builds(Message, role=st.sampled_from(("user", "system")), content=st.sampled_from(TEXTS)),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=st.sampled_from(TEXTS),
        tool_calls=st.lists(calls, max_size=3).map(tuple),
    ),
    st.builds(
        Message,
        role=st.just("tool"),
        content=st.sampled_from(TEXTS),
        tool_call_id=st.sampled_from(IDS),
        tool_name=st.sampled_from(NAMES),
    ),
)
odd_schemas = st.sampled_from(
    [
        {"type": "object"},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "null"}]},
        {"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"properties": {"a": {}}}}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
    ]
)


@pytest.mark.req("cw/13.wire")
@settings(max_examples=300, deadline=None)
@given(said=st.lists(messages, max_size=8), schema=odd_schemas, asked=st.booleans())
def test_no_endpoint_refuses_what_is_sent_of_a_conversation(
    said: list[Message], schema: dict[str, Any], asked: bool
) -> None:
    """Repeated, missing and invalid IDs, names, texts, arguments, results and schemas are repaired.

    This includes a conversation that starts with an answer.
    """
    question = Message(role="user", content="Why?")
    tool = ToolDefinition(name="add", description="Adds.", parameters=schema)
    whole = (question, *said) if asked else (*said, question)
    request = ModelRequest(messages=whole, tools=(tool,))

    for model in ("gpt-5", "mistral-large"):
        body = json.loads(json.dumps(OPENAI.body(model, request, frozenset())))
        assert refused_by_openai(body) is None
    body = json.loads(json.dumps(ANTHROPIC.body("claude-x", request, frozenset())))
    assert refused_by_anthropic(body) is None


def _called(call_id: str, result: str | None) -> list[Message]:
    call = ToolCall(id=call_id, name="add", arguments='{"a": 1}')
    said = [Message(role="assistant", content="", tool_calls=(call,))]
    if result is not None:
        said.append(Message(role="tool", content=result, tool_call_id=call_id, tool_name="add"))
    return said


@pytest.mark.req("cw/13.wire")
def test_every_result_stays_with_its_call() -> None:
    """Results keep their calls even if two turns, or two calls of one turn, have the same ID."""
    twice = (ToolCall(id="c", name="add", arguments="{}"),) * 2
    said = [
        *_called("c", "first"),
        Message(role="assistant", content="", tool_calls=twice),
        Message(role="tool", content="second", tool_call_id="c", tool_name="add"),
        Message(role="user", content="meanwhile"),
        Message(role="tool", content="third", tool_call_id="c", tool_name="add"),
        *_called("d", None),
    ]

    sent = OPENAI.body("m", ModelRequest(messages=tuple(said)), frozenset())["messages"]

    ids = [call["id"] for message in sent for call in message.get("tool_calls", ())]
    results = {each["tool_call_id"]: each["content"] for each in sent if each["role"] == "tool"}
    assert len(set(ids)) == 4
    assert [results[each] for each in ids] == ["first", "second", "third", NO_RESULT]
    assert [each["role"] for each in sent].index("user") == 5


@pytest.mark.parametrize("origin", ["openai", "openai at elsewhere.test", "anthropic"])
def test_the_thoughts_of_another_endpoint_are_not_sent(origin: str) -> None:
    """Thinking of another provider, or of another endpoint with the same dialect, is left out."""
    state = {
        "provider": origin,
        "thinking": [{"id": "reasoning_content", "content": "secret", "signature": "s"}],
    }
    message = Message(role="assistant", content="Said.", provider_state=state)
    request = ModelRequest(messages=(Message(role="user", content="?"), message))

    for dialect in (OPENAI, ANTHROPIC):
        assert "secret" not in json.dumps(dialect.body("m", request, frozenset()))


def test_an_endpoint_sees_its_own_thoughts_again() -> None:
    """Thinking is sent in its original field and with its call."""
    state = {
        "provider": "openai at models.test",
        "thinking": [{"id": "reasoning_content", "content": "Hm."}],
        "calls": {"c.1": {"extra_content": {"google": {"thought_signature": "s"}}}},
    }
    call = ToolCall(id="c.1", name="add", arguments="{}")
    message = Message(role="assistant", content="", tool_calls=(call,), provider_state=state)

    request = ModelRequest(messages=(message,))
    sent = OPENAI.body("m", request, frozenset())["messages"][0]
    renamed = OPENAI.body("mistral", request, frozenset())["messages"][0]

    assert sent["reasoning_content"] == "Hm."
    for each in (sent, renamed):
        assert each["tool_calls"][0]["extra_content"]["google"] == {"thought_signature": "s"}
    assert renamed["tool_calls"][0]["id"] != "c.1"


def test_alternatives_at_the_root_of_a_schema_become_one_object() -> None:
    """Fields that all alternatives require stay required."""
    schema = {
        "anyOf": [
            {"$ref": "#/$defs/A"},
            {"properties": {"b": {}, "c": {}}, "required": ["b", "c"]},
        ],
        "$defs": {"A": {"properties": {"a": {}, "c": {}}, "required": ["a", "c"]}},
    }
    tool = ToolDefinition(name="add", description="Adds.", parameters=schema)

    sent = ANTHROPIC.body("m", ModelRequest(messages=(), tools=(tool,)), frozenset())

    plain = sent["tools"][0]["input_schema"]
    assert plain["type"] == "object"
    assert (plain["properties"].keys(), plain["required"]) == ({"a", "b", "c"}, ["c"])
    assert "anyOf" not in plain


@pytest.mark.parametrize(
    "written", ['{"a":"\\ud83d"}', '{"a":NaN}', '{"a":1e999}', '{"a":"\ud83d"}']
)
def test_arguments_that_are_sent_back_are_json_that_can_be_sent(written: str) -> None:
    """Invalid JSON would make the endpoint reject this request and every later one."""
    call = ToolCall(id="c1", name="n", arguments=written)
    [message, _] = sent_back(
        [Message(role="assistant", content="", tool_calls=(call,))], OPENAI_IDS, "o"
    )

    for value in (object_in(written), object_in(message.tool_calls[0].arguments)):
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    json.loads(message.tool_calls[0].arguments, parse_constant=pytest.fail)


def _thought(number: int) -> dict[str, Any]:
    return {"type": "thinking", "thinking": f"thought {number}", "signature": f"s{number}"}


BLOCKS = (
    _thought,
    lambda number: {"type": "redacted_thinking", "data": f"hidden {number}"},
    lambda number: {"type": "text", "text": f" Said {number}. "},
    lambda number: {"type": "tool_use", "id": f"c{number}", "name": "add", "input": {"a": number}},
)


@given(kinds=st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=8))
def test_blocks_are_sent_back_in_the_order_in_which_they_came(kinds: list[Any]) -> None:
    """Anthropic refuses a last answer whose thinking moved. Neighbouring texts may be joined."""
    came = [kind(number) for number, kind in enumerate(kinds)]
    accumulator = ANTHROPIC.accumulator("claude-x", ModelRequest(messages=()))
    accumulator.add({"type": "message", "content": came, "stop_reason": "tool_use"})
    accumulator.prose.end()
    reply = accumulator.reply()
    assert reply is not None
    message = Message(
        role="assistant",
        content=reply.text,
        tool_calls=tuple(reply.tool_calls),
        provider_state=reply.provider_state,
    )
    asked = Message(role="user", content="?")

    sent = ANTHROPIC.body("claude-x", ModelRequest(messages=(asked, message)), frozenset())

    answers = [each["content"] for each in sent["messages"] if each["role"] == "assistant"]
    if not reply.text.strip() and not reply.tool_calls:
        assert answers == []
        return
    assert _shape(answers[0]) == _shape(came)


def _shape(blocks: list[dict[str, Any]]) -> list[Any]:
    """Return the blocks with joined texts; a text may follow the calls that it stood between."""
    shape: list[Any] = []
    for part in _sections(blocks):
        texts = "".join(block["text"] for block in part if block["type"] == "text").split()
        calls = [block["id"] for block in part if block["type"] == "tool_use"]
        thoughts = [
            block.get("signature") or block.get("data")
            for block in part
            if block["type"] not in ("text", "tool_use")
        ]
        shape.append((texts, calls, thoughts))
    return shape


def _sections(blocks: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Split blocks after each thinking block."""
    sections: list[list[dict[str, Any]]] = [[]]
    for block in blocks:
        sections[-1].append(block)
        if block["type"] not in ("text", "tool_use"):
            sections.append([])
    return sections
