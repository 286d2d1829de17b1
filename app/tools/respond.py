"""The tool that only answers."""

from collections.abc import Mapping
from typing import Any

from app.tools.ports import ToolContext, ToolResult, ToolSpec, failure

MAX_ANSWER_CHARS = 8192

_SPEC = ToolSpec(
    name="respond",
    deterministic=True,
    description=(
        "Gives the final answer as text. Use it for a question that needs no other tool; "
        "returns the answer as it was given."
    ),
    parameters={
        "type": "object",
        "additionalProperties": False,
        "required": ["answer"],
        "properties": {"answer": {"type": "string", "minLength": 1, "maxLength": MAX_ANSWER_CHARS}},
    },
)


class Respond:
    """Hands an answer on, so that answering is recorded like any other action; a Tool."""

    spec = _SPEC

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return ``{"answer": text}``; a blank answer is a failure."""
        answer = args.get("answer")
        if not isinstance(answer, str) or not answer.strip():
            return failure("'answer' must be text that is not blank", "invalid_arguments")
        if len(answer) > MAX_ANSWER_CHARS:
            return failure(f"'answer' may have {MAX_ANSWER_CHARS} characters", "invalid_arguments")
        return {"answer": answer}
