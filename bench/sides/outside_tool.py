"""Tools that reach the outside: one takes no time, so that a call is its records; one waits."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec


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


class PatientTool(OutsideTool):
    """Waits so many seconds before it returns its argument."""

    spec = replace(OutsideTool.spec, name="patient", description="Waits for some seconds.")

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Wait; see Tool."""
        await asyncio.sleep(args["number"])
        return await super().run(args, context)
