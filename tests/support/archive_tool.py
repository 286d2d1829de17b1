"""A tool that reads pages, each with a text of its own that cannot be compressed."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from app.tools.ports import ToolContext, ToolResult, ToolSpec

PAGE_CHARS = 2000


def page_text(number: int) -> str:
    """Return the text of a page; it follows from the number alone, as for all texts here."""
    raw = hashlib.shake_128(f"page {number}".encode()).digest(PAGE_CHARS)
    return base64.b64encode(raw).decode()[:PAGE_CHARS]


class ArchiveTool:
    """Returns a page of about 2 KB; it counts as reaching the outside."""

    spec = ToolSpec(
        name="archive",
        description="Reads a page.",
        parameters={
            "type": "object",
            "additionalProperties": False,
            "required": ["page"],
            "properties": {"page": {"type": "integer"}},
        },
        external=True,
        idempotent=True,
    )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Read it; see Tool."""
        return {"text": page_text(args["page"])}
