"""What other packages add to the service, found by their entry points."""

import inspect
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from app.bootstrap.errors import StartupError
from app.nodes.function import FunctionNode

FUNCTIONS = "caseworker.functions"
"""The group of entry points whose names a ``function`` step of a graph may use."""


def installed_functions() -> tuple[FunctionNode, ...]:
    """Return the functions of the packages that are installed here.

    Raises:
        StartupError: one cannot be loaded, or is no function.
    """
    return functions_of(entry_points(group=FUNCTIONS))


def functions_of(found: Iterable[EntryPoint]) -> tuple[FunctionNode, ...]:
    """Return a node for each entry point: a FunctionNode, or a function of an ExecutionContext.

    A plain function is called in a thread, since nobody knows whether it blocks.

    Raises:
        StartupError: one cannot be loaded, or is no function.
    """
    return tuple(_node(each) for each in sorted(found, key=lambda each: each.name))


def _node(point: EntryPoint) -> FunctionNode:
    try:
        loaded = point.load()
    except Exception as error:
        raise StartupError(
            f"The function {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}."
        ) from error
    if isinstance(loaded, FunctionNode):
        return loaded
    if not callable(loaded):
        raise StartupError(f"The function {point.name!r} ({point.value}) cannot be called.")
    return FunctionNode(point.name, loaded, blocking=not inspect.iscoroutinefunction(loaded))
