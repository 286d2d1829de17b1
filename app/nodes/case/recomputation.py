"""Works out again what tools found that need nothing but their arguments."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from app.tools.ports import Tool, ToolContext, ToolResult, failure


class DeterministicTools:
    """A Recomputation with tools that find the same whenever they are asked the same.

    They must not reach outside the process: nothing here is metered, journaled or traced.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.spec.name: tool for tool in tools}

    async def again(
        self, name: str, args: Mapping[str, Any], context: ToolContext
    ) -> ToolResult | None:
        """Run the tool once more; None if it is none of the deterministic ones."""
        tool = self._tools.get(name)
        if tool is None:
            return None
        try:
            async with asyncio.timeout(tool.spec.timeout_seconds):
                return await tool.run(args, context)
        except Exception as error:
            return failure("The tool broke when it was asked again.", type(error).__name__)
