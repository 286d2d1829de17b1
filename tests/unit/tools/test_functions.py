"""Tools as planners get them: functions, signatures and closed schemas."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import jsonschema_rs
import pytest

from caseworker.tools.functions import closed, functions_of, signatures
from caseworker.tools.ports import Tool, ToolContext, ToolFunction, ToolResult, ToolSpec
from caseworker.tools.registry import DuplicateToolError, ToolRegistry
from caseworker_cases.stocks.packaged import PackagedPrices
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar
from caseworker_cases.tools.data_fetch_stock import DataFetchStock
from caseworker_cases.tools.numeric_analysis import NumericAnalysis
from caseworker_cases.tools.plotter import Plotter
from caseworker_cases.tools.respond import Respond

CONTEXT = ToolContext(run_id="r", timezone="UTC", now=datetime(2025, 9, 8, tzinfo=UTC))
BUILT_IN = [
    *(Calculator.spec, Calendar.spec, DataFetchStock.offer),
    *(NumericAnalysis.offer, Plotter.offer, Respond.spec),
]
STRICT = frozenset(
    {
        *("type", "enum", "const", "anyOf", "properties", "required", "additionalProperties"),
        *("items", "minItems", "maxItems", "minimum", "maximum", "format", "pattern"),
        "description",
    }
)
"""The keywords supported by OpenAI's strict mode and by llama.cpp's grammars."""
PLUGIN = ToolSpec(
    name="acme.search",
    description="Searches the archive. It holds everything since 1998 and a good deal that is"
    " older, in several languages, and returns what fits best, the most recent first, with a link"
    " to each of the documents found, and says how well it fits.",
    parameters={
        "type": "object",
        "additionalProperties": False,
        "required": ["words", "sort"],
        "properties": {
            "words": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "uniqueItems": True,
                "maxItems": 5000,
            },
            "sort": {"type": "string", "enum": ["new", "old"], "default": "new"},
            "since": {"type": "string", "format": "date"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}$", "maxLength": 2},
            "like": {"type": "string", "pattern": "x+"},
            "near": {"type": "string", "pattern": "^(?=x).*$"},
            "page": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
            "box": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"left": {"type": "number"}},
            },
        },
    },
)


def schemas_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Return every schema inside a schema, including itself."""
    if isinstance(schema, Mapping):
        yield schema
        for inner in schema.get("properties", {}).values():
            yield from schemas_in(inner)
        for inner in (schema.get("items"), *schema.get("anyOf", ())):
            yield from schemas_in(inner)


@pytest.mark.parametrize("spec", [*BUILT_IN, PLUGIN], ids=lambda spec: spec.name)
def test_a_closed_schema_keeps_to_what_strict_endpoints_and_grammars_know(spec: ToolSpec) -> None:
    """All properties are required, no extra ones allowed, and patterns match the whole text."""
    for function in functions_of(spec):
        for schema in schemas_in(closed(function.parameters)):
            assert schema.keys() <= STRICT
            assert "pattern" not in schema or schema["pattern"][0] == "^"
            assert "(?" not in schema.get("pattern", "")
            if schema.get("type") == "object":
                assert schema["additionalProperties"] is False
                assert schema["required"] == list(schema["properties"])


def test_what_may_be_left_out_is_null_in_a_closed_schema_and_absent_for_the_tool() -> None:
    """An argument whose type includes null keeps its null."""
    (function,) = functions_of(PLUGIN)
    given = {
        **dict.fromkeys(PLUGIN.parameters["properties"]),
        "words": ["a"],
        "sort": "old",
        "box": {"left": None},
    }

    assert jsonschema_rs.Draft202012Validator(closed(PLUGIN.parameters)).is_valid(given)
    assert function.arguments(given) == {
        "words": ["a"],
        "sort": "old",
        "page": None,
        "box": {"left": None},
    }


NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("optional", "shown"),
    [
        ({"type": "string"}, {"anyOf": [{"type": "string"}, NULL]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": ["string", "integer"]}, {"anyOf": [{"type": ["string", "integer"]}, NULL]}),
        (NULL, NULL),
        ({"anyOf": [{"type": "string"}, NULL]}, {"anyOf": [{"type": "string"}, NULL]}),
    ],
)
def test_an_optional_argument_takes_null_exactly_once(
    optional: dict[str, Any], shown: dict[str, Any]
) -> None:
    """Planners that must give every argument can leave one out, whatever its type."""
    schema = {"type": "object", "additionalProperties": False, "properties": {"x": optional}}

    found = closed(schema)["properties"]["x"]

    assert found == shown
    assert jsonschema_rs.Draft202012Validator(found).is_valid(None)


def test_an_object_of_any_properties_stays_open() -> None:
    """Closing the schema would allow only an empty object."""
    anything = {"type": "object", "description": "Whatever"}

    assert closed(anything) == anything


def test_an_argument_may_have_a_schema_that_is_only_true() -> None:
    """The schema `true` accepts any value, like an empty schema."""
    properties = {"what": True, "others": {"type": "array", "items": True}}
    spec = ToolSpec(
        name="acme.any",
        description="Any",
        parameters={"type": "object", "additionalProperties": False, "properties": properties},
    )
    (function,) = functions_of(spec)

    assert signatures([function]) == "acme.any(what?: any, others?: [any]) - Any"
    assert jsonschema_rs.Draft202012Validator(closed(spec.parameters)).is_valid(
        {"what": 1, "others": ["x"]}
    )
    assert function.arguments({"what": None, "others": None}) == {"what": None}


def test_a_signature_shows_names_types_and_choices_on_one_line() -> None:
    """Plugin tools are shown the same way; a long description is cut."""
    assert signatures(functions_of(PLUGIN)) == (
        "acme.search(words: [text], sort: new|old, since?: YYYY-MM-DD, code?, like?, near?,"
        " page?: int, box?: {left: number}) - Searches the archive"
    )


def test_the_type_of_an_argument_that_functions_share_is_shown_once() -> None:
    """Later lines refer to it by name."""
    lines = signatures(functions_of(NumericAnalysis.offer)).splitlines()

    assert "start: YYYY-MM-DD" in lines[0]
    assert all("YYYY-MM-DD" not in line for line in lines[1:])


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("calculator", {"expression": "6 * 7"}, "42"),
        (
            "calendar.date_before",
            {"date": "5 March 2024", "amount": 30, "unit": "days"},
            "2024-02-04",
        ),
        ("calendar.day_of_week", {"date": "September 8, 2025"}, "Monday"),
        ("calendar.days_in_month", {"year": 2024, "month": 2}, "29"),
        ("calendar.today", {"timezone": None}, "2025-09-08"),
        ("stock_day", {"symbol": "AAPL", "date": "2013-01-02", "field": "close"}, 549.03),
    ],
)
async def test_a_function_passes_the_arguments_that_its_tool_takes(
    name: str, given: dict[str, Any], value: Any
) -> None:
    """Constant, computed and missing arguments are passed correctly."""
    tools: list[Tool] = [Calculator(), Calendar(), DataFetchStock(PackagedPrices())]
    tool, function = next(
        (tool, one) for tool in tools for one in functions_of(tool.spec) if one.name == name
    )

    result = await tool.run(function.arguments(given), CONTEXT)

    assert result.get("value") == value


@pytest.mark.parametrize(("field", "change"), [("close", -44.8), ("adjusted_close", -43.79)])
async def test_the_change_of_the_close_is_that_of_prices_as_traded(
    field: str, change: float
) -> None:
    """Adjusted prices are another field, which "close" does not mean."""
    function = functions_of(NumericAnalysis.offer)[0]
    period = {"start": "2008-01-02", "end": "2008-12-31", "decimals": 2}
    given = {"symbol": "MSFT", "metric": "total_return", "field": field, **period}

    result = await NumericAnalysis(PackagedPrices()).run(function.arguments(given), CONTEXT)

    assert result["value"] == change


def test_two_tools_cannot_have_functions_of_the_same_name() -> None:
    """A plan would be ambiguous; a function may not have another tool's name either."""

    class Named:
        def __init__(self, name: str, *functions: str) -> None:
            self.spec = ToolSpec(
                name=name,
                description="",
                parameters={"type": "object", "additionalProperties": False, "properties": {}},
                functions=tuple(ToolFunction(name=one, takes="") for one in functions),
            )

        async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
            return {}

    ToolRegistry([Named("a", "a", "a.x"), Named("b")])
    with pytest.raises(DuplicateToolError, match="'x'"):
        ToolRegistry([Named("a", "x"), Named("b", "x")])
    with pytest.raises(DuplicateToolError, match="'b'"):
        ToolRegistry([Named("a", "b"), Named("b")])


def test_the_schemas_of_all_built_in_functions_stay_small() -> None:
    """Endpoints that count a schema as tokens read it with every call."""
    written = json.dumps(
        [closed(one.parameters) for spec in BUILT_IN for one in functions_of(spec)]
    )

    assert len(written) < 10_000
