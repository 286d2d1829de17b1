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
        (open_ended, "'kg' of the tool 'open_ended' is variadic positional"),
    ):
        with pytest.raises(TypeError, match=said):
            tool(function)


def test_an_unknown_option_is_refused_with_the_closest_one() -> None:
    """The error names the tool and the option."""

    def price(kg: float) -> None:
        """Returns nothing."""

    with pytest.raises(
        TypeError, match=r"'price' has no option 'deterministc'\. Did you mean 'deter"
    ):
        tool(deterministc=True)(price)
    with pytest.raises(TypeError, match=r"'price' has no option 'parameters'\. Options: name, des"):
        tool(parameters={})(price)


async def test_a_docstring_in_any_usual_style_describes_the_arguments() -> None:
    """Only its first paragraph describes the tool."""

    @tool
    def google(kg: float, fast: Annotated[bool, Field(description="Own.")] = False) -> None:
        """Returns a price in EUR.

        More.

        Args:
            kg: Weight: with
                packaging.
            fast: Ignored.
        """

    @tool
    def sphinx(kg: float) -> None:
        """Returns a price in EUR.

        :param float kg: Weight: with packaging.
        """

    @tool
    def numpy(kg: float) -> None:
        """Returns a price in EUR.

        Parameters
        ----------
        kg : float
            Weight: with packaging.
        """

    for made in (google, sphinx, numpy):
        assert made.spec.description == "Returns a price in EUR."
        properties = made.spec.parameters["properties"]
        assert properties["kg"] == {"type": "number", "description": "Weight: with packaging."}
    assert google.spec.parameters["properties"]["fast"]["description"] == "Own."


async def test_annotations_may_be_strings_and_defaults_are_not_shared() -> None:
    """A call cannot change the default of the next one."""

    def collect(context: "ToolContext | None", tags: "list[str]" = []) -> "list[str]":  # noqa: B006
        """Returns tags."""
        tags.append(context.run_id if context else "")
        return tags

    made = tool(collect)

    assert [await made.run({}, CONTEXT) for _ in range(2)] == [{"value": ["r"]}] * 2


class Tree(BaseModel):
    children: "list[Tree]" = []


async def test_recursive_models_are_checked() -> None:
    """References in a schema point into the schema itself."""

    @tool
    def depth(tree: Tree) -> int:
        """Returns a depth."""
        return 1 + max((depth(each) for each in tree.children), default=0)

    given: dict[str, Any] = {"tree": {"children": [{}, {"children": [{}]}]}}

    assert ArgumentCheck(depth.spec).problem(given) is None
    assert "0" in str(ArgumentCheck(depth.spec).problem({"tree": {"children": [0]}}))
    assert await depth.run(given, CONTEXT) == {"value": 3}


class Odd:
    def method(self, kg: float) -> None:
        """Returns nothing."""


def test_an_error_names_the_argument_and_the_fix() -> None:
    """Start-up shows it in one line."""

    async def generates(kg: float) -> Any:
        """Returns nothing."""
        yield kg

    def unresolved(kg: "Missing") -> None:  # type: ignore[name-defined] # noqa: F821
        """Returns nothing."""

    def unserialisable(kg: Any = object()) -> None:  # noqa: B008
        """Returns nothing."""

    def contradictory(kg: float = None) -> None:  # type: ignore[assignment] # noqa: RUF013
        """Returns nothing."""

    def unsuitable(kg: Odd) -> None:
        """Returns nothing."""

    def foreign(größe: float) -> None:
        """Returns nothing."""

    def positional(kg: float, /) -> None:
        """Returns nothing."""

    for function, said in (
        (generates, "'generates' is a generator function: return a list"),
        (
            unresolved,
            "argument 'kg' whose type cannot be resolved: name 'Missing' is not defined. Im",
        ),
        (unserialisable, "'kg' .* default that is not a JSON value of its type"),
        (contradictory, "'kg' .* default that is not a JSON value of its type: None.*allow None"),
        (unsuitable, "'kg' .* type without a JSON Schema: Unable to generate"),
        (foreign, "'größe' .* needs a name of ASCII letters"),
        (positional, "'kg' .* is positional-only"),
        (Odd.method, "'self' .* A method cannot be a tool"),
        (Odd, "from a function, not from <class"),
    ):
        with pytest.raises(TypeError, match=said):
            tool(function)
