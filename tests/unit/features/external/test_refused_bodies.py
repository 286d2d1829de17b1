"""Bodies of model calls that the gateway refuses before anything is sent."""

from typing import Any

import pytest

from caseworker.features.external.dialects import (
    CHAT_COMPLETIONS,
    DIALECTS,
    MAX_VALUES,
    MESSAGES,
    RESPONSES,
    Dialect,
    RefusedBodyError,
    references_in,
    require_accepted,
    require_known,
)


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": "hi"}], **fields}


def _said(content: Any) -> dict[str, Any]:
    return _body(messages=[{"role": "user", "content": content}])


def _refused(body: Any, *, dialect: Dialect = CHAT_COMPLETIONS, limits_cost: bool = False) -> str:
    """Return the field for which a body is refused."""
    with pytest.raises(RefusedBodyError) as refused:
        require_accepted(body, dialect, limits_cost=limits_cost)
    assert refused.value.field is not None
    assert refused.value.field in str(refused.value)
    return refused.value.field


def _asked(*items: Any) -> dict[str, Any]:
    return {"model": "small", "input": list(items)}


ALWAYS = [
    ("background", _body(background=True)),
    ("prompt", _body(prompt={"id": "pmpt_1"})),
]
REFERRING = [
    ("previous_response_id", "resp_1", _body(previous_response_id="resp_1")),
    ("conversation", "conv_1", _body(conversation={"id": "conv_1"})),
    ("conversation", "conv_1", _body(conversation="conv_1")),
    ("container", "container_1", _body(container="container_1")),
    ("container", "", _body(container={"skills": []})),
    ("container", "", _body(container={"id": "container_1", "skills": []})),
    ("file_id", "f1", _said([{"type": "file", "file": {"file_id": "f1"}}])),
    ("file_id", "f1", _said([{"type": "document", "source": {"type": "file", "file_id": "f1"}}])),
    ("file_id", "f1", _said([{"type": "container_upload", "file_id": "f1"}])),
    ("file_id", "f", _said([{"type": "tool_result", "content": [{"type": "a", "file_id": "f"}]}])),
    ("vector_store_ids", "v1", _body(tools=[{"type": "a", "vector_store_ids": ["v1"]}])),
    ("container", "c1", _body(tools=[{"type": "code_interpreter", "container": "c1"}])),
    ("file_ids", "f1", _body(tools=[{"container": {"type": "auto", "file_ids": ["f1"]}}])),
    ("container", "", _body(container={"type": "auto"})),
    ("container_id", "c1", _body(tools=[{"type": "shell", "environment": {"container_id": "c1"}}])),
    (
        "skill_id",
        "s1",
        _body(tools=[{"container": {"type": "auto", "skills": [{"skill_id": "s1"}]}}]),
    ),
    ("container", "", _body(tools=[{"container": {"type": "auto", "id": "c1"}}])),
    ("audio", "a1", _body(messages=[{"role": "assistant", "audio": {"id": "a1"}}])),
    ("input", "msg_1", _asked({"type": "item_reference", "id": "msg_1"})),
    ("input", "msg_1", _asked({"id": "msg_1"})),
    ("input", "rs_1", _asked({"type": "reasoning", "id": "rs_1", "summary": []})),
    ("input", "ig_1", _asked({"type": "image_generation_call", "id": "ig_1"})),
    ("input", "i_1", _asked({"type": "item_reference", "id": "i_1", "encrypted_content": "x"})),
    ("file_id", "f1", _asked({"role": "user", "content": [{"file_id": "f1"}]})),
    ("file_id", "f1", _asked({"type": "function_call_output", "output": [{"file_id": "f1"}]})),
]
WHOLE = [
    _asked({"type": "additional_tools", "id": "at_1", "tools": [{"type": "custom"}]}),
    _asked({"role": "user", "content": "hi", "id": "msg_1"}),
    _asked({"type": "function_call", "id": "fc_1", "call_id": "1", "arguments": "{}"}),
    _asked({"type": "function_call_output", "id": "fo_1", "call_id": "1", "output": "2"}),
    _asked({"type": "reasoning", "id": "rs_1", "encrypted_content": "sealed"}),
    {"model": "small", "input": "hi", "instructions": "Be brief.", "previous_response_id": None},
    {"model": "small", "tools": [{"container": {"type": "auto", "memory_limit": "4g"}}]},
    {"model": "small", "audio": {"voice": "x"}, "tools": [{"parameters": {"file_id": {}}}]},
    _asked({"type": "tool_use", "id": None, "input": {"file_id": "mine"}}),
]
PRICED = [
    ("service_tier", _body(service_tier="priority")),
    ("service_tier", _body(service_tier=["auto"])),
    ("speed", _body(speed="fast")),
    ("inference_geo", _body(inference_geo="us")),
    ("web_search_options", _body(web_search_options={})),
    ("mcp_servers", _body(mcp_servers=[{"url": "https://example.com"}])),
    ("tools", _body(tools=[{"type": "web_search_20250305", "name": "web_search"}])),
    ("tools", _body(tools=[{"type": "function"}, {"type": "code_execution_20250825"}])),
    ("tools", _body(tools=[{"type": ["function"]}])),
    ("tools", _body(tools=[{"type": "namespace", "tools": [{"type": "web_search"}]}])),
    ("tools", _body(input=[{"type": "additional_tools", "tools": [{"type": "web_search"}]}])),
]
OFFERED = [
    _body(store=True, metadata={"file_id": "mine"}),
    _body(background=False, previous_response_id=None, mcp_servers=[]),
    _body(service_tier="auto"),
    _body(service_tier="standard_only"),
    _body(speed="standard", inference_geo="global"),
    _body(tools=[{"name": "mine", "input_schema": {"properties": {"file_id": {}}}}]),
    _body(tools=[{"type": "custom"}, {"type": "text_editor_20250728"}, {"type": "function"}]),
    _body(tools=[{"type": "namespace", "tools": [{"type": "function"}]}]),
    _said([{"type": "tool_use", "id": "1", "name": "mine", "input": {"file_id": "mine"}}]),
    _body(tools="odd", n=None, stream=None, max_tokens=0, unknown=[1, {"a": None}]),
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


@pytest.mark.parametrize("limits_cost", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.path)
@pytest.mark.parametrize(("field", "body"), ALWAYS)
def test_some_fields_are_always_refused(
    field: str, body: Any, dialect: Dialect, limits_cost: bool
) -> None:
    """Their replies would not pass through the gateway, or they are shared by all tenants."""
    body = {**body, "input": "hi"}
    assert _refused(body, dialect=dialect, limits_cost=limits_cost) == field


@pytest.mark.parametrize(("field", "reference", "body"), REFERRING)
def test_references_to_unknown_objects_at_the_provider_are_refused(
    field: str, reference: str, body: Any
) -> None:
    """Tenants share the account, so a request may only name objects of its tenant."""
    dialect = RESPONSES if "input" in body else CHAT_COMPLETIONS
    found = list(references_in(require_accepted(body, dialect, limits_cost=False), dialect))

    assert found == [(field, reference)]
    require_known(found, {reference})
    with pytest.raises(RefusedBodyError, match=f"field {field} is not offered") as refused:
        require_known(found, {"another"})
    assert refused.value.field == field


@pytest.mark.parametrize("body", WHOLE)
def test_items_that_a_client_writes_are_no_references(body: Any) -> None:
    """Their IDs name nothing that the provider would have to look up."""
    assert (
        list(references_in(require_accepted(body, RESPONSES, limits_cost=False), RESPONSES)) == []
    )


@pytest.mark.parametrize(("field", "body"), PRICED)
def test_unpriced_features_are_refused_only_in_runs_with_a_cost_limit(
    field: str, body: Any
) -> None:
    """The cost of a hosted tool or another service tier cannot be reserved."""
    assert _refused(body, limits_cost=True) == field
    assert require_accepted(body, CHAT_COMPLETIONS, limits_cost=False) is body


@pytest.mark.parametrize("body", OFFERED)
def test_other_fields_pass(body: Any) -> None:
    """Unknown fields, and fields that only look like references, are passed on."""
    assert require_accepted(body, MESSAGES, limits_cost=True) is body


@pytest.mark.parametrize(("field", "body"), MALFORMED)
def test_fields_that_cannot_be_read_are_refused(field: str, body: Any) -> None:
    """The gateway names the field instead of failing later."""
    assert _refused(body) == field


@pytest.mark.parametrize(("field", "body"), MALFORMED_ITEMS)
def test_items_that_cannot_be_read_are_refused(field: str, body: Any) -> None:
    """The input of a response is a text or a list."""
    assert _refused(body, dialect=RESPONSES) == field


@pytest.mark.parametrize("body", [None, True, 7, "text", [], [{"model": "small"}]])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    """Only a JSON object is a model call."""
    with pytest.raises(RefusedBodyError, match="JSON object"):
        require_accepted(body, MESSAGES, limits_cost=False)


@pytest.mark.parametrize("value", [1, {}, []], ids=["number", "object", "array"])
def test_a_body_of_very_many_values_is_refused(value: Any) -> None:
    """Reading it would take minutes and gigabytes, even if it is not large."""
    usual = 7  # the body, its fields, and the values of its message
    require_accepted(_said([value] * (MAX_VALUES - usual)), CHAT_COMPLETIONS, limits_cost=False)
    for body in (_said([value] * MAX_VALUES), _body(messages=[value] * MAX_VALUES)):
        with pytest.raises(RefusedBodyError, match="more than"):
            require_accepted(body, CHAT_COMPLETIONS, limits_cost=False)
