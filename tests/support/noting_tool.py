"""A tool with an external effect: every call adds a line to a file."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec

NOTES = "TEST_NOTES_FILE"
"""The environment variable that names the file."""
HELD = "held"
"""Beginning of the texts whose calls end only after a file of the same name plus RELEASE exists."""
RELEASE = ".release"


class NotingTool:
    """Writes a text to the file; a person must approve the call."""

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
        """Write the text; see Tool."""
        _append(f"{context.run_id}: {args['text']}\n")
        return {"noted": args["text"]}


class HeldNotingTool(NotingTool):
    """Writes a text to the file without an approval; some of its calls wait until they may end."""

    spec = replace(NotingTool.spec, name="jot", requires_approval=False, timeout_seconds=150.0)

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Write the text; see Tool."""
        result = await super().run(args, context)
        while args["text"].startswith(HELD) and not _is_released():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return result


def _is_released() -> bool:
    return Path(os.environ[NOTES] + RELEASE).exists()


def _append(line: str) -> None:
    with Path(os.environ[NOTES]).open("a") as notes:
        notes.write(line)


def noting_settings(path: Path) -> dict[str, str]:
    """Return the settings of a service whose tool ``note`` writes to a file."""
    return {"TOOLS_PLUGINS": '["tests.support.noting_tool:NotingTool"]', NOTES: str(path)}


def noted(path: Path) -> list[str]:
    """Return the lines written so far."""
    return path.read_text().splitlines() if path.exists() else []
