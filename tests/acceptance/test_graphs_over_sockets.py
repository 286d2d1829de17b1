"""Graphs over real sockets: registered, run by name, and stored with the run."""

from typing import Any

import pytest
from caseworker_client import ApiError

from tests.support.graph_documents import edge, graph_ref
from tests.support.json_client import JsonClient


def calculation(step_id: str, expression: str) -> dict[str, Any]:
    data = {"tool": "calculator", "args": {"expression": expression}}
    return {"id": step_id, "type": "tool", "data": data}


DISCOUNT = {
    "steps": [
        calculation("discount", "${default} * 12.5 / 100"),
        calculation("total", "1840 - ${default.value}"),
    ],
    "edges": [edge("discount", "total", channel="flow")],
}


@pytest.mark.req("card/post", "card/executor")
async def test_a_registered_graph_is_run_inside_another_one(client: JsonClient) -> None:
    """The inner graph's outputs are listed by step, and deleting it does not change the run."""
    await client.register_graph("discount", DISCOUNT)
    whole = {
        "steps": [{"id": "inner", "type": "subgraph", "data": {"graph": graph_ref("discount")}}],
        "edges": [],
    }
    await client.register_graph("whole", whole)
    with pytest.raises(ApiError, match="whole@1"):
        await client.delete_graph("discount")

    plain = await client.run_graph(
        graph_ref("discount"), inputs={"default": 1840}, wait_seconds=120
    )
    run = await client.run_graph(graph_ref("whole"), inputs={"default": 1840}, wait_seconds=120)
    await client.delete_graph("whole")
    await client.delete_graph("discount")

    assert (plain["status"], plain["graph"]) == ("completed", {"name": "discount", "version": 1})
    assert plain["result"]["outputs"]["discount"]["default"]["value"] == "230"
    assert plain["result"]["outputs"]["total"]["default"]["value"] == "1610"
    assert plain["result"]["steps"] == {
        "discount": {"status": "completed"},
        "total": {"status": "completed"},
    }
    assert run["result"]["outputs"]["inner"]["default"]["value"] == "1610"
    assert (await client.get_run(run["run_id"]))["graph"] == {"name": "whole", "version": 1}


@pytest.mark.req("000/B1")
async def test_a_graph_run_has_the_limits_that_it_is_given(client: JsonClient) -> None:
    """A limit of one step allows one, and its output is kept."""
    run = await client.run_graph(
        DISCOUNT, inputs={"default": 1840}, budget={"max_steps": 1}, wait_seconds=120
    )

    assert (run["status"], run["stop"]["kind"]) == ("halted", "budget")
    assert run["result"]["outputs"]["discount"]["default"]["value"] == "230"
    assert "total" not in run["result"]["outputs"]
