"""The tables of fields decide every field of the vendors' request types and of real clients."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from caseworker.models.fields.table import (
    MAX_CHOICES,
    Fields,
    FieldSection,
    RefusedBodyError,
    Table,
    UndecidedFieldError,
    Use,
)
from caseworker.models.fields.tables import TABLES
from caseworker.models.token_arrays import document_with_tokens
from tests.support.request_types import samples_of

REQUESTS = [
    ("chat_completions", "openai.types.chat.completion_create_params.CompletionCreateParams"),
    ("responses", "openai.types.responses.response_create_params.ResponseCreateParams"),
    ("responses", "openai.types.beta.response_create_params.ResponseCreateParams"),
    ("messages", "anthropic.types.message_create_params.MessageCreateParams"),
    ("messages", "anthropic.types.beta.message_create_params.MessageCreateParams"),
    ("embeddings", "openai.types.embedding_create_params.EmbeddingCreateParams"),
]
"""Types of the vendors' libraries, stable and beta."""
ANY_TEXT = {"context_management[]<text>", "reasoning.mode"}
"""Fields of the libraries' types that may be any text; the tables have the documented values."""
BODIES = sorted((Path(__file__).parents[3] / "data/client_bodies").glob("*.jsonl"))
"""Bodies that real clients sent."""


def read(body: Any, dialect: str = "chat_completions", *, limits: bool = True, **about: Any) -> Any:
    """Return the uses and places of the parts in a body."""
    parts = TABLES[dialect].read(body, limits_spending=limits, **about)
    return [(part.use, part.place) for part in parts]


def refusal(body: Any, dialect: str = "chat_completions", *, limits: bool = True) -> str:
    """Return the place for which a body is refused."""
    with pytest.raises(RefusedBodyError) as refused:
        read(body, dialect, limits=limits)
    assert refused.value.field is not None
    assert refused.value.field in str(refused.value)
    return refused.value.field


@pytest.mark.req("cw/3.fields")
@pytest.mark.parametrize(("dialect", "name"), REQUESTS)
def test_a_table_decides_all_fields_of_the_vendors_request_types(dialect: str, name: str) -> None:
    """A release of a library with another field or value fails here, with its path."""
    module, _, request = name.rpartition(".")
    paths, undecided = set(), set()
    streams = ("",) if dialect == "embeddings" else ("NonStreaming", "Streaming")
    for suffix in streams:
        for path, body in samples_of(getattr(import_module(module), request + suffix)):
            paths.add(path)
            if dialect == "embeddings":  # the gateway reads arrays of tokens first
                body = document_with_tokens(json.dumps(body).encode(), json.loads)
            try:
                TABLES[dialect].read(body, limits_spending=True)
            except UndecidedFieldError as error:
                if not any(map(path.startswith, ANY_TEXT)) or "=" in path:
                    undecided.add(f"{path}: {error.field}")
            except RefusedBodyError:
                pass

    assert undecided == set()
    assert "model" in paths
    assert len(streams) == 1 or {"stream=True", "stream=False"} <= paths


@pytest.mark.req("cw/3.fields")
@pytest.mark.parametrize("file", BODIES, ids=lambda file: file.stem)
def test_a_table_decides_all_fields_that_real_clients_send(file: Path) -> None:
    """No field of a captured body is unknown."""
    for line in file.read_text().splitlines():
        captured = json.loads(line)
        try:
            TABLES[captured["dialect"]].read(captured["body"], limits_spending=True)
        except RefusedBodyError as refused:
            if isinstance(refused, UndecidedFieldError):
                raise


