"""Load model providers, tools, functions and node types from entry points.

The service registers its own objects through the same groups, in pyproject.toml. Only configured
objects are imported. An entry point names the object itself, or a class or function that creates
it. A factory with a required parameter receives a :class:`ModelEndpoint` (providers),
:class:`ToolResources` (tools) or :class:`NodeParts` (node types).

StartupError is raised if an object cannot be loaded or created, or if two have the same name.
"""

import inspect
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, cast

from caseworker.main.entry_points import created, loaded_from, registered, unique
from caseworker.main.errors import StartupError
from caseworker.models.ports import ModelEndpoint, ModelProvider
from caseworker.nodes.function import FunctionNode, RecordedNode
from caseworker.nodes.node_type import NodeType
from caseworker.nodes.parts import NodeParts
from caseworker.platform.suggestions import suggestion
from caseworker.settings.loader import read_yaml
from caseworker.settings.tools import HttpToolSettings, McpSettings, ToolSettings
from caseworker.tools.ports import Tool, ToolSpec
from caseworker.tools.resources import ToolResources
from caseworker.tools.servers import NO_SERVERS, Credentials, ToolServers

PROVIDERS = "caseworker.providers"
"""Entry point group for model providers; the entry point's name is the provider name in
settings."""
TOOLS = "caseworker.tools"
"""Entry point group for agent tools; a tool's name comes from its spec."""
FUNCTIONS = "caseworker.functions"
"""Entry point group for functions; ``function`` steps of graphs refer to the entry point's name."""
NODE_TYPES = "caseworker.node_types"
"""Entry point group for node types; each node type defines its own name."""
AGENTS = "caseworker.agents"
"""Entry point group for code agents: functions that take a CodeContext. The entry point's name is
the agent's name."""


class Providers:
    """The registered model providers. Each is created only if it is configured."""

    def __init__(self, points: Iterable[EntryPoint] | None = None) -> None:
        """Find the providers; ``points`` replaces the installed entry points."""
        points_of_group = registered(PROVIDERS, points)
        self._points = unique(
            "provider", ((each.name, each.value, each) for each in points_of_group)
        )

    def __iter__(self) -> Iterator[str]:
        """Return the names of the registered providers."""
        return iter(self._points)

    def make(self, name: str, endpoint: ModelEndpoint) -> ModelProvider:
        """Create the model provider that is registered as ``name``, for an endpoint.

        Raises:
            StartupError: the provider cannot be created, or lacks an attribute.
        """
        provider: ModelProvider = created(self._points[name], "provider", endpoint)
        if not all(hasattr(provider, part) for part in ("name", "external", "complete", "aclose")):
            raise StartupError(
                f"The provider {name!r} must have name, external, complete() and aclose()."
            )
        return provider


