"""A tool that breaks, as a tool of somebody else may."""

from collections.abc import Mapping
from typing import Any

from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec


class KaputTool:
    """Raises an error, whatever it is asked."""

    spec = ToolSpec(
        name="kaput",
        description="Breaks.",
        parameters={
            "type": "object",
            "additionalProperties": False,
            "properties": {"why": {"type": "string"}},
        },
    )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Break; see Tool."""
        raise RuntimeError(f"kaput: {args.get('why', 'worn out')}")
