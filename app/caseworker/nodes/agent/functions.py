"""The functions of a tool as models are offered them: one definition each, of names and types.

A model that chooses between short lists of arguments chooses better than one that has to find out
which of many arguments belong to an operation. Its call is turned into one of the tool.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from caseworker.llm.ports import ToolDefinition
from caseworker.tools.functions import Function, functions_of
from caseworker.tools.ports import ToolSpec

_LEFT_TO_THE_CHECK = frozenset(
    {"description", "maxLength", "minLength", "minimum", "maximum", "pattern"}
)
"""Keywords that a definition leaves out: every function of a tool would repeat them, and the tool
refuses what they forbid with a message that says what to change."""


@dataclass(frozen=True, slots=True)
class OfferedFunction:
    """A function of a tool, and its definition."""

    function: Function
    definition: ToolDefinition

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any] | str:
        """Return the arguments of the tool; a text says what is wrong with those of the function.

        Only their names are looked at: the tool checks the values.
        """
        parameters = self.function.parameters
        takes = parameters["properties"]
        wrong = [
            *(f"'{name}' is missing." for name in parameters["required"] if name not in given),
            *("There is an argument that is not known." for _ in given.keys() - takes.keys()),
        ]
        if wrong:
            shown = ", ".join(takes) or "no arguments"
            return f"{wrong[0]} It takes {shown}: call it again."
        return self.function.arguments(given)


def offered_functions(specs: Iterable[ToolSpec]) -> dict[str, tuple[OfferedFunction, ...]]:
    """Return the functions of the tools that name some, by the names of the tools."""
    return {
        spec.name: tuple(_offered(function) for function in functions_of(spec))
        for spec in specs
        if spec.functions
    }


def _offered(function: Function) -> OfferedFunction:
    parameters = dict(function.parameters)
    parameters["properties"] = {
        name: _names_and_types(schema) for name, schema in parameters["properties"].items()
    }
    return OfferedFunction(
        function,
        ToolDefinition(name=function.name, description=function.description, parameters=parameters),
    )


def _names_and_types(schema: Any) -> Any:
    """Return a schema of an argument without what is left to the check."""
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
