"""Conditions that a caller chooses take a bounded number of comparisons."""

import time
from typing import Any

import pytest

from tests.support.tenants import Tenants

pytestmark = pytest.mark.asyncio(loop_scope="module")


def times(count: int, **condition: Any) -> dict[str, Any]:
    one = {"path": "default", **condition}
    return {"any": [{"any": [one] * 100}] * (count // 100)}


COSTLY = {
    "items": (times(900, op="contains", value=-1), [0] * 20_000),
    "items that are lists": (times(500, op="contains", value=[1]), [[0]] * 20_000),
    "equal lists": (
        {"any": [{"path": "default", "op": "eq", "value": [1] + [0] * 1000}] * 60},
        [0] * 1001,
    ),
    "long texts": (times(500, op="contains", value="a" * 200 + "b"), "a" * 100_000),
    "lists in conditions": (
        {"any": [{"path": "default", "op": "in", "value": [0] * 1000}] * 99},
        -1,
    ),
}


@pytest.mark.parametrize(("when", "value"), COSTLY.values(), ids=COSTLY)
async def test_a_router_with_too_many_comparisons_fails_with_the_limit(
    tenants: Tenants, when: dict[str, Any], value: Any
) -> None:
    """The step fails instead of blocking the event loop, and the error names the limit."""
    routes = [{"when": when, "to": "a"}]
    graph = {"steps": [{"id": "r", "type": "router", "data": {"routes": routes}}], "edges": []}
    body = {"kind": "graph", "graph": graph, "inputs": {"default": value}}
    started = time.process_time()

    run = (await tenants.ask("a", "POST", "/runs", body, prefer="wait=30")).json()

    assert run["status"] == "failed", run
    assert "50,000" in run["result"]["steps"]["r"]["error"]
    assert time.process_time() - started < 2
