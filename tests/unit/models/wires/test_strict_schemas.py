"""Schemas that OpenAI's strict mode accepts without a change of their meaning."""

from typing import Any

import pytest

from caseworker.models.wires.schemas import is_strict


def closed(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (closed(a=TEXT), True),
        (closed(), True),
        (closed(a=closed(b=TEXT)), True),
        (closed(a={"type": "array", "items": TEXT}), True),
        (closed(a={"anyOf": [TEXT, {"type": "null"}]}), True),
        (closed(a={**TEXT, "pattern": "^a+$"}), True),
        (closed(a={**TEXT, "pattern": "^(?:a|b)$"}), True),
        ({**closed(a=TEXT), "required": []}, False),
        ({**closed(a=TEXT), "additionalProperties": True}, False),
        ({"type": "object"}, False),
        (closed(a={"type": "object", "properties": {"b": TEXT}}), False),
        (closed(a={"type": "array"}), False),
        (closed(a={"type": "array", "items": {}}), False),
        (closed(a={**TEXT, "pattern": "^(?=a)"}), False),
        (closed(a={**TEXT, "pattern": "^(?i)a"}), False),
        (closed(a={**TEXT, "pattern": "(?:a)(?!b)"}), False),
        (closed(a={**TEXT, "format": "date"}), True),
        (closed(a={**TEXT, "format": "iban"}), False),
        ({"$ref": "#/$defs/a"}, True),
        ({"$ref": "#/$defs/a", "description": "An a."}, False),
    ],
)
def test_a_schema_is_strict_only_if_nothing_is_lost(schema: dict[str, Any], strict: bool) -> None:
    """Otherwise the request names the schema without strict mode."""
    assert is_strict(schema) is strict
