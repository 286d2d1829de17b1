"""CLI options for a run's limits, one for each budget field."""

import inspect
from collections.abc import Callable
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, Final

import typer

from caseworker.cli.output import fail

LIMITS: Final = {
    "max_tokens": "Maximum number of input and output tokens together.",
    "max_seconds": "Maximum duration in seconds; waiting in the queue does not count.",
    "max_steps": "Maximum number of executed steps.",
    "max_api_calls": "Maximum number of requests to model providers, retries included.",
    "max_cost_usd": "Maximum cost in US dollars; models whose price is unknown are refused.",
    "max_llm_calls": "Maximum number of LLM calls to all models together.",
    "max_llm_calls_small": "Maximum number of LLM calls to models of the small tier.",
    "max_llm_calls_big": "Maximum number of LLM calls to models of the big tier.",
    "max_tool_calls": "Maximum number of executed tool calls, retries included.",
    "max_turns": "Maximum number of agent turns, each with one model call and its tool calls.",
}
"""Help of each limit of a budget, by its JSON name. It repeats names, because the schema of the
budget takes longer to import than a help text may take."""
_FRACTIONS: Final = ("max_seconds", "max_cost_usd")


def with_budget(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each limit to a command.

    The command's argument ``budget`` receives the given limits, keyed by their JSON names.
    """
    options = _options()

    @wraps(command)
    def called(**options_: Any) -> None:
        set_ = {name: limit for name in options if (limit := options_.pop(name)) is not None}
        for name, limit in set_.items():
            if not limit < 2**63:
                fail(f"--{name.replace('_', '-')}: must be a number below 2^63, not {limit}.")
        command(**options_, budget=set_)

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
