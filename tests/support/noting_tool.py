"""A tool that acts on the outside: every call that reaches it is a line of a file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec

NOTES = "TEST_NOTES_FILE"
"""The environment variable that names the file."""


class NotingTool:
    """Writes a text down; a person must agree before."""

    spec = ToolSpec(
        name="note",
        description="Writes a text down where others see it.",
        parameters={
            "type": "object",
            "additionalProperties": False,
            "required": ["text"],
            "properties": {"text": {"type": "string", "maxLength": 100}},
        },
        external=True,
        idempotent=False,
        requires_approval=True,
    )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Write it down; see Tool."""
        _append(f"{context.run_id}: {args['text']}\n")
        return {"noted": args["text"]}


def _append(line: str) -> None:
    with Path(os.environ[NOTES]).open("a") as notes:
        notes.write(line)


def noted(path: Path) -> list[str]:
    """Return what was written down so far."""
    return path.read_text().splitlines() if path.exists() else []
