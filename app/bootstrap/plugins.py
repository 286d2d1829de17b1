"""What other packages add to the service, found by their entry points or by dotted names."""

import inspect
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from app.bootstrap.errors import StartupError
from app.nodes.function import FunctionNode
from app.tools.ports import Tool, ToolSpec

TOOLS = "caseworker.tools"
"""The group of entry points that add tools: a tool, or a class or function that makes one."""
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


def installed_tools() -> tuple[Tool, ...]:
    """Return the tools of the packages that are installed here.

    Raises:
        StartupError: one cannot be loaded, or is no tool.
    """
    return tools_of(entry_points(group=TOOLS))


def named_tools(names: Iterable[str]) -> tuple[Tool, ...]:
    """Return the tools that the configuration names, such as ``my_package.tools:Weather``.

    Raises:
        StartupError: one cannot be loaded, or is no tool.
    """
    return tools_of(EntryPoint(name=name, value=name, group=TOOLS) for name in names)


def tools_of(found: Iterable[EntryPoint]) -> tuple[Tool, ...]:
    """Return the tool that each entry point stands for.

    Raises:
        StartupError: one cannot be loaded, or is no tool.
    """
    return tuple(_tool(each) for each in sorted(found, key=lambda each: each.name))


def _tool(point: EntryPoint) -> Tool:
    loaded = _loaded(point, "tool")
    try:
        made = inspect.isroutine(loaded) or inspect.isclass(loaded)
        tool: Any = loaded() if made else loaded
    except Exception as error:
        raise StartupError(
            f"The tool {point.name!r} cannot be made: {type(error).__name__}."
        ) from error
    if not isinstance(getattr(tool, "spec", None), ToolSpec) or not callable(
        getattr(tool, "run", None)
    ):
        raise StartupError(f"The tool {point.name!r} is none: it needs a spec and run().")
    found: Tool = tool
    return found


def _loaded(point: EntryPoint, kind: str) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise StartupError(
            f"The {kind} {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}."
        ) from error


def _node(point: EntryPoint) -> FunctionNode:
    loaded = _loaded(point, "function")
    if isinstance(loaded, FunctionNode):
        return loaded
    if not callable(loaded):
        raise StartupError(f"The function {point.name!r} ({point.value}) cannot be called.")
    return FunctionNode(point.name, loaded, blocking=not inspect.iscoroutinefunction(loaded))
