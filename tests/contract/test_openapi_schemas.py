"""The OpenAPI document has a schema for every request and every answer."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.stops import StopCause
from caseworker.core.trace.node import FIELDS
from caseworker.core.trace.snapshot import Aggregates, Snapshot
from tests.support.api import openapi_document


def schema_of(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = openapi_document()["components"]["schemas"][name]
    return found


def properties(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema_of(name)["properties"]
    return found


def answers() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path, operations in openapi_document()["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                yield f"{method} {path} {status}", answer


def parts(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from parts(part)


def test_every_answer_is_described_and_has_a_form() -> None:
    """No text of the framework and no empty schema is left, and every error is a problem."""
    for name, answer in answers():
        assert answer["description"] != "Successful Response", name
        assert {} not in list(parts(answer)), name
        status = int(name.rpartition(" ")[2])
        if status >= 400:
            media = answer["content"]["application/problem+json"]
            assert media["schema"] == {"$ref": "#/components/schemas/Problem"}, name


def test_a_run_is_told_apart_by_its_kind_and_has_typed_parts() -> None:
    """A generated client knows the result of every kind, the usage and the stop."""
    answer = openapi_document()["paths"]["/runs/{run_id}"]["get"]["responses"]["200"]
    shown = answer["content"]["application/json"]["schema"]

    assert shown == {"$ref": "#/components/schemas/RunView"}
    assert schema_of("RunView")["discriminator"] == {
        "propertyName": "kind",
        "mapping": {
            "agent": "#/components/schemas/AgentRun",
            "case": "#/components/schemas/CaseRun",
            "external": "#/components/schemas/ExternalRun",
            "graph": "#/components/schemas/GraphRun",
        },
    }
    for run, result in (
        ("CaseRun", "CaseResult"),
        ("GraphRun", "GraphResult"),
        ("AgentRun", "AgentResult"),
        ("ExternalRun", "ExternalResult"),
    ):
        for name, schema in (("result", result), ("usage", "Usage"), ("stop", "RunStop")):
            assert properties(run)[name]["anyOf"] == [
                {"$ref": f"#/components/schemas/{schema}"},
                {"type": "null"},
            ]


def test_the_snapshot_is_documented_as_it_is_made() -> None:
    """Every field is documented and required."""
    for name, made in (
        ("TraceSnapshot", Snapshot.__annotations__),
        ("SnapshotAggregates", Aggregates.__annotations__),
        ("CallNode", FIELDS),
    ):
        assert list(properties(name)) == schema_of(name)["required"] == list(made)
    assert properties("TraceView")["snapshot"]["$ref"] == "#/components/schemas/TraceSnapshot"


def test_whatever_a_run_counts_or_is_stopped_by_is_documented() -> None:
    """A field added to the domain must be added here."""
    assert {dimension.value for dimension in Dimension} <= set(properties("Usage"))
    assert {field.name for field in fields(StopCause)} <= set(properties("RunStop"))


def test_a_request_to_cancel_is_one_object_that_may_be_left_out() -> None:
    """A generated client cannot send a choice between an object and null."""
    for path, method in (("/runs/{run_id}", "delete"), ("/runs/{run_id}/cancel", "post")):
        body = openapi_document()["paths"][path][method]["requestBody"]
        schema = body["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/CancelBody"}
        assert not body.get("required", False)


def test_a_stream_of_events_says_what_an_event_is() -> None:
    """The stream documents its lines and the event in them; a page is JSON."""
    answer = openapi_document()["paths"]["/runs/{run_id}/events"]["get"]["responses"]["200"]
    stream = answer["content"]["text/event-stream"]["schema"]

    assert list(answer["content"]) == ["application/json", "text/event-stream"]
    assert stream["contentSchema"]["items"] == {"$ref": "#/components/schemas/ServerSentEvent"}
    assert properties("ServerSentEvent")["data"]["contentSchema"] == {
        "$ref": "#/components/schemas/EventView"
    }


def test_what_may_be_left_out_of_a_graph_has_its_default() -> None:
    """The handles of an edge have defaults, and its channel is required."""
    edge = schema_of("EdgeSpec")

    assert [edge["properties"][name]["default"] for name in ("source_handle", "target_handle")] == [
        "default",
        "default",
    ]
    assert sorted(edge["required"]) == ["data", "source", "target"]
    assert schema_of("EdgeData")["required"] == ["channel"]
    assert "anyOf" not in json.dumps(properties("GraphRunBody")["input"])
