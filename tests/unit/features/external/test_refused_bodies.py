"""Bodies of model calls that the gateway refuses before anything is sent."""

from typing import Any

import pytest

from caseworker.features.external.dialects import (
    CHAT_COMPLETIONS,
    DIALECTS,
    MESSAGES,
    Dialect,
    RefusedBodyError,
    require_accepted,
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


ALWAYS = [
    ("background", _body(background=True)),
    ("previous_response_id", _body(previous_response_id="resp_1")),
    ("conversation", _body(conversation={"id": "conv_1"})),
    ("container", _body(container="container_1")),
    ("container", _body(container={"skills": []})),
    ("file_id", _said([{"type": "file", "file": {"file_id": "file-1"}}])),
    ("file_id", _said([{"type": "document", "source": {"type": "file", "file_id": "file_1"}}])),
    ("file_id", _said([{"type": "container_upload", "file_id": "file_1"}])),
    ("file_id", _said([{"type": "tool_result", "content": [{"type": "image", "file_id": "f"}]}])),
    ("vector_store_ids", _body(tools=[{"type": "file_search", "vector_store_ids": ["vs_1"]}])),
    ("container", _body(tools=[{"type": "code_interpreter", "container": "cntr_1"}])),
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
]
OFFERED = [
    _body(store=True, metadata={"file_id": "mine"}),
    _body(background=False, previous_response_id=None, mcp_servers=[]),
    _body(service_tier="auto"),
    _body(service_tier="standard_only"),
    _body(speed="standard", inference_geo="global"),
    _body(tools=[{"name": "mine", "input_schema": {"properties": {"file_id": {}}}}]),
    _body(tools=[{"type": "custom"}, {"type": "text_editor_20250728"}, {"type": "function"}]),
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


@pytest.mark.parametrize("limits_cost", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.provider)
@pytest.mark.parametrize(("field", "body"), ALWAYS)
def test_references_to_objects_at_the_provider_are_refused(
    field: str, body: Any, dialect: Dialect, limits_cost: bool
) -> None:
    """Tenants share the account at the provider, so no request may name an object in it."""
    assert _refused(body, dialect=dialect, limits_cost=limits_cost) == field


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


@pytest.mark.parametrize("body", [None, True, 7, "text", [], [{"model": "small"}]])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    """Only a JSON object is a model call."""
    with pytest.raises(RefusedBodyError, match="JSON object"):
        require_accepted(body, MESSAGES, limits_cost=False)
