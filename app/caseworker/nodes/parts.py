"""The parts of a process that factories of node types are given."""

from dataclasses import dataclass
from typing import Any

from caseworker.models.gateway import ModelGateway
from caseworker.tools.dispatch import ToolDispatch
from caseworker.tools.ports import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """Passed to the factories of node types that take an argument.

    A factory is registered as an entry point of the group ``caseworker.node_types``.
    """

    models: ModelGateway
    tools: ToolDispatch
    """The tools that runs may call."""
    installed_tools: tuple[Tool, ...]
    """All tools of the process, including those that the operator denies to runs."""
    settings: Any
    """The settings of the process, by section."""
