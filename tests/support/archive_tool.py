"""A tool that reads pages with unique texts: prose, or incompressible text."""

import base64
import hashlib
import os
import pydoc_data.topics
from collections.abc import Mapping
from typing import Any

from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec

PAGE_CHARS = 2000
PROSE = "ARCHIVE_OF_PROSE"
"""The environment variable that makes the pages come from Python's own manual."""

_MANUAL = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))


def page_text(number: int) -> str:
    """Return the text of a page, which depends only on its number."""
    if os.environ.get(PROSE):
        begin = number * (PAGE_CHARS - 7) % (len(_MANUAL) - PAGE_CHARS)
        return _MANUAL[begin : begin + PAGE_CHARS]
    raw = hashlib.shake_128(f"page {number}".encode()).digest(PAGE_CHARS)
    return base64.b64encode(raw).decode()[:PAGE_CHARS]


class ArchiveTool:
    """Returns a page of about 2 KB; it counts as an external call."""

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
        """Return the page; see Tool."""
        return {"text": page_text(args["page"])}
