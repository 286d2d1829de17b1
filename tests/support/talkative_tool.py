"""A third-party tool that reveals more than it should."""

from collections.abc import Mapping
from typing import Any

from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec, failure
from tests.support.canaries import planted


class TalkativeTool:
    """Breaks, fails or answers with canaries, depending on its arguments."""

    spec = ToolSpec(
        name="talk",
        description="Talks.",
        parameters={
            "type": "object",
            "additionalProperties": False,
            "required": ["how"],
            "properties": {"how": {"enum": ["break", "fail", "answer"]}},
        },
    )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Break, fail or answer; see Tool."""
        match args["how"]:
            case "break":
                try:
                    raise LookupError(planted("tool cause").text)
                except LookupError as cause:
                    raise RuntimeError(planted("tool exception").text) from cause
            case "fail":
                text = planted("tool error").text
                return {**failure(text, planted("tool code").text), "detail": text}
            case _:
                return {"text": planted("tool result").text}
