"""Validates a server's tool descriptions before they are used.

Names, descriptions and schemas come from another program, and reach prompts, traces and a schema
compiler. All of them are therefore limited in size. An invalid description excludes the tool, not
the server.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from mcp.types import Tool as ListedTool
from mcp.types import ToolAnnotations

from caseworker.platform.logs.redaction import redact_text
from caseworker.tools.arguments import ArgumentCheck, fits_journal
from caseworker.tools.mcp.config import ServerConfig
from caseworker.tools.ports import ToolSpec
from caseworker.tools.servers import SERVER_LOST

log = structlog.get_logger(__name__)

MAX_TOOLS: Final = 256
"""Maximum number of tools per server; further tools are excluded."""
MAX_DESCRIPTION_CHARS: Final = 4000
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,90}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool as described by its server, with its compiled schema."""

    spec: ToolSpec
    check: ArgumentCheck


def spec_of(
    config: ServerConfig,
    tool: str,
    *,
    description: str = "",
    parameters: Mapping[str, Any] | None = None,
    hints: ToolAnnotations | None = None,
) -> ToolSpec:
    """Build a tool's specification; without ``hints``, assume nothing about its effects."""
    reads = hints is not None and hints.read_only_hint is True
    longest = max(config.timeout_seconds, config.progress_timeout_seconds)
    return ToolSpec(
        name=f"{config.name}.{tool}",
        description=description,
        parameters=parameters or {"type": "object"},
        external=True,
        idempotent=reads or (hints is not None and hints.idempotent_hint is True),
        parallel_safe=reads,
        transient=frozenset({SERVER_LOST, "timeout"}),
        without_effect=frozenset({SERVER_LOST}),
        timeout_seconds=longest + config.start_timeout_seconds,
    )


def usable_tools(config: ServerConfig, listed: Iterable[ListedTool]) -> dict[str, ServerTool]:
    """Return a server's usable tools, keyed by the server's names; log the unusable ones."""
    tools: dict[str, ServerTool] = {}
    for tool in sorted(listed, key=lambda each: each.name):
        if not config.allows(tool.name):
            continue
        try:
            if tool.name in tools:
                raise ValueError("Another tool of the server has the same name.")
            if len(tools) == MAX_TOOLS:
                raise ValueError(f"A server may have at most {MAX_TOOLS} tools.")
            tools[tool.name] = _checked(config, tool)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            name = redact_text(f"{config.name}.{tool.name}", max_chars=100)
            log.warning("mcp.tool_unusable", tool=name, detail=" ".join(str(error).split())[:300])
    return tools


def _checked(config: ServerConfig, tool: ListedTool) -> ServerTool:
    if not _NAME.fullmatch(tool.name):
        raise ValueError("Its name must consist of at most 90 letters, digits and _ . / -")
    if not fits_journal(tool.input_schema):
        raise ValueError("Its schema contains values that the database cannot store.")
    parameters = {**tool.input_schema, "type": "object"}
    description = _CONTROL.sub(" ", tool.description or tool.title or "")
    spec = spec_of(
        config,
        tool.name,
        description=description[:MAX_DESCRIPTION_CHARS],
        parameters=parameters,
        hints=tool.annotations,
    )
    return ServerTool(spec, ArgumentCheck(spec, foreign=True))
