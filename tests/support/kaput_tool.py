"""A tool that fails like a broken third-party tool."""

from collections.abc import Mapping
from typing import Any

from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec


class KaputTool:
    """Raises an error for every call."""

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
        """Raise an error; see Tool."""
        raise RuntimeError(f"kaput: {args.get('why', 'worn out')}")
