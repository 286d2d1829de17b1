"""A tool that makes files."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec

Before = Callable[[ToolContext], Awaitable[None]]

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
"""A picture that contains a script."""


async def _nothing(context: ToolContext) -> None:
    return


class DrawingTool:
    """Saves a file for every given text, and does not list the files in its result."""

    spec = ToolSpec(
        name="draw",
        description="Draws.",
        parameters={
            "type": "object",
            "additionalProperties": False,
            "required": ["texts"],
            "properties": {
                "texts": {"type": "array", "items": {"type": "string"}},
                "fail": {"type": "boolean"},
            },
        },
        idempotent=True,
    )

    def __init__(self, afterwards: Before = _nothing, *, media_type: str = "image/png") -> None:
        """Make files of ``media_type``; then run another action before the call ends."""
        self.contexts: list[ToolContext] = []
        self._afterwards = afterwards
        self._media_type = media_type

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Save one file per text; see Tool."""
        self.contexts.append(context)
        if context.artifacts is not None:
            for text in args["texts"]:
                await context.artifacts.save("drawing", self._media_type, text.encode())
        await self._afterwards(context)
        if args.get("fail"):
            return {"error": "The pen broke.", "code": "broken_pen"}
        return {"text": f"{len(args['texts'])} drawings"}
