"""Tools that a step may use, as a value on links."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from app.engine.context import FlowContext
from app.engine.node import ExecutionResult
from app.kernel.problems import quoted
from app.kernel.validation import Handles
from app.nodes.node_type import NONE, Fault, NodeType
from app.nodes.reading import StepData

ToolName = Annotated[str, Field(min_length=1, max_length=128)]


class ToolNames:
    """The tools that may be used here; a denied one looks like one that does not exist."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def problem(self, name: str) -> str:
        """Return what to say of a name that is none of these."""
        return (
            f"There is no tool {quoted(name)} that may be used; GET /tools lists those there are."
        )


TOOLS = "tools"
"""The handle on which toolsets leave a step, and on which they enter one."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """Names of tools, each once, in the order in which they were named."""

    names: tuple[str, ...] = ()

    def __or__(self, other: "Toolset") -> "Toolset":
        return Toolset(tuple(dict.fromkeys(self.names + other.names)))

    def __contains__(self, name: object) -> bool:
        return name in self.names


class ToolsetData(StepData):
    """Which tools."""

    tools: Annotated[list[ToolName], Field(max_length=128)]
    """Their names, as GET /tools lists them."""


class ToolsetNode:
    """Materialises the tools of its step, and of the toolsets that are linked to it."""

    async def execute(
        self, data: ToolsetData, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        """Refuse: a toolset does nothing by itself.

        Raises:
            TypeError: always.
        """
        raise TypeError("A toolset can only be linked.")

    async def materialize(
        self, data: ToolsetData, output_handle: str, context: FlowContext
    ) -> Toolset:
        """Return the tools of the step."""
        linked = await linked_tools(context)
        own = Toolset() | Toolset(tuple(data.tools))
        return own if linked is None else own | linked


async def linked_tools(context: FlowContext) -> Toolset | None:
    """Return all the tools that are linked to a step; None if it has no such link.

    Raises:
        TypeError: something else is linked there.
    """
    found = await context.runtime.resolve_links(context.node_id, TOOLS)
    if not found:
        return None
    tools = Toolset()
    for one in found:
        if not isinstance(one, Toolset):
            raise TypeError("Only toolsets can be linked to tools.")
        tools |= one
    return tools


def toolset_type(known: ToolNames) -> NodeType:
    """Return the type of steps that name tools for others; ``known`` are those that may be used."""

    def faults(data: ToolsetData) -> list[Fault]:
        return [
            (f"tools.{index}", known.problem(name))
            for index, name in enumerate(data.tools)
            if name not in known
        ]

    return NodeType(
        name="toolset",
        description="Names tools that the steps it is linked to may use."
        " Toolsets that are linked to it are added to its own.",
        node=ToolsetNode(),
        data=ToolsetData,
        handles=Handles(
            flow_inputs=NONE,
            flow_outputs=NONE,
            link_inputs=frozenset({TOOLS}),
            link_outputs=frozenset({TOOLS}),
        ),
        executes=False,
        faults=faults,
    )