COSTLY: list[tuple[str, dict[str, Any]]] = [
    ("search_parameters", {"search_parameters": {"mode": "on"}}),
    ("models", {"models": ["openai/o1-pro"]}),
    ("plugins", {"plugins": [{"id": "web", "max_results": 10}]}),
    ("route", {"route": "fallback"}),
    ("provider", {"provider": {"order": ["x"], "allow_fallbacks": True}}),
    ("fallbacks", {"fallbacks": ["o1-pro"]}),
    ("api_base", {"api_base": "http://evil.example", "api_key": "x"}),
    ("api_key", {"api_key": "x"}),
    ("prediction", {"prediction": {"type": "content", "content": "a"}}),
    ("modalities[1]", {"modalities": ["text", "audio"]}),
    ("audio", {"audio": {"voice": "alloy", "format": "wav"}}),
    ("tools[0].googleSearch", {"tools": [{"googleSearch": {}}]}),
    ("extra_body.google.tools", {"extra_body": {"google": {"tools": [{"google_search": {}}]}}}),
    ("use_beam_search", {"use_beam_search": True, "best_of": 50}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_completion_tokens", {"max_completion_tokens": 0}),
    ("min_tokens", {"min_tokens": 100_000}),
    ("enable_search", {"enable_search": True}),
    ("web_search_options", {"web_search_options": {}}),
    ("service_tier", {"service_tier": "priority"}),
    ("chat_template", {"chat_template": "{% for i in range(9999999) %}x{% endfor %}"}),
    (
        "chat_template_kwargs.chat_template",
        {"chat_template_kwargs": {"enable_thinking": False, "chat_template": "{{ messages }}"}},
    ),
    ("n_predict", {"n_predict": 100_000}),
    ("extra_body.model", {"extra_body": {"model": "o1-pro"}}),
    ("extra_body.max_tokens", {"extra_body": {"max_tokens": 100_000}}),
    ("extra_body.n", {"extra_body": {"n": 100}}),
    ("extra_body.service_tier", {"extra_body": {"service_tier": "priority"}}),
    ("extra_body.extra_body", {"extra_body": {"extra_body": {"models": ["x"]}}}),
    ("tools[1]", {"tools": [{"type": "function"}, {"type": "code_interpreter"}]}),
    ("tools[0]", {"tools": [{"type": "browser_use_20270101"}]}),
    ("tools[0]", {"tools": [{"type": ["function"]}]}),
    ("N", {"N": 50}),
    ("messages[0].content[0]", {"messages": [{"content": [{"type": "video_url"}]}]}),
    (
        "messages[0].content[0].image_url.max_pixels",
        {"messages": [{"content": [{"type": "image_url", "image_url": {"max_pixels": 10**9}}]}]},
    ),
]
"""Fields that cost money at some provider, in chat completions."""


@pytest.mark.req("cw/3.fields")
@pytest.mark.parametrize(("place", "body"), COSTLY)
def test_fields_that_cost_money_are_refused_in_a_run_that_limits_spending(
    place: str, body: dict[str, Any]
) -> None:
    """The cost of these fields cannot be reserved, so the run cannot be kept within its limit."""
    assert refusal(body) == place


@pytest.mark.parametrize(
    ("dialect", "place", "body"),
    [
        ("responses", "reasoning.mode", {"reasoning": {"mode": "pro"}}),
        ("responses", "service_tier", {"service_tier": "ultrafast"}),
        ("responses", "multi_agent", {"multi_agent": {"enabled": True}}),
        ("responses", "max_output_tokens", {"max_output_tokens": 0}),
        ("responses", "max_tokens", {"max_tokens": 10}),
        ("responses", "input[0]", {"input": [{"type": "hologram"}]}),
        ("messages", "speed", {"speed": "fast"}),
        ("messages", "inference_geo", {"inference_geo": "us"}),
        ("messages", "fallbacks", {"fallbacks": "default"}),
        ("messages", "mcp_servers", {"mcp_servers": [{"url": "https://example.com"}]}),
        ("messages", "tools[0]", {"tools": [{"type": "code_execution_20250825"}]}),
        ("messages", "tools[0]", {"tools": [{"type": "advisor_20260301"}]}),
        ("messages", "tools[0]", {"tools": [{"type": "tool_search_tool_bm25_20251119"}]}),
        ("messages", "billing_policy", {"billing_policy": {"bill_to": "user_profile"}}),
    ],
)
def test_other_apis_refuse_fields_that_cost_money(
    dialect: str, place: str, body: dict[str, Any]
) -> None:
    """Each API has fields with prices that no token count shows."""
    assert refusal(body, dialect) == place
    read(body, dialect, limits=False)


def test_the_cache_of_a_prompt_may_be_filled_without_output() -> None:
    """Anthropic documents ``max_tokens: 0``; other servers read it as no limit."""
    assert read({"max_tokens": 0}, "messages") == [(Use.OUTPUT_LIMIT, "max_tokens")]


@pytest.mark.parametrize("dialect", TABLES)
def test_an_unknown_field_is_refused_only_in_a_run_that_limits_spending(dialect: str) -> None:
    """The message has the place, the situation, and the line that allows the field."""
    items = "messages" if dialect in ("chat_completions", "messages") else "input"
    body, place = {items: [{"foo": {"bar": 1}}]}, f"{items}[0].foo"

    with pytest.raises(UndecidedFieldError) as refused:
        read(body, dialect)

    line = f'gateway.free_fields: {{{dialect}: ["{items}[].foo"]}}'
    assert refused.value.field == place
    assert all(words in str(refused.value) for words in (place, "limits its cost", line))
    assert read(body, dialect, limits=False) == []


def test_a_line_of_the_message_allows_the_field() -> None:
    """The setting takes the suggested path, with the types of objects."""
    bodies = [
        {"foo": {"bar": 1}},
        {"messages": [{"content": [{"type": "text", "foo": 1}]}]},
        {"messages": [{"content": [{"type": "hologram", "url": "x"}]}]},
        {"tools": [{"type": "teleport_20270101", "name": "x"}]},
        {"tools": [{"type": "vendor:teleport"}]},
        {"messages": [{"@name": 1}]},
        {"messages": [[{"role": "user"}]]},
        {"extra_body": {"foo": 1}},
    ]
    for body in bodies:
        with pytest.raises(UndecidedFieldError) as refused:
            read(body)
        path = str(refused.value).partition('["')[2].partition('"]')[0]

        assert read(body, free_fields=[path]) == []
        assert TABLES["chat_completions"].row_at(path) is None


@pytest.mark.parametrize(("place", "body"), COSTLY)
def test_fields_that_a_row_decides_cannot_be_allowed(place: str, body: dict[str, Any]) -> None:
    """A setting that names a priced or refused field changes nothing."""
    top = next(iter(body))
    row = TABLES["chat_completions"].row_at(top)
    if row is not None:
        with pytest.raises(RefusedBodyError):
            read(body, free_fields=[top, f"{top}[]", place])


@pytest.mark.parametrize("dialect", TABLES)
@pytest.mark.parametrize("limits", [False, True])
@pytest.mark.parametrize("outer", ["", "extra_body"])
@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("background", {"background": True}),
        ("prompt", {"prompt": {"id": "pmpt_1"}}),
        ("api_base", {"api_base": "http://evil.example"}),
    ],
)
def test_some_fields_are_refused_in_every_run(
    dialect: str, limits: bool, outer: str, place: str, body: dict[str, Any]
) -> None:
    """The reply would not pass through the gateway, or the request would leave it."""
    inside = {outer: body} if outer else body
    assert refusal(inside, dialect, limits=limits) == f"{outer}.{place}".lstrip(".")


