"""From a body of kind graph to a run that can be stored and executed."""

from typing import Any

import pytest

from caseworker.features.definitions.definitions import Definitions
from caseworker.features.definitions.graph_kind import GraphAdmission, GraphRunBody
from caseworker.models.table import ModelTable
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.router import router_type
from caseworker.platform.fair_threads import PacedThread
from caseworker.runs.run import DefinitionRef
from tests.support.api import Api
from tests.support.limits import api_limits, graph_limits

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUTE: dict[str, Any] = {
    "steps": [
        {
            "id": "way",
            "type": "router",
            "data": {"routes": [{"when": {"path": "default", "op": "exists"}, "to": "on"}]},
        }
    ],
    "edges": [],
}


@pytest.mark.parametrize("sent", [ROUTE, {"name": "route"}], ids=["inline", "named"])
async def test_a_graph_that_was_checked_comes_with_its_run_ready_to_be_executed(
    api: Api,
    sent: dict[str, Any],
) -> None:
    """The admitted run contains the prepared graph, so it need not be parsed again."""
    graphs = Definitions(
        api.definitions, NodeCatalog((router_type(),)), graph_limits(), PacedThread()
    )
    await graphs.register("t", DefinitionRef("route"), ROUTE)
    body = GraphRunBody.model_validate({"kind": "graph", "graph": sent})

    new = await GraphAdmission(api_limits(), graphs, ModelTable({})).new_run(body, "t", "")

    assert new.request.graph is not None
    assert new.prepared is not None
    assert list(new.prepared.steps) == ["way"]
    assert [step["id"] for step in new.request.graph["steps"]] == ["way"]
