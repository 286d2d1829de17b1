"""Size limits of JSON Schemas before compilation, and of replies before validation."""

import json
from typing import Any

import pytest

from caseworker.nodes.reply_schema import ReplySchema, UnfitReplyError
from caseworker.tools.schema_size import SchemaSize


def patterns(count: int, pattern: str = "a") -> dict[str, Any]:
    return {"allOf": [{"pattern": f"{pattern}{n}"} for n in range(count)]}


def doubling(rounds: int, prefix: str = "#/$defs/") -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{rounds}": {"type": "integer"}}
    for n in range(rounds):
        defs[f"d{n}"] = {"allOf": [{"$ref": f"{prefix}d{n + 1}"}] * 2}
    return {"$defs": defs, "$ref": f"{prefix}d0"}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (patterns(300, "[\\p{L}\\p{N}]{90}"), "at most 50 patterns"),
        (patterns(1, "a" * 300), "256 characters"),
        ({"patternProperties": {f"a{n}": {} for n in range(60)}}, "at most 50 patterns"),
        (patterns(1, "[\\p{L}\\p{N}]{90}"), "65,536 bytes"),
        ({"description": "x" * 70_000}, "at most 65,536 bytes"),
        (doubling(30), "at most 5,000 subschemas"),
        (doubling(30, "#/%24defs/"), "at most 5,000 subschemas"),
        ({"properties": {"default": doubling(30)}, **doubling(30)}, "5,000 subschemas"),
        (
            {"$defs": {"a": {"x": [1] * 10_000}}, "anyOf": [{"$ref": "#/$defs/a"}] * 1500},
            "5,000 subschemas",
        ),
        ({"$ref": "other#/x"}, "same schema"),
        ({"properties": {"a": {"$id": "x:y"}}}, r"\$id"),
        ({"$dynamicRef": "#x"}, r"\$dynamicRef"),
    ],
)
def test_a_schema_that_takes_too_much_is_refused(schema: dict[str, Any], said: str) -> None:
    """The schema is rejected before compilation, and the error states the limit."""
    with pytest.raises(ValueError, match=said):
        ReplySchema(schema)


def test_usual_schemas_pass() -> None:
    """Patterns, formats, shared definitions and trees are accepted."""
    tree = {
        "$defs": {
            "day": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"},
            "node": {
                "type": "object",
                "properties": {
                    "from": {"$ref": "#/$defs/day"},
                    "until": {"$ref": "#/$defs/day"},
                    "left": {"$ref": "#/$defs/node"},
                    "right": {"$ref": "#/$defs/node"},
                },
            },
        },
        "$ref": "#/$defs/node",
    }
    value = {"from": "2020-01-01", "left": {"right": {"until": "2020-01-02"}}}

    assert ReplySchema(tree).read(json.dumps(value)) == value
    assert SchemaSize.of(tree).recursions == 2


def test_a_reply_is_not_checked_where_that_would_take_too_long() -> None:
    """Examples are long replies with many patterns, and deep ones with doubly recursive rules."""
    with pytest.raises(UnfitReplyError, match="too long, or too deep"):
        ReplySchema(patterns(50, "a[ab]{300}")).read(json.dumps("ab" * 20_000))
    twice = {"properties": {"x": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}
    deep: Any = 1
    for _ in range(40):
        deep = {"x": deep}
    with pytest.raises(UnfitReplyError, match="too long, or too deep"):
        ReplySchema(twice).read(json.dumps(deep))
    assert ReplySchema(twice).read('{"x": {"x": 1}}') == {"x": {"x": 1}}


def test_of_a_long_reply_only_the_first_fault_is_found() -> None:
    """The library collects all errors at once, which would block the process for seconds."""
    schema = ReplySchema({"items": {"type": "string"}})
    reply = json.dumps([1] * 100_000)

    with pytest.raises(UnfitReplyError, match=r"type at 0\.$"):
        schema.read(reply)
    with pytest.raises(UnfitReplyError, match="and 97 more"):
        schema.read(json.dumps([1] * 100))
