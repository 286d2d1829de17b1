"""External tools: one takes no time, so that a call is only its records; one waits."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec


class OutsideTool:
    """Returns its argument; it counts as an external call that may not be repeated."""

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
        """Return the argument; see Tool."""
        return {"number": args["number"]}


class PatientTool(OutsideTool):
    """Waits for the number of seconds in its argument before it returns it."""

    spec = replace(OutsideTool.spec, name="patient", description="Waits for some seconds.")

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Wait; see Tool."""
        await asyncio.sleep(args["number"])
        return await super().run(args, context)
