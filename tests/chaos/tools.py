"""Tools with an effect outside the process, which the provider's log counts.

The service loads them as plugins. CHAOS_BROKEN names a variant of :mod:`tests.chaos.broken` that
is applied to the process with them.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import httpx

from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec, failure
from tests.chaos.weather import TOOL_MODEL

_PARAMETERS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["place"],
    "properties": {"place": {"type": "string"}},
}


class Again:
    """A tool that may be repeated if its outcome is unknown."""

    spec = ToolSpec(
        name="again",
        description="Does it, perhaps more than once.",
        parameters=_PARAMETERS,
        external=True,
        transient=frozenset({"lost"}),
    )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Write to the provider's log; see Tool."""
        body = {"model": TOOL_MODEL, "messages": [{"role": "user", "content": args["place"]}]}
        url = f"{os.environ['CHAOS_PROVIDER']}/v1/chat/completions"
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=3) as client:
                (await client.post(url, json=body)).raise_for_status()
        except httpx.HTTPError:
            return failure("It may have been done.", "lost")
        return {"done": args["place"].partition(" ")[2].strip("<>")}


class Once(Again):
    """A tool that must not be repeated if its outcome is unknown."""

    spec = ToolSpec(
        name="once",
        description="Does it once.",
        parameters=_PARAMETERS,
        external=True,
        idempotent=False,
    )


if variant := os.environ.get("CHAOS_BROKEN"):
    import_module("tests.chaos.broken").VARIANTS[variant].apply()
