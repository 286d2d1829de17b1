"""Offers a tool's functions to models, each with only its own arguments and their types.

A model chooses more reliably between functions with few arguments than between the argument sets of
one tool with many operations. A function call is translated into a call to the tool.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from caseworker.models.ports import ToolDefinition
from caseworker.tools.functions import PlannerFunction, functions_of
from caseworker.tools.ports import ToolSpec

_LEFT_TO_THE_CHECK = frozenset(
    {"description", "maxLength", "minLength", "minimum", "maximum", "pattern"}
)
"""Keywords omitted from a definition: each function of a tool would repeat them. The tool checks
them and its error message suggests a correction."""


@dataclass(frozen=True, slots=True)
class OfferedFunction:
    """One of a tool's functions, with the definition that models receive."""

    function: PlannerFunction
    definition: ToolDefinition

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any] | str:
        """Return the tool arguments for a function call, or an error message for the model.

        Only the argument names are checked here. The tool checks the values.
        """
        parameters = self.function.parameters
        properties = parameters["properties"]
        wrong = [
            *(f"'{name}' is missing." for name in parameters["required"] if name not in values),
            *("There is an argument that is not known." for _ in values.keys() - properties.keys()),
        ]
        if wrong:
            names = ", ".join(properties) or "no arguments"
            return f"{wrong[0]} It takes {names}: call it again."
        return self.function.arguments(values)


def offered_functions(specs: Iterable[ToolSpec]) -> dict[str, tuple[OfferedFunction, ...]]:
    """Return the functions of each tool that declares any, keyed by tool name."""
    return {
        spec.name: tuple(_offered(function) for function in functions_of(spec))
        for spec in specs
        if spec.functions
    }


def _offered(function: PlannerFunction) -> OfferedFunction:
    parameters = dict(function.parameters)
    parameters["properties"] = {
        name: _names_and_types(schema) for name, schema in parameters["properties"].items()
    }
    return OfferedFunction(
        function,
        ToolDefinition(name=function.name, description=function.description, parameters=parameters),
    )


def _names_and_types(schema: Any) -> Any:
    """Return an argument schema without the keywords in ``_LEFT_TO_THE_CHECK``."""
    if isinstance(schema, list):
        return [_names_and_types(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: {each: _names_and_types(inner) for each, inner in value.items()}
        if name == "properties"
        else _names_and_types(value)
        for name, value in schema.items()
        if name not in _LEFT_TO_THE_CHECK
    }
