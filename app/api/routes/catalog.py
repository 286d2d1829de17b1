"""What is registered here: tools, models and types of step."""

from fastapi import APIRouter

from app.api import problem_types as types
from app.api.call import Call, GuardedRoute
from app.api.catalog_views import (
    ModelList,
    ModelTiers,
    NodeTypeList,
    NodeTypeView,
    TierView,
    ToolList,
    ToolView,
)
from app.api.documentation import answers, operation_id
from app.llm.gateway import Tier

router = APIRouter(
    tags=["catalog"], route_class=GuardedRoute, generate_unique_id_function=operation_id
)


@router.get("/tools", responses=answers(types.ANONYMOUS_REFUSED))
async def list_tools(call: Call) -> ToolList:
    """List the tools that agents may use."""
    return ToolList(tools=[ToolView.of(spec) for spec in call.services.tools.usable()])


@router.get("/models", responses=answers(types.ANONYMOUS_REFUSED))
async def list_models(call: Call) -> ModelList:
    """Tell which model each tier asks."""
    models = call.services.models
    return ModelList(
        models=ModelTiers(
            small=TierView.of(models.model_of(Tier.SMALL)),
            big=TierView.of(models.model_of(Tier.BIG)),
        )
    )


@router.get("/node-types", responses=answers(types.ANONYMOUS_REFUSED))
async def list_node_types(call: Call) -> NodeTypeList:
    """List the types of step that graphs are made of, each with the schema of its data."""
    described = call.services.node_types.describe()
    return NodeTypeList(node_types=[NodeTypeView(**each) for each in described])
