"""CLI options for a run's limits, one for each budget field."""

import inspect
from collections.abc import Callable
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, Final

import typer

from caseworker.cli.output import fail
from caseworker.core.budget.budget import Dimension

LIMITS: Final = {f"max_{each}": f"Maximum {each.quantity}." for each in Dimension if each.headline}
"""Help of each limit of a budget, by its JSON name."""
_FRACTIONS: Final = {f"max_{each}" for each in Dimension if float in each.unit.value}


def with_budget(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each limit to a command.

    The command's argument ``budget`` receives the given limits, keyed by their JSON names.
    """
    options = _options()

    @wraps(command)
    def called(**arguments: Any) -> None:
        set_ = {name: limit for name in options if (limit := arguments.pop(name)) is not None}
        for name, limit in set_.items():
            if not limit < 2**63:
                fail(f"--{name.replace('_', '-')}: must be a number below 2^63, not {limit}.")
        command(**arguments, budget=set_)

    signature = inspect.signature(command)
    own_parameters = [each for name, each in signature.parameters.items() if name != "budget"]
    parameters = [*own_parameters, *options.values()]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _options() -> dict[str, Parameter]:
    """Return the signature parameter of each option, by the JSON name of its limit."""
    options = {}
    for name, text in LIMITS.items():
        kind = float if name in _FRACTIONS else int
        option = typer.Option(min=0, help=text)
        options[name] = Parameter(
            name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
        )
    return options
