"""The objects of a process that node type factories receive."""

from dataclasses import dataclass
from typing import Any

from caseworker.models.gateway import ModelGateway
from caseworker.tools.dispatch import ToolDispatch
from caseworker.tools.ports import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """Services and settings of the process, passed to node type factories that take an argument.

    A factory is registered as an entry point of the group ``caseworker.node_types``.
    """

    models: ModelGateway
    tools: ToolDispatch
    """Executes the tools that are permitted in runs."""
    installed_tools: tuple[Tool, ...]
    """All tools of the process, including tools that are not permitted in runs."""
    settings: Any
    """Settings of the process, by section."""
