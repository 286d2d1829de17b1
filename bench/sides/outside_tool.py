"""A tool that reaches the outside in no time, so that a call of it is what its records cost."""

from collections.abc import Mapping
from typing import Any

from app.tools.ports import ToolContext, ToolResult, ToolSpec


class OutsideTool:
    """Returns its argument; it counts as reaching the outside, and may not be repeated."""

    spec = ToolSpec(
        name="outside",
        description="Returns a number.",
        parameters={
            "type": "object",
            "additionalProperties": False,
            "required": ["number"],
            "properties": {"number": {"type": "integer"}},
        },
        external=True,
    )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return it; see Tool."""
        return {"number": args["number"]}
