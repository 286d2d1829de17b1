"""Every JSON Schema that a caller sends is bounded, and so is each check with it."""

import time
from typing import Any

import httpx
import pytest

from tests.support.graph_requests import fields
from tests.support.tenants import Tenants

pytestmark = pytest.mark.asyncio(loop_scope="module")


def doubling(rounds: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{rounds}": {"type": "integer"}}
    for n in range(rounds):
        defs[f"d{n}"] = {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs}


HEAVY = {
    "expansion": doubling(60),
    "constants": {
        "type": "object",
        "$defs": {"e": {"enum": [[n] for n in range(3000)]}},
        "allOf": [{"properties": {"a": {"$ref": "#/$defs/e"}}}] * 20,
    },
    "patterns": {
        "type": "object",
        "properties": {f"p{n}": {"pattern": f"a{n}"} for n in range(51)},
    },
    "elsewhere": {"type": "object", "properties": {"a": {"$ref": "http://x.example/a"}}},
}


def approval(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "approval", "data": {"message": "?", "changes": schema}}


def llm(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "llm", "data": {"prompt": "?", "output_schema": schema}}


def inside_a_map(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "map", "data": {"step": approval(schema)}}


def agent(schema: dict[str, Any]) -> dict[str, Any]:
    asked = {"name": "a", "prompt": {"system": "?"}, "output": {"schema": schema}}
    return {"type": "agent", "data": {"agent": asked}}


PLACES = {
    approval: "graph.steps.0.data.changes",
    llm: "graph.steps.0.data.output_schema",
    inside_a_map: "graph.steps.0.data.step.data.changes",
    agent: "graph.steps.0.data.agent.output.schema",
}


async def post_run(tenants: Tenants, step: dict[str, Any], **headers: str) -> httpx.Response:
    graph = {"steps": [{"id": "s", **step}], "edges": []}
    return await tenants.ask("a", "POST", "/runs", {"kind": "graph", "graph": graph}, **headers)


@pytest.mark.parametrize("schema", HEAVY.values(), ids=HEAVY)
@pytest.mark.parametrize(("step", "place"), PLACES.items(), ids=[one.__name__ for one in PLACES])
async def test_a_schema_beyond_a_limit_is_422_at_its_place(
    tenants: Tenants, step: Any, place: str, schema: dict[str, Any]
) -> None:
    """The same limits hold wherever a schema can be sent."""
    assert fields(await post_run(tenants, step(schema))) == [place]


async def decide(tenants: Tenants, schema: dict[str, Any], arguments: Any) -> httpx.Response:
    run = await post_run(tenants, approval(schema), prefer="wait=30")
    assert run.json()["status"] == "waiting", run.text
    path = f"{run.headers['location']}/approvals"
    asked = (await tenants.ask("a", "GET", path)).json()["approvals"]
    body = {"decision": "approve", "arguments": arguments}
    return await tenants.ask("a", "POST", f"{path}/{asked[0]['approval_id']}", body)


def chain(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"x": value}
    return value


COSTLY_CHECKS = {
    "recursion": (
        {
            "type": "object",
            "$defs": {
                "t": {
                    "anyOf": [
                        {"properties": {"x": {"$ref": "#/$defs/t"}}, "minProperties": n}
                        for n in (2, 3, 4)
                    ]
                }
            },
            "properties": {"x": {"$ref": "#/$defs/t"}},
        },
        chain(24),
    ),
    "errors": (
        {
            "type": "object",
            "properties": {"a": {"items": {"allOf": [{"type": "string"}] * 2000}}},
        },
        {"a": [1] * 1000},
    ),
    "errors of branches": (
        {
            "type": "object",
            "anyOf": [{"properties": {"a": {"items": {"allOf": [{"type": "string"}] * 2000}}}}],
        },
        {"a": [1] * 100},
    ),
}


@pytest.mark.parametrize(("schema", "arguments"), COSTLY_CHECKS.values(), ids=COSTLY_CHECKS)
async def test_a_check_of_changed_arguments_takes_bounded_cpu_time(
    tenants: Tenants, schema: dict[str, Any], arguments: Any
) -> None:
    """A decision whose arguments do not fit, or take too long to check, is 422."""
    started = time.process_time()

    answer = await decide(tenants, schema, arguments)

    assert answer.status_code == 422, answer.text
    assert time.process_time() - started < 2