class Toolbox:
    """All tools available in this process, and the resources that they share."""

    def __init__(
        self,
        settings: ToolSettings,
        points: Iterable[EntryPoint] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Create the tools; ``points`` replaces the installed entry points.

        ``credentials`` returns the credentials of tenants for MCP servers.
        """
        self._exit_stack = AsyncExitStack()
        resources = ToolResources(settings)
        self._exit_stack.push_async_callback(resources.aclose)
        plugin_points = (
            EntryPoint(name=name, value=name, group=TOOLS) for name in settings.plugins
        )
        loaded = [(at, _tool(at, resources)) for at in (*registered(TOOLS, points), *plugin_points)]
        points_of_group = [(tool.spec.name, at.value, tool) for at, tool in loaded]
        documents = dict[Path, Any]()
        for name, each in settings.http.items():
            key = f"tools.http.{name}"
            points_of_group.append((name, key, _http_tool(key, name, each, resources, documents)))
        by_name = unique("tool", points_of_group)
        self.tools: tuple[Tool, ...] = tuple(by_name.values())
        self.servers = _tool_servers(settings.mcp, os.environ, credentials)
        self._exit_stack.push_async_callback(self.servers.aclose)

    async def aclose(self) -> None:
        """Close the shared resources of the tools and the connections to tool servers."""
        await self._exit_stack.aclose()


def _tool_servers(
    settings: McpSettings, environ: Mapping[str, str], credentials: Credentials | None
) -> ToolServers:
    """Return the configured MCP servers; without any, the MCP SDK is not imported.

    Raises:
        StartupError: an environment variable that a server needs is not set.
    """
    if not settings.servers:
        return NO_SERVERS
    from caseworker.tools.mcp.config import ServerConfig
    from caseworker.tools.mcp.servers import McpServers

    def valued(name: str, variable: str) -> str:
        if variable not in environ:
            key = f"tools.mcp.servers.{name}"
            raise StartupError(f"{key}: the environment variable {variable} is not set")
        return environ[variable]

    configs = (
        ServerConfig(
            name=name,
            command=() if each.command is None else (each.command, *each.args),
            env={variable: valued(name, variable) for variable in each.env},
            url=each.url or "",
            headers={header: valued(name, variable) for header, variable in each.headers.items()},
            allow=None if each.allow is None else frozenset(each.allow),
            timeout_seconds=each.timeout_seconds,
            progress_timeout_seconds=each.progress_timeout_seconds,
            start_timeout_seconds=each.start_timeout_seconds,
            max_message_bytes=each.max_result_kb * 1024,
        )
        for name, each in settings.servers.items()
    )
    return McpServers(configs, credentials)


def _http_tool(
    key: str,
    name: str,
    settings: HttpToolSettings,
    resources: ToolResources,
    documents: dict[Path, Any],
) -> Tool:
    """Return a configured HTTP tool; without any, the HTTP client is not imported.

    ``documents`` keeps the OpenAPI documents that were read, since reading YAML is slow.

    Raises:
        StartupError: it is misconfigured; the message names the key and the fix.
    """
    from caseworker.tools.http_tool import HttpTool

    try:
        operation = _operation(settings, documents)
        return HttpTool(name, operation, settings, os.environ, resources)
    except OSError as error:
        raise StartupError(
            f"{key}: openapi: {settings.openapi}: {error.strerror}. Name a file, not a URL."
        ) from None
    except ValueError as error:
        of_file = isinstance(error, json.JSONDecodeError)
        raise StartupError(f"{key}: {'openapi: ' if of_file else ''}{error}") from None
    except (AttributeError, LookupError, TypeError, RecursionError) as error:
        raise StartupError(f"{key}: openapi: the document is not valid ({error!r})") from None


def _operation(settings: HttpToolSettings, documents: dict[Path, Any]) -> Any:
    """Return the operation of a tool: from its settings, or from an OpenAPI document."""
    from caseworker.tools.http_request import templated
    from caseworker.tools.openapi import operation_of

    path = settings.openapi
    if path is None:
        return templated(
            settings.method, str(settings.url), settings.parameters, str(settings.description)
        )
    if path not in documents:
        is_json = path.suffix == ".json"
        documents[path] = (
            json.loads(path.read_bytes()) if is_json else read_yaml(path, is_core_schema=True)
        )
    return operation_of(
        documents[path],
        str(settings.operation_id),
        server=settings.url,
        description=settings.description,
        headers=settings.headers_env,
    )


def installed_functions(points: Iterable[EntryPoint] | None = None) -> tuple[FunctionNode, ...]:
    """Return a node for each function registered as an entry point.

    An entry point names a FunctionNode or a function that takes an ExecutionContext. Functions that
    are not coroutines run in a thread, since they may block. ``points`` replaces the installed
    entry points.
    """
    nodes = [(point, _node(point, "function")) for point in registered(FUNCTIONS, points)]
    return tuple(unique("function", ((node.id, at.value, node) for at, node in nodes)).values())


def installed_agents(
    plugins: Iterable[str], points: Iterable[EntryPoint] | None = None
) -> Mapping[str, FunctionNode]:
    """Return a node for each code agent, by name; functions that are not coroutines use a thread.

    ``plugins`` are import paths of more agents, which have the names of their functions.
    ``points`` replaces the installed entry points.
    """
    plugin_points = (EntryPoint(each.rpartition(":")[2], each, AGENTS) for each in plugins)
    all_points = (*registered(AGENTS, points), *plugin_points)
    return unique("code agent", ((at.name, at.value, _node(at, "agent")) for at in all_points))


def installed_node_types(
    parts: NodeParts, points: Iterable[EntryPoint] | None = None
) -> tuple[NodeType, ...]:
    """Return the node types registered as entry points.

    Factories receive ``parts``. ``points`` replaces the installed entry points.
    """
    loaded = [(at, _node_type(at, parts)) for at in registered(NODE_TYPES, points)]
    return tuple(unique("node type", ((each.name, at.value, each) for at, each in loaded)).values())


def require_known(kind: str, key: str, names: Iterable[str], available: Iterable[str]) -> None:
    """Check that all names in a setting exist.

    Otherwise a mistyped entry in ``tools.deny``, for example, would deny nothing. ``kind`` and
    ``key`` are for the error message.

    Raises:
        StartupError: a name is unknown; shows the setting, the closest match and all names.
    """
    available_names = sorted(available)
    for name in names:
        if name not in available_names:
            hint = suggestion(name, available_names)
            raise StartupError(
                f"{key}: unknown {kind} {name!r}.{hint} Available: {', '.join(available_names)}"
            )


def _tool(point: EntryPoint, resources: ToolResources) -> Tool:
    tool: Any = None if _is_plain(loaded_from(point, "tool")) else created(point, "tool", resources)
    if not isinstance(getattr(tool, "spec", None), ToolSpec) or not callable(
        getattr(tool, "run", None)
    ):
        hint = "decorate a function with @caseworker.tool"
        raise StartupError(f"The tool {point.name!r} must have spec and run(): {hint}.")
    return cast("Tool", tool)


def _is_plain(loaded: object) -> bool:
    """Return whether an object is a function that takes other values than ToolResources."""
    if not inspect.isfunction(loaded):
        return False
    parameters = inspect.signature(loaded).parameters.values()
    return any(
        each.default is each.empty
        and not re.search("ToolResources|Any|_empty", str(each.annotation))
        for each in parameters
    )


def _node_type(point: EntryPoint, parts: NodeParts) -> NodeType:
    node_type = created(point, "node type", parts)
    if not isinstance(node_type, NodeType):
        raise StartupError(f"The node type {point.name!r} ({point.value}) is not a NodeType.")
    if getattr(node_type.node, "records_code", False):
        return node_type
    return replace(node_type, node=RecordedNode(node_type.name, node_type.node))


def _node(point: EntryPoint, kind: str) -> FunctionNode:
    loaded = loaded_from(point, kind)
    if isinstance(loaded, FunctionNode):
        return loaded
    if not callable(loaded):
        raise StartupError(f"The {kind} {point.name!r} ({point.value}) is not callable.")
    return FunctionNode(point.name, loaded, blocking=not inspect.iscoroutinefunction(loaded))
