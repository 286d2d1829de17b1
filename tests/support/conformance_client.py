"""Use the tools of a scenario of the MCP conformance suite as the service does.

The suite starts ``python -m tests.support.conformance_client URL`` and plays the server.
"""

import asyncio
import json
import os
import sys
from typing import Any

from caseworker.tools.mcp.servers import McpServers
from tests.support.mcp_servers import CONTEXT, config

_VALUES = {"number": 2, "integer": 2, "string": "x", "boolean": True, "array": []}
_FOCAL = "json_schema_2020_12_tool"


async def main(url: str) -> None:
    """List the tools, and call each with the arguments of the scenario or with any."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    calls = {each["name"]: each["arguments"] for each in context.get("toolCalls", [])}
    servers = McpServers([config("s", url=url)])
    try:
        specs = {spec.name.partition(".")[2]: spec for spec in await servers.tools("s")}
        for name, spec in specs.items():
            given = {"schema": specs[_FOCAL].parameters} if _FOCAL in specs else _any(spec)
            asked = {
                each: value for each, value in calls.get(name, given).items() if value is not None
            }
            tool = await servers.find(spec.name)
            sys.stderr.write(f"{name} {await tool.run(asked, CONTEXT)}\n")
    finally:
        await servers.aclose()


def _any(spec: Any) -> dict[str, Any]:
    """Return arguments of the right types."""
    described = spec.parameters.get("properties", {})
    return {name: _VALUES.get(about.get("type"), {}) for name, about in described.items()}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
