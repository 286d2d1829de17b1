"""CLI options for a run's limits, one for each budget field."""

import inspect
from collections.abc import Callable
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter

from caseworker.core.budget.budget import Budget


def with_budget(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each limit to a command.

    The command's argument ``budget`` receives the given limits, keyed by their JSON names.
    """
    options = _options()

    @wraps(command)
    def called(**given: Any) -> None:
        set_ = {name: limit for name in options if (limit := given.pop(name)) is not None}
        command(**given, budget=set_)

    signature = inspect.signature(command)
    others = [each for name, each in signature.parameters.items() if name != "budget"]
    parameters = [*others, *options.values()]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _options() -> dict[str, Parameter]:
    """Return the signature parameter of each option, by the JSON name of its limit."""
    options = {}
    for name, limit in TypeAdapter(Budget).json_schema()["properties"].items():
        if "anyOf" not in limit:
            continue  # the field accepts only null
        kind = int if {"type": "integer"}.items() <= limit["anyOf"][0].items() else float
        option = typer.Option(min=0, help=limit["description"], rich_help_panel="Limits")
        options[name] = Parameter(
            name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
        )
    return options
