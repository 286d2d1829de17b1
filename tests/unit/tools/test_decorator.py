"""Tools made from functions."""

import threading
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from caseworker.tools.arguments import ArgumentCheck
from caseworker.tools.decorator import tool
from caseworker.tools.ports import ToolContext, ToolRefusedError

CONTEXT = ToolContext(run_id="r", timezone="UTC", now=datetime(2025, 1, 1, tzinfo=UTC))


class Parcel(BaseModel):
    kg: float
    fragile: bool = False


async def test_a_function_becomes_a_tool_by_its_name_docstring_and_types() -> None:
    """The model gets the schema of the arguments with defaults and limits."""

    @tool
    def price(
        kg: Annotated[float, Field(gt=0, description="Its weight.")],
        schema: Literal["slow", "fast"] = "slow",
    ) -> dict[str, Any]:
        """Returns a price."""
        return {"value": 5 if schema == "slow" else 9, "kg": kg}

    assert (price.spec.name, price.spec.description) == ("price", "Returns a price.")
    assert price.spec.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["kg"],
        "properties": {
            "kg": {"type": "number", "exclusiveMinimum": 0, "description": "Its weight."},
            "schema": {"type": "string", "enum": ["slow", "fast"], "default": "slow"},
        },
    }
    assert ArgumentCheck(price.spec).problem({"kg": 0}) is not None
    assert await price.run({"kg": 2}, CONTEXT) == {"value": 5, "kg": 2.0}
    assert price(2, "fast") == {"value": 9, "kg": 2}


async def test_arguments_have_their_types_and_results_are_json() -> None:
    """Dates and models are converted; a result that is not a dict is returned as `value`."""

    @tool(name="arrival", deterministic=True, timeout_seconds=30)
    async def when(day: date, parcels: list[Parcel]) -> list[date]:
        """Returns when parcels arrive."""
        assert all(isinstance(each, Parcel) for each in parcels)
        return [day.replace(day=day.day + 1 + each.fragile) for each in parcels]

    given = {"day": "2026-01-02", "parcels": [{"kg": 1}, {"kg": 2, "fragile": True}]}

    assert (when.spec.name, when.spec.deterministic, when.spec.timeout_seconds) == (
        *("arrival", True, 30),
    )
    assert await when.run(given, CONTEXT) == {"value": ["2026-01-03", "2026-01-04"]}
    with pytest.raises(ToolRefusedError, match=r"^day: .*date"):
        await when.run({"day": "2026-01-32", "parcels": []}, CONTEXT)


async def test_a_context_is_passed_and_not_shown() -> None:
    """A plain function runs in a thread because it may block."""

    @tool
    def where(context: ToolContext, *, name: str = "x") -> dict[str, Any]:
        """Returns where it runs."""
        at = threading.current_thread() is threading.main_thread()
        return {"run": context.run_id, "name": name, "main": at}

    assert list(where.spec.parameters["properties"]) == ["name"]
    assert await where.run({}, CONTEXT) == {"run": "r", "name": "x", "main": False}


def test_a_function_that_no_model_could_call_is_refused() -> None:
    """The error is raised at definition and names the missing part."""

    def undescribed(kg: float) -> None:
        pass

    def untyped(kg) -> None:  # type: ignore[no-untyped-def]
        """Returns nothing."""

    def open_ended(*kg: float) -> None:
        """Returns nothing."""

    for function, said in (
        (undescribed, "'undescribed' needs a docstring"),
        (untyped, "'kg' of the tool 'untyped' needs a type"),
        (open_ended, "'kg' of the tool 'open_ended' needs a type"),
    ):
        with pytest.raises(TypeError, match=said):
            tool(function)


def test_an_unknown_option_is_refused_with_the_closest_one() -> None:
    """The error names the tool and the option."""

    def price(kg: float) -> None:
        """Returns nothing."""

    with pytest.raises(
        TypeError, match="'price' has no option 'deterministc'; did you mean 'deter"
    ):
        tool(deterministc=True)(price)
    with pytest.raises(TypeError, match=r"'price' has no option 'parameters'\. Options: name, des"):
        tool(parameters={})(price)
