"""Bodies of model calls that the gateway refuses before anything is sent."""

from typing import Any

import pytest

from caseworker.gateway.admission import (
    MAX_VALUES,
    object_references_in,
    require_known_objects,
    require_readable,
)
from caseworker.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from caseworker.gateway.dialects.dialect import Dialect
from caseworker.gateway.dialects.messages import MESSAGES
from caseworker.gateway.dialects.responses import RESPONSES
from caseworker.models.fields.table import RefusedBodyError


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": "hi"}], **fields}


def _said(content: Any) -> dict[str, Any]:
    return _body(messages=[{"role": "user", "content": content}])


def _refused(body: Any, dialect: Dialect = CHAT_COMPLETIONS) -> str:
    """Return the field for which a body is refused."""
    with pytest.raises(RefusedBodyError) as refused:
        dialect.fields.read(require_readable(body, dialect), limits_spending=False)
    assert refused.value.field is not None
    assert refused.value.field in str(refused.value)
    return refused.value.field


def _asked(*items: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "small", "input": list(items), **fields}


PART = "messages[0].content[0]"
REFERRING = [
    ("previous_response_id", "resp_1", _asked(previous_response_id="resp_1")),
    ("conversation.id", "conv_1", _asked(conversation={"id": "conv_1"})),
    ("conversation", "conv_1", _asked(conversation="conv_1")),
    (
        "tools[0].vector_store_ids[0]",
        "v1",
        _asked(tools=[{"type": "file_search", "vector_store_ids": ["v1"]}]),
    ),
    (
        "tools[0].vector_store_ids",
        "",
        _asked(tools=[{"type": "file_search", "vector_store_ids": {"0": "v1"}}]),
    ),
    ("tools[0].container", "c1", _asked(tools=[{"type": "code_interpreter", "container": "c1"}])),
    (
        "tools[0].container.file_ids[0]",
        "f1",
        _asked(
            tools=[{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f1"]}}]
        ),
    ),
    (
        "tools[0].environment.container_id",
        "c1",
        _asked(
            tools=[
                {
                    "type": "shell",
                    "environment": {"type": "container_reference", "container_id": "c1"},
                }
            ]
        ),
    ),
    ("tools[0].**.container_id", "c1", _asked(tools=[{"type": "a", "container_id": "c1"}])),
    ("tools[0].tunnel_id", "t1", _asked(tools=[{"type": "mcp", "tunnel_id": "t1"}])),
    ("input[0].id", "msg_1", _asked({"type": "item_reference", "id": "msg_1"})),
    ("input[0].id", "msg_1", _asked({"id": "msg_1"})),
    ("input[0].id", "", _asked({"id": {"x": 1}})),
    ("input[0].id", "rs_1", _asked({"type": "reasoning", "id": "rs_1", "summary": []})),
    ("input[0].id", "ig_1", _asked({"type": "image_generation_call", "id": "ig_1"})),
    (
        "input[0].id",
        "i_1",
        _asked({"type": "item_reference", "id": "i_1", "encrypted_content": "x"}),
    ),
    (
        "input[0].content[0].file_id",
        "f1",
        _asked({"role": "user", "content": [{"type": "input_file", "file_id": "f1"}]}),
    ),
    (
        "input[0].content[0].**.file_id",
        "f1",
        _asked({"role": "user", "content": [{"file_id": "f1"}]}),
    ),
    (
        "input[0].output[0].file_id",
        "f1",
        _asked(
            {"type": "function_call_output", "output": [{"type": "input_image", "file_id": "f1"}]}
        ),
    ),
    ("container", "container_1", _body(container="container_1")),
    ("container.id", "container_1", _body(container={"id": "container_1", "skills": []})),
    (
        "container.skills[0].skill_id",
        "s1",
        _body(container={"skills": [{"type": "custom", "skill_id": "s1"}]}),
    ),
    (
        f"{PART}.source.file_id",
        "f1",
        _said([{"type": "document", "source": {"type": "file", "file_id": "f1"}}]),
    ),
    (f"{PART}.file_id", "f1", _said([{"type": "container_upload", "file_id": "f1"}])),
    (
        f"{PART}.content[0].**.file_id",
        "f",
        _said([{"type": "tool_result", "content": [{"type": "a", "file_id": "f"}]}]),
    ),
    (
        "thread.previous_message_id",
        "m1",
        _body(thread={"type": "continue", "previous_message_id": "m1"}),
    ),
]
WHOLE = [
    _asked({"type": "additional_tools", "id": "at_1", "tools": [{"type": "custom"}]}),
    _asked({"role": "user", "content": "hi", "id": "msg_1"}),
    _asked({"type": "function_call", "id": "fc_1", "call_id": "1", "arguments": "{}"}),
    _asked({"type": "function_call_output", "id": "fo_1", "call_id": "1", "output": "2"}),
    _asked({"type": "reasoning", "id": "rs_1", "encrypted_content": "sealed"}),
    {"model": "small", "input": "hi", "instructions": "Be brief.", "previous_response_id": None},
    _asked(
        tools=[{"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "4g"}}]
    ),
    _asked(tools=[{"type": "function", "parameters": {"file_id": {}}}]),
    _asked({"type": "function_call", "id": None, "arguments": {"file_id": "mine"}}),
]
MALFORMED = [
    ("model", {"messages": []}),
    ("model", _body(model=7)),
    ("messages", {"model": "small"}),
    ("messages", _body(messages="hi")),
    ("stream", _body(stream="true")),
    ("stream", _body(stream=1)),
    ("stream_options", _body(stream_options=["include_usage"])),
    ("max_tokens", _body(max_tokens="100")),
    ("max_tokens", _body(max_tokens=-1)),
    ("max_tokens", _body(max_tokens=True)),
    ("max_tokens", _body(max_tokens=10.5)),
    ("n", _body(n=0)),
    ("n", _body(n=2**62)),
    ("n", _body(n=2.0)),
]
MALFORMED_ITEMS = [
    ("input", {"model": "small", "input": 7}),
    ("input", {"model": "small", "input": {"role": "user"}}),
    ("max_output_tokens", {"model": "small", "input": "hi", "max_output_tokens": "100"}),
]


@pytest.mark.parametrize(("place", "reference", "body"), REFERRING)
def test_references_to_unknown_objects_at_the_provider_are_refused(
    place: str, reference: str, body: Any
) -> None:
    """Tenants share the account, so a request may only name objects of its tenant."""
    dialect = RESPONSES if "input" in body else MESSAGES
    found = object_references_in(dialect.fields.read(body, limits_spending=False))

    assert found == [(place, reference)]
    require_known_objects(found, {reference})
    with pytest.raises(RefusedBodyError) as refused:
        require_known_objects(found, {"another"})
    assert refused.value.field == place
    assert f"field {place} is not offered" in str(refused.value)


@pytest.mark.parametrize(
    "reference", ["", "a\0b", "resp_\u00e9", "x" * 201, ["resp_1"], {"id": 1}, 1]
)
def test_what_is_no_id_is_refused_without_a_look_up(reference: Any) -> None:
    """The store cannot look up all texts: none of these can have been stored."""
    parts = RESPONSES.fields.read(_asked(previous_response_id=reference), limits_spending=False)
    assert {each for _, each in object_references_in(parts)} <= {"", "resp_1"}


@pytest.mark.parametrize("body", WHOLE)
def test_items_that_a_client_writes_are_no_references(body: Any) -> None:
    """Their IDs name nothing that the provider would have to look up."""
    assert object_references_in(RESPONSES.fields.read(body, limits_spending=False)) == []


@pytest.mark.parametrize(("field", "body"), MALFORMED)
def test_fields_that_cannot_be_read_are_refused(field: str, body: Any) -> None:
    """The gateway names the field instead of failing later."""
    assert _refused(body) == field


@pytest.mark.parametrize(("field", "body"), MALFORMED_ITEMS)
def test_items_that_cannot_be_read_are_refused(field: str, body: Any) -> None:
    """The input of a response is a text or a list."""
    assert _refused(body, RESPONSES) == field


@pytest.mark.parametrize("body", [None, True, 7, "text", [], [{"model": "small"}]])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    """Only a JSON object is a model call."""
    with pytest.raises(RefusedBodyError, match="JSON object"):
        require_readable(body, MESSAGES)


@pytest.mark.parametrize("value", [1, {}, []], ids=["number", "object", "array"])
def test_a_body_of_very_many_values_is_refused(value: Any) -> None:
    """Reading it would take minutes and gigabytes, even if it is not large."""
    usual = 7  # the body, its fields, and the values of its message
    require_readable(_said([value] * (MAX_VALUES - usual)), CHAT_COMPLETIONS)
    for body in (_said([value] * MAX_VALUES), _body(messages=[value] * MAX_VALUES)):
        with pytest.raises(RefusedBodyError, match="more than"):
            require_readable(body, CHAT_COMPLETIONS)