def test_images_documents_and_other_parts_are_reported_with_their_place_and_holder() -> None:
    """A reader of the parts needs neither the path nor the table."""
    image = {"url": "https://example.com/a.png", "detail": "high"}
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": image},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]
    body = {"n": 3, "max_tokens": 9, "messages": [{"role": "user", "content": content}]}

    parts = {
        part.place: part for part in TABLES["chat_completions"].read(body, limits_spending=True)
    }

    at = "messages[0].content"
    assert {place: part.use for place, part in parts.items()} == {
        "n": Use.CHOICES,
        "max_tokens": Use.OUTPUT_LIMIT,
        f"{at}[1].image_url.url": Use.IMAGE,
        f"{at}[2].input_audio.data": Use.AUDIO,
        f"{at}[3].file.file_data": Use.DOCUMENT,
        f"{at}[4].file.file_id": Use.REFERENCE,
    }
    assert parts[f"{at}[1].image_url.url"].holder is image
    assert parts[f"{at}[1].image_url.url"].value == image["url"]
    assert parts["n"].holder is body


def test_parts_within_the_results_of_tools_are_reported() -> None:
    """Images and documents cost the same wherever they are in a request."""
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    result = {"type": "tool_result", "content": [{"type": "image", "source": source}]}
    fetched = {
        "type": "web_fetch_tool_result",
        "content": {
            "type": "web_fetch_result",
            "content": {"type": "document", "source": {"type": "url", "url": "https://a.example"}},
        },
    }
    assert read({"messages": [{"content": [result, fetched]}]}, "messages") == [
        (Use.IMAGE, "messages[0].content[0].content[0].source.data"),
        (Use.DOCUMENT, "messages[0].content[1].content.content.source.url"),
    ]
    output = {"type": "function_call_output", "output": [{"type": "input_file", "file_url": "x"}]}
    assert read({"input": [output]}, "responses") == [(Use.DOCUMENT, "input[0].output[0].file_url")]


