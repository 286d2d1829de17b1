"""The tool that returns a written answer."""

from collections.abc import Mapping
from typing import Any

from caseworker.tools.arguments import CheckedTool, object_of, text
from caseworker.tools.ports import ToolContext, ToolFunction, ToolRefusedError, ToolResult, ToolSpec

MAX_ANSWER_CHARS = 8192


class Respond(CheckedTool):
    """A Tool that returns its argument, so that answering is recorded like any other action."""

    spec = ToolSpec(
        name="respond",
        deterministic=True,
        description=(
            "Gives the final answer as text. Use it for a question that needs no other tool; "
            "returns the answer as it was given."
        ),
        parameters=object_of("answer", answer=text(MAX_ANSWER_CHARS)),
        functions=(
            ToolFunction(name="respond", description="if no tool is needed", takes="answer"),
        ),
    )

    async def answer(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return ``{"answer": text}``.

        Raises:
            ToolRefusedError: the answer is blank.
        """
        if not args["answer"].strip():
            raise ToolRefusedError("'answer' must be text that is not blank")
        return {"answer": args["answer"]}
