"""Routes that list the available tools, models and node types."""

import asyncio
from typing import Annotated, Any, Self

from pydantic import BeforeValidator

from caseworker.models.forms import StructuredOutput
from caseworker.models.gateway import ModelGateway
from caseworker.models.table import ChatModel
from caseworker.nodes.catalog import NodeCatalog
from caseworker.platform.http.bodies import View
from caseworker.platform.http.openapi import EVERY_CALLER, answers
from caseworker.platform.http.request import ApiRequest, api_router
from caseworker.tools.dispatch import ToolDispatch
from caseworker.tools.ports import ToolSpec
from caseworker.tools.servers import ServerListing


class ToolView(View):
    """A tool that agents may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the tool's arguments."""
    external: bool
    """Whether a call leaves the service, for example to a remote API."""
    idempotent: bool
    """Whether a call may be repeated if its outcome is unknown, for example after a crash."""
    parallel_safe: bool
    transient: Annotated[list[str], BeforeValidator(sorted)]
    """Error codes after which a failed call is retried."""
    timeout_seconds: float
    """Time limit for each attempt, in seconds."""
    requires_approval: bool
    """Whether a person must approve each call, by the tool itself or by
    ``tools.requires_approval``."""

    @classmethod
    def of(cls, spec: ToolSpec, dispatch: ToolDispatch) -> Self:
        """Return the view of a tool."""
        return cls.of_parts(
            spec,
            transient=spec.retried,
            requires_approval=dispatch.requires_approval(spec),
        )


class ToolServerView(View):
    """An MCP server and the tools that it currently offers, named ``<server>.<tool>``."""

    name: str
    available: bool
    problem: str | None
    """Reason why the server is unavailable; null if it is available."""
    tools: list[ToolView]
    """The server's tools, sorted by name; empty while the server is unavailable."""

    @classmethod
    def of(cls, listing: ServerListing, dispatch: ToolDispatch) -> Self:
        """Return the view of a server and its tools."""
        tools = [ToolView.of(spec, dispatch) for spec in listing.tools]
        available = listing.problem is None
        return cls.of_parts(listing, name=listing.server, available=available, tools=tools)


class ToolList(View):
    """The tools that agents may call, by name."""

    tools: list[ToolView]
    """Tools that run in the service itself."""
    servers: list[ToolServerView]
    """The configured MCP servers. Each one is queried for this response."""


class ModelView(View):
    """A model and the parameters of requests to it."""

    provider: str
    """Name of the provider. ``offline`` is the built-in planner: it parses the question locally and
    calls no other service."""
    model: str
    external: bool
    """Whether a call leaves the service and may cost money."""
    structured_output: StructuredOutput
    """Structured-output mode: how JSON output is requested. ``auto`` selects the strictest mode
    that the endpoint supports."""
    temperature: float | None
    max_output_tokens: int
    timeout_seconds: float
    """Time limit for each attempt, in seconds."""
    capabilities: list[str]
    """Capabilities of the model in addition to text: ``image``, ``file``, ``audio``, ``reasoning``,
    ``responses``."""

    @classmethod
    def of(cls, model: ChatModel, **more: Any) -> Self:
        """Return the view of a model. ``more`` holds the fields that a subclass adds."""
        of_provider = {"provider": model.provider.name, "external": model.provider.external}
        return cls.of_parts(model, **of_provider, **more)


class NamedModelView(ModelView):
    """A model that agents refer to by a name, and the fallbacks for it."""

    fallbacks: list[ModelView]
    """Models to call if this one fails, in this order."""

    @classmethod
    def with_fallbacks(cls, model: ChatModel) -> Self:
        """Return the view of a model and its fallbacks."""
        return cls.of(model, fallbacks=[ModelView.of(each) for each in model.fallbacks])


class ModelList(View):
    """The models that runs may call."""

    models: dict[str, NamedModelView]
    """Models by the name that agents and steps use. ``small`` and ``big`` are the tiers: cases
    start on the small one and may escalate to the big one. A tier without a model is omitted."""


class NodeTypeView(View):
    """A type of node that steps of graphs can have."""

    name: str
    description: str
    executes: bool
    """Whether steps of this type are executed. If false, they can only be linked to other steps."""
    inputs: dict[str, list[str] | None]
    """Names of the input handles that edges may target, by channel; null allows any name."""
    outputs: dict[str, list[str] | None]
    """Names of the output handles that edges may start from, by channel; null allows any name."""
    data: dict[str, Any]
    """JSON Schema of the ``data`` of a step."""


class NodeTypeList(View):
    """The node types that steps of graphs can have, by name."""

    node_types: list[NodeTypeView]


router = api_router("catalog")


@router.get("/tools", responses=answers(*EVERY_CALLER))
async def list_tools(request: ApiRequest) -> ToolList:
    """List the tools that agents may use; this starts and queries the MCP servers.

    A server that is unavailable is listed with the reason, after at most its
    `start_timeout_seconds`.
    """
    tools = request.service(ToolDispatch)
    return ToolList(
        tools=[ToolView.of(spec, tools) for spec in tools.usable()],
        servers=[
            ToolServerView.of(each, tools) for each in await tools.listings(request.caller.tenant)
        ],
    )


@router.get("/models", responses=answers(*EVERY_CALLER))
async def list_models(request: ApiRequest) -> ModelList:
    """List the configured models by the names that agents and steps use."""
    table = request.service(ModelGateway).table
    return ModelList(models={name: NamedModelView.with_fallbacks(table[name]) for name in table})


@router.get("/node-types", responses=answers(*EVERY_CALLER))
async def list_node_types(request: ApiRequest) -> NodeTypeList:
    """List the node types for steps of graphs, each with the schema of its data."""
    described = await asyncio.to_thread(request.service(NodeCatalog).describe)
    return NodeTypeList(node_types=[NodeTypeView(**each) for each in described])
