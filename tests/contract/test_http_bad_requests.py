"""Tests that the detail of a rejection names the error and suggests a similar name."""

import json
from typing import Any

import httpx
import pytest

from caseworker.platform.suggestions import suggestion
from tests.support.api import Api, client_of
from tests.support.limits import api_limits

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = {"content-type": "application/json"}
AGENT = {"name": "clerk", "prompt": {"system": "s"}, "tools": []}


def graph(*steps: dict[str, Any], **edge: Any) -> dict[str, Any]:
    """Return a run of a graph with these changes of a step, and an edge if one is given."""
    usual = {"id": "a", "type": "llm", "data": {"prompt": "x"}}
    edges = [{"source": "a", "data": {"channel": "flow"}, **edge}] if edge else []
    return {"kind": "graph", "graph": {"steps": [usual | each for each in steps], "edges": edges}}


def agent(**fields: Any) -> dict[str, Any]:
    """Return a run of an agent with these fields."""
    return {"kind": "agent", "input": "x", "agent": {**AGENT, **fields}}


RUNS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "agnet", "input": "x"}, "kind: * 'agent' or 'external'. Did you mean 'agent'?"),
    ({"inptu": "x", "input": "x"}, "inptu: Unknown field. Did you mean 'input'?"),
    ({"zzzzz": 1, "input": "x"}, "zzzzz: Unknown field. /openapi.json"),
    ({"input": "x", "budget": {"max_token": 5}}, "budget.max_token: * 'max_tokens'?"),
    ({"input": "x", "budget": {"max_tokens": "5"}}, "max_tokens: * whole number, not a string."),
    ({"input": "x", "budget": {"max_seconds": -1}}, "budget.max_seconds: * at least 0."),
    ({"input": "", "seed": 1.5}, "2 fields are invalid. input: * seed: * not a fraction."),
    ({}, "input: This field is required."),
    ({"input": "x", "mode": "escalat"}, "mode: * Did you mean 'escalate'?"),
    ({"kind": "agent", "input": "x"}, "agent: This field is required."),
    ({"kind": "agent", "input": "x", "agent": {"name": "clerc"}}, "agent.name: * mean 'clerk'?"),
    (agent(tools=["calculater"]), "agent.tools.0: * Did you mean 'calculator'?"),
    (agent(model={"name": "smal"}), "agent.model.name: * Did you mean 'small'?"),
    (agent(promt={}), "agent.promt: Unknown field. Did you mean 'prompt'?"),
    (graph({"type": "lmm"}), "graph.steps.0.type: * Did you mean 'llm'?"),
    (graph({"data": {"promt": "x"}}), "2 fields are invalid. * 'prompt'?"),
    (graph({}, target="b"), "graph.edges.0.target: There is no step 'b'"),
    (
        graph({}, {"id": "b"}, source_handle="defualt", target="b"),
        "graph.edges.0.source_handle: * Did you mean 'default'?",
    ),
    (graph({}, {}), "graph.steps.1.id: The id 'a' is already used"),
    ({"input": "x", "expected_tools": ["calcualtor"]}, "expected_tools.0: * 'calculator'?"),
    (
        {"input": "x", "webhook": {"url": "https://x", "events": ["run.complete"]}},
        "'run.completed'?",
    ),
]
OTHERS: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/keys", {"name": "x", "scopes": ["reed"]}, 422, "scopes.0: * Did you mean 'read'?"),
    ("PUT", "/quotas/a", {"models": ["smal"]}, 422, "models.0: * Did you mean 'small'?"),
    ("PUT", "/schedules/s", {"cron": "0 25 * * *", "run": {"input": "x"}}, 422, "hour (0-23)"),
    ("POST", "/runs/x/approvals/y", {"decision": "aprove"}, 422, "decision: * 'approve'?"),
    ("GET", "/runs?staus=queued", None, 422, "staus: Unknown field. Did you mean 'status'?"),
    ("GET", "/runs?status=complete", None, 422, "status: * Did you mean 'completed'?"),
    ("GET", "/runs?limit=5000", None, 422, "limit: This must be at most 200."),
    ("GET", "/runs?cursor=abc", None, 422, "cursor: Invalid cursor for this list."),
    (
        "GET",
        "/spend?group_by=modle",
        None,
        422,
        "group_by: This must be tenant, agent, model, key or",
    ),
    ("GET", "/audit?action=key.create", None, 422, "action: * Did you mean 'key.created'?"),
    ("GET", "/runs/x/trace?format=jsn", None, 422, "format: * Did you mean 'json'?"),
    ("PUT", "/runs", {}, 405, "This resource has the methods GET, HEAD, POST."),
    ("GET", "/run", None, 404, "Did you mean '/runs'?"),
    ("POST", "/runs", '{"input": "x",\n "kind": }', 400, "Expecting value at line 2, column 10."),
    ("POST", "/runs", "[1]", 422, "The body must be a JSON object."),
]


def matches(detail: str, wanted: str) -> bool:
    """Return whether the parts of ``wanted``, which ``*`` separates, are in a text in order."""
    at = 0
    for part in wanted.split("*"):
        at = detail.find(part.strip(), at)
        if at < 0:
            return False
    return True


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "wanted"),
    [*(("POST", "/runs", body, 422, wanted) for body, wanted in RUNS), *OTHERS],
)
async def test_the_detail_names_the_error(
    client: httpx.AsyncClient, method: str, path: str, body: Any, status: int, wanted: str
) -> None:
    """A program that shows only the detail shows enough to correct the request."""
    if "clerk" in wanted:
        await client.post("/agents", json={"agent": AGENT})
    content = body if isinstance(body, str) or body is None else json.dumps(body)
    answer = await client.request(method, path, content=content, headers=JSON)

    assert answer.status_code == status, answer.text
    problem = answer.json()
    assert matches(problem["detail"], wanted), problem
    assert problem["type"] == f"urn:caseworker:problem:{problem['code']}"


async def test_a_published_documentation_gives_every_type_a_page(api: Api) -> None:
    """The code stays the same, so that clients do not depend on where the pages are."""
    limits = api_limits(docs_url="https://docs.example.com/")
    async with client_of(api.app(limits=limits)) as client:
        missing = (await client.get("/runs/none")).json()
        listed = (await client.get("/openapi.json")).json()["components"]["schemas"]["Problem"]

    assert missing["code"] == "run-not-found"
    assert missing["type"] == "https://docs.example.com/problems.html#run-not-found-404"
    assert missing["type"] in listed["properties"]["type"]["enum"]


async def test_a_suggestion_never_repeats_what_was_sent() -> None:
    """The result is a known name or empty."""
    assert suggestion("sk-live-51HxCANARY", ["small", "big"]) == ""
    assert suggestion("smal", ["small", "big"]) == " Did you mean 'small'?"
    assert suggestion("small" * 1000, ["small"]) == suggestion(5, ["small"]) == ""