def test_choices_thinking_and_compaction_are_reported_where_each_api_has_them() -> None:
    """They multiply the maximum cost of a call."""
    assert read({"best_of": 4, "thinking": {"type": "enabled", "budget_tokens": 9}}) == [
        (Use.CHOICES, "best_of"),
        (Use.THINKING, "thinking.budget_tokens"),
    ]
    edits = {"context_management": {"edits": [{"type": "compact_20260112"}]}}
    assert read(edits, "messages") == [(Use.COMPACTION, "context_management.edits[0]")]
    management = {"context_management": [{"type": "compaction", "compact_threshold": 9}]}
    assert read(management, "responses") == [(Use.COMPACTION, "context_management[0]")]
    cached = {"system": [{"type": "text", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}
    assert read(cached, "messages") == [(Use.CACHE, "system[0].cache_control")]


@pytest.mark.parametrize(
    "body",
    [
        {"n": 0},
        {"n": MAX_CHOICES + 1},
        {"n": 2.0},
        {"best_of": "50"},
        {"max_tokens": "100"},
        {"max_tokens": -1},
        {"max_tokens": True},
        {"max_tokens": [100]},
        {"max_tokens": False},
        {"max_tokens": 0.0},
        {"n": []},
        {"max_completion_tokens": 10.5},
        {"thinking": {"budget_tokens": "many"}},
    ],
)
@pytest.mark.parametrize("limits", [False, True])
def test_numbers_that_multiply_or_limit_the_output_must_be_numbers(
    body: dict[str, Any], limits: bool
) -> None:
    """A text would be read as no number here and as a number by a provider."""
    with pytest.raises(RefusedBodyError, match="must be a whole number") as refused:
        read(body, limits=limits)
    assert refused.value.code == "invalid_request"


@pytest.mark.parametrize("limits", [False, True])
def test_null_counts_as_absent(limits: bool) -> None:
    """Clients send null for the fields that they do not set."""
    body = {"n": None, "background": None, "service_tier": None, "foo": None, "tools": None}
    assert read(body, limits=limits) == []


@pytest.mark.parametrize("limits", [False, True])
def test_schemas_and_arguments_of_tools_are_not_interpreted(limits: bool) -> None:
    """A client may name the fields of its tools as it likes."""
    schema = {
        "properties": {"file_id": {}, "web_search_options": {}, "n": {"const": 900}},
        "examples": [[["a", None]]],
    }
    call = {"id": "1", "type": "function", "function": {"name": "a", "arguments": '{"n": 900}'}}
    body = {
        "metadata": {"file_id": "mine"},
        "logit_bias": [[1, 2]],
        "tools": [{"type": "function", "function": {"name": "a", "parameters": schema}}],
        "messages": [{"role": "assistant", "tool_calls": [call]}],
    }
    assert read(body, limits=limits) == []


def test_references_in_unknown_objects_are_reported() -> None:
    """A run without limits may send any field, but only IDs that its tenant knows."""
    body = {
        "file_ids": ["f1", None],
        "foo": {"bar": [{"container_id": "c1"}, [{"vector_store_ids": ["v1"]}]]},
        "messages": [{"content": [{"type": "hologram", "file_id": "f2"}]}],
    }
    parts = TABLES["chat_completions"].read(body, limits_spending=False)
    assert {(part.use, part.value) for part in parts} == {
        (Use.REFERENCE, value) for value in ("f1", "c1", "v1", "f2")
    }
    freed = {"foo": {"file_id": "f1"}}
    assert read(freed, free_fields=["foo"]) == [(Use.REFERENCE, "foo.**.file_id")]


def test_a_message_shows_only_the_beginning_of_long_names() -> None:
    """A name of megabytes would make the refusal as long as the request."""
    long = "x" * 10_000
    for body in ({long: 1}, {"tools": [{"type": long}]}, {"messages": [{long: [1]}]}):
        with pytest.raises(UndecidedFieldError) as refused:
            read(body)
        assert len(str(refused.value)) < 600


def nested(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = {"foo": [value]}
    return value


@pytest.mark.parametrize("limits", [False, True])
def test_deep_and_wide_bodies_are_read_without_recursion(limits: bool) -> None:
    """A body of 100,000 values, all nested or all next to each other, is no problem."""
    deep, value = 50_000, {"file_id": "f1"}
    schema = {"function": {"name": "a", "parameters": nested(deep, value)}}
    wide = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 30_000}]

    assert read({"tools": [schema], "messages": wide}, limits=limits) == []
    if limits:
        assert refusal(nested(deep, value)) == "foo"
        assert read({"foo": nested(deep, 1)}, free_fields=["foo"]) == []
    else:
        assert read(nested(deep, value), limits=False) == [(Use.REFERENCE, "foo.**.file_id")]


@pytest.mark.parametrize("dialect", TABLES)
def test_every_row_that_refuses_a_field_says_why(dialect: str) -> None:
    """The reason is a part of the message."""
    rows = (row for section in TABLES[dialect].sections for row in section.rows)
    assert [row for row in rows if row.use in (Use.PRICED, Use.REFUSED) and not row.reason] == []


def test_a_table_cannot_decide_a_field_twice() -> None:
    """Otherwise the order of its rows would decide."""
    rows = (Fields(Use.FREE, "a.b"), Fields(Use.TEXT, "a.{b,c}"))
    with pytest.raises(ValueError, match="two rows"):
        Table("test", FieldSection(title="", at=("",), rows=rows))


def test_a_table_refuses_a_malformed_path() -> None:
    """A mistake in a row is found when the module is imported."""
    with pytest.raises(ValueError, match="not a path"):
        Table("test", FieldSection(title="", at=("",), rows=(Fields(Use.FREE, "a..b"),)))
