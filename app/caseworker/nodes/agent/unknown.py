"""Finds names in an agent's JSON that this service does not know."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from caseworker.core.graph.problems import quoted
from caseworker.models.table import ModelTable
from caseworker.nodes.agent.definition import as_use
from caseworker.nodes.model_spec import ModelSpec
from caseworker.nodes.nesting import is_reference
from caseworker.nodes.node_type import Fault
from caseworker.nodes.toolset import unknown_tool
from caseworker.platform.suggestions import suggestion


def unknown_names(
    agent: Any,
    *,
    tools: Collection[str],
    servers: Collection[str] = (),
    models: ModelTable | None = None,
    code: Collection[str] = (),
) -> Iterator[Fault]:
    """Yield unknown names of tools, MCP servers, models and code agents, and agent references.

    ``models`` contains the permitted models; None permits any. Unreadable parts are skipped, so
    that invalid definitions can be searched as well.
    """
    if not isinstance(agent, Mapping):
        return
    yield from unknown_models(agent.get("model", {}), models)
    if isinstance(code_name := agent.get("code"), str) and code_name not in code:
        yield "code", f"No code agent {quoted(code_name)} is installed."
    given_tools = agent.get("tools")
    for index, entry in enumerate(given_tools if isinstance(given_tools, list) else ()):
        use = as_use(entry)
        if not isinstance(use, Mapping):
            continue
        place, tool, server = f"tools.{index}", use.get("tool"), use.get("mcp")
        if isinstance(tool, str) and tool not in tools:
            yield place, unknown_tool(tool, tools)
        if isinstance(server, str) and server not in servers:
            message = f"No MCP server {quoted(server)} is configured."
            yield f"{place}.mcp", message + suggestion(server, servers)
        if is_reference(inner := use.get("agent")):
            yield (
                f"{place}.agent",
                "References to registered agents are not allowed here; insert the agent.",
            )
        installed = {"tools": tools, "servers": servers, "code": code}
        for at, message in unknown_names(inner, models=models, **installed):
            yield f"{place}.agent.{at}", message


def unknown_models(model: Any, models: ModelTable | None) -> Iterator[Fault]:
    """Yield the model names in a model specification that ``models`` does not contain.

    ``models`` None permits any model.
    """
    if models is not None:
        with suppress(ValidationError):
            yield from ModelSpec.model_validate(model).faults(models)
