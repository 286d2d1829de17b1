"""Routes that list the available tools, models and node types."""

from caseworker.features.catalog.views import (
    ModelList,
    NamedModelView,
    NodeTypeList,
    NodeTypeView,
    ToolList,
    ToolServerView,
    ToolView,
)
from caseworker.models.gateway import ModelGateway
from caseworker.nodes.catalog import NodeCatalog
from caseworker.platform.http.openapi import EVERY_CALLER, answers
from caseworker.platform.http.request import ApiRequest, api_router
from caseworker.tools.dispatch import ToolDispatch

router = api_router("catalog")


@router.get("/tools", responses=answers(*EVERY_CALLER))
async def list_tools(request: ApiRequest) -> ToolList:
    """List the tools that agents may use; this starts and queries the MCP servers.

    A server that is unavailable is listed with the reason, after at most its
    `start_timeout_seconds`.
    """
    tools = request.service(ToolDispatch)
    return ToolList(
        tools=[ToolView.model_validate(spec) for spec in tools.usable()],
        servers=[ToolServerView.of(each) for each in await tools.listings()],
    )


@router.get("/models", responses=answers(*EVERY_CALLER))
async def list_models(request: ApiRequest) -> ModelList:
    """List the configured models by the names that agents and steps use."""
    table = request.service(ModelGateway).table
    return ModelList(models={name: NamedModelView.with_fallbacks(table[name]) for name in table})


@router.get("/node-types", responses=answers(*EVERY_CALLER))
async def list_node_types(request: ApiRequest) -> NodeTypeList:
    """List the node types for steps of graphs, each with the schema of its data."""
    described = request.service(NodeCatalog).describe()
    return NodeTypeList(node_types=[NodeTypeView(**each) for each in described])
